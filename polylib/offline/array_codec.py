"""Arrays in JSON: one value per column, and a note of what that value can't say.

A column is a plain nested list, or base64 of its raw bytes, as they are or compressed with lz4. The note, which goes
into polylib's own key of a record, holds dtype and shape, the encoding where it isn't a list, and the places of
non-finite values, for which a list has `null`. No encoding involves pickle.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from typing import Any, Literal

import lz4.block
import numpy as np
import orjson
import pybase64

from polylib.offline.budget import Budget
from polylib.offline.object_values import from_tagged, to_json, to_tagged

Encoding = Literal["list", "raw", "lz4"]
Note = dict[str, Any]

# Text that marks a compressed column in the file, too: RLlib's reader takes text for a pickle, and must find none here.
_PREFIX = {"raw": "raw:", "lz4": "lz4:"}
_DTYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)|complex(64|128)|[US][0-9]{1,7}|object")
# lz4 makes at most 255 bytes of one.
_LZ4_RATIO = 255


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
    return _PREFIX[encoding] + pybase64.b64encode_as_string(data)


def _encode_objects(array: np.ndarray) -> tuple[Any, Note]:
    values = array.ravel().tolist()
    pairs = [to_json(value) for value in values]
    note: Note = {"dtype": "object", "shape": array.shape}
    if not all(exact for _, exact in pairs):
        note["exact"] = [to_tagged(value) for value in values]
    return [plain for plain, _ in pairs], note


def decode_array(value: Any, note: Note, budget: Budget) -> np.ndarray:
    """The array that `encode_array` was given.

    Args:
        value: The column as JSON says it.
        note: What `encode_array` noted of it.
        budget: What it may take.

    To be called with NumPy's overflows raising.

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
        return _decode_list(value, dtype, tuple(shape), note.get("nonfinite"), budget)
    if not isinstance(encoding, str) or encoding not in _PREFIX:
        raise ValueError(f"it has the encoding {str(encoding)[:40]!r}: known are 'list', 'raw' and 'lz4'")
    return _decode_bytes(value, dtype, shape, encoding, budget)


def _decode_list(
    value: Any, dtype: np.dtype[Any], shape: tuple[int, ...], nonfinite: Any, budget: Budget
) -> np.ndarray:
    if not isinstance(value, list):
        raise ValueError("expected a list")
    if dtype.kind == "U":
        # The noted width is that of every text. Numbers take less than the lists that they are in.
        budget.spend(math.prod(shape) * dtype.itemsize)
    try:
        # NumPy makes NaN of the None that stand for non-finite values.
        array = np.array(value, dtype)
        if nonfinite:
            flat = array.reshape(-1)
            for name in ("nan", "inf", "-inf"):
                flat[np.asarray(nonfinite.get(name, []), np.int64)] = float(name)
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as e:
        raise ValueError(f"its values don't make an array of {dtype} {list(shape)} ({e})") from None
    if array.shape == shape:
        return array
    if array.size or math.prod(shape):
        raise ValueError(f"its values have the shape {list(array.shape)} where {list(shape)} was noted")
    return array.reshape(shape)  # lists can't say how wide no rows are


def _decode_bytes(value: Any, dtype: np.dtype[Any], shape: list[int], encoding: str, budget: Budget) -> np.ndarray:
    prefix = _PREFIX[encoding]
    if not isinstance(value, str) or value[: len(prefix)] != prefix:
        raise ValueError(f"expected text that starts with {prefix!r}")
    size = math.prod(shape) * dtype.itemsize
    try:
        data = pybase64.b64decode_as_bytearray(value[len(prefix) :], validate=True)
        if encoding == "lz4":
            # What the note claims is allocated before anything is unpacked.
            if size > _LZ4_RATIO * len(data):
                raise ValueError(f"{len(data)} bytes can't unpack to the {size} that were noted")
            budget.spend(size)
            data = lz4.block.decompress(data, uncompressed_size=size, return_bytearray=True) if size else bytearray()
    except (ValueError, lz4.block.LZ4BlockError) as e:
        raise ValueError(f"its {encoding} text is damaged ({e})") from None
    if len(data) != size:
        raise ValueError(f"it has {len(data)} bytes where {size} were noted")
    if dtype.kind == "b":
        array = np.frombuffer(data, np.uint8) != 0  # other bytes than 0 and 1 make bools that equal neither
    else:
        array = np.frombuffer(data, dtype)  # writable, as a bytearray is
        if sys.byteorder != "little":
            array = array.byteswap()
    return array if len(shape) == 1 else array.reshape(shape)


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
