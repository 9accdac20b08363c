"""Environments and a policy of which a test knows beforehand what they do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from polylib.algorithms.ppo import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.models.filters import NoFilter
from polylib.policy.objective import PolicySpec
from polylib.policy.policy import ActionOutput

ANY_NUMBER = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class ScriptEnv(gym.Env):
    """Plays given episodes, one after another and over again.

    Keys of `env_config`:
        episodes: a list of episodes, each a list of observations, the true last one too. Or a list of such lists, one
            per sub-environment, with `per_env`.
        ends: "terminated" or "truncated" for each episode.
        rewards: as many as steps, for each episode; by default 1 each.
        reuse: hand out one observation buffer over and over, as a careless environment does.
        dtype: of observations and of the space.
        actions: the action space.
    """

    def __init__(self, config: Any = ()) -> None:
        config = dict(config)
        dtype = np.dtype(config.get("dtype", np.float32))
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), dtype)
        self.action_space = config.get("actions", gym.spaces.Discrete(2))
        self.episodes = config.get("episodes", [[0, 1, 2, 3]])
        self.ends = config.get("ends", ["terminated"] * len(self.episodes))
        self.rewards = config.get("rewards", [[1.0] * (len(e) - 1) for e in self.episodes])
        self.buffer = np.zeros(1, dtype) if config.get("reuse") else None
        self.dtype, self.episode, self.t = dtype, -1, 0
        self.actions: list[Any] = []  # what step() was given
        self.closed = False

    def _obs(self) -> np.ndarray:
        value = self.episodes[self.episode][self.t]
        if self.buffer is None:
            return np.array([value], self.dtype)
        self.buffer[:] = value
        return self.buffer

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        # Only an episode that was stepped counts as played: the check before the first step resets too.
        if self.episode < 0 or self.t:
            self.episode = (self.episode + 1) % len(self.episodes)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(action)
        reward = self.rewards[self.episode][self.t]
        self.t += 1
        over = self.t == len(self.episodes[self.episode]) - 1
        end = self.ends[self.episode]
        return self._obs(), reward, over and end == "terminated", over and end == "truncated", {}

    def close(self) -> None:
        self.closed = True


class RandomEpisodes(gym.Env):
    """Episodes of random length and end, the same for everybody who knows the place and the number of the episode.

    Observations are `[place, episode, t]`, rewards `100 * place + 10 * episode + t` of the step's start.
    """

    def __init__(self, config: Any = None, place: int | None = None) -> None:
        self.place = getattr(config, "vector_index", 0) if place is None else place
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(1000)
        self.episode, self.t = -1, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        if self.episode < 0 or self.t:
            self.episode += 1
        rng = np.random.default_rng([self.place, self.episode])
        self.length, self.truncates = int(rng.integers(1, 12)), bool(rng.random() < 0.5)
        self.t = 0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return np.array([self.place, self.episode, self.t], np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = 100 * self.place + 10 * self.episode + self.t
        self.t += 1
        over = self.t == self.length
        return self._obs(), float(reward), over and not self.truncates, over and self.truncates, {}


class BrokenEnv(gym.Env):
    """Goes wrong in one way.

    Keys of `env_config`:
        fault: raises in "reset", "step" or "close"; "nan reset", "nan obs", "nan last obs", "nan reward", "inf reward";
            "old reset", "old step" (Gym's API); "shape", "step shape", "outside", "dtype", "no space".
        at: in which step of an episode, from 1.
        worker: only on this worker.
    """

    def __init__(self, config: Any = ()) -> None:
        here = getattr(config, "worker_index", 0)
        config = dict(config)
        active = config.get("worker", here) == here
        self.fault, self.at = config.get("fault") if active else None, config.get("at", 3)
        self.observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
        self.action_space = None if self.fault == "no space" else gym.spaces.Discrete(2)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        if self.fault == "reset":
            raise ValueError("no level\nwas found")
        obs: Any = np.zeros(2, np.float32)
        if self.fault == "shape":
            obs = np.zeros(3, np.float32)
        if self.fault == "outside":
            obs = obs + 11
        if self.fault == "dtype":
            obs = np.array(["a", "b"])
        if self.fault == "nan reset":
            obs[1] = np.nan
        return obs if self.fault == "old reset" else (obs, {})

    def step(self, action: Any) -> Any:
        self.t += 1
        obs, reward, truncated = np.full(2, 0.1 * self.t, np.float32), 1.0, self.t == 8
        if self.t == self.at:
            if self.fault == "step":
                raise RuntimeError("the motor\nis on fire")
            if self.fault in ("nan obs", "nan last obs"):
                obs[1], truncated = np.nan, self.fault == "nan last obs"
            if self.fault in ("nan reward", "inf reward"):
                reward = float(self.fault.split()[0])
            if self.fault == "step shape":
                obs = np.zeros(3, np.float32)
            if self.fault == "old step":
                return obs, reward, truncated, {}
        return obs, reward, False, truncated, {}

    def close(self) -> None:
        if self.fault == "close":
            raise OSError("the window is gone")


class MatchEnv(gym.Env):
    """The reward is 1 if the action says what the observation said: learned in seconds.

    Keys of `env_config`:
        obs: "box" (one-hot) or "discrete".
        actions: "discrete", "multidiscrete" (the same choice twice) or "box" (within 0.5 of the choice less 1).
        length: steps of an episode.
    """

    CHOICES = 3

    def __init__(self, config: Any = ()) -> None:
        config = dict(config)
        n = self.CHOICES
        self.kind, self.length = config.get("actions", "discrete"), config.get("length", 10)
        self.one_hot = config.get("obs", "box") == "box"
        self.observation_space = (
            gym.spaces.Box(0.0, 1.0, (n,), np.float32) if self.one_hot else gym.spaces.Discrete(n, start=2)
        )
        self.action_space = {
            "discrete": gym.spaces.Discrete(n, start=5),
            "multidiscrete": gym.spaces.MultiDiscrete([n, n], start=[5, 7]),
            "box": gym.spaces.Box(-2.0, 2.0, (1,), np.float32),
        }[self.kind]

    def _draw(self) -> Any:
        self.choice = int(self.np_random.integers(self.CHOICES))
        return np.eye(self.CHOICES, dtype=np.float32)[self.choice] if self.one_hot else self.choice + 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), (action, self.action_space)
        if self.kind == "discrete":
            reward = float(action - 5 == self.choice)
        elif self.kind == "multidiscrete":
            reward = float(np.mean(action - [5, 7] == self.choice))
        else:
            reward = float(abs(action[0] - (self.choice - 1)) < 0.5)
        self.t += 1
        return self._draw(), reward, False, self.t == self.length, {}


class UsersVectorEnv(VectorEnv):
    """Somebody's own vector environment, in the autoreset mode asked for; shares no code with Gymnasium's.

    It hands out the same observation buffer again and again.

    Args:
        envs: what it steps.
        mode: how it resets.
        sloppy: a fault: "no final_obs", "final shape", "reward column", "reward on reset", "done on reset", "four",
            "float dones".
    """

    def __init__(self, envs: list[gym.Env], mode: AutoresetMode, sloppy: str = "") -> None:
        self.envs_, self.mode, self.sloppy = envs, mode, sloppy
        self.num_envs = len(envs)
        self.single_observation_space = envs[0].observation_space
        self.single_action_space = envs[0].action_space
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": mode}
        shape = (self.num_envs, *self.single_observation_space.shape)
        self.buffer = np.zeros(shape, self.single_observation_space.dtype)
        self.over = np.zeros(self.num_envs, bool)
        self.seeds: list[Any] = []

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.seeds.append(seed)
        mask = np.ones(self.num_envs, bool)
        if options and "reset_mask" in options:
            assert self.mode is AutoresetMode.DISABLED
            mask = options["reset_mask"]
            assert (mask == self.over).all()
        for i in np.flatnonzero(mask):
            self.buffer[i] = self.envs_[i].reset()[0]
        self.over[mask] = False
        return self.buffer, {}

    def step(self, actions: Any) -> Any:
        rewards = np.zeros(self.num_envs)
        ends = np.zeros((2, self.num_envs), bool)
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs_):
            if self.over[i]:
                assert self.mode is AutoresetMode.NEXT_STEP
                self.buffer[i] = env.reset()[0]
                rewards[i] = np.nan if self.sloppy == "reward on reset" else 0.0
                ends[0, i] = self.sloppy == "done on reset"
                continue
            self.buffer[i], rewards[i], *ends[:, i], _ = env.step(actions[i])
            if ends[:, i].any() and self.mode is AutoresetMode.SAME_STEP:
                finals = infos.setdefault("final_obs", np.zeros_like(self.buffer))
                finals[i] = self.buffer[i]
                self.buffer[i] = env.reset()[0]
        self.over = ends.any(0) & ~self.over
        if self.mode is AutoresetMode.SAME_STEP:
            self.over[:] = False
        if self.sloppy == "no final_obs":
            infos.pop("final_obs", None)
        if self.sloppy == "final shape" and "final_obs" in infos:
            infos["final_obs"] = np.zeros((self.num_envs, 9))
        if self.sloppy == "reward column":
            rewards = rewards[:, None]
        dones = ends.astype(np.float32) if self.sloppy == "float dones" else ends
        return (self.buffer, rewards, *dones, infos)[: 4 if self.sloppy == "four" else None]


class FakePolicy:
    """V(o) = the observation's last number; acts by `act(obs)`; looks at everything it gets, and counts calls.

    Args:
        spec: the spaces and PPO's config.
        act: actions `[N, ...]` of observations `[N, ...]`; by default all 0, in the space's units.
    """

    inputs = SimpleNamespace(previous=(), masked=False)
    filter = NoFilter()

    def __init__(self, spec: PolicySpec, act: Any = None) -> None:
        self.observation_space, self.action_space = spec.observation_space, spec.action_space
        self.spec, self.config = spec, spec.config
        self.objective = PPOObjective(spec)
        self.actions = act
        self.calls = {"act": 0, "values": 0}
        self.seen: list[np.ndarray] = []  # a copy of every batch of observations acted on
        self.held: list[np.ndarray] = []  # the arrays themselves
        self.rng = np.random.default_rng(0)

    def _check(self, obs: Any) -> np.ndarray:
        shape = self.observation_space.shape
        assert isinstance(obs, np.ndarray) and obs.shape[1:] == shape, (obs, shape)
        assert obs.dtype != np.float64
        return obs

    def get_initial_state(self) -> list[np.ndarray]:
        return []

    def act(self, inputs: dict[str, Any], explore: bool | None = None, extras: bool = True) -> ActionOutput:
        assert list(inputs) == ["obs"], list(inputs)
        obs = self._check(inputs["obs"])
        self.calls["act"] += 1
        self.seen.append(obs.copy())
        self.held.append(obs)
        n = len(obs)
        start = getattr(self.action_space, "start", 0)
        actions = np.full(n, start, np.int64) if self.actions is None else self.actions(obs)
        size = self.objective.dist.inputs_size
        return ActionOutput(
            actions, [], {"action_logp": np.zeros(n, np.float32), "action_dist_inputs": np.zeros((n, size), np.float32)}
        )

    def compute_values(self, obs: Any, state: Any = None, *previous: Any) -> np.ndarray:
        self.calls["values"] += 1
        return self._check(obs).reshape(len(obs), -1)[:, -1].astype(np.float32)

    def get_weights(self) -> dict[str, np.ndarray]:
        return {}

    def close(self) -> None:
        pass


def fake_spec(env: Any, **config: Any) -> PolicySpec:
    """The spec of a FakePolicy for a vector environment."""
    values = PPOConfig().update_from_dict(config).to_dict()
    return PolicySpec(env.single_observation_space, env.single_action_space, PPOObjective, values, 0)


def small_ppo(env: Any, mode: tuple[str, bool] = ("torch", False), **keys: Any) -> Any:
    """A PPOConfig that trains in a blink."""
    small = {
        "train_batch_size": 64,
        "sgd_minibatch_size": 32,
        "num_sgd_iter": 2,
        "model": {"fcnet_hiddens": [8]},
        "seed": 0,
    }
    config = NumpyPPOConfig() if mode[0] == "numpy" else PPOConfig().framework(mode[0], eager_tracing=mode[1])
    return config.environment(env).update_from_dict({**small, **keys})


class NumpyPPOConfig(PPOConfig):
    """PPO that only acts, without a framework: workers with it start in a second."""

    def resolve_framework(self) -> tuple[str, bool]:
        return "numpy", False


def namespace(**values: Any) -> SimpleNamespace:
    """An object with these attributes."""
    return SimpleNamespace(**values)
