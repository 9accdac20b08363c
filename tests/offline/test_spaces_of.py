"""The spaces of traces: as polylib's files note them, or guessed."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from offline.batches import cartpole, peak
from offline.conftest import DATA

from polylib.errors import PolylibError
from polylib.offline import JsonReader, JsonWriter, TraceFileError, spaces_of
from polylib.policy.sample_batch import SampleBatch

CARTPOLE = (gym.make("CartPole-v1").observation_space, gym.make("CartPole-v1").action_space)


def foreign(path, **columns):
    path.write_text(json.dumps({"type": "SampleBatch", **columns}) + "\n")
    return str(path)


def test_the_writer_notes_them_in_the_first_record_of_every_file(tmp_path, caplog):
    with JsonWriter(tmp_path, max_file_size=6000, spaces=CARTPOLE) as writer:
        for i in range(12):
            writer.write(cartpole(eps_id=i))
    assert len(writer.files) > 2 and all(file.stat().st_size <= 6000 for file in writer.files)
    for file in writer.files:
        noted = ["spaces" in json.loads(line)["polylib"] for line in file.read_text().splitlines()]
        assert noted == [True] + [False] * (len(noted) - 1)
        assert spaces_of(file) == CARTPOLE
    assert spaces_of(str(tmp_path)) == CARTPOLE and not caplog.records
    assert [int(batch["eps_id"][0]) for batch in JsonReader(tmp_path)] == list(range(12))


def test_after_close_the_next_file_notes_them_again(tmp_path):
    writer = JsonWriter(tmp_path, spaces=CARTPOLE)
    for _ in range(2):
        writer.write(cartpole())
        writer.close()
    assert [spaces_of(file) for file in writer.files] == [CARTPOLE] * 2


@pytest.mark.parametrize("space", [None, spaces.Text(3), spaces.Graph(spaces.Box(0, 1), None)])
def test_a_space_that_json_does_not_know_is_left_out_and_guessed(space, tmp_path, caplog):
    with JsonWriter(tmp_path, spaces=(CARTPOLE[0], space)) as writer:
        writer.write(cartpole())
    assert spaces_of(tmp_path) == CARTPOLE
    assert "action_space=Discrete(2)" in caplog.text


def box(low, high, shape, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


GUESSES = {
    "floats": ([[0.5, 1.0]] * 2, [0, 2], box(-np.inf, np.inf, (2,)), spaces.Discrete(3)),
    "numbers": ([3, 5], [[0.5], [1]], spaces.Discrete(6), box(-np.inf, np.inf, (1,))),
    "several choices": ([[1, -2]] * 2, [[0, 3], [2, 1]], box(-np.inf, np.inf, (2,)), spaces.MultiDiscrete([3, 4])),
    "pictures": ([[[[0, 255]]]] * 2, [-1, 1], box(0, 255, (1, 1, 2), np.uint8), spaces.Discrete(3, start=-1)),
    "flags": ([[True, False]] * 2, [True, False], spaces.MultiBinary(2), spaces.Discrete(2)),
    "nothing": (None, None, None, None),
}


@pytest.mark.parametrize("case", GUESSES)
def test_others_are_guessed_with_one_warning(case, tmp_path, caplog):
    obs, actions, observation_space, action_space = GUESSES[case]
    columns = {name: x for name, x in (("obs", obs), ("actions", actions)) if x is not None}
    path = foreign(tmp_path / "a.json", rewards=[0.0, 1.0], **columns)
    assert spaces_of(path) == (observation_space, action_space)
    if observation_space is None:
        assert not caplog.records
    else:
        (record,) = caplog.records
        assert "guessed from its first 2 rows" in record.getMessage() and str(action_space) in record.getMessage()
        for batch in JsonReader(path, observation_space=observation_space, action_space=action_space):
            assert len(batch) == 2  # they fit


def test_nested_columns_and_polylibs_dtypes(tmp_path):
    batch = SampleBatch(
        obs={"a": np.zeros((2, 8, 8, 3), np.uint8), "b": (np.array([0, 4]), np.zeros((2, 3), np.float64))},
        actions=(np.array([1, 0]), np.zeros((2, 2), np.float32)),
    )
    with JsonWriter(tmp_path) as writer:
        writer.write(batch)
    observation_space, action_space = spaces_of(tmp_path)
    inner = spaces.Tuple((spaces.Discrete(5), box(-np.inf, np.inf, (3,))))
    assert observation_space == spaces.Dict({"a": box(0, 255, (8, 8, 3), np.uint8), "b": inner})
    assert action_space == spaces.Tuple((spaces.Discrete(2), box(-np.inf, np.inf, (2,))))


def test_the_largest_action_is_looked_for_in_many_rows(tmp_path, caplog):
    with JsonWriter(tmp_path, compress_columns=[]) as writer:
        for action in (0, 1, 3, 5):
            writer.write(SampleBatch(actions=np.full(5000, action)))
    assert spaces_of(tmp_path)[1] == spaces.Discrete(2) and "first 10000 rows" in caplog.text


def test_normalized_actions_and_renamed_columns(tmp_path):
    path = foreign(tmp_path / "a.json", state=[[0.5]], actions=[[0.5]])
    found = spaces_of(path, {"columns": {"state": "obs"}}, normalized=True)
    assert found == (box(-np.inf, np.inf, (1,)), box(-1, 1, (1,)))


def test_the_files_of_a_mix_are_looked_at_and_users_readers_are_not(tmp_path):
    path = foreign(tmp_path / "a.json", obs=[[0.5]], actions=[1])
    assert spaces_of({"sampler": 0.5, path: 0.5})[1] == spaces.Discrete(2)
    assert spaces_of("sampler") == spaces_of(lambda context: None) == (None, None)
    assert spaces_of("offline.readers:Numbered") == (None, None)


def test_rllibs_traces_have_the_spaces_of_their_environments():
    observation_space, action_space = spaces_of(DATA / "cartpole_plain")
    assert observation_space.shape == (4,) and action_space == spaces.Discrete(2)


LARGE_BOX = '{"type": "Box", "shape": [8388608], "dtype": "float32", "low": 0, "high": 1}'
HOSTILE = {
    "a Box of many gigabytes": LARGE_BOX.replace("8388608", "131072, 131072"),
    "many large ones": f'{{"type": "Tuple", "spaces": [{LARGE_BOX}, {LARGE_BOX}, {LARGE_BOX}]}}',
    "a Simplex": '{"type": "Simplex", "shape": [1099511627776], "concentration": [1], "dtype": "float32"}',
    "a deep nest": '{"type": "Tuple", "spaces": [' * 480 + '{"type": "MultiBinary", "n": 2}' + "]}" * 480,
    "no space": "[1, 2]",
    "text": '"Box"',
    "nothing": "null",
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_notes_are_passed_over_and_take_no_memory(case, tmp_path):
    with JsonWriter(tmp_path, spaces=CARTPOLE) as writer:
        writer.write(cartpole())
    (file,) = writer.files
    record = json.loads(file.read_text())
    record["polylib"]["spaces"]["observation_space"] = "HERE"
    file.write_text(json.dumps(record).replace('"HERE"', HOSTILE[case]) + "\n")
    found = []
    assert peak(lambda: found.append(spaces_of(tmp_path))) < 30 << 20
    assert found == [(box(-np.inf, np.inf, (4,)), spaces.Discrete(2))]
    assert len(JsonReader(tmp_path).next()) == 6


def test_damaged_notes_and_lines_are_passed_over(tmp_path):
    with JsonWriter(tmp_path, spaces=CARTPOLE) as writer:
        writer.write(cartpole())
    (file,) = writer.files
    record = json.loads(file.read_text())
    record["polylib"]["spaces"]["observation_space"] = {"type": "Box", "shape": [1 << 60]}
    file.write_text("half a li\n" + json.dumps(record) + "\n")
    assert spaces_of(tmp_path)[1] == spaces.Discrete(2)
    with pytest.raises(TraceFileError, match="there is no file"):
        spaces_of("nowhere.json")
    with pytest.raises(PolylibError, match="line 1, column 'obs'"):
        spaces_of(foreign(tmp_path / "bad.json", obs=3))


def test_traces_without_a_record(tmp_path):
    (tmp_path / "a.json").write_text("\n")
    with pytest.raises(TraceFileError, match="no record in .*a.json"):
        spaces_of(str(tmp_path))


@pytest.mark.parametrize("name", ["obs", "actions"])
def test_a_discrete_space_that_no_network_could_have_is_not_guessed(name, tmp_path):
    columns = {"obs": [0, 1], "actions": [0, 1], name: [0, 10**9]}
    with pytest.raises(PolylibError, match="0 to 1000000000 are too many values .*: give .*_space"):
        spaces_of(foreign(tmp_path / "a.json", **columns))
