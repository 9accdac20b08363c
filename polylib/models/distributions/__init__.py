"""Action distributions over `ops`: one description per action space, used alike by every backend.

Actions are in the environment's units: `Discrete(3, start=5)` gives 5, 6 or 7, a Box action lies in its bounds, and
log-probabilities are densities in those units. Randomness comes in as `noise`, drawn on the host, so that all backends
with the same seed take the same actions; zero noise gives the deterministic action: the most likely one, or (Beta,
Dirichlet) the mean. Distributions that can't be sampled from noise are `on_host` and have `draw`.
"""

from polylib.models.distributions.base import MASKED_LOGIT, Distribution, OnHost
from polylib.models.distributions.bernoulli import Bernoulli
from polylib.models.distributions.beta import Beta
from polylib.models.distributions.bound import BoundDistribution
from polylib.models.distributions.categorical import Categorical, MultiCategorical
from polylib.models.distributions.deterministic import Deterministic
from polylib.models.distributions.dirichlet import Dirichlet
from polylib.models.distributions.framework import FrameworkDistribution, framework_distribution
from polylib.models.distributions.gaussian import LOG_STD_RANGE, DiagGaussian, SquashedGaussian
from polylib.models.distributions.make import make_distribution
from polylib.models.distributions.product import Product

__all__ = [
    "LOG_STD_RANGE",
    "MASKED_LOGIT",
    "Bernoulli",
    "Beta",
    "BoundDistribution",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Dirichlet",
    "Distribution",
    "FrameworkDistribution",
    "MultiCategorical",
    "OnHost",
    "Product",
    "SquashedGaussian",
    "framework_distribution",
    "make_distribution",
]
