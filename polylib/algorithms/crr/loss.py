"""CRR's objective (arXiv:2006.15134), written once over `ops`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polylib.algorithms.critics import lowest, repeated, repeated_obs
from polylib.algorithms.weighted_regression import WeightedRegression, exponential_weights
from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork
from polylib.models.networks import NetworkSpec
from polylib.policy.objective import PolicySpec, next_inputs
from polylib.policy.ops import Array


class CRRObjective(WeightedRegression):
    """A policy that imitates logged actions which its own critic finds better than what it would do itself."""

    named = "CRR"

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        if self.config["advantage_type"] == "expectation" and not self.discrete:
            raise ConfigError(
                "config key 'advantage_type': 'expectation' is a sum over discrete actions, and the action space is "
                f"{spec.action_space}; use 'mean' or 'max'"
            )

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy` and `q`, and `target_policy` and `target_q` that follow them."""
        found = super().networks()
        policy: Any = found["policy"]
        return {**found, "target_policy": policy.copy("target_policy")}

    def logits(self, network: Any, inputs: Mapping[str, Array]) -> Array:
        """A policy network's outputs, by temperature if they are of discrete actions."""
        found = super().logits(network, inputs)
        return found / self.config["categorical_distribution_temperature"] if self.discrete else found

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """For the actions that stand for the policy in advantages, and for its next action."""
        now = 0 if self.config["advantage_type"] == "expectation" else self.config["n_action_sample"]
        count = now + (0 if self.discrete else 1)
        if not count:
            return {}
        # All of a row's at a time, so that one large draw is as good as several small ones.
        drawn = self.dist.noise(rng, count * batch_size).reshape(batch_size, count, self.dist.noise_size)
        found = {"now": drawn[:, :now]} if now else {}
        return found if self.discrete else {**found, "next": drawn[:, now]}

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Critic: TD errors to `r + gamma^k min_i Q'_i(s', a')`, `a'` of the target policy; of discrete ones the mean.

        Actor: `-f(advantage) log pi(a | s)` with `f` as `weight_type` says.

        Source: arXiv:2006.15134, section 3 and algorithm 1.
        """
        config = self.config
        values, qs = self.q_logged(ops, nets["q"], batch)
        mse = config["td_error_loss_fn"] == "mse"
        next_value = ops.no_gradient(lambda: self._next_value(ops, nets, batch, noise))
        loss, td_error, stats = self.critic(ops, batch, qs, next_value, not mse)
        dist_inputs = self.learning_inputs(ops, nets["policy"], batch)
        advantages = ops.no_gradient(
            lambda: lowest(ops, qs) - self._baseline(ops, nets, batch, noise, dist_inputs, values)
        )
        if config["weight_type"] == "bin":
            weights = ops.to_float(advantages > 0)
        else:
            weights = exponential_weights(ops, advantages / config["temperature"], config["max_weight"])
        actor_loss, more = self.actor(ops, dist_inputs, batch, advantages, weights)
        return {"critic": loss, "actor": actor_loss}, {**stats, **more}, {"td_error": td_error}

    def _next_value(
        self, ops: Any, nets: Mapping[str, Any], batch: Mapping[str, Array], noise: Mapping[str, Array]
    ) -> Array:
        following = next_inputs(batch)
        dist_inputs = self.learning_inputs(ops, nets["target_policy"], following)
        if self.discrete:
            values = lowest(ops, self.q_values(ops, nets["target_q"], following))
            return ops.sum(ops.exp(ops.log_softmax(dist_inputs)) * values, 1)
        then = self._units(ops, dist_inputs, noise["next"])
        return lowest(ops, self.q_values(ops, nets["target_q"], following, then))[:, 0]

    def _baseline(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        dist_inputs: Array,
        values: Sequence[Array],
    ) -> Array:
        """What the policy itself would do is worth, `[N]`."""
        count, kind = self.config["n_action_sample"], self.config["advantage_type"]
        if kind == "expectation":
            return ops.sum(ops.exp(ops.log_softmax(dist_inputs)) * lowest(ops, values), 1)
        many = repeated(ops, dist_inputs, count)
        drawn = ops.reshape(noise["now"], (-1, self.dist.noise_size))
        if self.discrete:
            choices = ops.argmax(many + drawn)
            found = ops.pick(repeated(ops, lowest(ops, values), count), choices)
        else:
            obs, units = repeated_obs(ops, batch, count), self._units(ops, many, drawn)
            found = lowest(ops, self.q_values(ops, nets["q"], obs, units))
        sampled = ops.reshape(found, (-1, count))
        return ops.mean(sampled, 1) if kind == "mean" else ops.max(sampled, 1)

    def _units(self, ops: Any, dist_inputs: Array, noise: Array) -> Array:
        """A Box action of the policy as Q networks see it, within the bounds, `[N, k]`."""
        dist: Any = self.dist
        return dist.to_raw(ops, dist.sample(ops, dist_inputs, noise)[0])
