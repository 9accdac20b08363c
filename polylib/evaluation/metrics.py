"""Episode statistics of an iteration, under RLlib's result keys."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple


class EpisodeMetrics(NamedTuple):
    """One finished episode: its undiscounted return and its number of environment steps."""

    episode_reward: float
    episode_length: int


class EpisodeSummary:
    """Keeps the last episodes, so that means cover enough of them.

    Args:
        smoothing: episodes that the statistics cover where an iteration finished fewer.

    Attributes:
        total: episodes finished since the beginning.
        recent: the last `smoothing` of them.
    """

    def __init__(self, smoothing: int) -> None:
        self.smoothing, self.total = smoothing, 0
        self.recent: deque[EpisodeMetrics] = deque(maxlen=smoothing)

    def update(self, episodes: Sequence[EpisodeMetrics]) -> dict[str, Any]:
        """Statistics after an iteration that finished `episodes`; means are NaN as long as none has finished."""
        self.recent.extend(episodes)
        self.total += len(episodes)
        window = list(episodes) if len(episodes) > self.smoothing else list(self.recent)
        rewards = [e.episode_reward for e in window]
        lengths = [e.episode_length for e in window]
        nan = math.nan
        return {
            "episode_reward_mean": sum(rewards) / len(rewards) if rewards else nan,
            "episode_reward_min": min(rewards) if rewards else nan,
            "episode_reward_max": max(rewards) if rewards else nan,
            "episode_len_mean": sum(lengths) / len(lengths) if lengths else nan,
            "episodes_this_iter": len(episodes),
            "episodes_total": self.total,
            "hist_stats": {"episode_reward": rewards, "episode_lengths": lengths},
        }
