"""Parquet, Minari and HDF5: in, out, and between them; foreign layouts; what is wrong with them."""

from __future__ import annotations

import logging
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import tree
from gymnasium import spaces
from offline.batches import assert_same, cartpole
from offline.conftest import DATA

from polylib.errors import ConfigError, FrameworkError
from polylib.offline import JsonReader, JsonWriter, TraceFileError, TraceFormatError
from polylib.offline.episodes import episodes_of
from polylib.offline.formats import FORMATS, detect_format, open_dataset
from polylib.offline.formats.convert import convert, target_format
from polylib.offline.formats.parquet import ParquetWriter
from polylib.offline.make_input import make_input
from polylib.offline.spaces_of import spaces_of
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
OBS, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
D3RLPY = Path(__file__).parents[1] / "data" / "d3rlpy2.h5"


@pytest.fixture
def minari_root(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def write_json(folder: Path, *batches) -> Path:
    with JsonWriter(folder, compress_columns=[]) as writer:
        for batch in batches:
            writer.write(batch)
    return folder


def write_parquet(path: Path, *batches) -> Path:
    with ParquetWriter(path) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.path


# --- Parquet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "folder", ["cartpole_plain", "dict_tuple", "image_lz4", "multi_agent_cartpole", "pendulum_sac"]
)
def test_parquet_holds_what_the_traces_hold(folder, tmp_path):
    """Values, dtypes, nests, objects and policies come back as they were."""
    done = convert(DATA / folder, tmp_path / "x.parquet")
    expected = JsonReader(DATA / folder).read_all().as_multi_agent()
    found = open_dataset(tmp_path / "x.parquet").read_all().as_multi_agent()
    assert found.count == expected.count
    assert done.rows == sum(batch.count for batch in expected.policy_batches.values())
    assert found.policy_batches.keys() == expected.policy_batches.keys()
    for policy_id, batch in expected.policy_batches.items():
        assert_same(found.policy_batches[policy_id], batch)


def test_parquet_keeps_every_kind_of_column(tmp_path):
    infos = np.empty(3, np.object_)
    infos[:] = [{"a": np.float32(1.5)}, {}, {"b": (1, None)}]
    batch = SampleBatch(
        {
            "obs": {"cam": np.arange(3 * 8, dtype=np.uint8).reshape(3, 2, 2, 2), "arm": (np.ones((3, 1), np.float16),)},
            "mask": np.array([[True, False]] * 3),
            "rewards": np.array([np.nan, np.inf, 1], np.float32),
            "names": np.array(["a", "bc", ""]),
            "infos": infos,
        }
    )
    found = open_dataset(write_parquet(tmp_path, batch)).read_all()
    assert_same(found, batch)


def test_parquet_groups_rows_and_shares_them_out(tmp_path, monkeypatch):
    monkeypatch.setattr("polylib.offline.formats.parquet.GROUP_ROWS", 10)
    path = write_parquet(tmp_path, *(cartpole(5, eps_id=i) for i in range(10)))
    whole = open_dataset(path)
    assert [batch.count for batch in whole] == [10] * 5
    shares = [open_dataset(path, share=(i, 2), loop=False) for i in (1, 2)]
    ids = [{int(e) for batch in share for e in batch["eps_id"]} for share in shares]
    assert ids[0] | ids[1] == set(range(10)) and not ids[0] & ids[1]


def test_shuffled_passes_differ_and_a_restored_reader_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("polylib.offline.formats.parquet.GROUP_ROWS", 1)
    path = write_parquet(tmp_path, *(cartpole(1, eps_id=i) for i in range(8)))
    read = lambda reader, n: [int(reader.next()["eps_id"][0]) for _ in range(n)]  # noqa: E731
    first = open_dataset(path, shuffle=True, seed=3, loop=True)
    one, two = read(first, 8), read(first, 4)
    assert sorted(one) == list(range(8)) and one[:4] != two
    state, rest = first.get_state(), read(first, 6)
    again = open_dataset(path, shuffle=True, seed=0, loop=True)
    assert again.set_state(state) and read(again, 6) == rest
    assert not open_dataset(write_parquet(tmp_path / "b", cartpole(2))).set_state(state)


def test_parquet_of_others(tmp_path):
    """Lists of equal length, structs, and `dones` as older RLlib versions have them."""
    table = pa.table(
        {
            "obs": [[0.0, 1.0], [2.0, 3.0]],
            "actions": pa.array([0, 1], pa.int32()),
            "rewards": pa.array([1.0, None], pa.float32()),
            "dones": [False, True],
            "extra": [{"x": [[1, 2], [3, 4]]}, {"x": [[5, 6], [7, 8]]}],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    batch = open_dataset(tmp_path, observation_space=spaces.Box(-9, 9, (2,), np.float32)).read_all()
    np.testing.assert_array_equal(batch["obs"], np.float32([[0, 1], [2, 3]]))
    assert batch["obs"].dtype == np.float32
    assert batch["extra"]["x"].shape == (2, 2, 2)
    assert batch["terminateds"].tolist() == [False, True] and batch["truncateds"].tolist() == [False, False]
    assert batch["rewards"][0] == 1 and np.isnan(batch["rewards"][1])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1.0], [1.0, 2.0]], r"row group 0: column 'obs': its lists have from 1 to 2 items"),
        ([1, None], "column 'obs': 1 values are missing"),
        ([b"a", b"b"], "column 'obs': it is of Arrow's type binary"),
        ([["a"], ["b"]], "column 'obs': it holds lists of string"),
    ],
)
def test_parquet_columns_that_make_no_batch(column, message, tmp_path):
    pq.write_table(pa.table({"obs": column}), tmp_path / "a.parquet")
    with pytest.raises(TraceFormatError, match=message):
        open_dataset(tmp_path / "a.parquet").read_all()


def test_damaged_and_missing_parquet_files(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(TraceFileError, match="a.parquet' can't be read as Parquet"):
        open_dataset(tmp_path)
    with pytest.raises(TraceFileError, match="no file or folder"):
        open_dataset(tmp_path / "b.parquet")
    with pytest.raises(TraceFileError, match="exists already"):
        ParquetWriter(tmp_path / "a.parquet")


def test_parquet_needs_one_set_of_columns(tmp_path):
    with ParquetWriter(tmp_path) as writer:
        writer.write(cartpole())
        with pytest.raises(TraceFormatError, match="columns 'vf_preds' are new"):
            writer.write(cartpole(vf_preds=np.zeros(6, np.float32)))
        with pytest.raises(TraceFormatError, match=r"other types: 'rewards' \(float, now double\)"):
            writer.write(cartpole(rewards=np.zeros(6)))
        with pytest.raises(TraceFormatError, match="column 'z' can't be written as Parquet: it holds complex64"):
            writer.write(cartpole(z=np.zeros(6, np.complex64)))


# --- Minari -----------------------------------------------------------------------------------------------------------


def test_minari_and_back(minari_root, tmp_path):
    """Two whole episodes over three records; the third episode has no end and is left out."""
    whole = cartpole(5, eps_id=0)
    first, second = whole[:3], whole[3:]
    third = cartpole(2, eps_id=1, terminateds=np.zeros(2, bool), truncateds=np.array([False, True]))
    cut = cartpole(4, eps_id=2, terminateds=np.zeros(4, bool))
    source = write_json(tmp_path / "json", first, second, third, cut)
    done = convert(source, "minari:cartpole/test-v0", observation_space=OBS, action_space=ACTIONS)
    assert (done.episodes, done.left_out, done.rows) == (2, 1, 11)
    assert detect_format("minari:cartpole/test-v0") == detect_format(minari_root / "cartpole/test-v0") == "minari"

    import minari

    data = minari.load_dataset("cartpole/test-v0")
    assert data.total_steps == 7 and data.observation_space == OBS and data.action_space == ACTIONS
    np.testing.assert_array_equal(data[0].observations[:3], first["obs"])
    np.testing.assert_array_equal(data[0].observations[-1], second["new_obs"][-1])

    reader = open_dataset(minari_root / "cartpole/test-v0")
    one, two = list(reader)
    assert reader.expected.action_space == ACTIONS and spaces_of("minari:cartpole/test-v0") == (OBS, ACTIONS)
    for name in ("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds"):
        np.testing.assert_array_equal(one[name], np.concatenate([first[name], second[name]]), err_msg=name)
        np.testing.assert_array_equal(two[name], third[name], err_msg=name)
    assert one["t"].tolist() == [0, 1, 2, 3, 4] and two["eps_id"].tolist() == [1, 1]


def test_minari_keeps_nests_and_pictures_exactly(minari_root, tmp_path):
    """Minari stores pictures as JPEG unless told otherwise."""
    obs = spaces.Dict({"cam": spaces.Box(0, 255, (8, 8, 3), np.uint8), "arm": spaces.Tuple([spaces.Discrete(3)])})
    act = spaces.Dict({"move": spaces.Box(-1, 1, (2,), np.float32)})
    obs.seed(0), act.seed(0)
    steps = [(obs.sample(), act.sample()) for _ in range(4)]
    stack = lambda items: tree.map_structure(lambda *x: np.stack(x), *items)  # noqa: E731
    batch = SampleBatch(
        obs=stack([o for o, _ in steps[:3]]),
        new_obs=stack([o for o, _ in steps[1:]]),
        actions=stack([a for _, a in steps[:3]]),
        rewards=np.arange(3, dtype=np.float32),
        terminateds=np.array([False, False, True]),
        truncateds=np.zeros(3, bool),
        eps_id=np.zeros(3, np.int64),
        t=np.arange(3),
    )
    convert(write_json(tmp_path / "json", batch), "minari:mine/arms-v0", observation_space=obs, action_space=act)
    found = open_dataset("minari:mine/arms-v0").read_all()
    for name in ("obs", "new_obs", "actions"):
        tree.map_structure(np.testing.assert_array_equal, found[name], batch[name])


def test_minari_errors(minari_root, tmp_path):
    with pytest.raises(TraceFileError, match="'no/such-v0' can't be read: .*On this machine there are: none"):
        open_dataset("minari:no/such-v0")
    source = write_json(tmp_path / "json", cartpole(terminateds=np.zeros(6, bool)))
    spaces = {"observation_space": OBS, "action_space": ACTIONS}
    with pytest.raises(TraceFormatError, match=r"no episode is whole.*\(1 were left out\)"):
        convert(source, "minari:mine/poles-v0", **spaces)
    whole = write_json(tmp_path / "whole", cartpole())
    convert(whole, "minari:mine/poles-v0", **spaces)
    with pytest.raises(TraceFileError, match="'mine/poles-v0' can't be written: .*exist"):
        convert(whole, "minari:mine/poles-v0", **spaces)
    with pytest.raises(TraceFormatError, match="column 'obs'"):
        convert(whole, "minari:mine/others-v0", observation_space=gym.spaces.Box(0, 1, (3,)), action_space=ACTIONS)


# --- HDF5 -------------------------------------------------------------------------------------------------------------


def test_hdf5_as_d3rlpy_2_writes_it():
    """A file of d3rlpy 2.8's own `dump`: 3 rows and an end, 2 rows cut off, rewards 1, 2, 3, 1, 2."""
    pytest.importorskip("h5py")
    batch = open_dataset(D3RLPY).read_all()
    assert batch["rewards"].tolist() == [1, 2, 3, 1, 2] and batch["actions"].shape == (5,)
    assert batch["terminateds"].tolist() == [False, False, True, False, False]
    assert batch["truncateds"].tolist() == [False, False, False, False, True]
    assert batch["eps_id"].tolist() == [0, 0, 0, 1, 1] and batch["t"].tolist() == [0, 1, 2, 0, 1]
    assert batch["obs"].shape == (5, 4) and batch["obs"].dtype == np.float32


@pytest.mark.parametrize("ends", ["timeouts", "episode_terminals"])
def test_hdf5_as_one_table(ends, tmp_path):
    """D4RL's `timeouts` mark cuts; d3rlpy 1's `episode_terminals` mark every end, the terminal ones too."""
    h5py = pytest.importorskip("h5py")
    terminal, cut = np.array([0, 0, 1, 0, 0, 0]), np.array([0, 0, 0, 0, 1, 0])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["observations"] = np.arange(12, dtype=np.float32).reshape(6, 2)
        file["next_observations"] = np.arange(12, dtype=np.float32).reshape(6, 2) + 100
        file["actions"], file["rewards"] = np.ones((6, 2), np.float32), np.arange(6.0)
        file["terminals"], file[ends] = terminal, cut if ends == "timeouts" else np.maximum(cut, terminal)
    episodes = list(open_dataset(tmp_path / "a.h5"))
    assert [episode.count for episode in episodes] == [3, 2, 1]
    assert [bool(episode["terminateds"][-1]) for episode in episodes] == [True, False, False]
    assert [bool(episode["truncateds"][-1]) for episode in episodes] == [False, True, False]
    assert episodes[1]["new_obs"].tolist() == [[106, 107], [108, 109]]
    assert episodes[1]["rewards"].dtype == np.float32 and episodes[1]["actions"].shape == (2, 2)


def test_hdf5_that_is_none(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "a.h5").write_bytes(b"no HDF5")
    with pytest.raises(TraceFileError, match="a.h5' can't be read as HDF5"):
        open_dataset(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["states"] = np.zeros(3)
    with pytest.raises(TraceFileError, match="it has no 'observations', .*found states"):
        open_dataset(tmp_path / "b.h5")


# --- all of them ------------------------------------------------------------------------------------------------------


def test_json_to_parquet_to_json_is_the_same(tmp_path):
    batches = [cartpole(4, eps_id=i) for i in range(3)]
    with JsonWriter(tmp_path / "a", spaces=(OBS, ACTIONS)) as writer:
        for batch in batches:
            writer.write(batch)
    convert(tmp_path / "a", tmp_path / "b.parquet")
    for encoding in ("lists", "lz4", "packed"):
        convert(tmp_path / "b.parquet", tmp_path / encoding, encoding=encoding)
        assert_same(JsonReader(tmp_path / encoding).read_all(), JsonReader(tmp_path / "a").read_all())
    convert(tmp_path / "a", tmp_path / "again")
    assert spaces_of(tmp_path / "again") == (OBS, ACTIONS)
    with pytest.raises(TraceFileError, match="exists already"):
        convert(tmp_path / "b.parquet", tmp_path / "lists")


def test_training_input_of_each_format(tmp_path, minari_root):
    """`input` by a path, and `"dataset"` with RLlib's settings."""
    source = write_json(tmp_path / "json", *(cartpole(5, eps_id=i) for i in range(4)))
    convert(source, tmp_path / "p" / "x.parquet")
    convert(source, "minari:mine/poles-v0", observation_space=OBS, action_space=ACTIONS)
    for config in (
        {"input": str(tmp_path / "p")},
        {"input": "minari:mine/poles-v0"},
        {"input": str(minari_root / "mine" / "poles-v0")},
        {"input": "dataset", "input_config": {"format": "parquet", "paths": str(tmp_path / "p")}},
        {"input": "dataset", "input_config": {"format": "json", "paths": [str(source)]}},
    ):
        reader = make_input(config, observation_space=OBS, action_space=ACTIONS, loop=False)
        assert sum(batch.count for batch in reader) == 20, config
    reader = make_input({"input": str(D3RLPY), "input_config": {"columns": {"obs": "state"}}}, loop=False)
    assert "state" in reader.next()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "input_config must name what to read.*'paths' is None"),
        ({"format": "parket", "paths": "x"}, "format='parket': expected one of .*Did you mean 'parquet'"),
        ({"format": "parquet", "paths": "/no/such"}, "no file or folder '/no/such'"),
        ({"format": "minari", "paths": ["a", "b"]}, "format='minari' takes one path, got 2"),
    ],
)
def test_dataset_settings_that_are_wrong(settings, message):
    with pytest.raises((ConfigError, TraceFileError), match=message):
        make_input({"input": "dataset", "input_config": settings})


def test_spaces_are_guessed_from_rows(tmp_path, caplog):
    write_parquet(tmp_path / "x.parquet", cartpole(50))
    with caplog.at_level(logging.WARNING):
        assert spaces_of(tmp_path / "x.parquet") == (OBS, ACTIONS)
    assert "guessed from its first 50 rows" in caplog.text


def test_formats_by_name():
    assert [target_format(t) for t in ("minari:a-v0", "x.parquet", "folder")] == ["minari", "parquet", "json"]
    assert [detect_format(s) for s in ("a.h5", "b.parquet", "minari:x", "c.json")] == [
        "hdf5", "parquet", "minari", "json",
    ]  # fmt: skip
    assert set(FORMATS) == {"json", "parquet", "minari", "hdf5"}
    with pytest.raises(ConfigError, match="format='csv'"):
        open_dataset("x", "csv")


def test_a_reader_says_where_the_last_piece_stands(tmp_path):
    path = write_parquet(tmp_path, cartpole(3))
    reader = open_dataset(path, loop=True)
    assert reader.where == ""
    for _ in range(2):
        reader.next()
        assert reader.where.startswith(f"{path}, ")


def test_says_what_to_install(monkeypatch):
    import sys

    for package, name in (("minari", "minari:x"), ("h5py", "a.h5"), ("pyarrow.parquet", "a.parquet")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(FrameworkError, match=f"need the package {package.partition('.')[0]}"):
            open_dataset(name)


def test_episodes_of_a_multi_agent_parquet_file(tmp_path):
    batch = MultiAgentBatch({"a": cartpole(3), "b": cartpole(3, eps_id=1)}, 3)
    path = write_parquet(tmp_path, batch)
    assert {(e.key.policy_id, len(e)) for e in episodes_of(open_dataset(path))} == {("a", 3), ("b", 3)}


def test_minari_that_loses_whose_episodes_they_are_says_so(minari_root, caplog):
    convert(DATA / "multi_agent_cartpole", "minari:two-v0")
    assert "doesn't say which of the policies p0, p1 acted" in caplog.text


@pytest.mark.parametrize("name", ["x.parquet", "folder"])
def test_a_conversion_that_fails_leaves_no_half(name, tmp_path):
    source = write_json(tmp_path / "json", cartpole(3), cartpole(3))
    with next(source.glob("*.json")).open("a") as file:
        file.write('{"type": "SampleBatch", "obs": [[1.0]], "actions": [0, 1]}\n')
    for _ in range(2):
        with pytest.raises(TraceFormatError, match="line 3, column 'actions'"):
            convert(source, tmp_path / name)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != source]


def test_a_list_of_several_formats_is_refused(tmp_path):
    source = write_json(tmp_path / "json", cartpole(3))
    convert(source, tmp_path / "x.parquet")
    for inputs in ([source, tmp_path / "x.parquet"], [tmp_path / "x.parquet", source]):
        with pytest.raises(ConfigError, match="a list of inputs has one format: .*a mix .* takes several"):
            make_input({"input": inputs})
