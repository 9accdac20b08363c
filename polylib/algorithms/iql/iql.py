"""IQL: read, replay, learn."""

from __future__ import annotations

from polylib.algorithms.iql.config import IQLConfig
from polylib.algorithms.iql.loss import IQLObjective
from polylib.algorithms.off_policy import OffPolicyAlgorithm


class IQL(OffPolicyAlgorithm):
    """Implicit Q-learning, arXiv:2110.06169."""

    config_class = IQLConfig
    objective_class = IQLObjective
