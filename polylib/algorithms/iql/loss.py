"""IQL's objective (arXiv:2110.06169), written once over `ops`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polylib.algorithms.critics import lowest
from polylib.algorithms.weighted_regression import WeightedRegression, exponential_weights
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import critic_network
from polylib.models.networks import NetworkSpec
from polylib.policy.objective import Group, next_inputs
from polylib.policy.ops import Array


class IQLObjective(WeightedRegression):
    """Values that lie high among those of logged actions, and a policy that imitates what is above them.

    No loss asks what an action is worth that nobody took.
    """

    named = "IQL"

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy`, `q`, `target_q` that follows it, and `value`."""
        value = critic_network("value", self.spec.observation_space, self.critic_model())
        return {**super().networks(), "value": value}

    def groups(self) -> dict[str, Group]:
        """An optimizer each."""
        return {**super().groups(), "value": Group(("value",), "value_lr")}

    def coefficients(self) -> dict[str, float]:
        """Learning rates, and what all with a replay buffer have."""
        return {"value_lr": self.config["value_lr"], **super().coefficients()}

    def values(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The value network's."""
        return nets["value"](inputs)["q1"][:, 0]

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """With the advantage `u = min_i Q'_i(s, a) - V(s)` of logged actions, `Q'` being the target networks:

        Value: `|expectile - (u < 0)| u^2` (eq. 5 of arXiv:2110.06169). Critic: half the squared error to `r + gamma^k
        V(s')` (eq. 6). Actor: `-min(exp(beta u), max_weight) log pi(a | s)` (eq. 7).
        """
        expectile = self.config["expectile"]
        value = self.values(ops, nets, batch)
        judged = ops.no_gradient(lambda: lowest(ops, self.q_logged(ops, nets["target_q"], batch)[1]))
        advantages = ops.stop_gradient(judged - value)
        asymmetry = expectile + ops.to_float(advantages < 0) * (1.0 - 2.0 * expectile)
        weights = batch["weights"] if "weights" in batch else 1.0
        value_loss = ops.mean(weights * asymmetry * ops.square(judged - value))
        _, qs = self.q_logged(ops, nets["q"], batch)
        following = ops.no_gradient(lambda: self.values(ops, nets, next_inputs(batch)))
        critic_loss, td_error, stats = self.critic(ops, batch, qs, following)
        imitated = exponential_weights(ops, self.config["beta"] * advantages, self.config["max_weight"])
        dist_inputs = self.learning_inputs(ops, nets["policy"], batch)
        actor_loss, more = self.actor(ops, dist_inputs, batch, advantages, imitated)
        losses = {"critic": critic_loss, "actor": actor_loss, "value": value_loss}
        found = {"value_loss": value_loss, "mean_value": ops.mean(ops.stop_gradient(value))}
        return losses, {**stats, **more, **found}, {"td_error": td_error}
