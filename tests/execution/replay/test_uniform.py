"""ReplayBuffer: what comes out is what went in, equally often."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from execution.replay.streams import Naive, assert_same, stream
from scipy import stats

from polylib.errors import BatchError, ConfigError
from polylib.evaluation.postprocessing import n_step
from polylib.execution.replay import PrioritizedReplayBuffer, Replay, ReplayBuffer, ReservoirReplayBuffer
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("capacity", [4, 50])
def test_sampled_rows_are_the_reference_s(kind: type[ReplayBuffer], n: int, capacity: int) -> None:
    buffer, naive = kind(capacity, seed=1), Naive(capacity)
    rng = np.random.default_rng(0)
    for batch in itertools.islice(stream(seed=capacity + n, n=n), 25):
        buffer.add(batch)
        naive.add(batch)
        sampled = buffer.sample(min(len(buffer), 16))
        indices = sampled["batch_indexes"]
        for index, row in zip(indices.tolist(), sampled.rows(), strict=True):
            del row["batch_indexes"], row["weights"]
            assert_same(row, naive.row(index))
        buffer.update_priorities(indices, rng.random(len(indices)))


def test_every_row_keeps_its_own_power_of_gamma() -> None:
    """n = 3, gamma 0.5, rewards 1, truncated after 4 steps, Q = 8 everywhere: targets 2.75, 2.75, 3.5, 5."""
    terminateds = np.zeros(4, bool)
    found = n_step(np.ones(4), terminateds, np.array([0]), np.array([4]), 0.5, 3)
    obs = np.arange(5, dtype=np.float32)[:, None]
    buffer = ReplayBuffer(4, seed=0)
    buffer.add(
        SampleBatch(
            obs=obs[:4],
            new_obs=obs[1:][found.reached],
            rewards=found.rewards,
            terminateds=found.terminateds,
            discounts=found.discounts,
        )
    )
    sampled = buffer.sample(4, rng=np.random.default_rng(5))
    targets = sampled["rewards"] + sampled["discounts"] * ~sampled["terminateds"] * 8
    expected = np.array([2.75, 2.75, 3.5, 5.0])
    np.testing.assert_array_equal(targets, expected[sampled["batch_indexes"]])
    np.testing.assert_array_equal(sampled["new_obs"][:, 0], np.array([3, 4, 4, 4])[sampled["batch_indexes"]])


def test_all_rows_are_equally_likely() -> None:
    buffer = ReplayBuffer(50, seed=0)
    buffer.add(SampleBatch(x=np.arange(70)))
    counts = np.bincount(np.concatenate([buffer.sample(50)["x"] for _ in range(400)]), minlength=70)
    assert not counts[:20].any()
    assert stats.chisquare(counts[20:]).pvalue > 0.01


def test_columns_of_a_sample() -> None:
    buffer = ReplayBuffer(8, seed=0)
    numbers = buffer.add(SampleBatch(x=np.arange(3, dtype=np.uint8)))
    assert numbers.tolist() == [0, 1, 2]
    sampled = buffer.sample(3)
    assert list(sampled) == ["x", "batch_indexes", "weights"]
    assert sampled["weights"].dtype == np.float32 and sampled["weights"].tolist() == [1, 1, 1]
    sampled["x"][:] = 99  # a copy
    assert buffer.sample(3)["x"].max() < 3


def test_what_was_added_is_copied() -> None:
    x = np.zeros(3)
    buffer = ReplayBuffer(8, seed=0)
    buffer.add(SampleBatch(x=x))
    x[:] = 1
    assert not buffer.sample(3)["x"].any()


def test_the_same_seed_draws_the_same() -> None:
    drawn = []
    for _ in range(2):
        buffer = ReplayBuffer(8, seed=3)
        buffer.add(SampleBatch(x=np.arange(8)))
        drawn.append(buffer.sample(8)["x"].tolist() + buffer.sample(8)["x"].tolist())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer, ReservoirReplayBuffer])
def test_mistakes(kind: type[Replay]) -> None:
    buffer = kind(8)
    with pytest.raises(BatchError, match=r"sample\(2\): the replay buffer is empty; add 2 rows or more before"):
        buffer.sample(2)
    buffer.add(SampleBatch(x=[1, 2, 3]))
    with pytest.raises(BatchError, match=r"sample\(4\): the replay buffer has 3; .*num_steps_sampled_before_learning"):
        buffer.sample(4)
    with pytest.raises(BatchError, match=r"sample\(0\): expected how many rows"):
        buffer.sample(0)
    with pytest.raises(BatchError, match="the batch has no column 'x'"):
        buffer.add(SampleBatch(y=[1]))
    with pytest.raises(BatchError, match="expected a SampleBatch, got MultiAgentBatch"):
        buffer.add(MultiAgentBatch({}, 0))  # type: ignore[arg-type]
    for capacity in (0, -1, True, 1.5, "5"):
        with pytest.raises(ConfigError, match="expected how many transitions to keep"):
            kind(capacity)  # type: ignore[arg-type]
    assert len(buffer) == 3


def test_stats() -> None:
    buffer = ReplayBuffer(8)
    buffer.add(SampleBatch(x=np.zeros(3, np.int64)))
    assert buffer.stats() == {"num_entries": 3, "capacity": 8, "size_bytes": 24}
