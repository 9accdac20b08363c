"""CQL: read, replay, learn."""

from __future__ import annotations

from polylib.algorithms.cql.config import CQLConfig
from polylib.algorithms.cql.loss import CQLObjective
from polylib.algorithms.off_policy import OffPolicyAlgorithm
from polylib.policy.policy import Policy


class CQL(OffPolicyAlgorithm):
    """Conservative Q-learning, arXiv:2006.04779."""

    config_class = CQLConfig
    objective_class = CQLObjective

    def _before_update(self, policy: Policy) -> None:
        """The policy imitates in the first `bc_iters` updates."""
        policy.set_coefficients(bc=float(policy.num_updates < self.config["bc_iters"]))
