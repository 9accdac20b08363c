"""Episodes to judge a policy by: a given number, each with a seed of its own, whatever the number of environments."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from polylib.evaluation.metrics import EpisodeMetrics
from polylib.evaluation.sampler import Sampler


class EpisodeRunner(Sampler):
    """Runs whole episodes and keeps nothing but their metrics.

    Episode k is seeded with `seed + k`, so its return is that of `env.reset(seed=seed + k)` followed by
    `compute_single_action`, however many environments run side by side. Every episode that is begun within the count is
    finished and counts: taking the first that end would favour short ones.
    """

    updates_filter = False

    def run(
        self,
        episodes: int | None,
        steps: int | None = None,
        seed: int | None = None,
        seconds: float | None = None,
        on_episode: Callable[[int, EpisodeMetrics], None] | None = None,
    ) -> list[EpisodeMetrics]:
        """Runs `episodes` episodes, or as many as it takes for `steps` environment steps, or for some time.

        Args:
            episodes: how many; None: decided by `steps`.
            steps: environment steps after which no new episode counts.
            seed: of the first episode; None: not seeded.
            seconds: time after which no new episode counts.
            on_episode: called with the number (from 0) and the metrics of each one that has ended.

        Returns:
            Metrics of the episodes in the order of their seeds.

        Raises:
            EnvError: if an environment raises or returns NaN.
        """
        n = self.env.num_envs
        self._abandon()
        self._seed, self._resets[:] = seed, 0
        self._number, self._next_number = np.full(n, -1), 0
        self._results: dict[int, EpisodeMetrics] = {}
        self._limit, self._step_limit, self._steps = episodes, steps, 0
        self._on_episode = on_episode
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._begin(np.arange(n))
        try:
            self._reset(np.ones(n, np.bool_))
            while (self._number >= 0).any():
                self._steps += self._step()
                self._check_finite()
                self.collector.clear()
        except BaseException:
            self._abandon()
            raise
        self.episodes = []
        return [self._results[k] for k in sorted(self._results)]

    def _begin(self, envs: np.ndarray, steps: int = 0) -> None:
        """Gives environments their next episodes' numbers; -1: one that doesn't count."""
        for env in envs.tolist():
            more = self._more(self._steps + steps)
            self._number[env] = self._next_number if more else -1
            self._next_number += more

    def _more(self, steps: int) -> bool:
        if self._limit is not None and (self._next_number >= self._limit or self._step_limit is None):
            return self._next_number < self._limit
        if self._deadline is not None:
            return self._next_number == 0 or time.monotonic() < self._deadline
        return steps < (self._step_limit or 0)

    def _tracked(self, envs: np.ndarray) -> list[int]:
        return [env for env in envs.tolist() if self._number[env] >= 0]  # the others only keep their neighbours company

    def _episode_seeds(self) -> list[int]:
        return [(self._seed or 0) + max(int(k), 0) for k in self._number]

    def _end_episodes(
        self, row: int, finished: np.ndarray, obs: dict[str, np.ndarray], infos: dict[str, Any]
    ) -> None:
        numbers = self._number[finished].copy()
        # Steps are added up after a row; this one counts already.
        self._begin(finished, int(self.collector.valid[row].sum()))  # first, since the base class resets
        before = len(self.episodes)
        super()._end_episodes(row, finished, obs, infos)
        for number, metrics in zip(numbers.tolist(), self.episodes[before:], strict=True):
            if number >= 0:
                self._results[number] = metrics
                if self._on_episode is not None:
                    self._on_episode(number, metrics)
