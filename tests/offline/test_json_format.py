"""Records: what is written is strict JSON in RLlib's layout, and reads back as exactly what it was."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from offline.batches import DTYPES, assert_same, cartpole, random_batch

from polylib.offline import CorruptLineError, TraceFormatError
from polylib.offline.json_format import decode_record, encode_record
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

SETTINGS = {
    "lists": {},
    "packed": {"compress_columns": ("obs", "new_obs", *(f"c{i}" for i in range(6)))},
    "polylib": {"format": "polylib"},
}


@pytest.fixture(params=list(SETTINGS))
def settings(request):
    return SETTINGS[request.param]


def strict(line: bytes) -> dict:
    """The line as strict JSON: Python's own reader would take NaN and Infinity."""

    def refuse(token):
        raise AssertionError(f"{token} is no JSON")

    assert line.endswith(b"}\n") and line.count(b"\n") == 1
    return json.loads(line, parse_constant=refuse)


def round_trip(batch, **settings):
    line = encode_record(batch, **settings)
    strict(line)
    back = decode_record(line, "here")
    assert_same(batch, back)
    return back


def test_a_recorded_fragment_reads_back_exactly(settings):
    back = round_trip(cartpole(), **settings)
    assert back["obs"].dtype == np.float32 and back["actions"].dtype == np.int64 and back["t"].dtype == np.int32
    for column in back.values():
        column[...] = 0  # writable, as arrays of a worker are


def test_the_layout_is_rllibs_with_one_key_more():
    batch = cartpole(3)
    record = strict(encode_record(batch))
    assert list(record) == ["type", "count", "polylib", "policy_batches"]
    assert record["type"] == "MultiAgentBatch" and record["count"] == 3
    columns = record["policy_batches"]["default_policy"]
    assert list(columns) == list(batch)
    # The very numbers: a reader that makes float64 of them gets those that the float32 stand for.
    assert columns["obs"] == batch["obs"].tolist()
    assert columns["terminateds"] == [False, False, True]
    assert columns["eps_id"] == [0, 0, 0] and columns["unroll_id"] == [1 << 40] * 3
    assert record["polylib"]["columns"]["default_policy"]["obs"] == {"dtype": "float32", "shape": [3, 4]}


def test_only_named_columns_are_packed_and_without_pickle():
    record = strict(encode_record(cartpole(), compress_columns=["obs"]))
    columns = record["policy_batches"]["default_policy"]
    assert columns["obs"].startswith("lz4:") and isinstance(columns["new_obs"], list)
    columns = strict(encode_record(cartpole(), format="polylib"))["policy_batches"]["default_policy"]
    assert all(text.startswith("raw:") for text in columns.values())


def test_packing_makes_images_smaller():
    batch = SampleBatch(obs=np.zeros((20, 84, 84, 4), np.uint8))
    assert len(encode_record(batch, compress_columns=["obs"])) < batch.size_bytes() / 50


def test_a3_uint8_observations_and_float32_rewards_keep_their_dtypes(settings):
    rng = np.random.default_rng(0)
    batch = SampleBatch(
        obs=rng.integers(0, 256, (3, 4, 4, 3), dtype=np.uint8), rewards=rng.standard_normal(3).astype(np.float32)
    )
    back = round_trip(batch, **settings)
    assert back["obs"].dtype == np.uint8 and back["obs"].shape == (3, 4, 4, 3)
    assert back["rewards"].dtype == np.float32


def test_a6_non_finite_rewards_are_null_and_read_back_equal(settings):
    batch = SampleBatch(rewards=np.array([np.nan, np.inf, 1, -np.inf], np.float32))
    round_trip(batch, **settings)
    record = strict(encode_record(batch))
    assert record["policy_batches"]["default_policy"]["rewards"] == [None, None, 1.0, None]
    note = record["polylib"]["columns"]["default_policy"]["rewards"]
    assert note["nonfinite"] == {"nan": [0], "inf": [1], "-inf": [3]}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a6_non_finite_values_inside_rows(dtype, settings):
    obs = np.arange(12, dtype=dtype).reshape(2, 3, 2)
    obs[0, 1, 1], obs[1, 2, 0], obs[1, 0, 0] = np.nan, -np.inf, -0.0
    round_trip(SampleBatch(obs=obs), **settings)


def test_a10_pendulums_actions_stay_in_the_environments_units(settings):
    env = gym.make("Pendulum-v1")
    env.action_space.seed(3)
    obs, _ = env.reset(seed=3)
    rows = []
    for _ in range(30):
        action = env.action_space.sample()
        new_obs, reward, *_ = env.step(action)
        rows.append((obs, action, np.float32(-1.3), np.float32(reward), new_obs))
        obs = new_obs
    names = ("obs", "actions", "action_logp", "rewards", "new_obs")
    batch = SampleBatch({name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    assert np.abs(batch["actions"]).max() > 1.5
    back = round_trip(batch, **settings)
    assert back["actions"].dtype == np.float32


@pytest.mark.parametrize("dtype", [*DTYPES, "complex64", "complex128", "<U4", "S3"])
def test_every_dtype_reads_back(dtype, settings):
    array = np.arange(6).reshape(3, 2).astype(dtype)
    round_trip(SampleBatch(x=array), **settings)
    round_trip(SampleBatch(x=array[:0]), **settings)
    round_trip(SampleBatch(x=array[::-1, ::-1]), **settings)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "float32", "float64", "float16"])
def test_extreme_values_read_back(dtype, settings):
    info = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    extra = [info.smallest_subnormal, info.tiny, info.eps] if np.dtype(dtype).kind == "f" else [0]
    round_trip(SampleBatch(x=np.array([info.min, info.max, *extra], dtype)), **settings)


def test_other_byte_orders_become_native():
    back = decode_record(encode_record(SampleBatch(x=np.arange(3, dtype=">f4"))), "here")
    assert_same(back, SampleBatch(x=np.arange(3, dtype=np.float32)))


@pytest.mark.parametrize("seed", range(60))
def test_random_nests_read_back_bit_for_bit(seed, settings):
    rng = np.random.default_rng(seed)
    batch = random_batch(rng)
    round_trip(batch, **settings)
    round_trip(MultiAgentBatch({"a": batch, 'b "\u00fc': random_batch(rng), "empty": SampleBatch()}, 7), **settings)


def test_nested_observations_are_objects_and_lists():
    batch = SampleBatch(obs={"pos": np.ones((2, 3), np.float32), "modes": (np.arange(2), np.zeros((2, 1), np.uint8))})
    round_trip(batch)
    obs = strict(encode_record(batch))["policy_batches"]["default_policy"]["obs"]
    assert obs == {"pos": [[1.0] * 3] * 2, "modes": [[0, 1], [[0], [0]]]}


def test_several_policies_and_how_many_steps_they_took():
    batch = MultiAgentBatch({"p0": cartpole(3), "p1": cartpole(2)}, 4)
    assert round_trip(batch).env_steps() == 4
    single = MultiAgentBatch({"default_policy": cartpole(3)}, 3)
    assert isinstance(round_trip(single), MultiAgentBatch)


def test_infos_read_back_with_the_types_they_had(settings):
    infos = [
        {},
        {"a": 1, "nested": {"b": [1.5, None, "x", True]}},
        {"t": (1, (2,)), "f": np.float32(0.1), "n": np.arange(3, dtype=np.int16), "nan": float("nan"), "b": b"\x00"},
        None,
    ]
    column = np.empty(4, object)
    column[:] = infos
    round_trip(SampleBatch(infos=column), **settings)
    plain = SampleBatch(infos=np.array([{"a": 1}, {}]))
    record = strict(encode_record(plain))
    assert record["policy_batches"]["default_policy"]["infos"] == [{"a": 1}, {}]
    assert "exact" not in record["polylib"]["columns"]["default_policy"]["infos"]


@pytest.mark.parametrize(
    "value, text",
    [
        (object(), "a value of type object"),
        ({1: 2}, "a dict key of type int"),
        ({"x": {1, 2}}, "a value of type set"),
        (np.array([object()]), "an array of dtype object"),
        (1 << 70, "a value of type int"),
    ],
)
def test_what_cannot_be_recorded_names_the_column(value, text):
    column = np.empty(1, object)
    column[0] = value
    with pytest.raises(TraceFormatError, match=f"column 'infos' of policy 'default_policy'.*{text}"):
        encode_record(SampleBatch(infos=column))


def test_dates_and_structures_are_refused():
    for array in (np.zeros(2, "M8[s]"), np.zeros(2, [("a", "f4")]), np.zeros(2, np.longdouble)):
        with pytest.raises(TraceFormatError, match="column 'x'.*dtype"):
            encode_record(SampleBatch(x=array))


def damaged(change):
    record = json.loads(encode_record(cartpole(2), compress_columns=["new_obs"]))
    change(record, record["policy_batches"]["default_policy"], record["polylib"]["columns"]["default_policy"])
    return json.dumps(record).encode()


DAMAGE = {
    "a missing row": (lambda r, v, n: v["obs"].pop(), "column 'obs'.*shape"),
    "a short row": (lambda r, v, n: v["obs"][0].pop(), "column 'obs'.*don't make an array of float32"),
    "a word": (lambda r, v, n: v["actions"].__setitem__(0, "left"), "column 'actions'.*don't make an array"),
    "another shape": (lambda r, v, n: n["obs"].update(shape=[4, 2]), "column 'obs'.*shape"),
    "an impossible shape": (lambda r, v, n: n["obs"].update(shape=[-1, 2]), "column 'obs'.*sizes"),
    "a huge shape": (lambda r, v, n: n["obs"].update(shape=[0, 1 << 80]), "column 'obs'.*sizes"),
    "no shape": (lambda r, v, n: n["obs"].pop("shape"), "column 'obs'.*shape"),
    "an unknown dtype": (lambda r, v, n: n["obs"].update(dtype="V8"), "column 'obs'.*dtype 'V8'"),
    "a dtype that is none": (lambda r, v, n: n["obs"].update(dtype=["f4"]), "column 'obs'.*dtype"),
    "an unknown encoding": (lambda r, v, n: n["new_obs"].update(encoding="zip"), "column 'new_obs'.*'zip'"),
    "cut text": (lambda r, v, n: v.update(new_obs=v["new_obs"][:-8]), "column 'new_obs'.*damaged|noted"),
    "other text": (lambda r, v, n: v.update(new_obs="lz4:...."), "column 'new_obs'.*damaged"),
    "a bomb": (lambda r, v, n: n["new_obs"].update(shape=[2, 1 << 40]), "column 'new_obs'.*can't unpack"),
    "a wide text": (lambda r, v, n: n["obs"].update(dtype="U9999999", shape=[1 << 20]), "column 'obs'.*memory"),
    "text in place of a list": (lambda r, v, n: v.update(obs="x"), "column 'obs'.*list"),
    "a wrong place": (lambda r, v, n: n["obs"].update(nonfinite={"nan": [99]}), "column 'obs'.*don't make"),
    "no note": (lambda r, v, n: n.pop("obs"), "doesn't list the columns"),
    "no columns": (lambda r, v, n: r["polylib"].pop("columns"), "key 'polylib' is damaged"),
    "a newer version": (lambda r, v, n: r["polylib"].update(version=2), "newer polylib"),
    "no policies": (lambda r, v, n: r.pop("policy_batches"), "'policy_batches'"),
    "a count that is none": (lambda r, v, n: r.update(count="x"), "'count'"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_tampered_line_is_an_error_that_says_where(name):
    change, text = DAMAGE[name]
    with pytest.raises(TraceFormatError, match=f"^f.json, line 7.*({text})") as caught:
        decode_record(damaged(change), "f.json, line 7")
    assert not isinstance(caught.value, CorruptLineError)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_lines_end_in_data_or_a_clear_error(seed, settings):
    rng = np.random.default_rng(seed)
    line = bytearray(encode_record(random_batch(rng), **settings))
    for _ in range(300):
        mutated = bytearray(line)
        for _ in range(rng.integers(1, 4)):
            mutated[rng.integers(len(mutated))] = rng.integers(32, 127)
        try:
            decode_record(bytes(mutated), "f.json, line 1")
        except TraceFormatError as e:
            assert str(e).startswith("f.json, line 1")


@pytest.mark.parametrize("line", [b"[" * 5000, b'{"type": "MultiAgentBatch"', b"\xff\xfe", b"NaN NaN", b"x"])
def test_what_is_no_json_is_a_corrupt_line(line):
    with pytest.raises(CorruptLineError, match="f.json, line 1: not whole JSON"):
        decode_record(line, "f.json, line 1")


@pytest.mark.parametrize("line", [b"3", b"[]", b"{}", b"null", b'{"type": "Other"}', b'{"value": {"a": 1}}'])
def test_json_that_is_no_record_is_an_error(line):
    with pytest.raises(TraceFormatError, match="f.json, line 1: no record of a trace"):
        decode_record(line, "f.json, line 1")


def test_deep_nesting_is_an_error():
    deep = '{"a":' * 900 + "[1]" + "}" * 900
    for value in (deep, f'{{"dict": {deep}}}'):
        line = f'{{"type": "MultiAgentBatch", "count": 1, "policy_batches": {{"default_policy": {{"obs": {value}}}}}}}'
        with pytest.raises(TraceFormatError, match="f.json, line 1"):
            decode_record(line.encode(), "f.json, line 1")
