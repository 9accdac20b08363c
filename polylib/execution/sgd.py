"""Synchronous sampling and minibatch SGD: the execution of PPO and its like."""

from __future__ import annotations

import numpy as np

from polylib.errors import DivergedError
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.evaluation.worker_set import WorkerSet
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch, concat_samples


def synchronous_sample(workers: WorkerSet, min_rows: int) -> tuple[SampleBatch, list[EpisodeMetrics]]:
    """Samples on all workers, in rounds, until there are at least `min_rows` rows.

    Returns:
        One batch, in the workers' order, and the episodes finished meanwhile.
    """
    batches: list[SampleBatch] = []
    episodes: list[EpisodeMetrics] = []
    while sum(batch.count for batch in batches) < min_rows:
        new, finished = workers.sample()
        batches += new
        episodes += finished
    return (batches[0] if len(batches) == 1 else concat_samples(batches)), episodes


def minibatch_indices(
    rows: int, minibatch_size: int, epochs: int, rng: np.random.Generator, shuffle: bool = True
) -> np.ndarray:
    """Rows for every update of a training batch: `[epochs * (rows // minibatch_size), minibatch_size] int32`.

    All minibatches have the same size, so a remainder of rows is left out of an epoch; with `shuffle` it is another one
    in every epoch. A batch smaller than a minibatch is one minibatch.
    """
    size = min(rows, minibatch_size)
    per_epoch = rows // size
    order = [rng.permutation(rows) if shuffle else np.arange(rows) for _ in range(epochs)]
    return np.stack([o[: per_epoch * size].reshape(per_epoch, size) for o in order]).reshape(-1, size).astype(np.int32)


def train_minibatches(
    policy: Policy, batch: SampleBatch, minibatch_size: int, epochs: int, rng: np.random.Generator, shuffle: bool = True
) -> dict[str, float]:
    """Epochs of minibatch updates.

    Returns:
        Stats: means over the last epoch, which is how far the batch moved the policy (the mean over all epochs would
        understate KL by half).

    Raises:
        DivergedError: if a loss isn't finite.
    """
    prepared = policy.prepare(batch)
    # Of a recurrent policy a minibatch is as many sequences as hold that many steps.
    size = max(1, minibatch_size // prepared.steps)
    indices = minibatch_indices(prepared.size, size, epochs, rng, shuffle)
    stats = policy.learn_on_minibatches(prepared, indices)
    finite = np.isfinite(stats["total_loss"])
    if not finite.all():
        update = int(np.argmin(finite))
        raise DivergedError(
            f"learning diverged: total_loss is {stats['total_loss'][update]} in update {update + 1} of {len(indices)} "
            "of this training batch. Lower lr, set grad_clip, or bring rewards and observations to a scale near 1; the "
            "last checkpoint holds the weights from before"
        )
    last = len(indices) // epochs
    return {name: float(values[-last:].mean()) for name, values in stats.items()}
