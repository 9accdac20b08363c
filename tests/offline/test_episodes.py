"""Rows of records as whole episodes: order, gaps, duplicates, ids that come again, and what is held in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polylib.offline import CorruptLineError, JsonReader, JsonWriter, TraceFileError, TraceFormatError
from polylib.offline.episodes import EpisodeKey, episodes_of
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

DATA = Path(__file__).resolve().parent.parent / "data" / "rllib_json"


def rows(eps_id, t, end=None, seed=0, **columns):
    """Steps `t` of an episode; the last one ends it with `end`. Rewards are 10 * seed + t."""
    t = np.asarray(t)
    last = np.arange(len(t)) == len(t) - 1
    found = {
        "obs": np.stack([t, np.full(len(t), seed)], 1).astype(np.float32),
        "actions": t % 3,
        "rewards": (10 * seed + t).astype(np.float32),
        "terminateds": last & (end == "terminated"),
        "truncateds": last & (end == "truncated"),
        "t": t,
        **columns,
    }
    if eps_id is not None:
        found["eps_id"] = np.full(len(t), eps_id)
    return SampleBatch(found)


def found(*batches, **settings):
    return list(episodes_of(list(batches), **settings))


def told(episode):
    return (episode.key.label, episode.t.tolist(), episode.end, episode.gaps, episode.duplicates)


def test_an_episode_over_three_records_is_one():
    (episode,) = found(rows(7, range(3)), rows(7, range(3, 5)), rows(7, range(5, 9), "truncated"))
    assert told(episode) == ("7", list(range(9)), "truncated", [], 0)
    assert episode.whole and len(episode) == 9 and episode.total_reward == sum(range(9))
    assert episode.columns["obs"][:, 0].tolist() == list(range(9))
    assert episode.batch["rewards"].tolist() == list(range(9))
    assert episode.key == EpisodeKey("default_policy", 7, 0, 1)


def test_records_in_any_order_and_rows_within():
    shuffled = rows(7, range(6), "terminated").take(np.array([4, 0, 5, 2, 1, 3]))
    (episode,) = found(shuffled)
    assert told(episode) == ("7", list(range(6)), "terminated", [], 0)
    assert episode.columns["rewards"].tolist() == list(range(6))
    (episode,) = found(rows(7, range(4, 9), "terminated"), rows(7, range(4)))
    assert told(episode) == ("7", list(range(9)), "terminated", [], 0)
    assert episode.columns["obs"][:, 0].tolist() == list(range(9))


def test_episodes_that_alternate():
    a, b = rows(1, range(4), "terminated"), rows(2, range(4), "truncated")
    mixed = a.concat(b).take(np.array([0, 4, 1, 5, 2, 6, 3, 7]))
    assert [told(e)[:3] for e in found(mixed)] == [
        ("1", [0, 1, 2, 3], "terminated"),
        ("2", [0, 1, 2, 3], "truncated"),
    ]


def test_gaps_are_noted():
    (episode,) = found(rows(7, range(2, 4)), rows(7, range(6, 9), "terminated"))
    assert episode.gaps == [(0, 2), (4, 6)] and not episode.whole
    (episode,) = found(rows(7, [0, 1, 2, 5, 6], "terminated"))
    assert episode.gaps == [(3, 5)] and episode.t.tolist() == [0, 1, 2, 5, 6]
    (episode,) = found(rows(7, [0, 1, 5]), rows(7, [2, 3, 4]), rows(7, [6], "terminated"))  # filled later
    assert episode.whole and episode.columns["rewards"].tolist() == list(range(7))


@pytest.mark.filterwarnings("error")
def test_steps_that_are_no_numbers_of_a_sane_file():
    """The ends of int64, whose difference is none, and a float far beyond: gaps, without a word of NumPy's."""
    low, high = -(2**63), 2**63 - 1
    (episode,) = found(rows(7, [low, 3, high]))
    assert episode.gaps == [(low + 1, 3), (4, high)] and len(episode) == 3
    (episode,) = found(rows(7, [1e30, 1.0]))
    assert len(episode) == 2 and len(episode.gaps) == 1


def test_an_end_that_is_missing():
    (episode,) = found(rows(7, range(5)))
    assert episode.end is None and not episode.whole and len(episode) == 5


def test_duplicates_are_left_out_and_counted():
    part = rows(7, range(3))
    (episode,) = found(part, part, rows(7, range(2, 6), "terminated"))
    assert told(episode) == ("7", list(range(6)), "terminated", [], 4)
    (episode,) = found(rows(7, [0, 1, 1, 2, 2, 2, 3], "terminated"))
    assert told(episode) == ("7", [0, 1, 2, 3], "terminated", [], 3)


def test_a_record_that_was_written_twice_makes_no_second_episode():
    whole = rows(7, range(4), "terminated")
    assert [told(e) for e in found(whole, whole)] == [("7", [0, 1, 2, 3], "terminated", [], 0)]


def test_two_runs_with_the_same_ids():
    """As two runs into one folder write them: their worker counts from the same number."""
    first, second = rows(0, range(4), "terminated", seed=1), rows(0, range(3), seed=2)
    episodes = found(first, second, rows(0, range(3, 6), "truncated", seed=2))
    assert [told(e) for e in episodes] == [
        ("0", [0, 1, 2, 3], "terminated", [], 0),
        ("0~2", [0, 1, 2, 3, 4, 5], "truncated", [], 0),
    ]
    assert [e.total_reward for e in episodes] == [46.0, 135.0]
    # Once more the beginning of the first: a duplicate of that one.
    again = found(first[:2], second, rows(0, range(3, 6), "truncated", seed=2), first)
    assert {(e.key.label, len(e), e.duplicates) for e in again} == {("0", 4, 2), ("0~2", 6, 0)}


def test_one_id_for_all_episodes_of_a_record():
    """Some logs number nothing: the ends tell episodes apart."""
    batch = rows(0, range(3), "terminated", seed=1).concat(rows(0, range(4), "terminated", seed=2))
    assert [told(e)[:2] for e in found(batch)] == [("0", [0, 1, 2]), ("0~2", [0, 1, 2, 3])]


def test_without_ids_the_ends_count():
    batch = rows(None, range(3), "terminated").concat(rows(None, range(5), "truncated", seed=2))
    first, second = found(batch[:5], batch[5:])
    assert told(first) == ("0", [0, 1, 2], "terminated", [], 0)
    assert told(second)[1:] == (list(range(5)), "truncated", [], 0)


def test_without_ids_and_steps():
    batch = rows(None, range(3), "terminated").concat(rows(None, range(5)))
    del batch["t"]
    first, second = found(batch[:4], batch[4:])
    assert (first.t.tolist(), first.end) == ([0, 1, 2], "terminated")
    assert (second.t.tolist(), second.end) == ([0, 1, 2, 3, 4], None)
    assert second.columns["rewards"].tolist() == [0, 1, 2, 3, 4]


def test_with_ids_and_without_steps():
    parts = [rows(7, range(3)), rows(7, range(3, 5), "terminated"), rows(7, range(2), "terminated", seed=3)]
    for part in parts:
        del part["t"]
    assert [told(e)[:2] for e in found(*parts)] == [("7", [0, 1, 2, 3, 4]), ("7~2", [0, 1])]


@pytest.mark.parametrize("ids", [np.array(["a", "a", "b"]), np.array([1.0, 1.0, 2.5]), np.array([[1], [1], [2]])])
def test_ids_of_any_kind(ids):
    batch = rows(None, [0, 1, 0], "terminated")
    batch["eps_id"] = ids
    assert [len(e) for e in found(batch)] == [1, 2]  # the second one is whole first
    assert {e.key.label for e in found(batch)} == {str(x).removesuffix(".0") for x in ids.ravel().tolist()}


def test_agents_and_policies_are_episodes_of_their_own():
    first, second = rows(5, range(3), "terminated"), rows(5, range(3), "terminated", seed=1)
    both = first.concat(second)
    both["agent_index"] = np.repeat([0, 1], 3)
    record = MultiAgentBatch({"p0": both, "p1": rows(5, range(2), "terminated", seed=2)}, 3)
    assert [(e.key.policy_id, e.key.agent_index, len(e)) for e in found(record)] == [
        ("p0", 0, 3),
        ("p0", 1, 3),
        ("p1", 0, 2),
    ]
    assert [e.key.policy_id for e in found(record, policy_id="p1")] == ["p1"]
    assert [e.key.agent_index for e in found(record, wanted=lambda key: key.agent_index == 1)] == [1]


def test_nested_observations_by_part():
    obs = {"camera": np.zeros((3, 4, 4), np.uint8), "arm": (np.arange(3.0), np.ones((3, 2)))}
    (episode,) = found(rows(7, range(3), "terminated", obs=obs))
    assert [name for name in episode.columns if name.startswith("obs")] == ["obs/camera", "obs/arm/0", "obs/arm/1"]


def test_a_column_of_some_records_only_and_one_that_changes_its_shape():
    more = rows(7, range(3, 5), "terminated", extra=np.zeros(2), obs=np.zeros((2, 3)))
    (episode,) = found(rows(7, range(3)), more)
    assert "extra" not in episode.columns and "obs" not in episode.columns and len(episode) == 5
    assert episode.notes == [
        "column 'obs' has rows of different shapes",
        "column 'extra' is in some of its records only",
    ]


def test_whole_episodes_come_at_once_and_the_others_at_the_end():
    given = []

    def batches():
        records = [rows(1, range(3)), rows(2, range(2), "terminated"), rows(1, [3], "terminated")]
        for name, batch in zip("abc", records, strict=True):
            given.append(name)
            yield batch

    seen = [(e.key.label, "".join(given)) for e in episodes_of(batches())]
    assert seen == [("2", "ab"), ("1", "abc")]


def test_old_dones_end_an_episode():
    batch = rows(7, range(3))
    del batch["terminateds"], batch["truncateds"]
    batch["dones"] = np.array([False, False, True])
    (episode,) = found(batch)
    assert episode.end == "terminated"


def test_files_of_polylibs_own(tmp_path):
    with JsonWriter(tmp_path) as writer:
        for batch in (rows(1, range(3)), rows(2, range(2), "terminated"), rows(1, range(3, 5), "truncated")):
            writer.write(batch)
    assert [told(e)[:3] for e in episodes_of(tmp_path)] == [
        ("2", [0, 1], "terminated"),
        ("1", [0, 1, 2, 3, 4], "truncated"),
    ]
    assert len(list(episodes_of([str(tmp_path)]))) == len(list(episodes_of(JsonReader(tmp_path)))) == 2


@pytest.mark.parametrize("name", sorted(folder.name for folder in DATA.iterdir() if folder.is_dir()))
def test_rllibs_traces_row_by_row(name):
    """Every row of RLlib's own decoding is in one episode, in its order."""
    expected = np.load(DATA / name / "expected.npz")
    episodes = list(episodes_of(DATA / name))
    for policy_id in {e.key.policy_id for e in episodes}:
        ids, t, rewards = (expected[f"{policy_id}/{column}"] for column in ("eps_id", "t", "rewards"))
        mine = [e for e in episodes if e.key.policy_id == policy_id]
        assert sum(map(len, mine)) == len(ids) and {e.key.eps_id for e in mine} == set(ids.tolist())
        for episode in mine:
            of_it = ids == episode.key.eps_id
            assert episode.t.tolist() == t[of_it].tolist()
            np.testing.assert_allclose(episode.columns["rewards"], rewards[of_it])
            assert not episode.gaps and not episode.duplicates


def test_damaged_records(tmp_path):
    good = '{"type": "SampleBatch", "t": [0, 1], "rewards": [1, 2]}'
    wrong = good.replace("[0, 1]", "[0]")
    path = tmp_path / "x.json"
    path.write_text("\n".join([good, wrong, good[:20], good]))
    with pytest.raises(TraceFormatError, match="line 2, column 'rewards'"):
        list(episodes_of(path))
    errors: list[TraceFormatError] = []
    assert [len(e) for e in episodes_of(path, on_error=errors.append)] == [2, 2]
    assert len(errors) == 1 and not isinstance(errors[0], CorruptLineError)
    with pytest.raises(TraceFileError, match="nowhere"):
        list(episodes_of(tmp_path / "nowhere"))
