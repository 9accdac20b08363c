"""SAC: act, replay, learn."""

from __future__ import annotations

from polylib.algorithms.off_policy import OffPolicyAlgorithm
from polylib.algorithms.sac.config import SACConfig
from polylib.algorithms.sac.loss import SACObjective


class SAC(OffPolicyAlgorithm):
    """Soft actor-critic, arXiv:1812.05905."""

    config_class = SACConfig
    objective_class = SACObjective
