"""ReservoirReplayBuffer: every row ever added is kept with the same probability."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from execution.replay.streams import assert_same, stream
from scipy import stats

from polylib.execution.replay import ReservoirReplayBuffer
from polylib.policy.sample_batch import SampleBatch


@pytest.mark.parametrize("sizes", [[1] * 60, [60], [7, 20, 3, 30], [10, 50]])
def test_every_row_is_kept_with_the_same_probability(sizes: list[int]) -> None:
    counts = np.zeros(60)
    for seed in range(600):
        buffer, start = ReservoirReplayBuffer(10, seed=seed), 0
        for size in sizes:
            buffer.add(SampleBatch(x=np.arange(start, start + size)))
            start += size
        counts[buffer.storage.columns["x"]] += 1
    assert len(buffer) == 10 and counts.sum() == 6_000
    # Rows of one run exclude each other, so that counts vary a little less than a chi-square test expects.
    assert stats.chisquare(counts).pvalue > 0.01


def test_the_first_rows_are_all_kept() -> None:
    buffer = ReservoirReplayBuffer(10, seed=0)
    assert buffer.add(SampleBatch(x=np.arange(6))).tolist() == list(range(6))
    assert len(buffer) == 6
    kept = buffer.add(SampleBatch(x=np.arange(6, 30)))
    assert len(buffer) == 10
    assert set(kept.tolist()) <= set(range(6, 30))


def test_rows_stay_whole() -> None:
    buffer, added = ReservoirReplayBuffer(20, seed=0), []
    for batch in itertools.islice(stream(seed=2, n=3), 30):
        buffer.add(batch)
        added += list(batch.rows())
        sampled = buffer.sample(min(8, len(buffer)))
        for index, row in zip(sampled["batch_indexes"].tolist(), sampled.rows(), strict=True):
            del row["batch_indexes"]
            assert row.pop("weights") == 1
            assert_same(row, added[index])
    assert len(buffer) == 20
