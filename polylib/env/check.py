"""Checks of what an environment returns, with messages that name the space and the value that don't fit."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import EnvError


def check_env(env: gym.Env[Any, Any], name: str, seed: int | None) -> None:
    """Resets `env` once and checks its spaces and first observation.

    Args:
        env: a single environment, before its first step.
        name: what to call it in the message.
        seed: of the reset.

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
        raise EnvError(f"environment {name!r} raised in reset(): {type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise EnvError(
            f"environment {name!r}: reset() returned {_short(result)}, expected (observation, info dict). Environments of "
            "the old Gym API need gymnasium's wrappers"
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
        if (array < space.low).any() or (array > space.high).any():
            return f"values lie outside the bounds [{space.low.min():g}, {space.high.max():g}]"
        return None
    return None if space.contains(value) else f"{type(space).__name__}.contains() is False"


def _short(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) < 120 else f"{text[:117]}..."
