"""Rows as stretches of episodes, and stretches in several records put together."""

from __future__ import annotations

import numpy as np
import pytest

from polylib.offline import segments
from polylib.offline.segments import EpisodeJoiner, numbered, segment_ends, with_next_obs
from polylib.policy.sample_batch import SampleBatch


def rows(eps, t=None, ends=(), cuts=(), **others):
    """Rows of episodes; `obs` is 10 times the episode plus the step."""
    size = len(eps)
    found = {"eps_id": np.array(eps, np.int64), "terminateds": np.zeros(size, bool), "truncateds": np.zeros(size, bool)}
    found["terminateds"][list(ends)] = True
    found["truncateds"][list(cuts)] = True
    if t is not None:
        found["t"] = np.array(t, np.int32)
        found["obs"] = np.float32(10 * found["eps_id"] + found["t"])
    return SampleBatch(found | {name: np.array(x) for name, x in others.items()})


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        (rows([1, 1, 1]), [3]),
        (rows([1, 1, 2]), [2, 3]),
        (rows([1, 1, 1], ends=[0]), [1, 3]),
        (rows([1, 1, 1], cuts=[1]), [2, 3]),
        # A step is missing.
        (rows([1, 1, 1], [4, 5, 7]), [2, 3]),
        # Two agents in one episode.
        (rows([1, 1, 1, 1], [0, 1, 0, 1], agent_index=[0, 0, 1, 1]), [2, 4]),
        # The same episode from two unrolls; without ids they are all there is to go by.
        (rows([1, 1, 1, 1], [0, 1, 2, 3], unroll_id=[0, 0, 1, 1]), [4]),
        (SampleBatch(obs=np.zeros(4), unroll_id=np.array([0, 0, 1, 1])), [2, 4]),
        (SampleBatch(obs=np.zeros(4)), [4]),
        (rows([]), []),
    ],
)
def test_where_stretches_end(given, ends):
    assert segment_ends(given).tolist() == ends


def steps(stretches):
    return [(int(s["eps_id"][0]), s["t"].tolist() if "t" in s else s.count) for s in stretches]


def test_episodes_over_several_records():
    """Two environments, whose episodes 1 and 2 take turns in the records."""
    joiner = EpisodeJoiner()
    assert joiner.push(rows([1, 1, 2, 2], [0, 1, 0, 1])) == []
    # Episode 2 ends and 3 begins; 1 goes on.
    assert steps(joiner.push(rows([1, 2, 3], [2, 2, 0], ends=[1]))) == [(2, [0, 1, 2])]
    assert steps(joiner.held) == [(1, [0, 1, 2]), (3, [0])]
    # One that begins and ends in the same record; 1 is truncated.
    found = joiner.push(rows([4, 4, 1], [0, 1, 3], ends=[1], cuts=[2]))
    assert steps(found) == [(4, [0, 1]), (1, [0, 1, 2, 3])]
    np.testing.assert_array_equal(found[1]["obs"], [10, 11, 12, 13])


def test_a_record_that_is_missing_cuts_an_episode():
    joiner = EpisodeJoiner()
    joiner.push(rows([1, 1], [0, 1]))
    assert steps(joiner.push(rows([1], [5]))) == [(1, [0, 1])]
    # Without steps one can only believe that it goes on.
    joiner.push(rows([2, 2]))
    assert steps(joiner.push(rows([2], ends=[0]))) == [(2, 3)]


def test_rows_without_episodes_are_not_held():
    assert [x.count for x in EpisodeJoiner().push(SampleBatch(obs=np.zeros(3)))] == [3]


def test_held_stretches_are_limited_and_can_be_kept(monkeypatch, caplog):
    joiner, again = EpisodeJoiner(max_rows=4), EpisodeJoiner(max_rows=4)
    assert joiner.push(rows([1, 1, 2], [0, 1, 0])) == []
    again.hold(joiner.held)
    for one in (joiner, again):
        assert steps(one.push(rows([3, 3], [0, 1]))) == [(1, [0, 1])], "the oldest goes first"
        assert steps(one.push(rows([2], [1], ends=[0]))) == [(2, [0, 1])]
    few = EpisodeJoiner(max_segments=2)
    assert steps(few.push(rows([3, 3, 4, 5], [0, 1, 0, 0]))) == [(3, [0, 1])]
    monkeypatch.setattr(segments, "MAX_OPEN_BYTES", 2 * few.bytes - 1)
    assert steps(few.push(rows([4, 5], [1, 1]))) == [(4, [0, 1])] and steps(few.flush()) == [(5, [0, 1])]
    assert few.bytes == 0 and few.flush() == []
    assert [record.message[:35] for record in caplog.records] == ["episodes of the input don't end: 5 "] * 2 + [
        "episodes of the input don't end: 4 "
    ], "once each"


def test_agents_and_environments_are_told_apart():
    """Two agents of an episode in turns, and the same id in two environments."""
    joiner = EpisodeJoiner()
    assert joiner.push(rows([1, 1, 1], [0, 0, 0], agent_index=[0, 1, 0], env_id=[0, 0, 1], who=[1, 2, 3])) == []
    assert [x["who"].tolist() for x in joiner.held] == [[1], [2], [3]]
    more = rows([1, 1, 1], [1, 1, 1], ends=[0, 2], agent_index=[0, 0, 1], env_id=[1, 0, 0], who=[3, 1, 2])
    assert [x["who"].tolist() for x in joiner.push(more)] == [[3, 3], [2, 2]]
    assert [x["who"].tolist() for x in joiner.flush()] == [[1, 1]]


def test_pieces_that_are_held_do_not_keep_their_record():
    joiner = EpisodeJoiner()
    record = rows([1] * 9 + [2], [*range(9), 0], ends=[8])
    joiner.push(record)
    assert joiner.held[0]["obs"].base is None


def test_nested_columns_are_joined_too():
    one, two = rows([1, 1], [0, 1]), rows([1], [2], ends=[0])
    for batch in (one, two):
        batch["obs"] = {"a": batch["obs"], "b": (batch["obs"] + 1,)}
    joiner = EpisodeJoiner()
    (whole,) = [*joiner.push(one), *joiner.push(two)]
    assert whole["obs"]["b"][0].tolist() == [11, 12, 13]


def test_next_observations_from_the_rows_after():
    """An end needs none; of a stretch that was cut the last row can't be used, and one of a single row not at all."""
    given = rows([1, 1, 2, 2, 2, 3], [0, 1, 0, 1, 2, 0], ends=[1])
    found, ends = with_next_obs(given, np.array([2, 5, 6]))
    assert ends.tolist() == [2, 4]
    np.testing.assert_array_equal(found["obs"], [10, 11, 20, 21])
    np.testing.assert_array_equal(found["new_obs"], [11, 11, 21, 22])
    known = SampleBatch(given, new_obs=given["obs"] + 100)
    same, ends = with_next_obs(known, np.array([2, 5, 6]))
    assert same is known and ends.tolist() == [2, 5, 6]


def test_what_is_missing_is_filled_in():
    found = numbered(SampleBatch(obs=np.zeros(5)), np.array([2, 5]), 7)
    assert found["unroll_id"].tolist() == found["eps_id"].tolist() == [7, 7, 8, 8, 8]
    assert found["t"].tolist() == [0, 1, 0, 1, 2] and found["t"].dtype == np.int32
    assert not found["terminateds"].any() and not found["truncateds"].any()
    given = rows([4, 4], [8, 9], ends=[1])
    found = numbered(given, np.array([2]), 0)
    assert found["t"] is given["t"] and found["eps_id"] is given["eps_id"] and found["unroll_id"].tolist() == [0, 0]
