"""The reader that a config asks for."""

from __future__ import annotations

import json
import pathlib
from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces
from offline.batches import cartpole, peak
from offline.readers import Given, Numbered

import polylib
from polylib import registry
from polylib.algorithms.ppo import PPOConfig
from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError
from polylib.offline import IOContext, JsonReader, JsonWriter, TraceFileError, TraceFormatError, make_input
from polylib.offline.json_format import encode_record
from polylib.offline.make_input import check_input, input_of, is_of_files
from polylib.policy.sample_batch import SampleBatch

BOX4 = spaces.Box(-np.inf, np.inf, (4,), np.float32)


def write(path: pathlib.Path, *eps_ids: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_record(cartpole(eps_id=i)) for i in eps_ids))
    return str(path)


def take(reader, count: int) -> list[int]:
    return [int(reader.next()["eps_id"][0]) for _ in range(count)]


def all_of(reader) -> list[int]:
    return [int(batch["eps_id"][0]) for batch in reader]


@pytest.fixture
def own_inputs(monkeypatch):
    monkeypatch.setattr(registry, "_inputs", registry._Shelf())


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_for_ever_in_training_and_once_otherwise(tmp_path):
    for i in range(6):
        write(tmp_path / f"{i}.json", 2 * i, 2 * i + 1)
    config = {"input": str(tmp_path), "seed": 3}
    assert all_of(make_input(config, loop=False)) == list(range(12))
    reader = make_input(config)
    passes = [take(reader, 12) for _ in range(4)]
    assert all(sorted(ids) == list(range(12)) for ids in passes)
    assert len({tuple(ids) for ids in passes}) == 4  # another order every time
    again = make_input(config)
    assert [take(again, 12) for _ in range(4)] == passes
    assert take(make_input({**config, "seed": 4}), 12) != passes[0]


def test_lines_are_shuffled_on_request_and_order_can_be_kept(tmp_path):
    path = write(tmp_path / "a.json", *range(30))
    write(tmp_path / "b.json", *range(30, 40))
    reader = make_input({"input": [path, str(tmp_path / "b.json")], "input_config": {"shuffle": "lines", "seed": 0}})
    passes = [take(reader, 40) for _ in range(3)]
    assert all(sorted(ids) == list(range(40)) for ids in passes) and len({tuple(ids) for ids in passes}) == 3
    assert sum(abs(a - b) == 1 for a, b in zip(passes[0], passes[0][1:], strict=False)) < 12
    reader = make_input({"input": str(tmp_path), "input_config": {"shuffle": None}})
    assert [take(reader, 40), take(reader, 40)] == [list(range(40))] * 2


def test_lines_of_packed_files_cannot_be_shuffled(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(b"")
    with pytest.raises(TraceFileError, match="a.json.gz': its lines can't be read in random order"):
        JsonReader(tmp_path, shuffle="lines").next()


def test_a_config_object_and_the_alias_are_taken(tmp_path):
    path = write(tmp_path / "a.json", 5)
    assert all_of(make_input({"input_": path}, loop=False)) == [5]
    assert input_of(PPOConfig()) == input_of({}) == "sampler"
    assert take(make_input({"input": pathlib.Path(path)}), 2) == [5, 5]


@pytest.mark.parametrize("value", [3, True, b"x", [1], 1.5, ["a.json", None]])
def test_what_is_no_input_is_one_clear_error(value):
    with pytest.raises(ConfigTypeError, match="input=.*: expected 'sampler', a file, a folder, .* 'module:Class'"):
        make_input({"input": value})


@pytest.mark.parametrize("value", [3, True, b"x", [1], {"": 0.5, 3: 0.5}, ["a.json", None]])
def test_an_input_of_the_wrong_type_is_told_before_anything_is_read(value):
    with pytest.raises(ConfigTypeError, match="config key 'input': got .*expected 'sampler', a file, a folder"):
        check_input(value)


def test_a_buffer_larger_than_the_files_ends_where_they_start_over(tmp_path):
    for i in range(3):
        write(tmp_path / f"{i}.json", i)
    config = {"input": str(tmp_path), "shuffle_buffer_size": 10**30, "seed": 0}
    for keys in ({}, {"batch_mode": "complete_episodes"}):
        reader = make_input({**config, **keys})
        assert {int(x) for _ in range(4) for x in reader.next()["eps_id"]} == {0, 1, 2}


def test_shuffling_is_asked_for_in_the_words_of_other_formats_too(tmp_path):
    path = write(tmp_path / "a.json", 0, 1, 2)
    for said, meant in ((False, None), (True, "files")):
        assert make_input({"input": path, "input_config": {"shuffle": said}}).shuffle == meant


def test_mistakes_name_the_key(tmp_path):
    path = write(tmp_path / "a.json", 0)
    for seed in ("x", -1, True):
        with pytest.raises(ConfigError, match=f"input_config: seed={seed!r}: expected an integer >= 0"):
            make_input({"input": path, "input_config": {"seed": seed}})
    with pytest.raises(UnknownKeyError, match="input_config has no key 'shufle' for files.*Did you mean 'shuffle'"):
        make_input({"input": path, "input_config": {"shufle": "files"}})
    with pytest.raises(ConfigError, match="shuffle='file': expected 'files', 'lines' or None.*'files'"):
        make_input({"input": path, "input_config": {"shuffle": "file"}})
    with pytest.raises(ConfigTypeError, match=r"columns=\['obs'\]: expected names in the files to names of columns"):
        make_input({"input": path, "input_config": {"columns": ["obs"]}})
    with pytest.raises(TraceFileError, match="there is no file or folder '.*nowhere.json'"):
        make_input({"input": "nowhere.json"})


def test_what_does_not_fit_the_spaces_is_told_when_it_is_read(tmp_path):
    path = write(tmp_path / "a.json", 0)
    with pytest.raises(TraceFormatError, match=f"{path}, line 1, column 'obs': its rows have shape"):
        make_input({"input": path}, observation_space=spaces.Box(-1, 1, (3,))).next()
    with pytest.raises(TraceFormatError, match=f"{path}, line 1, column 'action_mask': missing"):
        make_input({"input": path}, required=["action_mask"]).next()


def test_columns_are_renamed(tmp_path):
    line = {"type": "SampleBatch", "state": [[0.0] * 4], "act": [1], "reward": [1.5], "dones": [True]}
    (tmp_path / "a.json").write_text(json.dumps(line) + "\n")
    names = {"state": "obs", "act": "actions", "reward": "rewards"}
    config = {"input": str(tmp_path), "input_config": {"columns": names}}
    batch = make_input(config, observation_space=BOX4, action_space=spaces.Discrete(2)).next()
    assert list(batch) == ["obs", "actions", "rewards", "terminateds", "truncateds"]
    assert batch["obs"].dtype == batch["rewards"].dtype == np.float32 and batch["actions"].dtype == np.int64
    (tmp_path / "b.json").write_bytes(encode_record(cartpole()))  # ours have the names already
    assert set(JsonReader(tmp_path / "b.json", columns={"state": "obs"}).next()) == set(cartpole())
    reader = JsonReader(tmp_path / "b.json", columns={"obs": "seen"})
    np.testing.assert_array_equal(reader.next()["seen"], cartpole()["obs"])
    with pytest.raises(TraceFormatError, match="line 1, column 'stat': missing.*is to be 'obs'; the record has 'act'"):
        JsonReader(tmp_path / "a.json", columns={"stat": "obs"}).next()
    with pytest.raises(TraceFormatError, match="line 1, column 'obs': two columns would have this name"):
        JsonReader(tmp_path / "b.json", columns={"new_obs": "obs"}).next()


# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [None, "files", "lines"])
@pytest.mark.parametrize("sizes", [[3], [1, 1, 1, 1], [2, 5, 1, 4]])
def test_a8_the_shares_of_workers_are_disjoint_and_cover_the_files(sizes, shuffle, tmp_path):
    first = 0
    for i, size in enumerate(sizes):
        write(tmp_path / f"{i}.json", *range(first, first + size))
        first += size
    for workers in (1, 2, 3):
        config = {"input": str(tmp_path), "input_config": {"shuffle": shuffle}, "seed": None}
        shares = [all_of(make_input(config, i, workers, loop=False)) for i in range(1, workers + 1)]
        assert sorted(sum(shares, [])) == list(range(sum(sizes)))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert len(all_of(make_input(config, 0, 2, loop=False))) == sum(sizes)  # the local worker's is everything


def test_a8_one_file_of_three_lines(tmp_path):
    path = write(tmp_path / "a.json", 0, 1, 2)
    assert [all_of(make_input({"input": path}, i, 2, loop=False)) for i in (1, 2)] == [[0, 2], [1]]


def test_more_workers_than_lines_is_one_clear_error(tmp_path):
    path = write(tmp_path / "a.json", 0, 1)
    with pytest.raises(TraceFileError, match="no record for worker 3 of 3 in .*a.json.*use fewer workers"):
        make_input({"input": path}, 3, 3).next()


# --- mixes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path):
    """A mix of three sources, whose episodes are 0, 1 and 2."""
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    return {write(tmp_path / f"{name}.json", i): weights[name] for i, name in enumerate("abc")}


def test_a2_a_mix_is_drawn_as_its_weights_say_and_the_same_for_the_same_seed(three):
    assert sum(three.values()) != 1  # 0.9999999999999999
    drawn = take(make_input({"input": three, "seed": 1}), 10_000)
    counts = Counter(drawn)
    for i, weight in enumerate(three.values()):
        assert abs(counts[i] - 10_000 * weight) < 4 * np.sqrt(10_000 * weight * (1 - weight))
    assert take(make_input({"input": three, "seed": 1}), 500) == drawn[:500]
    assert take(make_input({"input": three, "seed": 2}), 500) != drawn[:500]
    assert take(make_input({"input": three, "seed": 1}, 0, 2), 500) == drawn[:500]


def test_workers_draw_on_their_own(tmp_path):
    mix = {write(tmp_path / "a.json", *[0] * 3): 0.5, write(tmp_path / "b.json", *[1] * 3): 0.5}
    assert take(make_input({"input": mix, "seed": 1}, 1, 2), 50) != take(
        make_input({"input": mix, "seed": 1}, 2, 2), 50
    )


def test_a_finite_mix_gives_every_record_once(tmp_path):
    mix = {write(tmp_path / "a.json", *range(20)): 0.1, write(tmp_path / "b.json", *range(20, 25)): 0.9}
    ids = all_of(make_input({"input": mix, "seed": 0}, loop=False))
    assert sorted(ids) == list(range(25)) and ids != sorted(ids)


def test_the_sampler_is_a_part_of_a_mix(tmp_path):
    path = write(tmp_path / "a.json", 1, 2, 3)
    config = {"input": {"sampler": 0.5, path: 0.5}, "seed": 0}
    counts = Counter(take(make_input(config, sampler=lambda: cartpole(eps_id=0)), 400))
    assert 150 < counts[0] < 250 and set(counts) == {0, 1, 2, 3}
    finite = all_of(make_input(config, sampler=lambda: cartpole(eps_id=0), loop=False))
    assert [i for i in finite if i] == [1, 2, 3]  # and then it ends, though a sampler never does
    with pytest.raises(ConfigError, match="there is no environment to sample from, which 'sampler'"):
        make_input(config)


def test_parts_of_a_mix_may_be_readers_of_ones_own(three, own_inputs):
    polylib.register_input("mine", lambda context: Given([cartpole(eps_id=9)] * 1000))
    mix = {**{path: 0.2 for path in three}, "mine": 0.2, "offline.readers.Numbered": 0.2}
    config = {"input": mix, "input_config": {"first": 100}, "seed": 0}
    with pytest.raises(UnknownKeyError, match="'first'"):
        make_input(config)
    config["input_config"] = {}
    assert {0, 1, 2, 9} <= set(take(make_input(config), 60))


BAD_MIXES = {
    "a sum of 0.9": ({"a": 0.7, "b": 0.2}, "the weights of 'a', 'b' sum to 0.9: expected 1"),
    "negative": ({"a": 1.5, "b": -0.5}, "'a' has the weight 1.5: expected a number from 0 to 1"),
    "words": ({"a": "0.7", "b": 0.3}, "'a' has the weight '0.7'"),
    "NaN": ({"a": float("nan"), "b": 1.0}, "'a' has the weight nan"),
    "a flag": ({"a": True}, "'a' has the weight True"),
    "nothing": ({}, "a mix needs at least one part"),
}


@pytest.mark.parametrize("case", BAD_MIXES)
def test_bad_mixes_name_the_part(case):
    mix, text = BAD_MIXES[case]
    with pytest.raises(ConfigError, match=text):
        make_input({"input": mix})


def test_a_part_with_weight_0_is_not_even_looked_for(tmp_path):
    assert take(make_input({"input": {"nowhere.json": 0, write(tmp_path / "a.json", 1): 1}}), 2) == [1, 1]


# --- readers of one's own ---------------------------------------------------------------------------------------------


def test_a_function_is_told_about_the_run_and_samples_if_it_likes():
    seen = []

    def make(context: IOContext) -> Given:
        seen.append((context.log_dir, context.worker_index, context.num_workers, context.worker, context.input_config))
        return Given([context.default_sampler_input().next(), cartpole(eps_id=2)])

    config = {"input": make, "input_config": {"of": "mine"}}
    reader = make_input(config, 2, 3, sampler=lambda: cartpole(eps_id=1), logdir="/somewhere", worker="w")
    assert all_of(reader) == [1, 2] and seen == [("/somewhere", 2, 3, "w", {"of": "mine"})]


def test_a_registered_name_goes_before_a_file_of_that_name(tmp_path, monkeypatch, own_inputs):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine", 1)
    assert take(make_input({"input": "mine"}), 1) == [1] and is_of_files("mine")
    polylib.register_input("mine", lambda context: Given([cartpole(eps_id=2)]))
    assert take(make_input({"input": "mine"}), 1) == [2] and not is_of_files("mine")
    with pytest.raises(ConfigTypeError, match="the creator must be callable, got 3"):
        polylib.register_input("x", 3)


@pytest.mark.parametrize("name", ["offline.readers:Numbered", "offline.readers.Numbered", Numbered])
def test_a_class_by_its_path(name):
    assert take(make_input({"input": name, "input_config": {"first": 7}}), 3) == [7, 8, 9]
    assert isinstance(name, type) or not is_of_files(name)


@pytest.mark.parametrize(
    "name, text",
    [
        ("offline.readers:Nothing", "'offline.readers' has no such class or function"),
        ("offline.readers.NO_READER", "has 3 there, which can't be called"),
        ("offline.nowhere:X", "can't import 'offline.nowhere': ModuleNotFoundError"),
    ],
)
def test_a_bad_class_path_names_the_key(name, text):
    with pytest.raises(ConfigError, match=f"config key 'input': '{name}'.*{text}"):
        make_input({"input": name})


def test_a_file_that_is_missing_is_no_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("traces.json", "os.json", "traces"):
        with pytest.raises((TraceFileError, ConfigError), match=name):
            make_input({"input": name})


def test_a_reader_that_is_none_and_batches_that_are_none_are_clear_errors():
    with pytest.raises(ConfigTypeError, match="gave 3: expected a reader, an object with a method next"):
        make_input({"input": lambda context: 3})

    class Dicts:
        def next(self):
            return {"obs": [1]}

    with pytest.raises(ConfigTypeError, match="input .*, batch 1: expected a SampleBatch or MultiAgentBatch, got dict"):
        make_input({"input": lambda context: Dicts()}).next()


def test_batches_of_ones_own_reader_are_held_against_the_spaces():
    given = cartpole()
    reader = make_input({"input": lambda context: Given([given] * 2)}, observation_space=spaces.Box(-9, 9, (4,)))
    assert reader.next()["obs"].shape == (6, 4)
    reader = make_input({"input": lambda context: Given([given])}, observation_space=spaces.Box(-9, 9, (3,)))
    with pytest.raises(TraceFormatError, match="input <lambda>, batch 1, column 'obs'"):
        reader.next()


def test_a_json_reader_of_ones_own_takes_what_the_run_knows(tmp_path):
    path = write(tmp_path / "a.json", *range(6))
    config = {"input": lambda context: JsonReader(path, context), "observation_space": BOX4}
    reader = make_input(config, 2, 3)
    assert take(reader, 4) == [1, 4, 1, 4]
    assert reader.next()["obs"].dtype == np.float32


# --- going on ---------------------------------------------------------------------------------------------------------


SETTINGS = {
    "in order": {},
    "files": {"input_config": {"shuffle": "files"}},
    "lines": {"input_config": {"shuffle": "lines"}},
    "rows": {"shuffle_buffer_size": 20},
    "episodes": {"shuffle_buffer_size": 20, "batch_mode": "complete_episodes"},
    "a mix": {"mix": True},
    "a mix, shuffled": {"mix": True, "shuffle_buffer_size": 30},
}


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("case", SETTINGS)
def test_a_restored_reader_goes_on_where_the_other_stopped(case, loop, tmp_path):
    settings = dict(SETTINGS[case])
    for i in range(4):
        write(tmp_path / f"{i}.json", *range(5 * i, 5 * i + 5))
    paths = {str(tmp_path / f"[{a}].json"): w for a, w in (("0-1", 0.75), ("2-3", 0.25))}
    config = {"input": paths if settings.pop("mix", False) else str(tmp_path), "seed": 5, **settings}

    def rows(reader, count):
        found = []
        for _ in range(count):
            try:
                batch = reader.next()
            except StopIteration:
                break
            found.append([*zip(batch["eps_id"].tolist(), batch["t"].tolist(), strict=True)])
        return found

    expected = rows(make_input(config, 1, 2, loop=loop), 25)
    for stop in (0, 1, 3, 8, 13):
        first = make_input(config, 1, 2, loop=loop)
        assert rows(first, stop) == expected[:stop]
        state = json.loads(json.dumps(first.get_state()))
        config["seed"] = None  # the state has the seeds
        second = make_input(config, 1, 2, loop=loop)
        config["seed"] = 5
        assert second.set_state(state)
        assert rows(second, 25 - stop) == expected[stop:]


def test_a_state_of_other_files_is_not_taken(tmp_path):
    write(tmp_path / "a.json", 0, 1)
    reader = JsonReader(tmp_path)
    reader.next()
    state = reader.get_state()
    write(tmp_path / "b.json", 2)
    other = JsonReader(tmp_path)
    assert not other.set_state(state) and not other.set_state(None) and all_of(other) == [0, 1, 2]
    assert not JsonReader(tmp_path / "a.json", shuffle="files").set_state(state)


def test_a_reader_of_ones_own_without_a_state_says_so():
    class Plain:
        def next(self):
            return cartpole()

    reader = make_input({"input": lambda context: Plain()})
    assert reader.get_state() is None and not reader.set_state(None)
    reader = make_input({"input": lambda context: Given([cartpole(eps_id=i) for i in range(4)])})
    take(reader, 2)
    state = reader.get_state()
    take(reader, 1)
    assert reader.set_state(state) and take(reader, 2) == [2, 3]


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", ["files", "lines", "rows"])
def test_memory_is_flat_however_large_the_folder(shuffle, tmp_path):
    """120 MB of traces take hardly more than 8 MB. (The parser takes 12 times a line, which has 0.5 MB here.)"""
    row = np.random.default_rng(0).bytes(20_000)
    batch = SampleBatch(obs=np.tile(np.frombuffer(row, np.uint8), (20, 1)), eps_id=np.arange(20))
    with JsonWriter(tmp_path, format="polylib") as writer:
        for _ in range(8):
            writer.write(batch)
    (file,) = writer.files
    settings = {"shuffle_buffer_size": 60} if shuffle == "rows" else {"input_config": {"shuffle": shuffle}}
    rows = 0

    def read(files: int) -> None:
        nonlocal rows
        for batch in make_input({"input": [str(file)] * files, "seed": 0, **settings}, loop=False):
            rows += len(batch)

    small = peak(lambda: read(2))
    assert rows == 2 * 8 * 20
    large = peak(lambda: read(28))
    assert large < 1.3 * small + (1 << 20) and large < 16 << 20
    assert rows == 30 * 8 * 20 and 28 * file.stat().st_size > 119e6
