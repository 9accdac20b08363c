"""The objective of DDPG (arXiv:1509.02971) and TD3 (arXiv:1802.09477), written once over `ops`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError
from polylib.evaluation.replayed import replayed_rows
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import actor_network, critic_network
from polylib.models.distributions import Deterministic, Distribution
from polylib.models.networks import NetworkSpec
from polylib.policy.exploration import Exploration, make_exploration
from polylib.policy.fragment import Fragment
from polylib.policy.objective import Group, Objective, PolicySpec, next_inputs
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


class DDPGObjective(Objective):
    """A deterministic policy that climbs a Q function; with twins, delay and smoothing it is TD3."""

    columns = ("obs", "new_obs", "actions", "rewards", "terminateds", "discounts")
    optional_columns = ("weights",)
    acting = ("policy",)
    updates_often = True
    needs_values = False
    default_exploration = {"type": "OrnsteinUhlenbeckNoise"}
    exploration: Exploration

    def __init__(self, spec: PolicySpec) -> None:
        space = spec.action_space
        if not isinstance(space, gym.spaces.Box) or not np.isfinite([space.low, space.high]).all():
            raise ConfigError(
                f"DDPG and TD3 need a Box action space with finite bounds, not {space}. For discrete actions use DQN, "
                "for unbounded ones PPO"
            )
        super().__init__(spec)
        config = self.config
        self.exploration = make_exploration(
            config["exploration_config"], space, self.dist, (spec.stream, config.get("num_workers", 0))
        )
        self._twins = 2 if config["twin_q"] else 1
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
        """Learning rates, clipping, `tau`, whether the actor is due, and what exploration changes with time."""
        config = self.config
        clip = config["grad_clip"]
        found = {
            "critic_lr": config["critic_lr"],
            "actor_lr": config["actor_lr"],
            "due_actor": 1.0,
            "grad_clip": math.inf if clip is None else clip,
            **self.exploration.coefficients(0),
        }
        # With a frequency the algorithm moves the targets, else updates do.
        return found if config["target_network_update_freq"] else {**found, "tau": config["tau"]}

    def scheduled(self, timestep: int) -> dict[str, float]:
        """Exploration at `timestep`."""
        return self.exploration.coefficients(timestep)

    # --- acting

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The action in [-1, 1]."""
        return nets["policy"](inputs)["logits"]

    def act_noise(self, rng: np.random.Generator, batch_size: int, explore: bool) -> np.ndarray:
        """The exploration's."""
        return self.exploration.noise(rng, batch_size, explore)

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The policy's action, and what exploration makes of it."""
        dist_inputs = self.dist_inputs(ops, nets, inputs)
        actions, _ = self.exploration.actions(ops, dist_inputs, noise, c)
        return {"actions": actions, "action_logp": dist_inputs[:, 0] * 0.0, "action_dist_inputs": dist_inputs}

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
        then = nets["target_policy"](following)["logits"]
        if config["smooth_target_policy"]:
            limit = config["target_noise_clip"]
            then = ops.clip(then + ops.clip(config["target_noise"] * noise["target"], -limit, limit), -1.0, 1.0)
        out = nets["target_q"]({**following, "action_units": then})
        lowest = out["q1"] if self._twins == 1 else ops.minimum(out["q1"], out["q2"])
        discounts = batch["discounts"] * (1.0 - ops.to_float(batch["terminateds"]))
        target = ops.stop_gradient(batch["rewards"] + discounts * lowest[:, 0])
        done = dist.to_raw(ops, batch["actions"])  # type: ignore[attr-defined]
        out = nets["q"]({**batch, "action_units": done})
        errors = [out[name][:, 0] - target for name in self._qs]
        weights = batch["weights"] if "weights" in batch else 1.0
        critic_loss = sum(ops.mean(weights * self._error_loss(ops, error)) for error in errors)
        now = nets["policy"](batch)["logits"]
        actor_loss = -ops.mean(nets["q"]({**batch, "action_units": now}, ("q1",))["q1"])
        td_error = sum(ops.abs(error) for error in errors) / float(self._twins)
        stats = {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "mean_q": ops.mean(out["q1"]),
            "max_q": ops.max(out["q1"]),
            "min_q": -ops.max(-out["q1"]),
            "mean_td_error": ops.mean(td_error),
        }
        return {"critic": critic_loss, "actor": actor_loss}, stats, {"td_error": td_error}

    def _error_loss(self, ops: Any, error: Array) -> Array:
        if not self.config["use_huber"]:
            return 0.5 * ops.square(error)
        threshold = self.config["huber_threshold"]
        size = ops.abs(error)
        small = ops.minimum(size, threshold)
        return 0.5 * ops.square(small) + threshold * (size - small)

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Folds `n_step` rewards into each row; `discounts` are each row's own `gamma^k`."""
        return replayed_rows(fragment, self.config["gamma"], self.config["n_step"])
