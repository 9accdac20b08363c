"""PrioritizedReplayBuffer: how often rows come, and what they weigh."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from polylib.errors import BatchError, ConfigError
from polylib.execution.replay import PrioritizedReplayBuffer
from polylib.policy.sample_batch import SampleBatch


def filled(rows: int, capacity: int | None = None, **settings: object) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(capacity or rows, seed=0, **settings)  # type: ignore[arg-type]
    buffer.add(SampleBatch(x=np.arange(rows)))
    return buffer


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_rows_come_in_proportion_to_their_priority(alpha: float, batch: int) -> None:
    buffer = filled(40, alpha=alpha)
    priorities = np.random.default_rng(1).random(40) * 3
    buffer.update_priorities(np.arange(40), priorities)
    draws = 8000
    counts = np.bincount(np.concatenate([buffer.sample(batch)["x"] for _ in range(draws // batch)]), minlength=40)
    p = (priorities + 1e-6) ** alpha
    assert stats.chisquare(counts, p / p.sum() * draws).pvalue > 0.01


def test_a_batch_has_one_row_of_each_share() -> None:
    """Four equal rows: each exactly once in a batch of four, where independent draws would miss some."""
    buffer = filled(4)
    for _ in range(20):
        assert sorted(buffer.sample(4)["x"].tolist()) == [0, 1, 2, 3]


def test_weights_by_hand() -> None:
    # alpha 1, eps 1e-9: P = 1/10, 2/10, 3/10, 4/10 of N = 4. beta 1: 1 / (N P) = 10/4, 10/8, 10/12, 10/16; over the
    # largest, 10/4: 1, 1/2, 1/3, 1/4. beta 0.5: the roots of these.
    buffer = filled(4, alpha=1.0, beta=1.0, eps=1e-9)
    buffer.update_priorities(np.arange(4), [1.0, -2.0, 3.0, 4.0])
    expected = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    for beta, power in ((None, 1.0), (0.5, 0.5), (0.0, 0.0)):
        sampled = buffer.sample(4, beta=beta)
        assert sampled["weights"].dtype == np.float32
        np.testing.assert_allclose(sampled["weights"], expected[sampled["x"]] ** power, rtol=1e-6)


def test_alpha_acts_before_beta() -> None:
    # alpha 0.5, priorities 1 and 16: p = 1, 4. beta 1: weights 1 and 1/4.
    buffer = filled(2, alpha=0.5, eps=1e-12)
    buffer.update_priorities([0, 1], [1.0, 16.0])
    sampled = buffer.sample(2, beta=1.0)
    np.testing.assert_allclose(sampled["weights"], np.array([1, 0.25])[sampled["x"]], rtol=1e-6)


def test_eps_is_added_to_priorities() -> None:
    """(0 + 0.5) and (1 + 0.5): a row without an error comes too, a third as often, so it weighs 3 times as much."""
    buffer = filled(2, alpha=1.0, beta=1.0, eps=0.5)
    buffer.update_priorities([0, 1], [0.0, 1.0])
    sampled = buffer.sample(2)
    np.testing.assert_allclose(sampled["weights"], np.array([1, 1 / 3])[sampled["x"]], rtol=1e-6)
    assert set(buffer.sample(2)["x"]) | set(sampled["x"]) | set(buffer.sample(2)["x"]) == {0, 1}
    # The largest so far, which new rows get, holds it, too: 1.5.
    assert buffer.stats()["max_priority"] == 1.5


def test_the_largest_weight_is_that_of_the_whole_buffer() -> None:
    """Also where the batch doesn't hold the row of smallest priority: the same row weighs the same in every batch."""
    buffer = filled(100, alpha=1.0, beta=1.0, eps=1e-9)
    buffer.update_priorities(np.arange(100), np.append(np.full(99, 10.0), 0.01))
    sampled = buffer.sample(5)
    assert 99 not in sampled["x"]
    np.testing.assert_allclose(sampled["weights"], 0.001, rtol=1e-5)


def test_beta_follows_its_schedule() -> None:
    buffer = filled(2, alpha=1.0, beta=[[0, 0.0], [100, 1.0]], eps=1e-9)
    buffer.update_priorities([0, 1], [1.0, 4.0])
    for timestep, beta in ((0, 0.0), (50, 0.5), (100, 1.0), (900, 1.0)):
        sampled = buffer.sample(2, timestep=timestep)
        np.testing.assert_allclose(sampled["weights"], np.array([1, 0.25])[sampled["x"]] ** beta, rtol=1e-6)
    assert buffer.sample(2, beta=0.0, timestep=100)["weights"].tolist() == [1, 1]


def test_new_rows_have_the_largest_priority_so_far() -> None:
    buffer = filled(3, capacity=10, alpha=1.0, eps=1e-9)
    assert buffer._tree.values[:4].tolist() == [1, 1, 1, 0]
    buffer.update_priorities([1], [-5.0])
    buffer.add(SampleBatch(x=[3]))
    np.testing.assert_allclose(buffer._tree.values[:5], [1, 5, 1, 5, 0], rtol=1e-8)
    buffer.update_priorities([1], [0.5])
    buffer.add(SampleBatch(x=[4]), priorities=np.array([2.0]))
    buffer.add(SampleBatch(x=[5]))
    np.testing.assert_allclose(buffer._tree.values[:7], [1, 0.5, 1, 5, 2, 5, 0], rtol=1e-8)
    assert buffer.stats()["max_priority"] == pytest.approx(5)


def test_priorities_of_rows_that_were_overwritten_are_passed_over() -> None:
    buffer = filled(4, alpha=1.0, eps=1e-9)
    sampled = buffer.sample(4)
    numbers = buffer.add(SampleBatch(x=[100, 101]))  # where rows 0 and 1 were
    assert numbers.tolist() == [4, 5]
    buffer.update_priorities(sampled["batch_indexes"], 10.0 + sampled["x"])
    np.testing.assert_allclose(buffer._tree.values, [1, 1, 12, 13], rtol=1e-8)
    assert set(buffer.sample(4)["batch_indexes"].tolist()) <= {2, 3, 4, 5}


def test_wrapping_around() -> None:
    buffer = PrioritizedReplayBuffer(7, alpha=1.0, eps=1e-9, seed=0)
    for i in range(0, 40, 4):
        numbers = buffer.add(SampleBatch(x=np.arange(i, i + 4)), priorities=np.arange(i, i + 4) + 1.0)
        assert numbers.tolist() == [i, i + 1, i + 2, i + 3]
        sampled = buffer.sample(min(len(buffer), 5))
        assert (sampled["x"] == sampled["batch_indexes"]).all()
        there = np.arange(max(0, i + 4 - 7), i + 4)
        np.testing.assert_allclose(buffer._tree.values[there % 7], there + 1, rtol=1e-8)
    buffer.add(SampleBatch(x=np.arange(40, 60)), priorities=np.arange(40, 60) + 1.0)
    assert sorted(buffer.storage.columns["x"].tolist()) == list(range(53, 60))
    np.testing.assert_allclose(buffer._tree.values, buffer.storage.columns["x"] + 1.0, rtol=1e-8)


def test_mistakes() -> None:
    buffer = filled(3, capacity=5)
    with pytest.raises(BatchError, match="priority 1 is nan, expected finite numbers"):
        buffer.update_priorities([0, 1], [1.0, np.nan])
    with pytest.raises(BatchError, match=r"priorities have shape \(3,\), expected one for each of 2 indices"):
        buffer.update_priorities([0, 1], [1.0, 2.0, 3.0])
    with pytest.raises(BatchError, match="index 3 is of no row that was ever added"):
        buffer.update_priorities([0, 3], [1.0, 2.0])
    with pytest.raises(ConfigError, match="prioritized_replay_beta=-1.0: expected a number >= 0"):
        buffer.sample(2, beta=-1)
    for settings, message in (
        ({"alpha": -0.1}, "prioritized_replay_alpha=-0.1: expected a number >= 0"),
        ({"alpha": "x"}, "prioritized_replay_alpha='x': expected a number"),
        ({"eps": 0.0}, "prioritized_replay_eps=0: expected a number > 0"),
        ({"beta": None}, "prioritized_replay_beta=None: expected a number >= 0, or a list"),
        ({"beta": [[5, 0.1], [3, 1.0]]}, "prioritized_replay_beta.*strictly increasing"),
    ):
        with pytest.raises(ConfigError, match=message):
            PrioritizedReplayBuffer(5, **settings)  # type: ignore[arg-type]
    buffer.update_priorities(np.zeros(0, np.int64), np.zeros(0))
    assert len(buffer.add(SampleBatch())) == 0
