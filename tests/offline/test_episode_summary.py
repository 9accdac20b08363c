"""Episodes in numbers, worked out by hand, and equal to what their whole columns give."""

from __future__ import annotations

import math
import weakref
from pathlib import Path

import numpy as np
import pytest

from polylib.offline import TraceFileError
from polylib.offline.episode_summary import ColumnKind, ColumnStats, summarise
from polylib.offline.episodes import episodes_of
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

DATA = Path(__file__).resolve().parent.parent / "data" / "rllib_json"


def batch(**columns):
    return SampleBatch({name: np.asarray(column) for name, column in columns.items()})


def test_by_hand():
    summary = summarise(
        [
            batch(
                obs=np.array([[1, -2], [3, np.nan], [np.inf, 0]], np.float32),
                actions=[0, 2, 2],
                rewards=[1.0, 2.5, -1.0],
                terminateds=[False, False, True],
                eps_id=[4, 4, 4],
                t=[0, 1, 2],
            ),
            batch(
                obs=np.array([[5, 5], [6, 6]], np.float32),
                actions=[1, 1],
                rewards=[10.0, 20.0],
                terminateds=[False, False],
                eps_id=[9, 9],
                t=[3, 4],
            ),
        ]
    )
    first, second = summary.episodes
    assert (first.key.label, first.length, first.total_reward, first.end) == ("4", 3, 2.5, "terminated")
    assert dict(first.choices["actions", 0]) == {0: 1, 2: 2}
    assert first.columns[0] == ColumnStats(ColumnKind("obs", (2,), "float32"), -2.0, math.inf, 1, 1)
    assert first.problems() == ["1 NaN in obs", "1 infinite in obs"] and first.nans == {"obs": 1}
    assert (second.length, second.total_reward, second.end, second.missing) == (2, 30.0, None, 3)
    assert second.problems() == ["3 steps missing (t 0-2)", "no end"]
    assert summary.steps == 5 and summary.records == 2 and summary.policies == ["default_policy"]
    (obs, *_) = summary.columns("default_policy")
    assert obs == ColumnStats(ColumnKind("obs", (2,), "float32"), -2.0, math.inf, 1, 1)


def test_likelihoods_that_nobody_knows_are_no_fault():
    rows = batch(actions=[1, 0], rewards=[1.0, 1.0], terminateds=[False, True], action_logp=[np.nan, np.nan])
    (episode,) = summarise([rows]).episodes
    assert episode.nans == {"action_logp": 2} and episode.problems() == []


def test_an_episode_over_records_and_duplicates_count_once():
    def part(steps, end):
        last = [False] * (len(steps) - 1) + [end]
        return batch(actions=np.array(steps) % 2, rewards=np.array(steps, np.float32), terminateds=last,
                     eps_id=[1] * len(steps), t=steps)  # fmt: skip

    parts = [([0, 1], False), ([1, 2], False), ([5], False), ([3, 4], False), ([6], True)]
    summary = summarise([part(*given) for given in parts])
    (episode,) = summary.episodes
    assert (episode.length, episode.total_reward, episode.duplicates, episode.gaps) == (7, 21.0, 1, [])
    assert episode.end == "terminated" and dict(episode.choices["actions", 0]) == {0: 4, 1: 3}
    assert episode.problems() == ["1 duplicate"]
    assert [stats.high for stats in episode.columns if stats.kind.name == "t"] == [6.0]


def test_box_actions_have_ranges_and_means():
    (episode,) = summarise(
        [
            batch(actions=[[0.5, -1.0], [1.5, 1.0]], rewards=[0.0, 0.0], eps_id=[1, 1], t=[0, 1]),
            batch(actions=[[4.0, 0.0]], rewards=[0.0], eps_id=[1], t=[2]),
        ]
    ).episodes
    found = episode.ranges["actions"]
    assert (found.low.tolist(), found.high.tolist(), found.mean.tolist()) == ([0.5, -1.0], [4.0, 1.0], [2.0, 0.0])
    assert not episode.choices


def test_multi_discrete_and_nested_actions():
    columns = {"actions": {"move": np.array([[0, 5], [1, 5]]), "grip": np.array([0.5, 0.7])}}
    (episode,) = summarise([SampleBatch(columns | {"eps_id": np.ones(2, int), "t": np.arange(2)})]).episodes
    assert {key: dict(taken) for key, taken in episode.choices.items()} == {
        ("actions/move", 0): {0: 1, 1: 1},
        ("actions/move", 1): {5: 2},
    }
    assert list(episode.ranges) == ["actions/grip"] and math.isnan(episode.total_reward)


def test_a_nan_reward_and_columns_that_come_and_go():
    summary = summarise(
        [
            batch(rewards=[1.0, np.nan], eps_id=[1, 1], t=[0, 1], a=[1, 2]),
            batch(rewards=[1.0], eps_id=[1], t=[2], b=[7.5]),
        ]
    )
    (episode,) = summary.episodes
    assert math.isnan(episode.total_reward) and episode.nans == {"rewards": 1}
    ranges = {stats.kind.name: (stats.low, stats.high) for stats in episode.columns}
    assert ranges == {"rewards": (1.0, 1.0), "eps_id": (1.0, 1.0), "t": (0.0, 2.0), "a": (1.0, 2.0), "b": (7.5, 7.5)}


def test_agents():
    one = batch(rewards=[1.0], eps_id=[1], t=[0], agent_index=[0])
    other = batch(rewards=[1.0], eps_id=[1], t=[0], agent_index=[3])
    apart = summarise([MultiAgentBatch({"p": one, "q": other}, 1)])
    assert apart.policies == ["p", "q"] and not apart.several_agents
    assert summarise([MultiAgentBatch({"p": one.concat(other)}, 1)]).several_agents


def test_without_ids():
    summary = summarise([batch(rewards=[1.0, 2.0, 4.0], dones=[False, True, False])])
    assert [(e.key.label, e.total_reward) for e in summary.episodes] == [("0", 3.0), ("1", 4.0)]
    assert summary.guessed == {"default_policy"}


@pytest.mark.parametrize("name", sorted(folder.name for folder in DATA.iterdir() if folder.is_dir()))
def test_the_same_as_from_whole_columns(name):
    summary = summarise(DATA / name)
    whole = {episode.key: episode for episode in episodes_of(DATA / name)}
    assert whole.keys() == {episode.key for episode in summary.episodes} and not summary.skipped
    assert summary.files == len(list((DATA / name).glob("*.json")))
    for episode in summary.episodes:
        columns = whole[episode.key].columns
        assert episode.length == len(whole[episode.key]) and episode.end == whole[episode.key].end
        assert episode.total_reward == pytest.approx(whole[episode.key].total_reward)
        for (kind, low, high, nans, infs), (column_name, column) in zip(episode.columns, columns.items(), strict=True):
            assert (kind.name, kind.shape) == (column_name, column.shape[1:]) and (nans, infs) == (0, 0)
            if column.dtype.kind in "biuf":
                assert (low, high) == (column.min(), column.max())
        for (action, part), taken in episode.choices.items():
            values, counts = np.unique(columns[action].reshape(episode.length, -1)[:, part], return_counts=True)
            assert dict(taken) == dict(zip(values.tolist(), counts.tolist(), strict=True))


def test_lines_that_are_left_out(tmp_path):
    good, wrong = '{"type": "SampleBatch", "rewards": [1, 2]}', '{"type": "SampleBatch", "t": [0], "rewards": [1, 2]}'
    path = tmp_path / "x.json"
    path.write_text("\n".join([good, wrong, good[:20]]))
    summary = summarise(path)
    assert summary.steps == 2 and [": not whole JSON" in text for text in summary.skipped] == [False, True]
    path.write_text(wrong)
    with pytest.raises(TraceFileError, match="no record in .*line 1, column 'rewards'"):
        summarise(path)


def test_memory_is_that_of_a_record_not_of_the_folder():
    """The columns of earlier records are gone while more are read."""
    columns = []

    def batches():
        for i in range(20):
            assert sum(column() is not None for column in columns) <= 4
            rewards = np.zeros(1000)
            columns.append(weakref.ref(rewards))
            steps = np.arange(1000) + i % 2 * 1000
            yield SampleBatch({"rewards": rewards, "eps_id": np.full(1000, i // 2), "t": steps})

    assert [episode.length for episode in summarise(batches()).episodes] == [2000] * 10
