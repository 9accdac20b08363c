"""Environments with nested spaces, for tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

S = gym.spaces
F32 = np.float32


class NestedEnv(gym.Env):
    """Every part of an observation says which episode and step it is; actions are nested too.

    Keys of `env_config`:
        mask: which choices of the action's part `move` are allowed: "some" or "none" from step 3 on; by default no
            mask is there at all.
        length: steps of an episode.
    """

    def __init__(self, config: Any = ()) -> None:
        config = dict(config)
        self.masking, self.length = config.get("mask"), config.get("length", 5)
        parts: dict[str, gym.Space] = {
            "arm": S.Tuple([S.Box(-100, 100, (2,), F32), S.Discrete(50, start=1)]),
            "eye": S.Box(0, 255, (3, 2, 1), np.uint8),
        }
        self.action_space: gym.Space = S.Dict(
            {"move": S.Discrete(3, start=4), "push": S.Tuple([S.Box(-2, 1, (2,), F32), S.MultiBinary(2)])}
        )
        if self.masking:
            parts["action_mask"] = S.MultiBinary(3)
            self.action_space = S.Discrete(3, start=4)
        self.observation_space = S.Dict(parts)
        self.episode, self.t = -1, 1
        self.actions: list[Any] = []

    def _obs(self) -> dict[str, Any]:
        e, t = self.episode, self.t
        obs: dict[str, Any] = {
            "arm": (np.array([e, t], F32), np.int64(1 + t)),
            "eye": np.full((3, 2, 1), 10 * e + t, np.uint8),
        }
        if self.masking:
            obs["action_mask"] = np.array([t % 3 == 0, t % 3 != 0, t % 2 == 0], np.int8)
            if (self.masking == "none" and t == 3) or t == self.length:
                obs["action_mask"][:] = 0  # an ended episode allows nothing
        return obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if self.episode < 0 or self.t:
            self.episode += 1
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.action_space.contains(action), action
        if self.masking:
            assert self._obs()["action_mask"][int(action) - 4], "a masked action was taken"
        self.actions.append(action)
        self.t += 1
        # Even episodes are terminated, odd ones truncated.
        over = self.t == self.length
        return self._obs(), float(self.t), over and self.episode % 2 == 0, over and self.episode % 2 == 1, {}
