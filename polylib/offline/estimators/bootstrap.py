"""Means over episodes, plain and weighted, and how sure they are: the percentile bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from polylib.offline.estimators.logged import Logged

# Resamples times episodes in memory at a time.
_CELLS = 2_000_000
# Episodes drawn in all; more of them need fewer resamples, since their means hardly differ in shape from a normal.
_DRAWS, _LEAST = 20_000_000, 200
# Steps of all episodes in memory at a time.
_STEPS = 256

#: `blocks()` yields pairs of weights and values, `[n, T]` each: column t adds `sum(w x) / sum(w)` to the estimate.
Blocks = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Estimate:
    """What an estimator makes of a log.

    Attributes:
        values: each episode's share `[n]`; their mean is the estimate.
        ess: the effective sample size: how many episodes of the policy itself would tell as much.
        blocks: for estimators that normalise their weights; None: the plain mean of the values.
    """

    values: np.ndarray
    ess: float
    blocks: Blocks | None = None

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """The estimates `[B]` when episode i is there `counts[b, i]` times."""
        if self.blocks is None:
            return counts @ self.values / len(self.values)
        total = np.zeros(len(counts))
        for weights, values in self.blocks():
            below = counts @ weights
            with np.errstate(invalid="ignore", divide="ignore"):
                total += ((counts @ (weights * values)) / below).sum(1)
        return total


def weighted(blocks: Blocks, episodes: int) -> np.ndarray:
    """Each episode's share `[n]` in an estimate with normalised weights."""
    shares = np.zeros(episodes)
    for weights, values in blocks():
        with np.errstate(invalid="ignore", divide="ignore"):
            shares += (episodes * weights * values / weights.sum(0)).sum(1)
    return shares


def step_blocks(logged: Logged, log_weights: np.ndarray, values: np.ndarray) -> Blocks:
    """Blocks of cumulative weights step by step.

    An episode that is over stays in the sums with its last weight and the value 0, as if it went on in a state where
    nothing is gained: left out, it would hand its weight to the longer ones.

    Args:
        logged: the episodes.
        log_weights: `[B]`.
        values: `[B]`, discounted.
    """
    starts, lengths = logged.starts, logged.lengths

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(0, int(lengths.max()), _STEPS):
            steps = np.arange(first, min(first + _STEPS, int(lengths.max())))
            there = steps[None] < lengths[:, None]
            rows = starts[:, None] + np.minimum(steps[None], lengths[:, None] - 1)
            yield relative(log_weights[rows]), np.where(there, values[rows], 0.0)

    return blocks


def relative(log_weights: np.ndarray) -> np.ndarray:
    """Weights `[n, ...]` as shares of the largest episode's: normalised sums need no more, and they can't overflow."""
    largest = log_weights.max(0)
    return np.exp(log_weights - np.where(np.isfinite(largest), largest, 0.0))


def effective_sample_size(log_weights: np.ndarray) -> float:
    """`(sum w)^2 / sum w^2` of weights `[n]`, Kish's; 0 if all are 0."""
    weights = relative(log_weights)
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def intervals(
    estimate: Estimate, behavior: np.ndarray, resamples: int, confidence: float, seed: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Percentile bootstrap intervals of the estimate, and of how much it is above the behaviour's mean return.

    Whole episodes are drawn with replacement, the same ones for both means.

    Args:
        estimate: of the target.
        behavior: returns `[n]` of the logged episodes.
        resamples: how often to draw; of very many episodes less often, but 200 times at least.
        confidence: such as 0.95.
        seed: of the draws.

    Returns:
        `(low, high)` of each; NaN for fewer than two episodes, which say nothing about spread, and where an episode's
        share is no number.
    """
    n = len(behavior)
    nothing = (float("nan"), float("nan"))
    if n < 2 or not resamples or not np.isfinite(estimate.values).all():
        return nothing, nothing
    resamples = min(resamples, max(_LEAST, _DRAWS // n))
    rng = np.random.default_rng(seed)
    targets, deltas = [], []
    size = max(1, _CELLS // n)
    for start in range(0, resamples, size):
        counts = rng.multinomial(n, np.full(n, 1.0 / n), min(size, resamples - start)).astype(np.float64)
        target = estimate.resampled(counts)
        targets.append(target)
        deltas.append(target - counts @ behavior / n)
    edges = [50.0 * (1.0 - confidence), 50.0 * (1.0 + confidence)]

    def interval(parts: list[np.ndarray]) -> tuple[float, float]:
        found = np.concatenate(parts)
        found = found[~np.isnan(found)]  # resamples in which no episode has any weight
        low, high = np.percentile(found, edges) if len(found) else nothing
        return float(low), float(high)

    return interval(targets), interval(deltas)
