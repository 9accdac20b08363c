"""Nested spaces as flat columns: `obs` for one array, `obs/camera`, `obs/arm/0` for the parts of a Dict or Tuple.

Inside a policy, a sampler and a backend every observation and action is a flat dict of arrays under these names;
nests exist at the borders only, where people pass and get them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, EnvError

#: Where a Dict observation says which discrete choices are allowed.
MASK_KEY = "action_mask"


def _items(space: gym.Space[Any]) -> list[tuple[str, gym.Space[Any]]] | None:
    if isinstance(space, gym.spaces.Dict):
        return [(str(key), part) for key, part in space.spaces.items()]
    if isinstance(space, gym.spaces.Tuple):
        return [(str(i), part) for i, part in enumerate(space.spaces)]
    return None


def is_nested(space: gym.Space[Any]) -> bool:
    """Whether a space is a Dict or Tuple."""
    return isinstance(space, gym.spaces.Dict | gym.spaces.Tuple)


def leaves(space: gym.Space[Any], name: str = "obs") -> dict[str, gym.Space[Any]]:
    """The parts that are single arrays, by column name, in the space's own order.

    Args:
        space: any.
        name: of the whole.

    Raises:
        EnvError: if the space is an empty Dict or Tuple, or two parts would have the same name.
    """
    items = _items(space)
    if items is None:
        return {name: space}
    if not items:
        raise EnvError(f"space {space} of {name!r} has no parts")
    found: dict[str, gym.Space[Any]] = {}
    for key, part in items:
        for leaf, leaf_space in leaves(part, f"{name}/{key}").items():
            if leaf in found:
                raise EnvError(f"space {space}: two of its parts are called {leaf!r}; rename a key that holds a '/'")
            found[leaf] = leaf_space
    return found


def flatten(space: gym.Space[Any], value: Any, name: str = "obs") -> dict[str, Any]:
    """A value's parts by column name; `value` is nested as `space` is.

    Raises:
        BatchError: if it isn't, naming the part that is missing or unknown.
    """
    if not is_nested(space):
        return {name: value}
    found: dict[str, Any] = {}
    _flatten_into(found, space, value, name)
    return found


def _flatten_into(found: dict[str, Any], space: gym.Space[Any], value: Any, name: str) -> None:
    items = _items(space)
    if items is None:
        found[name] = value
    elif isinstance(space, gym.spaces.Dict):
        if not isinstance(value, Mapping):
            raise BatchError(f"{name!r} is {type(value).__name__}, expected a dict with {_keys(items)}")
        missing = [key for key in space.spaces if key not in value]
        if missing:
            raise BatchError(f"{name!r} has no part {missing[0]!r}, expected {_keys(items)}")
        for key, part in space.spaces.items():
            _flatten_into(found, part, value[key], f"{name}/{key}")
    else:
        parts: Any = value
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str) or len(value) != len(items):
            count = f" of {len(parts)}" if isinstance(value, Sequence) else ""
            raise BatchError(f"{name!r} is {type(value).__name__}{count}, expected a tuple of {len(items)} parts")
        for (key, part), item in zip(items, parts, strict=True):
            _flatten_into(found, part, item, f"{name}/{key}")


def _keys(items: Sequence[tuple[str, Any]]) -> str:
    return ", ".join(repr(key) for key, _ in items)


def unflatten(space: gym.Space[Any], flat: Mapping[str, Any], name: str = "obs") -> Any:
    """The inverse of `flatten`: a dict for a Dict, a tuple for a Tuple."""
    if isinstance(space, gym.spaces.Dict):
        return {key: unflatten(part, flat, f"{name}/{key}") for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(unflatten(part, flat, f"{name}/{i}") for i, part in enumerate(space.spaces))
    return flat[name]


def mask_column(space: gym.Space[Any], name: str = "obs") -> str | None:
    """The column that holds the action mask of a Dict observation, or None."""
    if isinstance(space, gym.spaces.Dict) and MASK_KEY in space.spaces and not is_nested(space.spaces[MASK_KEY]):
        return f"{name}/{MASK_KEY}"
    return None


def unusable_rows(x: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Which observations of `[A, B, *obs_shape]`, one array each, no network can work with: `[A, B]`.

    Floats that are NaN or infinite (one such row makes all weights NaN), and classes that a discrete space hasn't.
    """
    if isinstance(space, gym.spaces.Discrete):
        return np.asarray((x < space.start) | (x >= space.start + space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        return np.asarray(((x < start) | (x >= start + space.nvec)).any(axis=tuple(range(2, x.ndim))))
    if isinstance(space, gym.spaces.MultiBinary):
        return np.asarray(((x != 0) & (x != 1)).any(axis=tuple(range(2, x.ndim))))
    if x.dtype.kind != "f":
        return np.zeros(x.shape[:2], np.bool_)
    return ~np.isfinite(x).all(axis=tuple(range(2, x.ndim)))


def surely_usable(x: np.ndarray, space: gym.Space[Any]) -> bool:
    """Whether no observation in `x` (any shape) can be one of `unusable_rows`; cheap, and False where it can't say."""
    if not isinstance(space, gym.spaces.Box):
        return False
    return x.dtype.kind != "f" or finite(x)


def finite(x: np.ndarray) -> bool:
    """Whether all numbers are; the ufunc's own reduction takes half as long as `all()` for a few of them."""
    return bool(np.logical_and.reduce(np.isfinite(x), axis=None))
