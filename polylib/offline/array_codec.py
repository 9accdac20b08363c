"""Arrays in JSON: one value per column, and a note of what that value can't say.

A column is a plain nested list, or base64 of its raw bytes, as they are or compressed with lz4. The note, which goes
into polylib's own key of a record, holds dtype and shape, the encoding where it isn't a list, and the places of
non-finite values, for which a list has `null`. No encoding involves pickle.
"""

from __future__ import annotations

import binascii
import functools
import math
import re
import sys
from itertools import chain
from typing import Any, Literal

import lz4.block
import numpy as np
import orjson

from polylib.offline.object_values import from_tagged, to_json, to_tagged

Encoding = Literal["list", "raw", "lz4"]
Note = dict[str, Any]

# Text that marks a compressed column in the file, too: RLlib's reader takes text for a pickle, and must find none here.
_PREFIX = {"raw": "raw:", "lz4": "lz4:"}
_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)|[US][0-9]{1,7}|object")
# lz4 makes at most 255 bytes of one.
_LZ4_RATIO = 255
# Text arrays have a fixed width, so that a note could ask for any amount of memory.
_MAX_TEXT_BYTES = 1 << 30
_FLATTEN = chain.from_iterable


def encode_array(array: np.ndarray, encoding: Encoding) -> tuple[Any, Note]:
    """A value for orjson (with OPT_SERIALIZE_NUMPY), and the note that `decode_array` needs.

    Args:
        array: An array [B, ...] of numbers, bools, strings or objects.
        encoding: How it is written. Objects are always lists, complex numbers and bytes never are.

    Raises:
        TypeError: An array, or an object in it, that can't be recorded.
    """
    kind, name = array.dtype.kind, _name(array.dtype)
    if kind == "O":
        return _encode_objects(array)
    note: Note = {"dtype": name, "shape": array.shape}
    if kind == "U":
        return array.tolist(), note
    if encoding == "list" and kind not in "cS":
        return _encode_list(array, note), note
    return _encode_bytes(array, "raw" if encoding == "list" else encoding, note), note


@functools.lru_cache
def _name(dtype: np.dtype[Any]) -> str:
    name = f"{dtype.kind}{dtype.itemsize // (4 if dtype.kind == 'U' else 1)}" if dtype.kind in "US" else dtype.name
    if not _DTYPE.fullmatch(name):
        raise TypeError(f"an array of dtype {dtype}: traces hold numbers, bools, strings and plain objects")
    return name


@functools.lru_cache
def _dtype(name: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(name):
        raise ValueError(f"it has the dtype {name[:40]!r}, which isn't one that traces have")
    return np.dtype(name)


def _encode_list(array: np.ndarray, note: Note) -> Any:
    if array.dtype.kind == "f":
        finite = np.isfinite(array)
        if not finite.all():
            flat, places = array.ravel(), np.flatnonzero(~finite.ravel())
            values = flat[places]
            found = {"nan": np.isnan(values), "inf": values == np.inf, "-inf": values == -np.inf}
            note["nonfinite"] = {name: places[which] for name, which in found.items() if which.any()}
        # Other readers make float64 of numbers. The few digits that tell a float32 from its neighbours would round to
        # another value there.
        array = array.astype(np.float64)
    if not array.size:
        return array.tolist()
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _encode_bytes(array: np.ndarray, encoding: Encoding, note: Note) -> str:
    data: Any = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    if encoding == "lz4":
        data = lz4.block.compress(data, store_size=False)
    note["encoding"] = encoding
    return _PREFIX[encoding] + binascii.b2a_base64(data, newline=False).decode("ascii")


def _encode_objects(array: np.ndarray) -> tuple[Any, Note]:
    values = array.ravel().tolist()
    pairs = [to_json(value) for value in values]
    note: Note = {"dtype": "object", "shape": array.shape}
    if not all(exact for _, exact in pairs):
        note["exact"] = [to_tagged(value) for value in values]
    return [plain for plain, _ in pairs], note


def decode_array(value: Any, note: Note) -> np.ndarray:
    """The array that `encode_array` was given.

    Args:
        value: The column as JSON says it.
        note: What `encode_array` noted of it.

    Raises:
        ValueError: The two don't fit together, or the note is none of `encode_array`'s.
    """
    name, shape, encoding = note.get("dtype"), note.get("shape"), note.get("encoding", "list")
    if not isinstance(name, str):
        raise ValueError("its dtype isn't noted")
    dtype = _dtype(name)
    if not isinstance(shape, list) or not 1 <= len(shape) <= 32:
        raise ValueError(f"it has the shape {str(shape)[:40]}: expected a list of sizes")
    for size in shape:
        if type(size) is not int or not 0 <= size < 1 << 62:
            raise ValueError(f"it has the shape {str(shape)[:40]}: expected sizes of 0 or more")
    if dtype == np.object_:
        return _decode_objects(value, shape, note.get("exact"))
    if encoding == "list":
        return _decode_list(value, dtype, tuple(shape), note.get("nonfinite"))
    if encoding not in _PREFIX:
        raise ValueError(f"it has the encoding {str(encoding)[:40]!r}: known are 'list', 'raw' and 'lz4'")
    return _decode_bytes(value, dtype, shape, encoding)


def _decode_list(value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], nonfinite: Any) -> np.ndarray:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    flat = _flatten(value, shape)
    try:
        if dtype == np.uint8:
            array = np.frombuffer(bytearray(flat), np.uint8)
        elif dtype.kind == "U":
            if math.prod(shape) * dtype.itemsize > _MAX_TEXT_BYTES:
                raise ValueError("too much memory")
            array = np.array(list(flat), dtype)
        else:
            if nonfinite or dtype.kind == "f":
                array = _floats(flat, math.prod(shape), dtype, nonfinite)
            else:
                array = np.fromiter(flat, dtype, math.prod(shape))
        return array.reshape(shape)
    except (TypeError, ValueError, OverflowError, IndexError) as e:
        raise ValueError(f"its values don't make an array of {dtype} {list(shape)} ({e})") from None


def _floats(flat: Any, count: int, dtype: np.dtype[Any], nonfinite: Any) -> np.ndarray:
    if not nonfinite:
        return np.fromiter(flat, dtype, count)
    if not isinstance(nonfinite, dict):
        raise ValueError("the places of non-finite values are damaged")
    array = np.array(list(flat), np.float64).astype(dtype)  # NumPy makes NaN of None
    for name in ("nan", "inf", "-inf"):
        places = np.asarray(nonfinite.get(name, []), np.int64)
        array[places] = float(name)
    return array


def _flatten(value: list[Any], shape: tuple[int, ...]) -> Any:
    """The numbers of a nested list one by one, after checking that it has this shape."""
    level: Any = value
    for axis, size in enumerate(shape):
        if axis:
            parts = level
            if set(map(type, parts)) - {list} or set(map(len, parts)) - {size}:
                raise ValueError(f"its lists don't have the shape {list(shape)} that was noted")
            level = list(_FLATTEN(parts))
        elif len(level) != size:
            raise ValueError(f"it has {len(level)} rows where {size} were noted")
    return level


def _decode_bytes(value: Any, dtype: np.dtype[Any], shape: list[int], encoding: str) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    prefix = _PREFIX[encoding]
    if not isinstance(value, str) or not value.startswith(prefix):
        raise ValueError(f"expected text that starts with {prefix!r}")
    try:
        data: Any = binascii.a2b_base64(memoryview(value.encode("ascii"))[len(prefix) :])
        if encoding == "lz4":
            # What the note claims is allocated before anything is unpacked.
            if size > _LZ4_RATIO * len(data):
                raise ValueError(f"{len(data)} bytes can't unpack to the {size} that were noted")
            data = lz4.block.decompress(data, uncompressed_size=size, return_bytearray=True) if size else b""
    except (ValueError, lz4.block.LZ4BlockError) as e:
        raise ValueError(f"its {encoding} text is damaged ({e})") from None
    if len(data) != size:
        raise ValueError(f"it has {len(data)} bytes where {size} were noted")
    if dtype == np.bool_:
        return (np.frombuffer(data, np.uint8) != 0).reshape(shape)
    array = np.frombuffer(data if isinstance(data, bytearray) else bytearray(data), dtype)
    return (array if sys.byteorder == "little" else array.byteswap()).reshape(shape)


def _decode_objects(value: Any, shape: list[int], exact: Any) -> np.ndarray:
    values = value
    if exact is not None:
        try:
            values = from_tagged(exact)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"its exact values are damaged ({e})") from None
    if not isinstance(values, list) or len(values) != math.prod(shape):
        raise ValueError(f"expected a list of {math.prod(shape)} values")
    array = np.empty(len(values), np.object_)
    for i, part in enumerate(values):
        array[i] = part
    return array.reshape(shape)


def dumps(value: Any) -> bytes:
    """JSON of what `encode_array` made."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
