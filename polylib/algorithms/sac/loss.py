"""SAC's objective (arXiv:1812.05905; for discrete actions arXiv:1910.07207), written once over `ops`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.algorithms.replay_objective import ReplayObjective
from polylib.algorithms.sac.config import MODEL, RATES
from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import actor_network, critic_network, variable_network
from polylib.models.distributions import Distribution, SquashedGaussian, make_distribution
from polylib.models.networks import NetworkSpec
from polylib.models.spaces import mask_column
from polylib.policy.objective import Group, PolicySpec, next_inputs
from polylib.policy.ops import Array


class SACObjective(ReplayObjective):
    """SAC: a stochastic policy that maximises return and entropy, one or two Q functions, and the entropy's weight."""

    acting = ("policy",)

    def __init__(self, spec: PolicySpec) -> None:
        self.discrete = isinstance(spec.action_space, gym.spaces.Discrete)
        if not self.discrete and not isinstance(spec.action_space, gym.spaces.Box):
            raise ConfigError(
                f"SAC needs a Box or Discrete action space, not {spec.action_space}. For other discrete actions use PPO"
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
            raise ConfigError("config key 'model.custom_action_dist': SAC's losses are for SquashedGaussian")
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

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Samples from the policy's distribution."""
        dist_inputs = self.dist_inputs(ops, nets, inputs)
        actions, raw = self.exploration.actions(ops, dist_inputs, noise, c)
        logp = self.dist.logp(ops, dist_inputs, actions, None if self.exploration.random else raw)
        return {"actions": actions, "action_logp": logp, "action_dist_inputs": dist_inputs}

    # --- learning

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """For the actions that the losses draw, now and in the next state."""
        if self.discrete:
            return {}
        # All of a row's at a time, so that one large draw is as good as several small ones.
        drawn = self.dist.noise(rng, 2 * batch_size).reshape(batch_size, 2, self.dist.noise_size)
        return {name: drawn[:, i] for i, name in enumerate(("now", "next"))}

    def _drawn(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array
    ) -> tuple[Array, Array]:
        """An action in [-1, 1] `[N, k]` of the current policy, and the log of its density there `[N]`."""
        dist: Any = self.dist
        outputs = self.dist_inputs(ops, nets, inputs)
        actions, raw = dist.sample(ops, outputs, noise)
        # In units of [-1, 1], so that target_entropy doesn't depend on the environment's.
        return ops.tanh(raw), dist.logp(ops, outputs, actions, raw) + dist.log_scale

    def _lowest(self, ops: Any, out: Mapping[str, Array]) -> Array:
        first = out["q1"]
        return first if self._twins == 1 else ops.minimum(first, out["q2"])

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
        log_alpha = ops.mean(nets["alpha"](batch)["value"])
        alpha = ops.stop_gradient(ops.exp(log_alpha))
        following = next_inputs(batch)
        discounts = batch["discounts"] * (1.0 - ops.to_float(batch["terminateds"]))
        parts = self._discrete if self.discrete else self._continuous
        next_value, qs, actor_loss, entropy = parts(ops, nets, batch, following, noise, alpha)
        target = ops.stop_gradient(batch["rewards"] + discounts * next_value)
        weights = batch["weights"] if "weights" in batch else 1.0
        errors = [q - target for q in qs]
        critic_loss = sum(ops.mean(weights * 0.5 * ops.square(error)) for error in errors)
        alpha_loss = log_alpha * ops.stop_gradient(ops.mean(entropy) - self.target_entropy)
        td_error = sum(ops.abs(error) for error in errors) / float(self._twins)
        stats = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "alpha_loss": alpha_loss,
            "alpha_value": ops.exp(log_alpha),
            "policy_entropy": ops.mean(entropy),
            "target_entropy": 0.0 * log_alpha + self.target_entropy,
            "mean_q": ops.mean(qs[0]),
            "max_q": ops.max(qs[0]),
            "min_q": -ops.max(-qs[0]),
            "mean_td_error": ops.mean(td_error),
        }
        losses = {"critic": critic_loss, "actor": actor_loss, "alpha": alpha_loss}
        return losses, stats, {"td_error": td_error}

    def _continuous(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        following: Mapping[str, Array],
        noise: Mapping[str, Array],
        alpha: Array,
    ) -> tuple[Array, list[Array], Array, Array]:
        """The next state's value, Q of what was done, the actor's loss, and the policy's entropy per row."""
        dist: Any = self.dist
        then, then_logp = self._drawn(ops, nets, following, noise["next"])
        target_q = self._lowest(ops, nets["target_q"]({**following, "action_units": then}))[:, 0]
        done = dist.to_raw(ops, batch["actions"])
        out = nets["q"]({**batch, "action_units": done})
        now, now_logp = self._drawn(ops, nets, batch, noise["now"])
        now_q = self._lowest(ops, nets["q"]({**batch, "action_units": now}))[:, 0]
        actor_loss = ops.mean(alpha * now_logp - now_q)
        return target_q - alpha * then_logp, [out[name][:, 0] for name in self._qs], actor_loss, -now_logp

    def _discrete(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        following: Mapping[str, Array],
        noise: Mapping[str, Array],
        alpha: Array,
    ) -> tuple[Array, list[Array], Array, Array]:
        """The same for discrete actions."""

        def policy(inputs: Mapping[str, Array]) -> tuple[Array, Array]:
            mask = None
            if self._mask is not None:
                # `!=` compares identities in a TF1 graph.
                mask = ops.to_float(ops.reshape(inputs[self._mask], (-1, self.dist.inputs_size))) > 0
            logits = self.dist.mask(ops, nets["policy"](inputs)["logits"], mask)
            logp = ops.log_softmax(ops.maximum(logits, -1e9))
            return ops.exp(logp), logp

        then_p, then_logp = policy(following)
        target_q = self._lowest(ops, nets["target_q"](following))
        next_value = ops.sum(then_p * (target_q - alpha * then_logp), 1)
        out = nets["q"](batch)
        taken = batch["actions"] - int(self.spec.action_space.start)  # type: ignore[attr-defined]
        now_p, now_logp = policy(batch)
        now_q = ops.stop_gradient(self._lowest(ops, out))
        actor_loss = ops.mean(ops.sum(now_p * (alpha * now_logp - now_q), 1))
        entropy = -ops.sum(now_p * now_logp, 1)
        return next_value, [ops.pick(out[name], taken) for name in self._qs], actor_loss, entropy
