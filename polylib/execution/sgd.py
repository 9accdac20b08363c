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
    prepared = policy.inputs.prepare(batch)
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


def learn_in_microbatches(policy: Policy, batch: SampleBatch, size: int | None = None) -> dict[str, float]:
    """One gradient step on a batch, its gradients computed `size` rows at a time (None: all at once).

    The update is that of the mean of the parts' gradients, weighed with their rows; each part is clipped by itself.

    Returns:
        Stats, means over the parts.

    Raises:
        DivergedError: if the loss isn't finite.
    """
    if size is None or size >= batch.count:
        stats = policy.learn_on_batch(batch)["learner_stats"]
    else:
        gradients: dict[str, np.ndarray] = {}
        stats = {}
        for start in range(0, batch.count, size):
            part = batch[start : start + size]
            found, info = policy.compute_gradients(part)
            share = part.count / batch.count
            for key, gradient in found.items():
                gradients[key] = gradients.get(key, 0.0) + np.float32(share) * gradient
            for name, value in info["learner_stats"].items():
                stats[name] = stats.get(name, 0.0) + share * value
        policy.apply_gradients(gradients)
    if not np.isfinite(stats["total_loss"]):
        raise DivergedError(
            f"learning diverged: total_loss is {stats['total_loss']}. Lower lr, set grad_clip, or bring rewards and "
            "observations to a scale near 1; the last checkpoint holds the weights from before"
        )
    return stats
