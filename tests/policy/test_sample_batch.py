"""Batches: lengths are checked, row operations act on all columns alike, errors name the column."""

import pickle

import numpy as np
import pytest
import tree

from polylib.errors import BatchError
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import (
    DEFAULT_POLICY_ID,
    MultiAgentBatch,
    SampleBatch,
    concat_samples,
)


def make(rows, start=0, **more):
    i = np.arange(start, start + rows)
    return SampleBatch(
        obs={"a": np.stack([i, -i], 1).astype(np.float32), "b": (i.astype(np.uint8), i * 2)},
        rewards=i.astype(np.float32),
        t=i.astype(np.int32),
        **more,
    )


def consistent(batch):
    t = batch["t"]
    np.testing.assert_array_equal(batch["rewards"], t)
    np.testing.assert_array_equal(batch["obs"]["a"], np.stack([t, -t], 1))
    np.testing.assert_array_equal(batch["obs"]["b"][1], t * 2)
    return t.tolist()


# -- columns ---------------------------------------------------------------------------------------------------------


def test_constructor_converts_lists_and_counts():
    batch = SampleBatch({"obs": [[1.0, 2.0], [3.0, 4.0]]}, actions=[0, 1], infos=[{"a": 1}, {}])
    assert len(batch) == batch.count == batch.env_steps() == batch.agent_steps() == 2
    assert batch["obs"].shape == (2, 2)
    assert batch["infos"].dtype == object
    assert list(batch) == list(batch.keys()) == ["obs", "actions", "infos"]
    assert len(batch.keys()) == len(batch.items()) == len(batch.values()) == 3
    assert batch.get("nope") is None and batch.get("nope", 3) == 3 and "nope" not in batch
    assert len(SampleBatch()) == 0


@pytest.mark.parametrize("where", ["constructor", "item", "update"])
def test_mismatched_lengths_name_the_column_and_both_lengths(where):
    with pytest.raises(BatchError, match="'actions' has 1 rows.* has 2 .*'obs'"):
        if where == "constructor":
            SampleBatch(obs=[0, 1], actions=[0])
        batch = SampleBatch(obs=[0, 1])
        if where == "item":
            batch["actions"] = [0]
        batch.update(actions=[0])


def test_bad_columns_are_named():
    with pytest.raises(BatchError, match="'actions' holds a single value"):
        SampleBatch(actions=1)
    with pytest.raises(BatchError, match="'obs' is nested, with parts of 2 and 3 rows"):
        SampleBatch(obs={"a": [1, 2], "b": [1, 2, 3]})
    with pytest.raises(BatchError, match="'obs' can't be made an array"):
        SampleBatch(obs=[[1, 2], [3]])
    with pytest.raises(BatchError, match="'obs' is an empty dict"):
        SampleBatch(obs={})
    with pytest.raises(BatchError, match="named by strings"):
        SampleBatch({0: [1]})


def test_missing_column_is_named_and_is_a_key_error():
    batch = SampleBatch(obs=[1])
    for read in (lambda: batch["rewards"], lambda: batch.columns(["obs", "rewards"]), lambda: batch.pop("rewards")):
        with pytest.raises(KeyError, match="no column 'rewards'; it has obs") as info:
            read()
        assert isinstance(info.value, BatchError)
    with pytest.raises(KeyError, match="'rewards'"):
        del batch["rewards"]


def test_the_only_column_may_change_its_length():
    batch = SampleBatch(obs=[1, 2])
    batch["obs"] = [1, 2, 3]
    assert len(batch) == 3
    del batch["obs"]
    assert len(batch) == 0
    batch["obs"] = [1]
    assert len(batch) == 1


def test_repr_has_shapes():
    assert repr(make(3)) == (
        "SampleBatch(3: obs={a: float32[3, 2], b: (uint8[3], int64[3])}, rewards=float32[3], t=int32[3])"
    )


def test_pickle_and_tree():
    batch = pickle.loads(pickle.dumps(make(3)))
    assert consistent(batch) == [0, 1, 2]
    doubled = tree.map_structure(lambda x: x * 2, make(3))
    assert isinstance(doubled, SampleBatch)
    assert doubled["t"].tolist() == [0, 2, 4] and len(doubled) == 3


# -- rows ------------------------------------------------------------------------------------------------------------


def test_slices_are_views():
    batch = make(10)
    for part in (batch.slice(2, 5), batch[2:5]):
        assert consistent(part) == [2, 3, 4]
        assert np.shares_memory(part["obs"]["b"][0], batch["obs"]["b"][0])
    assert len(batch[7:20]) == 3 and len(batch[-2:]) == 2 and len(batch[5:2]) == 0
    assert consistent(batch[::3]) == [0, 3, 6, 9]


def test_take():
    batch = make(5)
    assert consistent(batch.take(np.array([4, 0, 4]))) == [4, 0, 4]
    assert consistent(batch.take(np.array([True, False, True, False, False]))) == [0, 2]
    assert len(batch.take([])) == 0
    with pytest.raises(BatchError, match=r"\[5\]"):
        batch.take(np.array([True]))


def test_copy():
    batch = make(3)
    deep, shallow = batch.copy(), batch.copy(shallow=True)
    batch["obs"]["a"][0] = 99
    batch["new"] = [1, 2, 3]
    assert deep["obs"]["a"][0, 0] == 0 and shallow["obs"]["a"][0, 0] == 99
    assert "new" not in deep and "new" not in shallow


@pytest.mark.parametrize("seed", range(5))
def test_shuffle_moves_rows_as_a_whole(seed):
    batch = make(50)
    view, shared = batch["rewards"], batch.copy(shallow=True)
    assert batch.shuffle(np.random.default_rng(seed)) is batch
    order = consistent(batch)
    assert order != list(range(50)) and sorted(order) == list(range(50))
    assert view.tolist() == list(range(50)) and consistent(shared) == list(range(50))
    assert consistent(make(50).shuffle(np.random.default_rng(seed))) == order


@pytest.mark.parametrize("seed", range(5))
def test_minibatches_cover_each_row_at_most_once(seed):
    parts = list(make(23).minibatches(5, np.random.default_rng(seed)))
    rows = [row for part in parts for row in consistent(part)]
    assert [len(part) for part in parts] == [5] * 4 and len(set(rows)) == 20
    parts = list(make(23).minibatches(5, np.random.default_rng(seed), drop_last=False))
    rows = [row for part in parts for row in consistent(part)]
    assert [len(part) for part in parts] == [5] * 4 + [3] and sorted(rows) == list(range(23))


def test_minibatches_in_order_without_rng():
    batch = make(4)
    parts = list(batch.minibatches(2))
    assert [consistent(part) for part in parts] == [[0, 1], [2, 3]]
    assert np.shares_memory(parts[0]["rewards"], batch["rewards"])


def test_minibatches_refuse_what_would_train_nothing():
    with pytest.raises(BatchError, match="8 rows .* with 4"):
        make(4).minibatches(8)
    with pytest.raises(BatchError, match="at least 1"):
        make(4).minibatches(0)
    assert [len(part) for part in make(4).minibatches(8, drop_last=False)] == [4]


def test_split_by_episode():
    no = np.zeros(6, bool)
    ends, cuts = no.copy(), no.copy()
    ends[1], cuts[3] = True, True
    by_end = make(6, terminateds=ends, truncateds=cuts)
    assert [consistent(part) for part in by_end.split_by_episode()] == [[0, 1], [2, 3], [4, 5]]
    by_id = make(6, eps_id=[7, 7, 7, 2, 2, 7], terminateds=ends)
    assert [consistent(part) for part in by_id.split_by_episode()] == [[0, 1, 2], [3, 4], [5]]
    by_key = make(6, unroll_id=[1, 2, 2, 2, 2, 2])
    assert [consistent(part) for part in by_key.split_by_episode("unroll_id")] == [[0], [1, 2, 3, 4, 5]]
    assert SampleBatch().split_by_episode() == []
    assert len(make(6, terminateds=no).split_by_episode()) == 1
    with pytest.raises(BatchError, match="'eps_id'"):
        make(6).split_by_episode()


def test_rows_and_columns():
    rows = list(make(2).rows())
    assert rows[1]["t"] == 1 and rows[1]["obs"]["b"][1] == 2 and rows[1]["obs"]["a"].tolist() == [1, -1]
    t, rewards = make(2).columns(["t", "rewards"])
    assert t.dtype == np.int32 and rewards.dtype == np.float32


def test_size_bytes():
    assert make(3).size_bytes() == 3 * (8 + 1 + 8 + 4 + 4)


# -- several batches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_concat_undoes_slicing(seed):
    rng = np.random.default_rng(seed)
    batch = make(30)
    bounds = [0, *sorted(rng.integers(0, 31, 4).tolist()), 30]
    parts = [batch[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]
    joined = concat_samples(parts)
    assert consistent(joined) == list(range(30))
    assert joined["obs"]["b"][0].dtype == np.uint8 and joined["rewards"].dtype == np.float32
    assert not np.shares_memory(joined["rewards"], batch["rewards"])


def test_concat_edges():
    assert consistent(make(2).concat(make(3, start=2))) == [0, 1, 2, 3, 4]
    assert len(concat_samples([])) == 0
    assert consistent(concat_samples([SampleBatch(), make(2)])) == [0, 1]
    with pytest.raises(BatchError, match="'actions' is in batch 1 but missing in batch 0"):
        concat_samples([make(1), make(1, actions=[0])])
    with pytest.raises(BatchError, match=r"'obs' can't be concatenated: int64\[1, 2\], int64\[1, 3\]"):
        concat_samples([SampleBatch(obs=[[1, 2]]), SampleBatch(obs=[[1, 2, 3]])])
    with pytest.raises(BatchError, match="'obs' can't be concatenated"):
        concat_samples([SampleBatch(obs={"a": [1]}), SampleBatch(obs=[1])])
    with pytest.raises(BatchError, match="got dict"):
        concat_samples([{"obs": [1]}])


def test_multi_agent_batch():
    both = MultiAgentBatch({"x": make(2), "y": make(3)}, env_steps=3)
    assert (len(both), both.count, both.env_steps(), both.agent_steps()) == (3, 3, 3, 5)
    assert both.as_multi_agent() is both
    assert both.size_bytes() == make(5).size_bytes()
    joined = concat_samples([both, MultiAgentBatch({"y": make(1, start=3), "z": make(1)}, 1)])
    assert joined.env_steps() == 4
    assert {k: consistent(b) for k, b in joined.policy_batches.items()} == {
        "x": [0, 1],
        "y": [0, 1, 2, 3],
        "z": [0],
    }
    copied = both.copy()
    both.policy_batches["x"]["rewards"][0] = 9
    assert consistent(copied.policy_batches["x"]) == [0, 1]
    assert pickle.loads(pickle.dumps(copied)).agent_steps() == 5
    with pytest.raises(BatchError, match="'x'.*got dict"):
        MultiAgentBatch({"x": {}}, 1)
    with pytest.raises(BatchError, match="env_steps=-1"):
        MultiAgentBatch({}, -1)


def test_single_and_multi_mix_and_wrap():
    single = make(2)
    multi = single.as_multi_agent()
    assert multi.policy_batches[DEFAULT_POLICY_ID] is single and multi.env_steps() == 2
    mixed = concat_samples([single, multi])
    assert isinstance(mixed, MultiAgentBatch) and mixed.env_steps() == mixed.agent_steps() == 4
    assert MultiAgentBatch.wrap_as_needed({DEFAULT_POLICY_ID: single}, 2) is single
    # Two agents of one policy in one environment step: the plain batch would lose the count of steps.
    assert MultiAgentBatch.wrap_as_needed({DEFAULT_POLICY_ID: single}, 1).env_steps() == 1
    assert isinstance(MultiAgentBatch.wrap_as_needed({"x": single}, 2), MultiAgentBatch)


# -- fragments -------------------------------------------------------------------------------------------------------


def fragment(**changes):
    batch = SampleBatch(
        obs={"a": np.arange(5, dtype=np.float32), "b": np.arange(10).reshape(5, 2)},
        terminateds=[False, True, False, False, False],
    )
    last = {"a": np.array([70, 80, 90]), "b": np.array([[7, 7], [8, 8], [9, 9]])}
    return Fragment(**{"batch": batch, "starts": [0, 2, 3], "ends": [2, 3, 5], "last_obs": last, **changes})


def test_fragment_new_obs_are_shifted_inside_segments_only():
    made = fragment()
    out = made.with_new_obs()
    assert out["new_obs"]["a"].tolist() == [1, 70, 80, 4, 90]
    assert out["new_obs"]["a"].dtype == np.float32
    assert out["new_obs"]["b"].tolist() == [[2, 3], [7, 7], [8, 8], [8, 9], [9, 9]]
    assert "new_obs" not in made.batch
    assert made.terminated.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"starts": [0, 2], "ends": [2, 4]}, "don't cover 5 rows"),
        ({"starts": [0, 3], "ends": [2, 5]}, "don't cover"),
        ({"starts": [], "ends": []}, "don't cover"),
        ({"starts": [0, 2, 2], "ends": [2, 2, 5]}, "Segment 1 .* empty"),
        ({"starts": [0], "ends": [2, 5]}, "same length"),
        ({"bootstrap": [1.0, 2.0]}, "bootstrap has shape"),
    ],
)
def test_fragment_segments_are_checked(changes, says):
    with pytest.raises(BatchError, match=says):
        fragment(**changes)


def test_fragment_last_obs_is_checked():
    with pytest.raises(BatchError, match="last_obs has shape"):
        fragment(last_obs={"a": np.zeros(1), "b": np.zeros((3, 2))}).with_new_obs()
    with pytest.raises(BatchError, match="isn't nested as"):
        fragment(last_obs=np.zeros(3)).with_new_obs()


def test_empty_fragment():
    empty = Fragment(SampleBatch(obs=np.zeros((0, 2)), terminateds=np.zeros(0, bool)), [], [], np.zeros((0, 2)))
    assert empty.terminated.shape == (0,)
    assert empty.with_new_obs()["new_obs"].shape == (0, 2)
