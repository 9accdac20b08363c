"""What CRR and IQL have in common: a policy that imitates what was logged, the more the better a critic finds it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from polylib.algorithms.critics import allowed_actions
from polylib.algorithms.options import ACTIVATIONS, Option, boolean, choice, number, sizes
from polylib.algorithms.replay_objective import StochasticObjective, huber
from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import actor_network, critic_network
from polylib.models.distributions import Categorical, DiagGaussian, Distribution
from polylib.models.networks import NetworkSpec
from polylib.models.spaces import mask_column
from polylib.policy.objective import Group, PolicySpec
from polylib.policy.ops import Array

REGRESSION_OPTIONS: tuple[Option, ...] = (
    Option("twin_q", "training", True, boolean(), "Two Q networks, of which the lower value counts."),
    Option("actor_hiddens", "training", [256, 256], sizes(), "Hidden layers of the policy."),
    Option("actor_hidden_activation", "training", "relu", choice(*ACTIVATIONS), "Their activation."),
    Option("critic_hiddens", "training", [256, 256], sizes(), "Hidden layers of the networks that judge."),
    Option("critic_hidden_activation", "training", "relu", choice(*ACTIVATIONS), "Their activation."),
    Option("actor_lr", "training", 3e-4, number(0), "Learning rate of the policy."),
    Option("critic_lr", "training", 3e-4, number(0), "Learning rate of the Q networks."),
)


class WeightedRegression(StochasticObjective):
    """A policy, Q networks and their targets; a subclass says what logged actions weigh, and writes `losses`.

    Box actions are normal, with means in [-1, 1] where the Box has bounds, and deviations that don't depend on the
    observation: logged actions often lie on the bounds, where squashed distributions have no density.
    """

    acting = ("policy",)
    #: In errors.
    named = ""

    def __init__(self, spec: PolicySpec) -> None:
        self.discrete = isinstance(spec.action_space, gym.spaces.Discrete)
        if not self.discrete and not isinstance(spec.action_space, gym.spaces.Box):
            raise ConfigError(
                f"{self.named} needs a Box or Discrete action space, not {spec.action_space}. For others use BC or "
                "MARWIL"
            )
        super().__init__(spec)
        self._qs = ("q1", "q2") if self.config["twin_q"] else ("q1",)
        self._mask = mask_column(spec.observation_space)

    def distribution(self) -> Distribution:
        """A normal one for Box, a categorical one for Discrete."""
        found = super().distribution()
        if not isinstance(found, DiagGaussian | Categorical):
            raise ConfigError(
                f"config key 'model.custom_action_dist': {self.named}'s losses are for the distributions that Box and "
                "Discrete have by default"
            )
        return found

    def critic_model(self) -> dict[str, Any]:
        """The keys of `model` for the networks that judge."""
        hiddens, activation = self.config["critic_hiddens"], self.config["critic_hidden_activation"]
        return {**self.config["model"], "fcnet_hiddens": hiddens, "fcnet_activation": activation}

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy`, and `q` with `target_q` that follows it."""
        config, space, dist = self.config, self.spec.observation_space, self.dist
        model = {
            **config["model"],
            "fcnet_hiddens": config["actor_hiddens"],
            "fcnet_activation": config["actor_hidden_activation"],
        }
        if isinstance(dist, DiagGaussian):
            bounded = "tanh" if dist.scaled.all() else None
            policy = actor_network("policy", space, dist.size, model, bounded, free=dist.size)
            q = critic_network("q", space, self.critic_model(), action_size=dist.size, twins=len(self._qs))
        else:
            size = dist.inputs_size
            policy = actor_network("policy", space, size, model)
            q = critic_network("q", space, self.critic_model(), num_values=size, twins=len(self._qs))
        return {"policy": policy, "q": q, "target_q": q.copy("target_q")}

    def groups(self) -> dict[str, Group]:
        """An optimizer each for the Q networks and the policy."""
        return {"critic": Group(("q",), "critic_lr"), "actor": Group(("policy",), "actor_lr")}

    def coefficients(self) -> dict[str, float]:
        """Learning rates, and what all with a replay buffer have."""
        return {
            "critic_lr": self.config["critic_lr"],
            "actor_lr": self.config["actor_lr"],
            **super().coefficients(),
        }

    # --- acting

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The policy's outputs, masked."""
        return self.dist.mask(ops, self.logits(nets["policy"], inputs), inputs.get("action_mask"))

    def logits(self, network: Any, inputs: Mapping[str, Array]) -> Array:
        """What a policy network says."""
        return network(inputs)["logits"]

    # --- learning

    def learning_inputs(self, ops: Any, network: Any, inputs: Mapping[str, Array]) -> Array:
        """A policy network's outputs for a batch's observations, masked by what these say: `[N, dist_inputs]`."""
        allowed = allowed_actions(ops, inputs, self._mask, self.dist.inputs_size)
        return self.dist.mask(ops, self.logits(network, inputs), allowed)

    def q_values(self, ops: Any, network: Any, inputs: Mapping[str, Array], units: Array | None = None) -> list[Array]:
        """What each Q network says: of actions in `units` `[N, 1]`, or of all discrete ones `[N, A]`.

        Args:
            ops: the backend's `Ops`.
            network: `q` or its target.
            inputs: the observations.
            units: Box actions as the policy's distribution counts them, `[N, k]`.
        """
        out = network(inputs if units is None else {**inputs, "action_units": units}, self._qs)
        return [out[name] for name in self._qs]

    def q_logged(self, ops: Any, network: Any, batch: Mapping[str, Array]) -> tuple[list[Array], list[Array]]:
        """`q_values` of the batch, and of these the values `[N]` of the logged actions."""
        if self.discrete:
            values = self.q_values(ops, network, batch)
            taken = batch["actions"] - int(self.spec.action_space.start)  # type: ignore[attr-defined]
            return values, [ops.pick(x, taken) for x in values]
        dist: Any = self.dist
        values = self.q_values(ops, network, batch, dist.to_raw(ops, batch["actions"]))
        return values, [x[:, 0] for x in values]

    def critic(
        self, ops: Any, batch: Mapping[str, Array], qs: Sequence[Array], next_value: Array, use_huber: bool = False
    ) -> tuple[Array, Array, dict[str, Array]]:
        """The Q networks' loss.

        Args:
            ops: the backend's `Ops`.
            batch: the rows.
            qs: what each network says of the logged actions, `[N]`.
            next_value: of the next states, `[N]`.
            use_huber: as the loss of a TD error, not half its square.

        Returns:
            The sum over networks, TD errors `[N]` without signs, and stats.
        """
        discounts = batch["discounts"] * (1.0 - ops.to_float(batch["terminateds"]))
        target = batch["rewards"] + discounts * ops.stop_gradient(next_value)
        weights = batch["weights"] if "weights" in batch else 1.0
        errors = [q - target for q in qs]
        each = [huber(ops, error) if use_huber else 0.5 * ops.square(error) for error in errors]
        loss = sum(ops.mean(weights * x) for x in each)
        td_error = sum(ops.abs(ops.stop_gradient(error)) for error in errors) / float(len(errors))
        q = ops.stop_gradient(qs[0])
        stats = {
            "critic_loss": loss,
            "mean_q": ops.mean(q),
            "max_q": ops.max(q),
            "min_q": ops.min(q),
            "mean_td_error": ops.mean(td_error),
        }
        return loss, td_error, stats

    def actor(
        self, ops: Any, dist_inputs: Array, batch: Mapping[str, Array], advantages: Array, weights: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The policy's loss, `-weight * log pi(a | s)` of the logged actions, and stats.

        Args:
            ops: the backend's `Ops`.
            dist_inputs: the policy's outputs, masked.
            batch: the rows.
            advantages: of the logged actions, `[N]`, constants.
            weights: what they weigh, `[N]`, constants.
        """
        logp = self.dist.logp(ops, dist_inputs, batch["actions"])
        loss = -ops.mean(weights * logp)
        stats = {
            "actor_loss": loss,
            "mean_advantage": ops.mean(advantages),
            "mean_weight": ops.mean(weights),
            "imitation_logp": ops.mean(ops.stop_gradient(logp)),
        }
        return loss, stats


def exponential_weights(ops: Any, exponents: Array, limit: float) -> Array:
    """`min(exp(x), limit)`, where `exp` doesn't overflow."""
    return ops.exp(ops.minimum(exponents, math.log(limit)))
