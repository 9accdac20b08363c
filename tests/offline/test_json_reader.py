"""Reading: RLlib's traces and polylib's, whole and damaged."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from offline.batches import assert_same, cartpole
from offline.conftest import DATA

from polylib.offline import IOContext, JsonReader, JsonWriter, TraceFileError, TraceFormatError
from polylib.offline.json_format import encode_record
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch, concat_samples

BOX4 = spaces.Box(-np.inf, np.inf, (4,), np.float32)


def foreign_line(**columns) -> str:
    """A line of RLlib's."""
    return json.dumps({"type": "MultiAgentBatch", "count": 2, "policy_batches": {"default_policy": columns}})


def write_lines(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines))
    return path


def episodes(reader) -> list[int]:
    return [int(batch["eps_id"][0]) for batch in reader]


# --- RLlib's files ----------------------------------------------------------------------------------------------------


def test_rllibs_traces_give_the_values_that_rllib_reads(rllib_folder):
    batch = JsonReader(rllib_folder).read_all().as_multi_agent()
    with np.load(rllib_folder / "expected.npz") as expected:
        assert {key.partition("/")[0] for key in expected.files} == set(batch.policy_batches)
        for key in expected.files:
            policy_id, _, name = key.partition("/")
            np.testing.assert_array_equal(batch.policy_batches[policy_id][name], expected[key], key, strict=True)


def test_rllibs_traces_are_single_or_multi_agent():
    assert isinstance(JsonReader(DATA / "cartpole_plain").next(), SampleBatch)
    assert isinstance(JsonReader(DATA / "multi_agent_cartpole").next(), MultiAgentBatch)


def test_lstm_states_get_a_row_for_every_step():
    batch = JsonReader(DATA / "cartpole_lstm").read_all()
    record = json.loads(next((DATA / "cartpole_lstm").glob("*.json")).read_bytes())
    columns = record["policy_batches"]["default_policy"]
    assert "seq_lens" not in batch
    for name in ("state_in_0", "state_in_1"):
        assert batch[name].shape == (len(batch), 16)
        starts = np.cumsum([0, *columns["seq_lens"][:-1]])
        np.testing.assert_array_equal(batch[name][starts], columns[name])
    inside = batch["t"] > 0
    # In the middle of an episode the state before a step is the one after the last, also where a sequence starts.
    np.testing.assert_array_equal(batch["state_in_0"][1:][inside[1:]], batch["state_out_0"][:-1][inside[1:]])
    assert (batch["state_in_0"][~inside] == 0).all()


def test_sequences_that_do_not_add_up_are_an_error(tmp_path):
    write_lines(tmp_path / "f.json", foreign_line(obs=[1, 2], seq_lens=[3], state_in_0=[[0.0]]))
    with pytest.raises(TraceFormatError, match="line 1, column 'seq_lens': .*don't add up to the 2 rows"):
        JsonReader(tmp_path).next()


def test_with_spaces_rllibs_columns_get_the_dtypes_of_batches():
    env = gym.make("CartPole-v1")
    reader = JsonReader(DATA / "cartpole_plain", observation_space=env.observation_space, action_space=env.action_space)
    batch = reader.read_all()
    dtypes = {name: batch[name].dtype for name in ("obs", "new_obs", "actions", "rewards", "t", "eps_id", "vf_preds")}
    assert dtypes == {
        **dict.fromkeys(("obs", "new_obs", "rewards", "vf_preds"), np.float32),
        **dict.fromkeys(("actions", "eps_id"), np.int64),
        "t": np.int32,
    }
    with np.load(DATA / "cartpole_plain" / "expected.npz") as expected:
        np.testing.assert_array_equal(batch["obs"], expected["default_policy/obs"])


def test_flattened_rows_fit_nested_spaces():
    observations = spaces.Dict({"mode": spaces.Discrete(4), "pos": spaces.Box(-1, 1, (3,), np.float32)})
    actions = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))
    batch = JsonReader(DATA / "dict_tuple", observation_space=observations, action_space=actions).read_all()
    assert batch["obs"].shape == (90, 7) and batch["actions"].shape == (90, 3)


def test_a9_old_dones_become_terminateds(tmp_path):
    single = json.dumps({"type": "SampleBatch", "obs": [[1.0], [2.0]], "dones": [False, True], "t": [0, 1]})
    write_lines(tmp_path / "f.json", single, foreign_line(obs=[[1.0], [2.0]], dones=[0, 1], t=[0, 1]))
    for batch in JsonReader(tmp_path, required=["terminateds", "truncateds"]):
        assert isinstance(batch, SampleBatch) and list(batch) == ["obs", "terminateds", "t", "truncateds"]
        assert batch["terminateds"].tolist() == [False, True] and batch["truncateds"].tolist() == [False, False]
        assert batch["terminateds"].dtype == batch["truncateds"].dtype == np.bool_


def test_a_wrapped_record_is_read(tmp_path):
    write_lines(tmp_path / "f.json", json.dumps({"value": json.loads(foreign_line(obs=[1, 2]))}))
    assert JsonReader(tmp_path).next()["obs"].tolist() == [1, 2]


def test_rllibs_nan_and_infinity_are_read(tmp_path):
    write_lines(tmp_path / "f.json", foreign_line(obs=[float("nan"), 1.0], rewards=[float("-inf"), None]))
    batch = JsonReader(tmp_path).next()
    np.testing.assert_array_equal(batch["obs"], [np.nan, 1])
    np.testing.assert_array_equal(batch["rewards"], [-np.inf, np.nan])


def test_nested_lists_and_infos_are_read(tmp_path):
    obs = {"a": [[1, 2], [3, 4]], "b": [0.5, 1.5]}
    write_lines(tmp_path / "f.json", foreign_line(obs=obs, infos=[{}, {"lives": 3}]))
    batch = JsonReader(tmp_path).next()
    assert batch["obs"]["a"].shape == (2, 2) and batch["infos"].tolist() == [{}, {"lives": 3}]


# --- bad lines --------------------------------------------------------------------------------------------------------


def test_a1_a_line_cut_in_half_is_left_out_with_one_warning(tmp_path, caplog):
    lines = [encode_record(cartpole(eps_id=i)) for i in range(5)]
    lines[2] = lines[2][: len(lines[2]) // 2] + b"\n"
    path = write_lines(tmp_path / "f.json", *lines)
    with caplog.at_level(logging.WARNING):
        reader = JsonReader(path)
        assert episodes(reader) == [0, 1, 3, 4]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and f"{path}, line 3" in record.getMessage()
    assert list(reader.skipped) == [(path, 3)]


def test_a_last_line_without_end_is_left_out_with_one_warning(tmp_path, caplog):
    whole, cut = encode_record(cartpole(eps_id=7)), encode_record(cartpole())[:-30]
    path = write_lines(tmp_path / "f.json", whole, b"\n", b"  \n", cut)
    reader = JsonReader(path)
    assert episodes(reader) == episodes(reader) == [7]
    assert [f"{path}, line 4" in record.getMessage() for record in caplog.records] == [True]


def test_a_byte_order_mark_costs_no_record(tmp_path, caplog):
    path = write_lines(tmp_path / "f.json", b"\xef\xbb\xbf" + encode_record(cartpole(eps_id=7)).replace(b"\n", b"\r\n"))
    assert episodes(JsonReader(path)) == [7] and not caplog.records


def test_a5_columns_of_different_lengths_name_both(tmp_path):
    path = write_lines(tmp_path / "f.json", foreign_line(obs=[[1.0], [2.0]], actions=[0]))
    with pytest.raises(TraceFormatError, match=f"{path}, line 1, column 'actions': .* has 1 rows.* has 2 .*'obs'"):
        JsonReader(path).next()


ELEVEN = {
    "narrow rows": (
        {"obs": [[1, 2, 3], [4, 5, 6]]},
        r"column 'obs': its rows have shape \[3\], those of Box.* have \[4\]",
    ),
    "an action too many": ({"actions": [1, 7]}, r"column 'actions': row 1 is 7, which isn't in Discrete\(2\)"),
    "no end": ({}, r"column 'terminateds': missing \(nor 'dones'\), but needed here"),
    "half an action": ({"actions": [0, 0.5]}, "column 'actions': row 1 is 0.5: expected values of int64"),
    "words": ({"rewards": ["a", "b"]}, "column 'rewards': expected numbers"),
    "ragged rows": ({"obs": [[1, 2, 3, 4], [1]]}, "column 'obs': it can't be made an array"),
    "a single value": ({"rewards": 1.0}, "column 'rewards': expected a list"),
    "nothing": ({"new_obs": None}, "column 'new_obs': expected a list"),
}


@pytest.mark.parametrize("name", ELEVEN)
def test_a11_what_does_not_fit_the_spaces_names_file_line_and_column(name, tmp_path):
    changed, text = ELEVEN[name]
    good = {"obs": [[0, 0, 0, 0], [1, 1, 1, 1]], "actions": [0, 1], "rewards": [1, 1], "terminateds": [False, True]}
    columns = {**good, **changed}
    if name == "no end":
        del columns["terminateds"]
    path = write_lines(tmp_path / "f.json", foreign_line(**good), foreign_line(**columns), foreign_line(**good))
    reader = JsonReader(
        path, observation_space=BOX4, action_space=spaces.Discrete(2), required=["terminateds", "truncateds"]
    )
    reader.next()
    with pytest.raises(TraceFormatError, match=f"^{path}, line 2, {text}"):
        reader.next()
    assert len(reader.next()) == 2  # an error doesn't end the reading


SPACES = {
    "Discrete with a start": (spaces.Discrete(3, start=5), [5, 7], [4]),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3], start=[1, 5]), [[1, 5], [2, 7]], [[0, 5]]),
    "MultiBinary": (spaces.MultiBinary(2), [[0, 1], [1, 1]], [[0, 2]]),
    "images": (spaces.Box(0, 255, (1, 2), np.uint8), [[[0, 255]], [[3, 4]]], [[[0, 256]]]),
    "flattened images": (spaces.Box(0, 1, (1, 2), np.float32), [[0, 0.5], [1, 1]], [[0, 0.5, 1]]),
}


@pytest.mark.parametrize("name", SPACES)
def test_rows_are_held_against_their_space(name, tmp_path):
    space, good, bad = SPACES[name]
    path = write_lines(tmp_path / "f.json", foreign_line(actions=good), foreign_line(actions=bad))
    reader = JsonReader(path, action_space=space)
    actions = reader.next()["actions"]
    assert actions.dtype == (np.int64 if "Discrete" in name else space.dtype)
    assert all(space.contains(row.astype(space.dtype)) for row in actions)
    with pytest.raises(TraceFormatError, match="line 2, column 'actions'"):
        reader.next()


def test_nested_observations_are_held_against_their_spaces(tmp_path):
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((BOX4,))})
    batch = SampleBatch(obs={"a": np.array([0, 1]), "b": (np.zeros((2, 4), np.float64),)})
    with JsonWriter(tmp_path) as writer:
        writer.write(batch)
        batch["obs"] = {"a": np.array([0, 2]), "b": (np.zeros((2, 4)),)}
        writer.write(batch)
        batch["obs"] = {"a": np.array([0, 1])}
        writer.write(batch)
    reader = JsonReader(tmp_path, observation_space=space)
    assert reader.next()["obs"]["b"][0].dtype == np.float32
    for text in (r"row 1 is 2, which isn't in Discrete\(2\)", "its parts aren't those of Dict"):
        with pytest.raises(TraceFormatError, match=f"column 'obs': {text}"):
            reader.next()


def test_one_hot_rows_of_a_discrete_observation_are_taken(tmp_path):
    path = write_lines(tmp_path / "f.json", foreign_line(obs=[[0.0, 1.0], [1.0, 0.0]]))
    assert JsonReader(path, observation_space=spaces.Discrete(2)).next()["obs"].shape == (2, 2)


def test_spaces_come_from_the_context_too(tmp_path):
    path = write_lines(tmp_path / "f.json", foreign_line(obs=[[1], [2]]))
    with pytest.raises(TraceFormatError, match="column 'obs'"):
        JsonReader(path, IOContext(config={"observation_space": BOX4})).next()


def test_without_spaces_what_polylib_wrote_stays_as_it_is(tmp_path):
    batch = SampleBatch(obs=np.ones((2, 3)), rewards=np.ones(2, np.float64))
    with JsonWriter(tmp_path) as writer:
        writer.write(batch)
    assert_same(JsonReader(tmp_path).next(), batch)


# --- which files, how often -------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """Four files, their episodes numbered in the order of their names."""
    for i, name in enumerate(("a_2.json", "a_10.json", "sub/b.json", "sub/deep/c.json")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_lines(tmp_path / name, encode_record(cartpole(eps_id=i)))
    (tmp_path / "notes.txt").write_text("no trace")
    return tmp_path


def test_a_file_a_folder_a_pattern_and_a_list(tree, monkeypatch):
    assert episodes(JsonReader(tree / "a_10.json")) == [1]
    assert episodes(JsonReader(str(tree))) == [0, 1]
    assert episodes(JsonReader(f"{tree}/a_*.json")) == [0, 1]
    assert episodes(JsonReader(f"{tree}/**/*.json")) == [0, 1, 2, 3]
    assert episodes(JsonReader([tree / "sub" / "b.json", str(tree)])) == [2, 0, 1]
    monkeypatch.setenv("HOME", str(tree))
    assert episodes(JsonReader("~/sub")) == [2]
    monkeypatch.chdir(tree)
    assert episodes(JsonReader("sub/deep")) == [3]


def test_a_reader_says_where_the_last_record_stands(tree):
    write_lines(tree / "a_10.json", encode_record(cartpole()), '{"type": "Sam', encode_record(cartpole()))
    reader = JsonReader(tree)
    assert reader.where == ""
    seen = [(reader.next(), reader.where)[1] for _ in range(3)]
    assert seen == [f"{tree / 'a_2.json'}, line 1", f"{tree / 'a_10.json'}, line 1", f"{tree / 'a_10.json'}, line 3"]


def test_a_link_to_a_folder_above_gives_no_file_twice(tree):
    (tree / "sub" / "again").symlink_to(tree, target_is_directory=True)
    reader = JsonReader(f"{tree}/**/*.json")
    assert episodes(reader) == [0, 1, 2, 3] and reader.files[0] == tree / "a_2.json"


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    write_lines(tmp_path / "a[1].json", encode_record(cartpole(eps_id=3)))
    assert episodes(JsonReader(tmp_path / "a[1].json")) == [3]


@pytest.mark.parametrize(
    "inputs, text",
    [
        ("nowhere", "there is no file or folder '.*nowhere'"),
        ("*.nope", r"no file matches '.*\*.nope'"),
        ("sub/deep/empty", r"has no \*.json, \*.jsonl, .* or \*.zip files"),
        ([], "the list of inputs is empty"),
    ],
)
def test_inputs_that_name_nothing_are_one_clear_error(inputs, text, tree, monkeypatch):
    monkeypatch.chdir(tree)
    (tree / "sub" / "deep" / "empty").mkdir()
    with pytest.raises(TraceFileError, match=text):
        JsonReader(inputs)


def test_a12_a_folder_is_read_once(tree):
    reader = JsonReader(tree)
    assert episodes(reader) == [0, 1] and episodes(reader) == [0, 1]
    assert episodes([reader.next(), reader.next()]) == [0, 1]
    with pytest.raises(StopIteration, match="loop=True"):
        reader.next()
    with pytest.raises(StopIteration):
        reader.next()


def test_a12_looping_for_ever_is_asked_for(tree):
    reader = JsonReader(tree, loop=True)
    assert episodes(reader.next() for _ in range(5)) == [0, 1, 0, 1, 0]
    assert len(reader.read_all()) == 2 * len(cartpole())


def test_read_all_is_every_record_in_order(tmp_path):
    batches = [cartpole(rows, eps_id=rows) for rows in (3, 1, 5)]
    with JsonWriter(tmp_path, max_file_size=1) as writer:
        for batch in batches:
            writer.write(batch)
    assert_same(JsonReader(tmp_path).read_all(), concat_samples(batches))


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_files_without_a_record_are_one_clear_error(tmp_path, loop, content):
    (tmp_path / "f.json").write_text(content)
    with pytest.raises(TraceFileError, match="no record in .*f.json"):
        JsonReader(tmp_path, loop=loop).next()


@pytest.mark.parametrize("loop", [False, True])
def test_files_with_nothing_but_corrupt_lines_are_one_clear_error(tmp_path, loop):
    (tmp_path / "f.json").write_text("a\nb\n")
    with pytest.raises(TraceFileError, match="no record in .*f.json"):
        JsonReader(tmp_path, loop=loop).next()


def test_a_file_that_went_away_is_one_clear_error(tree):
    reader = JsonReader(tree)
    os.remove(tree / "a_10.json")
    assert len(reader.next()) == 6
    with pytest.raises(TraceFileError, match="a_10.json' can't be read: No such file"):
        reader.next()


@pytest.mark.parametrize("name", ["rewards", "eps_id", "t"])
def test_columns_of_single_values_have_one_a_row(name, tmp_path):
    columns = {"obs": [[0.0]] * 3, "actions": [0] * 3, name: [[0]] * 3}
    (tmp_path / "a.json").write_text(json.dumps({"type": "SampleBatch", **columns}) + "\n")
    reader = JsonReader(tmp_path, action_space=gym.spaces.Discrete(2))
    with pytest.raises(TraceFormatError, match=rf"a.json, line 1, column '{name}': its rows have shape \[1\]"):
        reader.next()


@pytest.mark.parametrize("space", [gym.spaces.Box(-1, 1, (4,)), gym.spaces.Dict(a=gym.spaces.Discrete(2))], ids=repr)
def test_a_record_without_rows_fits_any_space(space, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"type": "SampleBatch", "obs": [], "actions": []}) + "\n")
    reader = JsonReader(tmp_path, observation_space=space, action_space=gym.spaces.Discrete(2))
    assert reader.next().count == 0
