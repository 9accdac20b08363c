"""Collector: preallocated columns `[T, N, ...]` that a sampler fills a row of N environments at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

Columns = dict[str, np.ndarray]


class Collector:
    """Rows of N environments, and where their segments end.

    Attributes:
        carried: rows of each environment's unfinished episode that `fragment(complete=True)` held back.

    Args:
        num_envs: N.
        capacity: rows T to allocate; it grows when they don't suffice.
    """

    def __init__(self, num_envs: int, capacity: int) -> None:
        self.num_envs, self.capacity, self.size = num_envs, max(1, capacity), 0
        self.columns: Columns = {}
        self.valid = np.ones((self.capacity, num_envs), np.bool_)
        self._last_obs: dict[tuple[int, int], np.ndarray] = {}  # (row, env) -> the true observation after an episode
        self.carried: list[Columns] = [{} for _ in range(num_envs)]

    def next_row(self) -> int:
        """The index of a new row to fill."""
        if self.size == self.capacity:
            self.capacity *= 2
            grow = lambda x: np.concatenate([x, np.ones_like(x)])  # noqa: E731
            self.columns = {name: grow(x) for name, x in self.columns.items()}
            self.valid = grow(self.valid)
        self.size += 1
        return self.size - 1

    def column(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """The column `name`, `[T, N, *shape]`, made at its first use."""
        found = self.columns.get(name)
        if found is None:
            found = self.columns[name] = np.zeros((self.capacity, self.num_envs, *shape), dtype)
        return found

    def put(self, row: int, name: str, values: np.ndarray) -> None:
        """Writes `values: [N, ...]` into a row."""
        column = self.columns.get(name)
        if column is None:
            column = self.column(name, values.shape[1:], values.dtype)
        column[row] = values

    def end_episode(self, row: int, env: int, last_obs: np.ndarray) -> None:
        """Notes the true observation after an episode's last row."""
        self._last_obs[row, env] = np.array(last_obs, self.columns["obs"].dtype)

    def clear(self) -> None:
        """Forgets everything collected, held back rows too."""
        self.size, self._last_obs = 0, {}
        self.valid[:] = True
        self.carried = [{} for _ in range(self.num_envs)]

    def fragment(self, current_obs: np.ndarray, complete: bool, first_unroll_id: int) -> Fragment:
        """Hands out what was collected and starts anew.

        Args:
            current_obs: `[N, *obs_shape]`, the observation after each environment's last row.
            complete: hold back the rows of unfinished episodes until they are finished.
            first_unroll_id: id of the first segment; the following ones count up.

        Returns:
            Rows by environment, in time order.
        """
        done = (self.columns["terminateds"] | self.columns["truncateds"])[: self.size]
        pieces: list[list[Columns]] = []
        ends: list[int] = []
        last_obs: list[np.ndarray] = []
        count = 0
        for env in range(self.num_envs):
            rows = np.flatnonzero(self.valid[: self.size, env])
            finished = np.flatnonzero(done[rows, env])
            keep = len(rows)
            if complete:
                keep = int(finished[-1]) + 1 if len(finished) else 0
            carried = self.carried[env]
            offset = count + (len(carried["rewards"]) if carried else 0)
            for k in finished.tolist():
                ends.append(offset + k + 1)
                last_obs.append(self._last_obs[int(rows[k]), env])
            parts = [carried] if carried and (keep or not complete) else []
            if keep:
                parts.append(self._take(env, rows[:keep]))
            if complete:
                held = [self._take(env, rows[keep:])] if keep < len(rows) else []
                self.carried[env] = _joined(held if keep or not carried else [carried, *held])
            elif keep and (not len(finished) or finished[-1] != keep - 1):
                ends.append(offset + keep)
                last_obs.append(np.array(current_obs[env], self.columns["obs"].dtype))
            pieces.append(parts)
            count += sum(len(part["rewards"]) for part in parts)
        flat = _joined([part for parts in pieces for part in parts])
        self.size, self._last_obs = 0, {}
        self.valid[:] = True
        stops = np.asarray(ends, np.int64)
        starts = np.concatenate([[0], stops[:-1]]).astype(np.int64) if len(stops) else stops
        if flat:
            flat["unroll_id"] = np.repeat(first_unroll_id + np.arange(len(stops)), stops - starts)
        observations = np.stack(last_obs) if last_obs else self.columns["obs"][0, :0]
        return Fragment(SampleBatch(flat), starts, stops, observations)

    def _take(self, env: int, rows: np.ndarray) -> Columns:
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):  # contiguous: a view
            span = slice(int(rows[0]), int(rows[-1]) + 1)
            picked = {name: x[span, env] for name, x in self.columns.items()}
        else:
            picked = {name: x[rows, env] for name, x in self.columns.items()}
        return picked


def _joined(parts: list[Columns]) -> Columns:
    """Columns one after another, always as copies: the preallocated ones are filled again."""
    if not parts:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
