"""The objective of DDPG (arXiv:1509.02971) and TD3 (arXiv:1802.09477), written once over `ops`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.algorithms.critics import lowest
from polylib.algorithms.replay_objective import StochasticObjective, huber
from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import actor_network, critic_network
from polylib.models.distributions import Deterministic, Distribution
from polylib.models.networks import NetworkSpec
from polylib.policy.objective import Group, PolicySpec, frozen, next_inputs
from polylib.policy.ops import Array


class DDPGObjective(StochasticObjective):
    """A deterministic policy that climbs a Q function; with twins, delay and smoothing it is TD3."""

    acting = ("policy",)
    default_exploration = {"type": "OrnsteinUhlenbeckNoise"}

    def __init__(self, spec: PolicySpec) -> None:
        space = spec.action_space
        if not isinstance(space, gym.spaces.Box) or not np.isfinite([space.low, space.high]).all():
            raise ConfigError(
                f"DDPG and TD3 need a Box action space with finite bounds, not {space}. For discrete actions use DQN, "
                "for unbounded ones PPO"
            )
        super().__init__(spec)
        self._twins = 2 if self.config["twin_q"] else 1
        self._qs = tuple(f"q{i + 1}" for i in range(self._twins))

    def distribution(self) -> Distribution:
        """The action is what the network says."""
        return Deterministic(self.spec.action_space)  # type: ignore[arg-type]

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy` and `q`, and `target_policy` and `target_q` that follow them."""
        config, space, size = self.config, self.spec.observation_space, self.dist.inputs_size
        actor = {"fcnet_hiddens": config["actor_hiddens"], "fcnet_activation": config["actor_hidden_activation"]}
        critic = {"fcnet_hiddens": config["critic_hiddens"], "fcnet_activation": config["critic_hidden_activation"]}
        policy = actor_network("policy", space, size, {**config["model"], **actor}, "tanh")
        q = critic_network("q", space, {**config["model"], **critic}, action_size=size, twins=self._twins)
        return {"policy": policy, "q": q, "target_policy": policy.copy("target_policy"), "target_q": q.copy("target_q")}

    def groups(self) -> dict[str, Group]:
        """An optimizer each; the actor's waits for `due_actor`."""
        return {"critic": Group(("q",), "critic_lr"), "actor": Group(("policy",), "actor_lr", due="due_actor")}

    def coefficients(self) -> dict[str, float]:
        """Learning rates, whether the actor is due, and what all with a replay buffer have."""
        return {
            "critic_lr": self.config["critic_lr"],
            "actor_lr": self.config["actor_lr"],
            "due_actor": 1.0,
            **super().coefficients(),
        }

    # --- acting

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The action in [-1, 1]."""
        return nets["policy"](inputs)["logits"]

    # --- learning

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """For smoothed target actions."""
        if not self.config["smooth_target_policy"]:
            return {}
        return {"target": rng.standard_normal((batch_size, self.dist.inputs_size), dtype=np.float32)}

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Critic: half the squared TD error to `r + gamma^k min_i Q'_i(s', mu'(s') + clip(noise))`.

        Actor: `-Q_1(s, mu(s))`.

        Source: arXiv:1509.02971, algorithm 1; arXiv:1802.09477, eq. 14 and algorithm 1.
        """
        config, dist = self.config, self.dist
        following = next_inputs(batch)

        def targets() -> Array:
            then = nets["target_policy"](following)["logits"]
            if config["smooth_target_policy"]:
                limit = config["target_noise_clip"]
                then = ops.clip(then + ops.clip(config["target_noise"] * noise["target"], -limit, limit), -1.0, 1.0)
            values = lowest(ops, list(nets["target_q"]({**following, "action_units": then}, self._qs).values()))
            discounts = batch["discounts"] * (1.0 - ops.to_float(batch["terminateds"]))
            return batch["rewards"] + discounts * values[:, 0]

        target = ops.no_gradient(targets)
        done = dist.to_raw(ops, batch["actions"])  # type: ignore[attr-defined]
        out = nets["q"]({**batch, "action_units": done})
        errors = [out[name][:, 0] - target for name in self._qs]
        weights = batch["weights"] if "weights" in batch else 1.0
        critic_loss = sum(ops.mean(weights * self._error_loss(ops, error)) for error in errors)
        now = nets["policy"](batch)["logits"]
        actor_loss = -ops.mean(frozen(nets["q"])({**batch, "action_units": now}, ("q1",))["q1"])
        td_error = sum(ops.abs(error) for error in errors) / float(self._twins)
        q1 = ops.stop_gradient(out["q1"])
        stats = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "mean_q": ops.mean(q1),
            "max_q": ops.max(q1),
            "min_q": ops.min(q1),
            "mean_td_error": ops.mean(ops.stop_gradient(td_error)),
        }
        return {"critic": critic_loss, "actor": actor_loss}, stats, {"td_error": td_error}

    def _error_loss(self, ops: Any, error: Array) -> Array:
        if self.config["use_huber"]:
            return huber(ops, error, self.config["huber_threshold"])
        return 0.5 * ops.square(error)
