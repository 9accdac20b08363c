"""Columns of objects (`infos`, say) in JSON: as plain JSON values, and beside them whatever those can't express.

Tuples, NumPy scalars and arrays, bytes and non-finite floats have no JSON of their own. `to_json` writes their nearest
plain value, and `to_tagged` one that `from_tagged` turns back into exactly what it was: `{"$": kind, ...}`.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pybase64

_MAX_DEPTH = 64
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|[SU][0-9]{1,7}")


def to_json(value: Any, depth: int = 0) -> tuple[Any, bool]:
    """A plain JSON value, and whether it reads back as exactly `value`.

    Raises:
        TypeError: for a type that can't be recorded.
    """
    if depth > _MAX_DEPTH:
        raise TypeError(f"values nested more than {_MAX_DEPTH} deep")
    if value is None or type(value) in (bool, str):
        return value, True
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return value, True
    if type(value) is float:
        return (value, True) if math.isfinite(value) else (None, False)
    if isinstance(value, np.ndarray | np.generic):
        if not _DTYPE.fullmatch(value.dtype.str[1:]):
            raise TypeError(f"an array of dtype {value.dtype}")
        return to_json(value.tolist(), depth)[0], False
    if isinstance(value, dict):
        parts = {_key(key): to_json(part, depth + 1) for key, part in value.items()}
        return {key: part for key, (part, _) in parts.items()}, all(exact for _, exact in parts.values())
    if isinstance(value, list | tuple):
        items = [to_json(part, depth + 1) for part in value]
        return [part for part, _ in items], type(value) is list and all(exact for _, exact in items)
    if isinstance(value, bytes):
        return pybase64.b64encode_as_string(value), False
    raise TypeError(f"a value of type {type(value).__name__}")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a dict key of type {type(key).__name__}")
    return key


def to_tagged(value: Any) -> Any:
    """A JSON value that `from_tagged` turns back into exactly `value`; `to_json` has accepted it."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        data = pybase64.b64encode_as_string(array.tobytes())
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {"$": kind, "dtype": array.dtype.str, "shape": array.shape, "data": data}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$": "float", "value": str(float(value))}
    if isinstance(value, dict):
        return {"$": "dict", "items": {key: to_tagged(part) for key, part in value.items()}}
    if isinstance(value, tuple):
        return {"$": "tuple", "items": [to_tagged(part) for part in value]}
    if isinstance(value, list):
        return [to_tagged(part) for part in value]
    if isinstance(value, bytes):
        return {"$": "bytes", "data": pybase64.b64encode_as_string(value)}
    return value


def from_tagged(value: Any) -> Any:
    """What `to_tagged` was given.

    Raises:
        ValueError, KeyError, TypeError: for what `to_tagged` doesn't write.
    """
    if isinstance(value, list):
        return [from_tagged(part) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value["$"]
    if kind == "dict":
        return {key: from_tagged(part) for key, part in value["items"].items()}
    if kind == "tuple":
        return tuple(from_tagged(part) for part in value["items"])
    if kind == "float":
        return float(value["value"])
    data = pybase64.b64decode(value["data"], validate=True)
    if kind == "bytes":
        return data
    if kind not in ("array", "scalar") or not _DTYPE.fullmatch(value["dtype"][1:]):
        raise ValueError(f"an unknown kind of value, {str(kind)[:40]!r}")
    array = np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"]).copy()
    return array if kind == "array" else array[()]
