"""RLlib's pickled columns: data is read, and nothing else, whatever the pickle tries."""

from __future__ import annotations

import base64
import collections
import copyreg
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc

import lz4.frame
import numpy as np
import pytest
from offline.batches import DTYPES, assert_same

from polylib.offline import TraceFormatError, foreign, pickled
from polylib.offline.json_format import decode_record
from polylib.offline.pickled import RefusedError, read_pickled

PROTOCOLS = [2, 3, 4, 5]

# --- what is read -----------------------------------------------------------------------------------------------------


def objects(*values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


VALUES = {
    **{dtype: (np.arange(12) % 2).astype(dtype).reshape(3, 4) for dtype in [*DTYPES, "complex64", "U3", "S2"]},
    "Fortran order": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "strided": np.arange(24).reshape(4, 6)[::2, ::-3],
    "no rows": np.zeros((0, 3), np.float32),
    "read-only": np.frombuffer(b"abcd", np.uint8),
    "NumPy scalars": [np.float32(0.5), np.int64(-3), np.bool_(True), np.float64("nan")],
    "plain values": [1, -1, 1 << 40, 1 << 70, 0.5, True, None, "text \u00fc", "x" * 300],
    "nested": {"a": np.ones((2, 3)), "b": (np.arange(2), [np.zeros(1, np.uint8), {"c": None}]), 3: "int key"},
    "infos": objects({}, {"lives": 3, "x": np.arange(2)}, None),
    "shared": (lambda x: [x, {"again": x}, x])(np.arange(3)),
    "tuples": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", VALUES)
def test_data_is_read_in_every_protocol(name, protocol):
    value = VALUES[name]
    back = read_pickled(pickle.dumps(value, protocol))
    if isinstance(value, np.ndarray):
        value = np.ascontiguousarray(value)
    assert_same(back, value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numpy_1s_pickles_are_read(protocol):
    for value in (np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(3)):
        assert_same(read_pickled(renamed(pickle.dumps(value, protocol))), value)


def renamed(data: bytes) -> bytes:
    """The pickle with the names that NumPy's modules had before 2.0."""
    for name in (b"numpy._core.multiarray", b"numpy._core.numeric"):
        old = name.replace(b"_core", b"core")
        data = data.replace(b"\x8c" + bytes([len(name)]) + name, b"\x8c" + bytes([len(old)]) + old)
        data = data.replace(b"c" + name + b"\n", b"c" + old + b"\n")
    return data


def test_other_classes_of_mappings_and_byte_orders_become_plain():
    back = read_pickled(pickle.dumps(collections.OrderedDict(a=np.arange(3, dtype=">i4"))))
    assert type(back) is dict
    assert_same(back, {"a": np.arange(3, dtype=np.int32)})


def test_arrays_are_writable():
    read_pickled(pickle.dumps(np.zeros(3), 5))[0] = 1


def test_a_bool_is_true_or_false():
    data = pickle.dumps(np.array([True, True]), 4)
    assert data.count(b"\x01\x01") == 1
    assert read_pickled(data.replace(b"\x01\x01", b"\x07\x01")).tolist() == [True, True]


# --- what is refused --------------------------------------------------------------------------------------------------

STARTED = "PWNED"


class Reduces:
    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return self.parts


class SetsState:
    def __getstate__(self):
        return {"x": 1}

    def __setstate__(self, state):
        open(STARTED, "w").close()


class Registered:
    pass


def with_extension() -> bytes:
    copyreg.add_extension(__name__, "Registered", 240)
    try:
        return pickle.dumps(Registered, 2)
    finally:
        copyreg.remove_extension(__name__, "Registered", 240)


def with_persistent_id() -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            return "an id" if isinstance(obj, Registered) else None

    file = io.BytesIO()
    Pickler(file, 4).dump([Registered()])
    return file.getvalue()


def array_pickle(dtype: bytes, shape: bytes, data: bytes, dtype_state: bytes = b"") -> bytes:
    """A hand-made pickle of `_reconstruct`'s form."""
    return (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01" + shape + b"cnumpy\ndtype\n" + dtype + b"K\x00K\x01\x87R" + dtype_state + b"\x89" + data + b"tb."
    ).replace(b"U\x01b", b"C\x01b")


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


F4 = text("f4")
STATE = b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
COMMAND = "open('" + STARTED + "','w')"
ATTACKS = {
    "os.system": pickle.dumps(Reduces(os.system, (f"touch {STARTED}",)), 4),
    "os.system, protocol 2": pickle.dumps(Reduces(os.system, (f"touch {STARTED}",)), 2),
    "os.system, protocol 0": pickle.dumps(Reduces(os.system, (f"touch {STARTED}",)), 0),
    "subprocess": pickle.dumps(Reduces(subprocess.Popen, (["touch", STARTED],)), 4),
    "eval": pickle.dumps(Reduces(eval, (COMMAND,)), 4),
    "eval inside a list": pickle.dumps([1, {"a": Reduces(eval, (COMMAND,))}], 5),
    "eval inside an array of objects": pickle.dumps(objects(Reduces(eval, (COMMAND,))), 4),
    "getattr": pickle.dumps(Reduces(getattr, (np.ndarray, "tofile")), 4),
    "numpy.load": b"\x80\x04" + text("numpy") + text("load") + b"\x93" + text("x.npy") + b"\x85R.",
    "a dotted name": b"\x80\x04" + text("numpy") + text("ndarray.__reduce__") + b"\x93)R.",
    "a name from the stack that is no text": b"\x80\x04K\x01K\x02\x93)R.",
    "numpy's exec": b"\x80\x04"
    + text("numpy.testing._private.utils")
    + text("runstring")
    + b"\x93"
    + text("1")
    + b"\x85R.",
    "INST": b"(S'touch PWNED'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch PWNED'\no.",
    "NEWOBJ": b"\x80\x02cnumpy\nndarray\nK\x01\x85\x85\x81.",
    "NEWOBJ_EX": b"\x80\x04cnumpy\nndarray\nK\x01\x85\x85}\x92.",
    "an object with __setstate__": pickle.dumps(SetsState(), 4),
    "the state of a dict": b"\x80\x04}}b.",
    "the state of a name": b"\x80\x02cnumpy\nndarray\n}b.",
    "the state of a list": b"\x80\x02]}b.",
    "the state of a finished array": array_pickle(F4, b"K\x01\x85", b"C\x04abcd", STATE)[:-1] + b"}b.",
    "a persistent id": with_persistent_id(),
    "a persistent id, protocol 0": b"Pos.system\n.",
    "the extension registry": with_extension(),
    "a buffer from outside": b"\x80\x05\x97.",
    "an instance of a class": pickle.dumps(Registered(), 4),
    "a set": pickle.dumps({1, 2}, 4),
    "a named thing alone": b"\x80\x02cnumpy\nndarray\n.",
    "a dtype alone": pickle.dumps(np.dtype("f4"), 4),
    "bytes alone": pickle.dumps(b"abc", 4),
    "an array class of somebody's": array_pickle(F4, b"K\x01\x85", b"C\x04abcd").replace(b"ndarray", b"matrix"),
    "an array without state": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R.",
    "objects as raw bytes": array_pickle(text("O8"), b"K\x01\x85", b"C\x08abcdefgh"),
    "too few objects": array_pickle(text("O8"), b"K\x02\x85", b"](Na"),
    "too few bytes": array_pickle(F4, b"K\x02\x85", b"C\x04abcd"),
    "too many bytes": array_pickle(F4, b"K\x01\x85", b"C\x08abcdefgh"),
    "text for bytes": array_pickle(F4, b"K\x01\x85", text("abcd")),
    "a negative size": array_pickle(F4, b"J\xff\xff\xff\xff\x85", b"C\x04abcd"),
    "a structured dtype": pickle.dumps(np.zeros(2, [("a", "f4")]), 4),
    "a date": pickle.dumps(np.zeros(2, "M8[s]"), 4),
    "a dtype by description": array_pickle(text("(2,)f4"), b"K\x01\x85", b"C\x08abcdefgh"),
    "a dtype that holds objects": array_pickle(text("f4,O"), b"K\x01\x85", b"C\x0cabcdefghabcd"),
    "a dtype from a function": b"\x80\x02cnumpy\ndtype\ncnumpy\nndarray\n\x85R.",
    "another text encoding": b"\x80\x02c_codecs\nencode\n" + text("x") + text("zip") + b"\x86R.",
    "a call of a list": b"\x80\x02])R.",
    "arguments that are a list": b"\x80\x02cnumpy\ndtype\n]R.",
    "wrong arguments": b"\x80\x02cnumpy\ndtype\n)R.",
    "a dict in a dict's key": b"\x80\x02}}Ns.",
    "an unknown memo": b"\x80\x02h\x05.",
    "nothing on the stack": b"\x80\x02.",
    "two things on the stack": b"\x80\x02NN.",
    "a mark on the stack": b"\x80\x02(.",
    "items without a mark": b"\x80\x02]Ne.",
    "an odd number of items": b"\x80\x02}(Nu.",
    "a future protocol": b"\x80\x09N.",
    "an unknown opcode": b"\x80\x02\xff.",
    "no end": pickle.dumps(np.arange(3), 4)[:-1],
    "nothing": b"",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
}


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path, monkeypatch):
    """Whatever an attack would start shows in the folder that is current."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_refused(name):
    with pytest.raises(RefusedError):
        read_pickled(ATTACKS[name])


def test_the_attacks_would_work(tmp_path):
    pickle.loads(ATTACKS["os.system"])
    assert (tmp_path / STARTED).exists()
    (tmp_path / STARTED).unlink()


def packed(data: bytes) -> str:
    return base64.b64encode(lz4.frame.compress(data)).decode()


def line_with(obs: str) -> bytes:
    columns = {"obs": obs, "actions": [0, 1]}
    return json.dumps({"type": "MultiAgentBatch", "count": 2, "policy_batches": {"p1": columns}}).encode()


@pytest.mark.parametrize("name", ["os.system", "eval", "eval inside an array of objects", "a persistent id"])
def test_a4_code_in_a_column_is_refused_naming_file_line_and_column(name):
    with pytest.raises(
        TraceFormatError, match="^f.json, line 3, policy 'p1', column 'obs': refused: .*nothing was run"
    ):
        decode_record(line_with(packed(ATTACKS[name])), "f.json, line 3")


@pytest.mark.parametrize("value", [np.ones((2, 3)), [[1, 2], [3, 4]], {"a": np.ones(2), "b": (np.zeros((2, 1)),)}])
def test_a4_data_in_the_same_wrapping_is_read(value):
    batch = decode_record(line_with(packed(pickle.dumps(value))), "f.json, line 3").policy_batches["p1"]
    assert_same(batch["obs"], np.array(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("obs", ["", "AAAA", "not base64 !", packed(b"x" * 100)[:-8], packed(pickle.dumps("x"))])
def test_a_damaged_column_is_an_error(obs):
    with pytest.raises(TraceFormatError, match="^f.json, line 3, policy 'p1', column 'obs': "):
        decode_record(line_with(obs), "f.json, line 3")


# --- bombs ------------------------------------------------------------------------------------------------------------


def laughs() -> bytes:
    """Lists of ten lists of ten lists ...: 10**12 values in a hundred bytes."""
    data = b"\x80\x02](" + b"N" * 10 + b"eq\x00"
    for i in range(1, 12):
        data += b"](" + b"h" + bytes([i - 1])
        data = data[:-2] + (b"h" + bytes([i - 1])) * 10 + b"eq" + bytes([i])
    return data + b"."


def shared_buffer() -> bytes:
    """A thousand arrays from one buffer of 4 MiB."""
    size = 1 << 22
    array = (
        b"cnumpy.core.numeric\n_frombuffer\n(h\x00cnumpy\ndtype\n"
        + text("u1")
        + b"K\x00K\x01\x87R(J"
        + struct.pack("<i", size)
        + b"t"
        + text("C")
        + b"tR"
    )
    return b"\x80\x05B" + struct.pack("<I", size) + bytes(size) + b"q\x000](" + array * 1000 + b"e."


BOMBS = {
    "a billion laughs": laughs(),
    "one buffer many times": shared_buffer(),
    "empty dicts": b"\x80\x02](" + b"}" * 500_000 + b"e.",
    "a memo far out": b"\x80\x02Nr\xff\xff\xff\x7f0" + b"](" + b"j\xff\xff\xff\x7f" * 500_000 + b"e.",
    "bytes that aren't there": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x.",
    "text that isn't there": b"\x80\x04X\xff\xff\xff\x7fx.",
    "a shape without end": array_pickle(F4, b"\x8a\x0a" + b"\xff" * 9 + b"\x00\x85", b"C\x00", STATE),
    "a wide text": array_pickle(text("U999999"), b"K\x02\x85", b"C\x00", STATE),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_take_memory(name, monkeypatch):
    monkeypatch.setattr(pickled, "MAX_VALUES", 100_000)  # counting to millions takes seconds
    data = BOMBS[name]
    start = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError):
            read_pickled(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * (1 << 30) and time.monotonic() - start < 20


def test_an_lz4_bomb_is_capped(monkeypatch):
    monkeypatch.setattr(foreign, "MAX_UNPACKED", 1 << 22)
    text = packed(pickle.dumps(np.zeros(1 << 24, np.uint8)))
    with pytest.raises(TraceFormatError, match="column 'obs': refused: it unpacks to more than 4 MiB"):
        decode_record(line_with(text), "f.json, line 3")


@pytest.mark.parametrize("seed", range(3))
def test_mutated_pickles_end_in_data_or_are_refused(seed):
    rng = np.random.default_rng(seed)
    values = [VALUES["nested"], VALUES["infos"], VALUES["float32"]]
    for protocol in PROTOCOLS:
        data = pickle.dumps(values[seed], protocol)
        for _ in range(400):
            mutated = bytearray(data)
            for _ in range(rng.integers(1, 4)):
                mutated[rng.integers(len(mutated))] = rng.integers(256)
            try:
                read_pickled(bytes(mutated))
            except RefusedError:
                pass


def test_no_unpickler_is_loaded():
    """Where there is none, nobody can forget to guard it."""
    code = (
        "import ast, pathlib, polylib.offline as o\n"
        "for file in pathlib.Path(o.__file__).parent.rglob('*.py'):\n"
        "    for node in ast.walk(ast.parse(file.read_text())):\n"
        "        names = [a.name for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []\n"
        "        print(*names)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = set(result.stdout.split())
    assert "pickletools" in names and not names & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
