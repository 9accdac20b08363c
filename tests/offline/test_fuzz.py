"""Damaged and hostile traces end in data or in an error that names file, line and column: nothing else ever happens."""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import time
import zipfile
from typing import Any

import hypothesis.extra.numpy as hnp
import lz4.block
import numpy as np
import orjson
import pybase64
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from offline.batches import assert_same, cartpole, peak
from offline.conftest import DATA

from polylib.offline import JsonReader, OfflineError, TraceFormatError, budget
from polylib.offline.checks import Expected
from polylib.offline.json_format import decode_record, encode_record
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

PLACE = "some/file.json, line 7"
QUICK = settings(
    max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
# What readers of CartPole's traces ask for, and what any is read with.
ASKED = [
    Expected(spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2), ("terminateds", "rewards")),
    Expected(),
    Expected(None, spaces.Box(-2, 2, (1,)), (), {"obs": "seen"}, normalized=True),
]


def outcome(line: bytes, expected: Expected) -> str:
    """Reads a line as a reader does; what came of it, data or the kind of error."""
    start = time.monotonic()
    try:
        batch = expected.prepare(decode_record(line, PLACE, expected.columns), PLACE)
        assert isinstance(batch, SampleBatch | MultiAgentBatch)
        result = "data"
    except TraceFormatError as e:
        text = str(e)
        if not text.startswith(PLACE) or "\n" in text or len(text) > 1500:
            pytest.fail(f"a bad message: {text[:3000]!r}")
        result = type(e).__name__
    assert time.monotonic() - start < 10
    return result


# --- real traces, mutated ---------------------------------------------------------------------------------------------


def real_lines() -> list[bytes]:
    """RLlib's lines of every kind and polylib's own. Lists are cut to some rows, so that thousands can be read."""
    lines = []
    for folder in sorted(path for path in DATA.iterdir() if path.is_dir()):
        record = orjson.loads(next(folder.glob("*.json")).read_bytes().splitlines()[0])
        for columns in record.get("policy_batches", {"": record}).values():
            # Packed columns, and states per sequence, keep their length.
            if "seq_lens" not in columns and not any(isinstance(column, str) for column in columns.values()):
                columns.update({name: cut(column) for name, column in columns.items()})
        lines.append(orjson.dumps(record))
    batch = cartpole(12, infos=np.array([{}, {"a": (1, b"x", np.float32(2))}] * 6, object))
    nested = SampleBatch(
        obs={"a": np.arange(3), "b": (np.eye(3), np.array(["x", "yy", ""]))}, rewards=[np.nan, 1, np.inf]
    )
    lines += [
        encode_record(batch, ["obs", "new_obs"]),
        encode_record(batch, format="polylib"),
        encode_record(MultiAgentBatch({"p": nested, "q": batch}, 12), spaces={"action_space": {"type": "Discrete"}}),
    ]
    return lines


def cut(column: Any) -> Any:
    if isinstance(column, dict):
        return {key: cut(part) for key, part in column.items()}
    return column[:12] if isinstance(column, list) else column


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 7, 1 << 40, 1 << 62, -(1 << 63), (1 << 64) - 1, 0.5, -1.5, 1e308, 1e-320),
    *("", "raw:", "lz4:", "AAAA", "lz4:AAAA", "raw:AAAAAAAA", "float32", "int64", "bool", "U9999999", "S3", "object"),
    *("dict", "$", "x" * 50, "\u2028\x00\ud7ff", [], {}, [None], [[]], [[], [1]], [1, "a"], [[1, 2], [3]]),
    *({"$": "array"}, {"$": "dict", "items": {}}),
    *([0, 1 << 61], [1 << 31, 1 << 31], {"dict": {}}, {"tuple": []}, {"dtype": "float64", "shape": [2]}, [1e400]),
]  # fmt: skip


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Places in a JSON value, by container and key: all in objects, the first and the last in lists."""
    found, stack = [], [value]
    while stack:
        part = stack.pop()
        for key in list(part) if isinstance(part, dict) else {0, len(part) - 1} if part else ():
            found.append((part, key))
            if isinstance(part[key], dict | list):
                stack.append(part[key])
    return found


def mutate_tree(line: bytes, rng: random.Random) -> bytes:
    record = orjson.loads(line)
    for _ in range(rng.randint(1, 3)):
        places = nodes(record)
        if not places:
            break
        container, key = rng.choice(places)
        other, other_key = rng.choice(places)
        action = rng.randrange(7)
        if action == 0:
            container[key] = rng.choice(VALUES)
        elif action == 1:
            container[key] = orjson.loads(dumps(other[other_key]))
        elif action == 2:
            del container[key]
        elif action == 3 and isinstance(container, dict):
            container[rng.choice(["obs", "dtype", "shape", "", "seq_lens", "x" * 5000, "state_in_0"])] = container.pop(
                key
            )
        elif action == 4 and isinstance(container[key], list):
            container[key] = container[key] * rng.choice([2, 3, 50])
        elif action == 5 and isinstance(container[key], str) and container[key]:
            text = container[key]
            at = rng.randrange(len(text))
            container[key] = text[:at] + rng.choice(["", "A", "/", "===", "\u00e9"]) + text[at + rng.randint(0, 3) :]
        elif action == 6:
            deep: Any = container[key]
            for _ in range(rng.choice([5, 40, 300])):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            container[key] = deep
    return dumps(record)


def dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # nested too deeply for it
        return json.dumps(value).encode()


def mutate_bytes(line: bytes, others: list[bytes], rng: random.Random) -> bytes:
    data = bytearray(line)
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        action = rng.randrange(6)
        if action == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif action == 1:
            del data[at : at + rng.randint(1, 30)]
        elif action == 2:
            data[at:at] = data[end : end + rng.randint(1, 200)]
        elif action == 3:
            data = data[: max(1, at)]
        elif action == 4:
            other = rng.choice(others)
            start = rng.randrange(len(other))
            data[at:end] = other[start : start + rng.randint(1, 2000)]
        else:
            token = rng.choice(
                [b"NaN", b"-Infinity", b"1e999", b"[" * 2000, b'{"a":' * 500, b"\\ud800", b"9" * 6000, b"null"]
            )
            data[at : at + rng.randint(0, 5)] = token
        if not data:
            data = bytearray(b"x")
    return bytes(data)


def test_ten_thousand_mutated_lines_end_in_data_or_in_an_error_that_names_the_place():
    lines = real_lines()
    rng = random.Random(0)
    counts: dict[str, int] = {}
    for line in lines:
        assert outcome(line, ASKED[1]) == "data"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    short = [line for line in lines if len(line) < 20_000]
    for i in range(10_000):
        some = lines if i % 10 == 0 else short  # the long ones take most of the time
        line = rng.choice(some)
        line = mutate_tree(line, rng) if i % 5 < 3 else mutate_bytes(line, some, rng)
        result = outcome(line, ASKED[i % 7 % 3])
        counts[result] = counts.get(result, 0) + 1
    # All three happen often: mutations reach what lies behind the parser.
    assert set(counts) == {"data", "TraceFormatError", "CorruptLineError"} and min(counts.values()) > 1000, counts
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 << 10  # KB


@pytest.mark.parametrize("suffix", [".json.gz", ".zip", ".json"])
def test_mutated_files_end_in_data_or_in_an_error_that_names_the_file(suffix, tmp_path):
    rng = random.Random(1)
    content = b"".join(line + b"\n" for line in real_lines()[-3:])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.json", content)
        file.writestr("b.json", content[:500])
    data = {".json.gz": gzip.compress(content), ".zip": packed.getvalue(), ".json": content}[suffix]
    results = set()
    for i in range(300):
        path = tmp_path / f"{i}{suffix}"
        mutated = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            mutated[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(mutated if rng.random() < 0.7 else mutate_bytes(data, [data], rng))
        reader = None
        for _ in range(20):
            try:
                reader = reader or JsonReader(path)
                reader.next()
                results.add("data")
            except StopIteration:
                break
            except OfflineError as e:
                assert str(path) in str(e) and "\n" not in str(e)
                results.add("error")
                if reader is None:
                    break
        path.unlink()
    assert results == {"data", "error"}


# --- anything at all --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["obs", "actions", "rewards", "terminateds", "dones", "seq_lens", "state_in_0", "infos", "x", ""]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)
JSON = st.recursive(SCALARS, lambda parts: st.lists(parts, max_size=4) | st.dictionaries(NAMES, parts, max_size=4))
DTYPES = st.sampled_from(
    ["float32", "float64", "int64", "uint8", "bool", "U3", "S2", "object", "complex64", "nope", "O", ""]
)
NOTES = st.recursive(
    st.fixed_dictionaries(
        {"dtype": DTYPES | JSON, "shape": st.lists(st.integers(-1, 1 << 40), max_size=4) | JSON},
        optional={
            "encoding": st.sampled_from(["raw", "lz4", "list", "zip"]) | JSON,
            "nonfinite": st.dictionaries(st.sampled_from(["nan", "inf", "-inf"]), JSON, max_size=2) | JSON,
            "exact": JSON,
        },
    ),
    lambda parts: (
        st.fixed_dictionaries({"dict": st.dictionaries(NAMES, parts, max_size=3)})
        | st.fixed_dictionaries({"tuple": st.lists(parts, max_size=3)})
    ),
    max_leaves=6,
)
TEXTS = st.builds(
    lambda prefix, data: prefix + pybase64.b64encode_as_string(data),
    st.sampled_from(["", "raw:", "lz4:"]),
    st.binary(max_size=60),
)
COLUMNS = st.dictionaries(
    NAMES, JSON | TEXTS | st.lists(st.floats(allow_nan=False) | st.integers(-9, 9), max_size=5), max_size=5
)


@st.composite
def records(draw) -> Any:
    policies = draw(st.dictionaries(st.sampled_from(["default_policy", "p"]), COLUMNS, max_size=2) | JSON)
    record = {
        "type": draw(st.sampled_from(["MultiAgentBatch", "SampleBatch"]) | JSON),
        "count": draw(st.integers(-1, 9) | JSON),
    }
    if record["type"] == "SampleBatch" and isinstance(policies, dict):
        record |= next((p for p in policies.values() if isinstance(p, dict)), {})
    record["policy_batches"] = policies
    if draw(st.booleans()) and isinstance(policies, dict):
        notes = {
            p: {name: draw(NOTES) for name in columns} for p, columns in policies.items() if isinstance(columns, dict)
        }
        record["polylib"] = draw(st.just({"version": 1, "columns": notes}) | JSON)
    return draw(st.sampled_from([record, {"value": record}]))


@QUICK
@given(records(), st.sampled_from(ASKED))
def test_any_record_ends_in_data_or_in_an_error_that_names_the_place(record, expected):
    outcome(orjson.dumps(record), expected)


@QUICK
@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_end_in_an_error_that_names_the_place(line):
    assert outcome(line, ASKED[1]) in ("TraceFormatError", "CorruptLineError")


ARRAYS = hnp.arrays(
    st.one_of(
        hnp.boolean_dtypes(),
        hnp.integer_dtypes(),
        hnp.unsigned_integer_dtypes(),
        hnp.floating_dtypes(sizes=(16, 32, 64)),
        hnp.complex_number_dtypes(sizes=(64, 128)),
        hnp.unicode_string_dtypes(max_len=4),
        hnp.byte_string_dtypes(max_len=4),
    ),
    st.lists(st.integers(0, 3), max_size=2).map(lambda shape: (3, *shape)),
)
OBJECTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda parts: (
        st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3) | st.tuples(parts)
    ),
    max_leaves=5,
)


@QUICK
@given(
    st.dictionaries(st.text(max_size=5), ARRAYS, min_size=1, max_size=3),
    st.lists(OBJECTS, min_size=3, max_size=3),
    st.sampled_from(["json", "lz4", "polylib"]),
)
def test_whatever_can_be_written_reads_back_the_same(columns, objects, how):
    infos = np.empty(3, object)
    infos[:] = objects
    batch = SampleBatch({name: native(column) for name, column in columns.items()}, infos=infos)
    try:
        line = encode_record(batch, list(batch) if how == "lz4" else [], "polylib" if how == "polylib" else "json")
    except TraceFormatError as e:  # integers above 64 bits, text that UTF-8 lacks
        assert "infos" in str(e) or "JSON" in str(e)
        return
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert_same(decode_record(line, PLACE), batch)


def native(array: np.ndarray) -> np.ndarray:
    """In this machine's byte order, NaNs all of one kind: a trace keeps values, not how they are laid out."""
    array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array


# --- bombs ------------------------------------------------------------------------------------------------------------


def zeros(size: int) -> str:
    return "lz4:" + pybase64.b64encode_as_string(lz4.block.compress(bytes(size), store_size=False))


def bomb(columns: int, size: int) -> bytes:
    note = {"dtype": "uint8", "shape": [1, size], "encoding": "lz4"}
    text = zeros(size)
    names = [f"c{i}" for i in range(columns)]
    key = {"version": 1, "columns": {"default_policy": {name: note for name in names}}}
    policies = {"default_policy": {name: text for name in names}}
    return orjson.dumps({"type": "MultiAgentBatch", "count": 1, "polylib": key, "policy_batches": policies})


def test_many_lz4_columns_share_one_budget(monkeypatch):
    monkeypatch.setattr(budget, "MAX_RECORD_BYTES", 1 << 24)
    assert outcome(bomb(3, 1 << 22), ASKED[1]) == "data"
    with pytest.raises(TraceFormatError, match=f"{PLACE}, column 'c4': .*too much memory, more than 16 MiB"):
        decode_record(bomb(100, 1 << 22), PLACE)


def test_an_lz4_bomb_of_many_gigabytes_takes_no_memory():
    line = bomb(60, 1 << 27)  # a line of 42 MB that says it holds 8 GB
    note = orjson.loads(line)["polylib"]["columns"]["default_policy"]["c0"]
    record = orjson.loads(line)
    record["polylib"]["columns"]["default_policy"] = {
        name: {**note, "shape": [1, 1 << 40]} for name in record["policy_batches"]["default_policy"]
    }
    line = orjson.dumps(record)

    def read() -> None:
        with pytest.raises(TraceFormatError, match="column 'c0': .*can't unpack to"):
            decode_record(line, PLACE)

    assert peak(read) < 30 * len(line)  # of 8 TB


def test_wide_text_and_packed_columns_share_the_budget(monkeypatch):
    monkeypatch.setattr(budget, "MAX_RECORD_BYTES", 1 << 20)
    note = {"dtype": "U9999999", "shape": [2]}
    record = {"type": "MultiAgentBatch", "count": 1, "polylib": {"version": 1, "columns": {"p": {"x": note}}}}
    with pytest.raises(TraceFormatError, match="column 'x': .*too much memory"):
        decode_record(orjson.dumps({**record, "policy_batches": {"p": {"x": ["a", "b"]}}}), PLACE)
    monkeypatch.setattr(budget, "MAX_RECORD_BYTES", 1 << 10)
    (path,) = (DATA / "image_lz4").glob("*.json")
    with pytest.raises(TraceFormatError, match=f"{PLACE}, column 'obs': .*too much memory"):
        decode_record(path.read_bytes().splitlines()[0], PLACE)
