"""CRR: read, replay, learn."""

from __future__ import annotations

from polylib.algorithms.crr.config import CRRConfig
from polylib.algorithms.crr.loss import CRRObjective
from polylib.algorithms.off_policy import OffPolicyAlgorithm
from polylib.policy.policy import Policy


class CRR(OffPolicyAlgorithm):
    """Critic regularized regression, arXiv:2006.15134."""

    config_class = CRRConfig
    objective_class = CRRObjective

    def _before_update(self, policy: Policy) -> None:
        """Every so many updates the targets move."""
        due = (policy.num_updates + 1) % self.config["target_update_grad_intervals"] == 0
        policy.set_coefficients(tau=self.config["tau"] if due else 0.0)
