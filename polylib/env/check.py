"""Checks of what an environment returns, with messages that name the space and the value that don't fit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from polylib.errors import EnvError


def check_env(env: gym.Env[Any, Any], name: str, seed: int | None, worker_index: int = 0) -> None:
    """Resets `env` once and checks its spaces and first observation.

    Args:
        env: a single environment, before its first step.
        name: what to call it in the message.
        seed: of the reset.
        worker_index: of the worker it belongs to, for the message.

    Raises:
        EnvError: naming what doesn't fit.
    """
    for attribute in ("observation_space", "action_space"):
        space = getattr(env, attribute, None)
        if not isinstance(space, gym.Space):
            raise EnvError(f"environment {name!r}: {attribute} is {space!r}, expected a gymnasium.spaces.Space")
    try:
        result = env.reset(seed=seed)
    except Exception as error:
        raise EnvError(
            f"environment {name!r} raised in reset(): {type(error).__name__}: {one_line(error)} (worker {worker_index})"
        ) from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise EnvError(
            f"environment {name!r}: reset() returned {_short(result)}, expected (observation, info dict). Environments "
            "of the old Gym API need gymnasium's wrappers"
        )
    problem = misfit(env.observation_space, result[0])
    if problem:
        raise EnvError(
            f"environment {name!r}: reset() returned {_short(result[0])}, which is not in its observation_space "
            f"{env.observation_space}: {problem}"
        )


def misfit(space: gym.Space[Any], value: Any) -> str | None:
    """What keeps `value` out of `space`, or None. float64 counts as float32, since batches hold float32 anyway."""
    if isinstance(space, gym.spaces.Box):
        array = np.asarray(value)
        if array.shape != space.shape:
            return f"its shape is {array.shape}, the space's {space.shape}"
        if not np.can_cast(array.dtype, space.dtype, "same_kind"):
            return f"its dtype is {array.dtype}, the space's {space.dtype}"
        if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
            return "it holds NaN"
        if np.issubdtype(space.dtype, np.floating):
            # 0.7 is above float32's 0.7: compared in the space's own precision.
            array = array.astype(space.dtype)
        if (array < space.low).any() or (array > space.high).any():
            return f"values lie outside the bounds [{space.low.min():g}, {space.high.max():g}]"
        return None
    return None if space.contains(value) else f"{type(space).__name__}.contains() is False"


class VectorChecks:
    """Checks of what a vector environment returns; cheap, since every step passes through.

    Args:
        env: the vector environment.
        obs_dtype: of the observations as batches hold them.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], obs_dtype: np.dtype[Any]) -> None:
        self.space, self.num_envs, self.obs_dtype = env.single_observation_space, env.num_envs, obs_dtype
        self.obs_shape = (env.num_envs, *(self.space.shape or ()))

    def reset(self, result: Any) -> tuple[np.ndarray, Any]:
        """`(observations, infos)` as `reset()` returned it, observations as an array `[N, *obs_shape]`.

        Raises:
            EnvError: with what is wrong, to follow the environment's name.
        """
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvError(f"returned {_short(result)} from reset(), expected (observations, infos)")
        return self._obs(result[0], "reset"), result[1]

    def step(self, result: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Any]:
        """What `step()` returned, as arrays: `[N, *obs_shape]`, then `[N]` of numbers, bools and bools, and infos.

        Raises:
            EnvError: with what is wrong, to follow the environment's name.
        """
        if not isinstance(result, tuple) or len(result) != 5:
            expected = "(observations, rewards, terminations, truncations, infos)"
            raise EnvError(f"returned {_short(result)} from step(), expected {expected}")
        obs, rewards, terminations, truncations, infos = result
        return (
            self._obs(obs, "step"),
            self._row(rewards, "rewards", "number", "fiub"),
            self._row(terminations, "terminations", "bool", "biu").astype(np.bool_, copy=False),
            self._row(truncations, "truncations", "bool", "biu").astype(np.bool_, copy=False),
            infos,
        )

    def _obs(self, value: Any, method: str) -> np.ndarray:
        array = np.asarray(value)
        if array.shape != self.obs_shape:
            problem = f"shape {list(array.shape)} from {method}(), expected {list(self.obs_shape)}"
        elif array.dtype != self.obs_dtype and not np.can_cast(array.dtype, self.obs_dtype, "same_kind"):
            problem = f"dtype {array.dtype} from {method}(), expected {self.obs_dtype}"
        else:
            return array
        raise EnvError(f"returned observations of {problem} for {self.num_envs} times {self.space}")

    def _row(self, value: Any, name: str, what: str, kinds: str) -> np.ndarray:
        array = np.asarray(value)
        if array.shape != (self.num_envs,) or array.dtype.kind not in kinds:
            raise EnvError(
                f"returned {name} of shape {list(array.shape)} and dtype {array.dtype} from step(), expected one "
                f"{what} for each of {self.num_envs} sub-environments"
            )
        return array


def unpacking_hint(error: Exception, method: str) -> str:
    """What to say besides, if `error` comes from a `reset()` or `step()` of the old Gym API."""
    if not isinstance(error, ValueError) or "values to unpack" not in str(error):
        return ""
    returns = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}[method]
    return f"; {method}() of an environment must return {returns}"


def unusable_rows(x: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Which observations of `[A, B, *obs_shape]` no network can work with: `[A, B]`.

    Floats that are NaN or infinite (one such row makes all weights NaN), and classes that a Discrete space hasn't.
    """
    if isinstance(space, gym.spaces.Discrete):
        return (x < space.start) | (x >= space.start + space.n)
    if x.dtype.kind != "f":
        return np.zeros(x.shape[:2], np.bool_)
    return ~np.isfinite(x).all(axis=tuple(range(2, x.ndim)))


def unusable(value: Any, space: gym.Space[Any]) -> str:
    """What is wrong with an observation that `unusable_rows` found."""
    if isinstance(space, gym.spaces.Discrete):
        return f"an observation outside its space {space}: {value}"
    if np.isnan(value).any():
        return f"a NaN observation: {value}"
    return f"an observation that is not finite in float32: {value}"


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks."""
    return " ".join(str(error).split())


def _short(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) < 120 else f"{text[:117]}..."
