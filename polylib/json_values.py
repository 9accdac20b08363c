"""Python values as strict JSON and back: tuples, arrays, spaces and infinities survive, code leaves its name only.

What JSON lacks is an object with one key in double underscores: `{"__tuple__": [3, 4]}`. Reading builds these few kinds
of plain data and nothing else; no name in a file is ever looked up.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import PolylibError
from polylib.spaces_json import space_from_json, space_to_json

_CODE = ("__callable__", "__object__")


def dumps(value: Any) -> str:
    """A value as JSON text.

    Raises:
        ValueError: if it contains itself.
    """
    try:
        return json.dumps(_encoded(value), indent=1, allow_nan=False)
    except RecursionError:
        raise ValueError("a value that is nested too deeply, or contains itself") from None


def loads(text: str) -> Any:
    """The value that `dumps` wrote; for code see `is_code`.

    Raises:
        ValueError: if the text is no JSON, or holds an object of a kind that `dumps` doesn't write.
    """
    try:
        return json.loads(text, object_hook=_decoded)
    except (TypeError, KeyError, OverflowError, PolylibError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def is_code(value: Any) -> bool:
    """Whether a value that was read only names what couldn't be written."""
    return isinstance(value, dict) and bool(set(_CODE) & set(value))


def code_name(value: Any) -> dict[str, str]:
    """What stands for a function, class or other object: its name, for information."""
    if callable(value):
        return {"__callable__": f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"}
    return {"__object__": repr(value)}


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": str(value)}
    if isinstance(value, list):
        return [_encoded(item) for item in value]
    if isinstance(value, tuple):
        return {"__tuple__": [_encoded(item) for item in value]}
    if isinstance(value, gym.Space):  # some of which are mappings
        try:
            return {"__space__": space_to_json(value)}
        except PolylibError:
            return code_name(value)
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {str(key): _encoded(item) for key, item in value.items()}
        return {"__items__": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"__array__": [str(value.dtype), list(value.shape), [_encoded(x) for x in value.ravel().tolist()]]}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return code_name(value)


def _decoded(value: dict[str, Any]) -> Any:
    if len(value) != 1:
        return value
    ((kind, data),) = value.items()
    if kind == "__float__":
        return float(data)
    if kind == "__tuple__":
        return tuple(data)
    if kind == "__items__":
        return {key: item for key, item in data}
    if kind == "__array__":
        dtype, shape, items = data
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"an array of {dtype}")
        return np.array(items, dtype).reshape(shape)
    if kind == "__space__":
        return space_from_json(data)
    return value
