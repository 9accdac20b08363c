"""Episode statistics of an iteration, under RLlib's result keys."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class EpisodeMetrics(NamedTuple):
    """One finished episode.

    Attributes:
        episode_reward: its undiscounted return.
        episode_length: its number of environment steps.
        custom_metrics: what callbacks measured.
        hist_data: lists that callbacks kept.
    """

    episode_reward: float
    episode_length: int
    custom_metrics: dict[str, float] = {}  # noqa: RUF012 (never changed)
    hist_data: dict[str, list[float]] = {}  # noqa: RUF012


class EpisodeSummary:
    """Keeps the last episodes, so that means cover enough of them.

    Args:
        smoothing: episodes that the statistics cover where an iteration finished fewer.
        keep_custom_metrics: report custom metrics as lists instead of mean, min and max.

    Attributes:
        total: episodes finished since the beginning.
        recent: the last `smoothing` of them.
    """

    def __init__(self, smoothing: int, keep_custom_metrics: bool = False) -> None:
        self.smoothing, self.keep_custom_metrics, self.total = smoothing, keep_custom_metrics, 0
        self.recent: deque[EpisodeMetrics] = deque(maxlen=smoothing)

    def update(self, episodes: Sequence[EpisodeMetrics]) -> dict[str, Any]:
        """Statistics after an iteration that finished `episodes`; means are NaN as long as none has finished."""
        self.recent.extend(episodes)
        self.total += len(episodes)
        window = list(episodes) if len(episodes) > self.smoothing else list(self.recent)
        return {
            **summarize_episodes(window, self.keep_custom_metrics),
            "episodes_this_iter": len(episodes),
            "episodes_total": self.total,
        }


def summarize_episodes(window: Sequence[EpisodeMetrics], keep_custom_metrics: bool = False) -> dict[str, Any]:
    """RLlib's result keys for some episodes; means are NaN without any."""
    rewards = [e.episode_reward for e in window]
    lengths = [e.episode_length for e in window]
    custom, hist = _by_name(e.custom_metrics for e in window), _by_name(e.hist_data for e in window)
    metrics: dict[str, Any] = dict(custom)
    if not keep_custom_metrics:
        metrics = {}
        for name, values in custom.items():
            metrics[f"{name}_mean"], metrics[f"{name}_min"], metrics[f"{name}_max"] = _mean_min_max(values)
    mean, low, high = _mean_min_max(rewards)
    return {
        "episode_reward_mean": mean,
        "episode_reward_min": low,
        "episode_reward_max": high,
        "episode_len_mean": _mean_min_max(lengths)[0],
        "custom_metrics": metrics,
        "hist_stats": {
            "episode_reward": rewards,
            "episode_lengths": lengths,
            **{name: [x for values in lists for x in values] for name, lists in hist.items()},
        },
    }


def _mean_min_max(values: Sequence[float]) -> tuple[float, float, float]:
    if not values:
        return math.nan, math.nan, math.nan
    return sum(values) / len(values), min(values), max(values)


def _by_name(dicts: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for values in dicts:
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return found
