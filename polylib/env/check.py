"""Checks of what an environment returns, with messages that name the space and the value that don't fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv

from polylib.env.in_turn import InTurn
from polylib.errors import BatchError, EnvError
from polylib.models.networks import batch_dtype
from polylib.models.spaces import flatten, leaves, unusable_rows


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

    Attributes:
        spaces: of each array of an observation, by column.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.space, self.num_envs = env.single_observation_space, env.num_envs
        self.spaces = leaves(self.space)
        self._checked = isinstance(env, InTurn) and env.plain  # it fills arrays of its own
        self._expected = {
            name: ((env.num_envs, *(space.shape or ())), batch_dtype(space)) for name, space in self.spaces.items()
        }

    def reset(self, result: Any) -> tuple[dict[str, np.ndarray], Any]:
        """`(observations, infos)` as `reset()` returned it, observations by column, `[N, *obs_shape]`.

        Raises:
            EnvError: with what is wrong, to follow the environment's name.
        """
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvError(f"returned {_short(result)} from reset(), expected (observations, infos)")
        return self._obs(result[0], "reset"), result[1]

    def step(self, result: Any) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, Any]:
        """What `step()` returned: observations by column, then `[N]` of numbers, bools and bools, and infos.

        Raises:
            EnvError: with what is wrong, to follow the environment's name.
        """
        if not isinstance(result, tuple) or len(result) != 5:
            expected = "(observations, rewards, terminations, truncations, infos)"
            raise EnvError(f"returned {_short(result)} from step(), expected {expected}")
        obs, rewards, terminations, truncations, infos = result
        if self._checked:
            return {"obs": obs}, rewards, terminations, truncations, infos
        return (
            self._obs(obs, "step"),
            self._row(rewards, "rewards", "number", "fiub"),
            self._row(terminations, "terminations", "bool", "biu").astype(np.bool_, copy=False),
            self._row(truncations, "truncations", "bool", "biu").astype(np.bool_, copy=False),
            infos,
        )

    def _obs(self, value: Any, method: str) -> dict[str, np.ndarray]:
        if "obs" in self.spaces:
            return {"obs": self._column("obs", value, method)}
        try:
            flat = flatten(self.space, value)
        except BatchError as error:
            raise EnvError(f"returned observations that don't fit {self.space} from {method}(): {error}") from None
        return {name: self._column(name, x, method) for name, x in flat.items()}

    def _column(self, name: str, value: Any, method: str) -> np.ndarray:
        shape, dtype = self._expected[name]
        array = np.asarray(value)
        if array.shape != shape:
            problem = f"shape {list(array.shape)} from {method}(), expected {list(shape)}"
        elif array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
            problem = f"dtype {array.dtype} from {method}(), expected {dtype}"
        else:
            return array
        part = "" if name == "obs" else f" ({name})"
        raise EnvError(f"returned observations{part} of {problem} for {self.num_envs} times {self.spaces[name]}")

    def last(self, value: Any) -> dict[str, np.ndarray]:
        """An `info["final_obs"]`, by column.

        Raises:
            EnvError: with what is wrong, to follow the environment's name.
        """
        try:
            flat = {name: np.asarray(x) for name, x in flatten(self.space, value).items()}
        except BatchError as error:
            raise EnvError(f"gave an info['final_obs'] that doesn't fit {self.space}: {error}") from None
        for name, x in flat.items():
            expected = list(self._expected[name][0][1:])
            if list(x.shape) != expected:
                raise EnvError(f"gave info['final_obs'] of shape {list(x.shape)}, expected {expected}")
        return flat

    def unusable(self, obs: Mapping[str, np.ndarray]) -> str | None:
        """What is wrong with an observation, by column, or None."""
        for name, x in obs.items():
            if unusable_rows(x[None, None], self.spaces[name]).any():
                return unusable(x, self.spaces[name])
        return None

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


def unusable(value: Any, space: gym.Space[Any]) -> str:
    """What is wrong with an observation that `unusable_rows` found."""
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
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
