"""InTurn: environments of a worker's own, stepped one after another and never reset by themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class InTurn(SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv` as polylib uses it, with a step that does only what that use needs.

    For observations and actions that are single arrays, `step` writes each observation straight into its row of the
    batch. That batch is handed out without copying it, since samplers copy what they keep. Nested spaces go through
    Gymnasium's own step.

    Attributes:
        plain: whether neither space is nested; what `step` returns has the right shapes and dtypes then.

    Args:
        makers: functions that return the environments.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        spaces = gym.spaces
        plain = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        self.plain = isinstance(self.single_observation_space, plain) and isinstance(self.single_action_space, plain)
        self._shape = tuple(self.single_observation_space.shape or ()) if self.plain else ()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps each environment with its action `[N, ...]`; as `SyncVectorEnv.step`."""
        if not self.plain:
            return super().step(actions)
        infos: dict[str, Any] = {}
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        for i, env in enumerate(self.envs):
            obs, rewards[i], terminations[i], truncations[i], info = env.step(actions[i])
            self._put(i, obs)
            if info:
                infos = self._add_info(infos, info, i)
        return self._observations, rewards.copy(), terminations.copy(), truncations.copy(), infos

    def _put(self, i: int, obs: Any) -> None:
        array = np.asarray(obs)
        if array.shape != self._shape:  # assigning would repeat a smaller one
            raise ValueError(f"an observation of shape {list(array.shape)}, expected {list(self._shape)}")
        self._env_obs[i] = obs
        np.copyto(self._observations[i : i + 1], array)
