"""Reads the pickled columns of RLlib's traces without unpickling them.

RLlib compresses a column to base64(lz4 frame(pickle)). Unpickling runs whatever the file says, so this module
interprets the opcodes itself. It knows only those that arrays and plain values need, calls no function that a pickle
names, and builds nothing but NumPy arrays, numbers, strings, None, and lists, tuples and dicts of them. Everything else
is refused before it has had any effect.
"""

from __future__ import annotations

import io
import math
import pickletools
import re
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from polylib.offline.budget import Budget

# Instructions in a pickle, values it holds after shared parts are written out, and bytes of its arrays: a few bytes can
# ask for any number of references to one list or one buffer. All are far above what a recorded column needs.
MAX_VALUES = 2_000_000
MAX_BYTES = 1 << 30
_VALUE_BYTES = 100  # of a value that is no array, about
_MAX_DEPTH = 32
_MAX_DIMS = 32

_ALLOWED = "only arrays, numbers, strings, None, and lists, tuples and dicts of them are read; nothing was run"


class RefusedError(ValueError):
    """A pickle holds something else than data, or is no pickle."""


class _Name:
    """Something that a pickle refers to by name, one of `_NAMES`. It stands for itself and is never called."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what


class _DType:
    """A dtype under construction: the type code first, the byte order when its state follows."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def numpy(self) -> np.dtype[Any]:
        return np.dtype("O") if self.code[0] == "O" else np.dtype(self.order.replace("|", "=") + self.code)


class _Array:
    """An array that is made when it is known to fit: `make` is None until its state came, `size` counts its bytes."""

    __slots__ = ("make", "size")

    def __init__(self) -> None:
        self.make: Callable[[], np.ndarray] | None = None
        self.size = 0


_CORES = ("numpy.core", "numpy._core")
_NAMES = {
    **{(f"{core}.multiarray", name): _Name(name) for core in _CORES for name in ("_reconstruct", "scalar")},
    **{(f"{core}.numeric", "_frombuffer"): _Name("_frombuffer") for core in _CORES},
    ("numpy", "ndarray"): _Name("ndarray"),
    ("numpy", "dtype"): _Name("dtype"),
    ("collections", "OrderedDict"): _Name("dict"),
    # Protocol 2 has no opcode for bytes: it writes them as text.
    ("_codecs", "encode"): _Name("encode"),
    ("__builtin__", "bytes"): _Name("bytes"),
    ("builtins", "bytes"): _Name("bytes"),
}
_CODE = re.compile(r"b1|[iu][1248]|f[248]|c(8|16)|[SU][0-9]{1,6}|O[48]")
_MARK = object()

_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS = {"BINPUT", "LONG_BINPUT"}
_GETS = {"BINGET", "LONG_BINGET"}


def read_pickled(data: bytes, record: Budget | None = None) -> Any:
    """The value of a pickle that holds data only.

    Args:
        data: A pickle of protocol 2 to 5.
        record: What the record that it is a part of may take.

    Returns:
        An array, number, string or None, or lists, tuples and dicts of them. Arrays are writable and in native byte
        order.

    Raises:
        RefusedError: It holds anything else, is damaged, or would take too much memory.
    """
    try:
        return _resolve(_Machine().run(data), _Budget(record or Budget()), 0)
    except RefusedError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError, MemoryError, EOFError) as e:
        raise RefusedError(f"it isn't a pickle of arrays ({e})") from None


class _Machine:
    """Interprets opcodes on a stack. Containers are Python's own; named things stay `_Name`s."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        file = io.BytesIO(data)
        for _ in range(MAX_VALUES):
            name, read = _INSTRUCTIONS.get(file.read(1), ("", None))
            argument: Any = read(file) if read else None
            if name == "STOP":
                if len(self.stack) != 1:
                    raise RefusedError("it isn't a whole pickle")
                return self.stack[0]
            if name in _VALUES:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _TUPLES:
                self.stack.append(tuple(self.pop_many(_TUPLES[name])))
            elif name in _GETS:
                self.stack.append(self.memo[argument])
            elif name in _PUTS:
                self.memo[argument] = self.stack[-1]
            else:
                self.other(name, argument)
        raise RefusedError("it would take too much memory")

    def other(self, name: str, argument: Any) -> None:
        step: Callable[[Any], None] | None = getattr(self, f"op_{name.lower()}", None) if name else None
        if step is None:
            raise RefusedError(f"it ends too early, or has an instruction that data doesn't need: {_ALLOWED}")
        step(argument)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise RefusedError("it isn't a whole pickle")
        return value

    def pop_many(self, count: int) -> list[Any]:
        values = [self.pop() for _ in range(count)]
        return values[::-1]

    def pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while at >= 0 and self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise RefusedError("it isn't a whole pickle")
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def container(self, kind: type) -> Any:
        """The list or dict on top of the stack, to be filled."""
        if type(self.stack[-1]) is not kind:
            raise RefusedError(f"it fills something that is no {kind.__name__}: {_ALLOWED}")
        return self.stack[-1]

    # -- opcodes, by their names in pickletools -----------------------------------------------------------------------

    def op_proto(self, version: int) -> None:
        if version > 5:
            raise RefusedError(f"it is a pickle of protocol {version}; 2 to 5 are read")

    def op_frame(self, _: Any) -> None:
        """Only says how much to read ahead."""

    def op_mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def op_memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def op_empty_list(self, _: Any) -> None:
        self.stack.append([])

    def op_empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def op_tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.pop_to_mark()))

    def op_append(self, _: Any) -> None:
        value = self.pop()
        self.container(list).append(value)

    def op_appends(self, _: Any) -> None:
        values = self.pop_to_mark()
        self.container(list).extend(values)

    def op_setitem(self, _: Any) -> None:
        self.set_items(self.pop_many(2))

    def op_setitems(self, _: Any) -> None:
        self.set_items(self.pop_to_mark())

    def set_items(self, values: list[Any]) -> None:
        target = self.container(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):
                raise RefusedError(f"it holds a dict key of type {type(key).__name__}: str and int are read")
            target[key] = value

    def op_global(self, names: tuple[str, str]) -> None:
        self.push_name(*names)

    def op_stack_global(self, _: Any) -> None:
        self.push_name(*self.pop_many(2))

    def push_name(self, module: Any, name: Any) -> None:
        known = _NAMES.get((module, name)) if type(module) is str and type(name) is str else None
        if known is None:
            raise RefusedError(f"it refers to {f'{module}.{name}'[:100]!r}: {_ALLOWED}")
        self.stack.append(known)

    def op_reduce(self, _: Any) -> None:
        function, arguments = self.pop_many(2)
        maker = _MAKERS.get(function.what) if type(function) is _Name else None
        if maker is None or type(arguments) is not tuple:
            raise RefusedError(f"it calls something: {_ALLOWED}")
        self.stack.append(maker(*arguments))

    def op_build(self, _: Any) -> None:
        state = self.pop()
        target = self.stack[-1]
        if type(target) is _DType:
            _build_dtype(target, state)
        elif type(target) is _Array and target.make is None:
            _build_array(target, state)
        else:
            raise RefusedError(f"it sets the state of an object: {_ALLOWED}")


# Code -> name and the reader of its argument, of the instructions that `_Machine` knows; others aren't even parsed.
_INSTRUCTIONS: dict[bytes, tuple[str, Callable[[io.BytesIO], Any] | None]] = {
    opcode.code.encode("latin-1"): (opcode.name, opcode.arg.reader if opcode.arg else None)
    for opcode in pickletools.opcodes
    if opcode.name in {"STOP", *_VALUES, *_CONSTANTS, *_TUPLES, *_PUTS, *_GETS}
    or hasattr(_Machine, f"op_{opcode.name.lower()}")
}
# pickletools' own reader interprets backslashes in names.
_INSTRUCTIONS[b"c"] = ("GLOBAL", lambda file: (_text_line(file), _text_line(file)))


def _text_line(file: io.BytesIO) -> str:
    return file.readline().decode("utf-8").removesuffix("\n")


# -- what the names stand for ------------------------------------------------------------------------------------------


def _make_dtype(code: Any, align: Any = False, copy: Any = True) -> _DType:
    if type(code) is not str or not _CODE.fullmatch(code):
        raise RefusedError(f"it holds an array of dtype {str(code)[:40]!r}: numbers, bools and strings are read")
    return _DType(code)


def _build_dtype(target: _DType, state: Any) -> None:
    plain = type(state) is tuple and len(state) == 8 and state[2:5] == (None, None, None)
    if not plain or state[1] not in ("<", ">", "|", "="):
        raise RefusedError("it holds an array of a structured dtype: numbers, bools and strings are read")
    target.order = state[1]


def _make_pending(kind: Any, shape: Any, code: Any) -> _Array:
    if type(kind) is not _Name or kind.what != "ndarray":
        raise RefusedError("it holds an array of a class of its own: NumPy's are read")
    return _Array()


def _build_array(target: _Array, state: Any) -> None:
    if type(state) is not tuple or len(state) != 5:
        raise RefusedError("it holds an array without shape, dtype and data")
    _, shape, dtype, fortran, data = state
    _set_array(target, data, dtype, shape, "F" if fortran is True else "C")


def _make_from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    _set_array(array, data, dtype, shape, "F" if order == "F" else "C")
    return array


def _make_scalar(dtype: Any, data: Any) -> _Array:
    array = _Array()
    _set_array(array, data, dtype, (), "C")
    return array


def _set_array(target: _Array, data: Any, dtype: Any, shape: Any, order: Literal["C", "F"]) -> None:
    if type(dtype) is not _DType:
        raise RefusedError("it holds an array without a dtype")
    sizes = type(shape) is tuple and len(shape) <= _MAX_DIMS and all(type(n) is int and n >= 0 for n in shape)
    if not sizes:
        raise RefusedError("it holds an array with an impossible shape")
    count = math.prod(shape)
    numpy_dtype = dtype.numpy()
    if numpy_dtype.hasobject:
        # Raw bytes taken for addresses of objects would crash the process.
        if type(data) is not list or len(data) != count:
            raise RefusedError(f"it holds an array of {count} objects without a list of them")
        target.make = lambda: _object_array(data, shape, order)
    else:
        if type(data) not in (bytes, bytearray) or len(data) != count * numpy_dtype.itemsize:
            raise RefusedError(f"it holds an array of shape {shape} whose data has another size")
        target.make = lambda: _plain_array(data, numpy_dtype, shape, order)
    target.size = count * numpy_dtype.itemsize


def _plain_array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray:
    if dtype == np.bool_:
        array = np.frombuffer(data, np.uint8) != 0  # other bytes than 0 and 1 make bools that equal neither
    else:
        array = np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
    return array.reshape(shape, order=order)


def _object_array(values: list[Any], shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray:
    array = np.empty(len(values), np.object_)
    for i, value in enumerate(values):
        array[i] = value
    return array.reshape(shape, order=order)


def _make_bytes(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise RefusedError(f"it calls something: {_ALLOWED}")
    return text.encode("latin-1")


_MAKERS: dict[str, Callable[..., Any]] = {
    "dtype": _make_dtype,
    "_reconstruct": _make_pending,
    "_frombuffer": _make_from_buffer,
    "scalar": _make_scalar,
    "dict": lambda: {},
    "encode": _make_bytes,
    "bytes": lambda: b"",
}


# -- from what was built to plain values -------------------------------------------------------------------------------


class _Budget:
    """What may still be made of one pickle, and of the record that it is a part of."""

    def __init__(self, record: Budget) -> None:
        self.values, self.bytes, self.record = MAX_VALUES, MAX_BYTES, record

    def spend(self, values: int, size: int) -> None:
        self.values -= values
        self.bytes -= size
        self.record.spend(values * _VALUE_BYTES + size)
        if self.values < 0 or self.bytes < 0:
            raise RefusedError("it would take too much memory")


def _resolve(value: Any, budget: _Budget, depth: int) -> Any:
    """The value with finished arrays in place of those under construction."""
    if depth > _MAX_DEPTH:
        raise RefusedError(f"it is nested more than {_MAX_DEPTH} deep")
    budget.spend(1, 0)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is _Array:
        return _resolve_array(value, budget, depth)
    if type(value) is list:
        return [_resolve(part, budget, depth + 1) for part in value]
    if type(value) is tuple:
        return tuple(_resolve(part, budget, depth + 1) for part in value)
    if type(value) is dict:
        return {key: _resolve(part, budget, depth + 1) for key, part in value.items()}
    kind = {_Name: "function or class", _DType: "dtype"}.get(type(value), type(value).__name__)
    raise RefusedError(f"it holds a {kind}: {_ALLOWED}")


def _resolve_array(pending: _Array, budget: _Budget, depth: int) -> Any:
    if pending.make is None:
        raise RefusedError("it holds an array without shape, dtype and data")
    budget.spend(0, pending.size)
    array = pending.make()
    if array.dtype == np.object_:
        return _object_array([_resolve(part, budget, depth + 1) for part in array.ravel().tolist()], array.shape, "C")
    return array if array.ndim else array[()]
