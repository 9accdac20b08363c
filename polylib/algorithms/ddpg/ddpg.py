"""DDPG and TD3: act, replay, learn."""

from __future__ import annotations

from polylib.algorithms.ddpg.config import DDPGConfig, TD3Config
from polylib.algorithms.ddpg.loss import DDPGObjective
from polylib.algorithms.off_policy import OffPolicyAlgorithm
from polylib.policy.policy import Policy


class DDPG(OffPolicyAlgorithm):
    """Deep deterministic policy gradient, arXiv:1509.02971."""

    config_class = DDPGConfig
    objective_class = DDPGObjective

    def _before_update(self, policy: Policy) -> None:
        """Every `policy_delay`th update moves the actor, and with it the targets."""
        delay = self.config["policy_delay"]
        if delay == 1:
            return
        due = float((policy.num_updates + 1) % delay == 0)
        policy.set_coefficients(due_actor=due)
        if "tau" in policy.coefficients:
            policy.set_coefficients(tau=due * self.config["tau"])


class TD3(DDPG):
    """Twin delayed DDPG, arXiv:1802.09477."""

    config_class = TD3Config
