"""SAC's objective (arXiv:1812.05905; for discrete actions arXiv:1910.07207), written once over `ops`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.algorithms.critics import allowed_actions, lowest
from polylib.algorithms.replay_objective import StochasticObjective
from polylib.algorithms.sac.config import MODEL, RATES
from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import actor_network, critic_network, variable_network
from polylib.models.distributions import Distribution, SquashedGaussian, make_distribution
from polylib.models.networks import NetworkSpec
from polylib.models.spaces import mask_column
from polylib.policy.objective import Group, PolicySpec, frozen, next_inputs
from polylib.policy.ops import Array


@dataclass(frozen=True)
class Parts:
    """What the losses are made of; an item per row `[N]` where nothing else is said.

    Attributes:
        dist_inputs: the policy's outputs, masked, `[N, dist_inputs]`.
        next_dist_inputs: the same of the next state.
        next_q: the lower of the target networks' values of the policy's next action.
        next_entropy: the policy's in the next state.
        outputs: what each Q network says: of what was done `[N, 1]`, or of every discrete action `[N, A]`.
        qs: what each says of what was done.
        now_q: the lower value of the policy's action now, with a gradient to the policy.
        entropy: the policy's now, likewise.
    """

    dist_inputs: Array
    next_dist_inputs: Array
    next_q: Array
    next_entropy: Array
    outputs: list[Array]
    qs: list[Array]
    now_q: Array
    entropy: Array


class SACObjective(StochasticObjective):
    """SAC: a stochastic policy that maximises return and entropy, one or two Q functions, and the entropy's weight."""

    acting = ("policy",)
    #: In errors: its name, and what takes the action spaces that it doesn't.
    named, others = "SAC", "PPO"

    def __init__(self, spec: PolicySpec) -> None:
        self.discrete = isinstance(spec.action_space, gym.spaces.Discrete)
        if not self.discrete and not isinstance(spec.action_space, gym.spaces.Box):
            raise ConfigError(
                f"{self.named} needs a Box or Discrete action space, not {spec.action_space}. For other discrete "
                f"actions use {self.others}"
            )
        if isinstance(spec.action_space, gym.spaces.Box) and not spec.action_space.is_bounded():
            raise ConfigError(
                f"{self.named} squashes actions into the bounds of their space, and {spec.action_space} lacks some. "
                f"For unbounded actions use {self.others}"
            )
        super().__init__(spec)
        config = self.config
        self._rates = {**RATES, **config["optimization"]}
        self._twins = 2 if config["twin_q"] else 1
        self._qs = tuple(f"q{i + 1}" for i in range(self._twins))
        self._mask = mask_column(spec.observation_space)
        if config["target_entropy"] != "auto":
            self.target_entropy = float(config["target_entropy"])
        elif self.discrete:
            self.target_entropy = 0.98 * math.log(self.dist.inputs_size)
        else:
            self.target_entropy = -float(self.dist.size)  # type: ignore[attr-defined]

    def distribution(self) -> Distribution:
        """The squashed Gaussian of a Box, unless `custom_action_dist` says otherwise."""
        space = self.spec.action_space
        if self.config["model"].get("custom_action_dist") is None and isinstance(space, gym.spaces.Box):
            return make_distribution(space, custom="SquashedGaussian")
        found = super().distribution()
        if isinstance(space, gym.spaces.Box) and not isinstance(found, SquashedGaussian):
            raise ConfigError(
                f"config key 'model.custom_action_dist': {self.named}'s losses are for SquashedGaussian"
            )
        return found

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy`, `q` and `target_q` that follows it, and `alpha`, the logarithm of the entropy's weight."""
        config, space = self.config, self.spec.observation_space
        policy_model = {**config["model"], **MODEL, **config["policy_model_config"]}
        size = self.dist.inputs_size
        q = critic_network(
            "q",
            space,
            {**config["model"], **MODEL, **config["q_model_config"]},
            action_size=0 if self.discrete else self.dist.size,  # type: ignore[attr-defined]
            num_values=size if self.discrete else 1,
            twins=self._twins,
        )
        return {
            "policy": actor_network("policy", space, size, policy_model),
            "q": q,
            "target_q": q.copy("target_q"),
            "alpha": variable_network("alpha", 1, math.log(config["initial_alpha"])),
        }

    def groups(self) -> dict[str, Group]:
        """An optimizer each for critic, actor and the entropy's weight."""
        return {
            "critic": Group(("q",), "critic_lr"),
            "actor": Group(("policy",), "actor_lr"),
            "alpha": Group(("alpha",), "alpha_lr"),
        }

    def coefficients(self) -> dict[str, float]:
        """Learning rates, and what all with a replay buffer have."""
        rates = self._rates
        return {
            "critic_lr": rates["critic_learning_rate"],
            "actor_lr": rates["actor_learning_rate"],
            "alpha_lr": rates["entropy_learning_rate"],
            **super().coefficients(),
        }

    # --- acting

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The policy's outputs, masked."""
        return self.dist.mask(ops, nets["policy"](inputs)["logits"], inputs.get("action_mask"))

    # --- learning

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """For the actions that the losses draw, now and in the next state."""
        if self.discrete:
            return {}
        # All of a row's at a time, so that one large draw is as good as several small ones.
        drawn = self.dist.noise(rng, 2 * batch_size).reshape(batch_size, 2, self.dist.noise_size)
        return {name: drawn[:, i] for i, name in enumerate(("now", "next"))}

    def _lowest(self, ops: Any, out: Mapping[str, Array]) -> Array:
        return lowest(ops, [out[name] for name in self._qs])

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Critic: eq. 5 and 6 of arXiv:1812.05905; actor: eq. 7; alpha: eq. 18, with log alpha in alpha's place.

        For discrete actions the expectations over actions are sums (arXiv:1910.07207, eq. 10 to 12).
        """
        parts = self.parts(ops, nets, batch, noise)
        return self.combined(ops, nets, batch, parts, parts.now_q)

    def parts(
        self, ops: Any, nets: Mapping[str, Any], batch: Mapping[str, Array], noise: Mapping[str, Array]
    ) -> Parts:
        """What the networks say of a batch."""
        return (self._discrete if self.discrete else self._continuous)(ops, nets, batch, next_inputs(batch), noise)

    def combined(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        parts: Parts,
        goal: Array,
        soft: bool = True,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """The losses from their parts.

        Args:
            ops: the backend's `Ops`.
            nets: networks by name.
            batch: the rows.
            parts: of the same rows.
            goal: what the actor raises, beside its entropy, `[N]`.
            soft: targets count the next state's entropy.
        """
        log_alpha = ops.mean(nets["alpha"](batch)["value"])
        alpha = ops.stop_gradient(ops.exp(log_alpha))
        next_value = parts.next_q + alpha * parts.next_entropy if soft else parts.next_q
        discounts = batch["discounts"] * (1.0 - ops.to_float(batch["terminateds"]))
        target = ops.stop_gradient(batch["rewards"] + discounts * next_value)
        weights = batch["weights"] if "weights" in batch else 1.0
        errors = [q - target for q in parts.qs]
        critic_loss = sum(ops.mean(weights * 0.5 * ops.square(error)) for error in errors)
        actor_loss = -ops.mean(alpha * parts.entropy + goal)
        entropy = ops.mean(parts.entropy)
        alpha_loss = log_alpha * ops.stop_gradient(entropy - self.target_entropy)
        td_error = sum(ops.abs(error) for error in errors) / float(self._twins)
        q = ops.stop_gradient(parts.qs[0])
        stats = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "alpha_loss": alpha_loss,
            "alpha_value": ops.exp(log_alpha),
            "policy_entropy": entropy,
            "target_entropy": 0.0 * log_alpha + self.target_entropy,
            "mean_q": ops.mean(q),
            "max_q": ops.max(q),
            "min_q": ops.min(q),
            "mean_td_error": ops.mean(ops.stop_gradient(td_error)),
        }
        losses = {"critic": critic_loss, "actor": actor_loss, "alpha": alpha_loss}
        return losses, stats, {"td_error": td_error}

    def drawn(self, ops: Any, dist_inputs: Array, noise: Array) -> tuple[Array, Array]:
        """An action in [-1, 1] `[N, k]` from the policy's outputs, and the log of its density there `[N]`."""
        dist: Any = self.dist
        actions, raw = dist.sample(ops, dist_inputs, noise)
        # In units of [-1, 1], so that target_entropy doesn't depend on the environment's.
        return ops.tanh(raw), dist.logp(ops, dist_inputs, actions, raw) + dist.log_scale

    def _continuous(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        following: Mapping[str, Array],
        noise: Mapping[str, Array],
    ) -> Parts:
        dist: Any = self.dist

        def ahead() -> tuple[Array, Array, Array]:
            dist_inputs = self.dist_inputs(ops, nets, following)
            action, logp = self.drawn(ops, dist_inputs, noise["next"])
            q = self._lowest(ops, nets["target_q"]({**following, "action_units": action}))[:, 0]
            return dist_inputs, q, -logp

        then_inputs, next_q, next_entropy = ops.no_gradient(ahead)
        done = dist.to_raw(ops, batch["actions"])
        out = nets["q"]({**batch, "action_units": done})
        now_inputs = self.dist_inputs(ops, nets, batch)
        now, now_logp = self.drawn(ops, now_inputs, noise["now"])
        now_q = self._lowest(ops, frozen(nets["q"])({**batch, "action_units": now}))[:, 0]
        outputs = [out[name] for name in self._qs]
        qs = [x[:, 0] for x in outputs]
        return Parts(now_inputs, then_inputs, next_q, next_entropy, outputs, qs, now_q, -now_logp)

    def _discrete(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        following: Mapping[str, Array],
        noise: Mapping[str, Array],
    ) -> Parts:
        def policy(inputs: Mapping[str, Array]) -> tuple[Array, Array, Array]:
            logits = self.dist.mask(ops, nets["policy"](inputs)["logits"], self.allowed(ops, inputs))
            logp = ops.log_softmax(ops.maximum(logits, -1e9))
            return logits, ops.exp(logp), logp

        def ahead() -> tuple[Array, Array, Array]:
            logits, p, logp = policy(following)
            q = self._lowest(ops, nets["target_q"](following))
            return logits, ops.sum(p * q, 1), -ops.sum(p * logp, 1)

        then_logits, next_q, next_entropy = ops.no_gradient(ahead)
        out = nets["q"](batch)
        taken = batch["actions"] - int(self.spec.action_space.start)  # type: ignore[attr-defined]
        now_logits, now_p, now_logp = policy(batch)
        now_q = ops.sum(now_p * ops.stop_gradient(self._lowest(ops, out)), 1)
        outputs = [out[name] for name in self._qs]
        qs = [ops.pick(x, taken) for x in outputs]
        entropy = -ops.sum(now_p * now_logp, 1)
        return Parts(now_logits, then_logits, next_q, next_entropy, outputs, qs, now_q, entropy)

    def allowed(self, ops: Any, inputs: Mapping[str, Array]) -> Array | None:
        """Which discrete actions the mask in the observations allows, `[N, A] bool`; None where there is none."""
        return allowed_actions(ops, inputs, self._mask, self.dist.inputs_size)
