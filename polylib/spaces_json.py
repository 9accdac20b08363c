"""Gymnasium spaces as JSON, so that a checkpoint can be opened without the environment's class."""

from __future__ import annotations

import operator
import reprlib
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import EnvError, PolylibError
from polylib.utils.spaces.simplex import Simplex

Json = dict[str, Any]


def space_to_json(space: gym.Space[Any]) -> Json:
    """A space as a JSON object.

    Raises:
        PolylibError: for a kind of space that isn't known here.
    """
    spaces = gym.spaces
    if isinstance(space, spaces.Box):
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": _bound(space.low),
            "high": _bound(space.high),
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        nvec = space.nvec.tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start.tolist(), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
    if isinstance(space, Simplex):
        return {
            "type": "Simplex",
            "shape": list(space.shape),
            "concentration": space.concentration.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.Dict):
        if not all(isinstance(key, str) for key in space.spaces):
            raise PolylibError(f"space {space} can't be written to a checkpoint: its keys must be text")
        return {"type": "Dict", "spaces": {key: space_to_json(item) for key, item in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(item) for item in space.spaces]}
    raise PolylibError(f"space {space} can't be written to a checkpoint: {type(space).__name__} isn't known")


def space_from_json(data: Any) -> gym.Space[Any]:
    """The space that `space_to_json` wrote.

    Raises:
        PolylibError: naming what is wrong with the data.
    """
    spaces = gym.spaces
    try:
        kind = data["type"]
        if kind == "Box":
            dtype, shape = _dtype(data["dtype"]), tuple(data["shape"])
            low, high = (_from_bound(data[key], shape, dtype) for key in ("low", "high"))
            return spaces.Box(low, high, shape, dtype.type)
        if kind == "Discrete":
            # Older versions of Gymnasium have this one dtype only.
            dtypes: dict[str, Any] = {} if data["dtype"] == "int64" else {"dtype": _dtype(data["dtype"]).type}
            return spaces.Discrete(data["n"], start=data["start"], **dtypes)
        if kind == "MultiDiscrete":
            dtype = _dtype(data["dtype"])
            start = np.array(data["start"], dtype)
            return spaces.MultiDiscrete(np.array(data["nvec"], dtype), dtype.type, start=start)
        if kind == "MultiBinary":
            return spaces.MultiBinary(data["n"] if isinstance(data["n"], int) else list(map(operator.index, data["n"])))
        if kind == "Simplex":
            return Simplex(list(map(operator.index, data["shape"])), data["concentration"], _dtype(data["dtype"]).type)
        if kind == "Dict":
            # Gymnasium would sort a plain dict; flattened spaces follow the order.
            return spaces.Dict(OrderedDict((key, space_from_json(item)) for key, item in data["spaces"].items()))
        if kind == "Tuple":
            return spaces.Tuple([space_from_json(item) for item in data["spaces"]])
    except (
        LookupError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, MemoryError, EnvError,
    ) as error:
        raise PolylibError(f"not a space: {reprlib.repr(data)} ({type(error).__name__}: {error})") from None
    raise PolylibError(f"not a space: unknown type {kind!r}")


def _dtype(name: Any) -> np.dtype[Any]:
    if not isinstance(name, str):
        raise TypeError(f"dtype {name!r}")
    return np.dtype(name)


def _bound(values: np.ndarray) -> Any:
    """A number if all are the same (strings for infinities, which JSON lacks), else a flat list."""
    plain = [float(x) if np.issubdtype(values.dtype, np.floating) else int(x) for x in values.ravel()]
    named = [x if np.isfinite(x) else str(x) for x in plain]
    return named[0] if named and all(x == named[0] for x in named) else named


def _from_bound(data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    flat = [float(x) if isinstance(x, str) else x for x in (data if isinstance(data, list) else [data])]
    return np.broadcast_to(np.array(flat, dtype), int(np.prod(shape))).reshape(shape).copy() if len(flat) == 1 else (
        np.array(flat, dtype).reshape(shape)
    )
