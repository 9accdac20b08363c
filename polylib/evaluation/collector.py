"""Collector: preallocated columns `[T, N, ...]` that a sampler fills a row of N environments at a time."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from polylib.evaluation.recording import UNFILTERED
from polylib.models.spaces import unflatten
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
        spaces: `(observation_space, action_space)` if one of them is nested: fragments are nested alike.
    """

    def __init__(
        self, num_envs: int, capacity: int, spaces: tuple[gym.Space[Any], gym.Space[Any]] | None = None
    ) -> None:
        self._spaces = spaces
        self.num_envs, self.capacity, self.size = num_envs, max(1, capacity), 0
        self.columns: Columns = {}
        self.valid, self._all_valid = np.ones((self.capacity, num_envs), np.bool_), True
        # (row, env) -> what the network would have seen after an episode's last row: the true observation, ...
        self._last: dict[tuple[int, int], Columns] = {}
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

    def skip(self, row: int, valid: np.ndarray) -> None:
        """Marks what is no step of the environments for which `valid: [N] bool` is false."""
        self.valid[row], self._all_valid = valid, False

    def end_episode(self, row: int, env: int, last: Columns) -> None:
        """Notes what the network would see after an episode's last row: the true observation and more, by column."""
        self._last[row, env] = {name: np.array(x, self.columns[name].dtype) for name, x in last.items()}

    def clear(self) -> None:
        """Forgets everything collected, held back rows too."""
        self._start_anew()
        self.carried = [{} for _ in range(self.num_envs)]

    def _start_anew(self) -> None:
        self.size, self._last = 0, {}
        if not self._all_valid:
            self.valid[:], self._all_valid = True, True

    def fragment(self, current: Columns, complete: bool, first_unroll_id: int) -> Fragment:
        """Hands out what was collected and starts anew.

        Args:
            current: what the network sees after each environment's last row, `[N, ...]` by column: `obs` or its parts,
                and what else it takes.
            complete: hold back the rows of unfinished episodes until they are finished.
            first_unroll_id: id of the first segment; the following ones count up.

        Returns:
            Rows by environment, in time order.
        """
        if complete or not self._all_valid:
            flat, ends, last = self._picked(current, complete)
        else:
            flat, ends, last = self._whole(current)
        self._start_anew()
        starts = [0, *ends[:-1]] if ends else []
        rows = len(flat["rewards"]) if flat else 0
        if len(ends) == 1:
            flat["unroll_id"] = np.full(rows, first_unroll_id)
        elif flat:
            flat["unroll_id"] = np.repeat(first_unroll_id + np.arange(len(ends)), np.subtract(ends, starts))
        flat, last = self._nested(flat), self._nested(last)
        batch = SampleBatch.of_columns(flat, rows)
        return Fragment(batch, np.array(starts, np.int64), np.array(ends, np.int64), last.pop("obs"), last_inputs=last)

    def _whole(self, current: Columns) -> tuple[Columns, list[int], Columns]:
        """All rows, where each is valid: columns, one past each segment's last row, and what comes after it."""
        size, n, dtypes = self.size, self.num_envs, {name: self.columns[name].dtype for name in current}
        # Copies: the preallocated columns are filled again.
        if n == 1:
            flat = {name: x[:size, 0].copy() for name, x in self.columns.items()}
        else:
            flat = {
                name: x[:size].swapaxes(0, 1).copy().reshape(n * size, *x.shape[2:]) for name, x in self.columns.items()
            }
        if not self._last:  # no episode ended: each environment's rows are a segment
            after = {name: np.array(x, dtypes[name]) for name, x in current.items()}
            return flat, [size * (env + 1) for env in range(n)], after
        ended: list[list[int]] = [[] for _ in range(n)]
        for row, env in sorted(self._last):
            ended[env].append(row)
        ends: list[int] = []
        last: list[Columns] = []
        for env, rows in enumerate(ended):
            ends += [size * env + row + 1 for row in rows]
            last += [self._last[row, env] for row in rows]
            if not rows or rows[-1] != size - 1:
                ends.append(size * (env + 1))
                last.append({name: np.array(x[env], dtypes[name]) for name, x in current.items()})
        return flat, ends, {name: np.stack([x[name] for x in last]) for name in current}

    def _picked(self, current: Columns, complete: bool) -> tuple[Columns, list[int], Columns]:
        """The same of some rows: of those that are valid, and with `complete` of finished episodes only."""
        done = (self.columns["terminateds"] | self.columns["truncateds"])[: self.size]
        pieces: list[Columns] = []
        ends: list[int] = []
        last: list[Columns] = []
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
                last.append(self._last[int(rows[k]), env])
            parts = [carried] if carried and (keep or not complete) else []
            if keep:
                parts.append(self._take(env, rows[:keep]))
            if complete:
                held = [self._take(env, rows[keep:])] if keep < len(rows) else []
                self.carried[env] = _joined(held if keep or not carried else [carried, *held])
            elif keep and (not len(finished) or finished[-1] != keep - 1):
                ends.append(offset + keep)
                last.append({name: np.array(x[env], self.columns[name].dtype) for name, x in current.items()})
            pieces += parts
            count += sum(len(part["rewards"]) for part in parts)
        after = {name: np.stack([x[name] for x in last]) if last else self.columns[name][0, :0] for name in current}
        return _joined(pieces), ends, after

    def _nested(self, flat: Columns) -> dict[str, Any]:
        """Columns in which the parts of observations and actions are put together again."""
        if self._spaces is None:
            return flat
        out: dict[str, Any] = {name: x for name, x in flat.items() if "/" not in name}
        for name, space in (
            ("obs", self._spaces[0]),
            (f"{UNFILTERED}obs", self._spaces[0]),
            ("actions", self._spaces[1]),
            ("prev_actions", self._spaces[1]),
        ):
            if name not in flat and any(key.startswith(f"{name}/") for key in flat):
                out[name] = unflatten(space, flat, name)
        return out

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
