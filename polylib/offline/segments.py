"""Rows of records as uninterrupted stretches of episodes, and those that records hold apart put together again.

Everything here works on flat columns: a dict of arrays `[B, ...]`, in which `obs/a` is a part of a nested `obs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polylib.policy import columns as c

Columns = dict[str, np.ndarray]

# Until when the beginning of an episode is kept for the rest of it to come: the sources of a mix take turns.
MAX_OPEN_SEGMENTS = 256
MAX_OPEN_ROWS = 100_000


def count(rows: Columns) -> int:
    """How many rows there are."""
    return len(next(iter(rows.values()))) if rows else 0


def taken(rows: Columns, start: int, end: int) -> Columns:
    """The rows from start up to end, as views."""
    return {name: x[start:end] for name, x in rows.items()}


def joined(parts: list[Columns]) -> Columns:
    """Rows one after another, with the columns that all parts have."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0] if all(name in part for part in parts[1:])] if parts else []
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def done(rows: Columns) -> np.ndarray:
    """In which rows an episode ended, `[B] bool`."""
    ended = np.zeros(count(rows), np.bool_)
    for name in (c.TERMINATEDS, c.TRUNCATEDS):
        if name in rows:
            ended |= rows[name]
    return ended


def segment_ends(rows: Columns) -> np.ndarray:
    """One past the last row of each uninterrupted stretch of one episode of one agent, `[K] int64`.

    Rows follow each other while the episode doesn't end and its id, its step `t` and the agent say so, as far as they
    are there.
    """
    size = count(rows)
    last = done(rows)
    if not size:
        return np.zeros(0, np.int64)
    last[-1] = True
    ids = [c.EPS_ID, c.AGENT_INDEX, c.ENV_ID]
    if c.EPS_ID not in rows and c.T not in rows:
        ids.append(c.UNROLL_ID)
    for name in ids:
        if name in rows:
            last[:-1] |= rows[name][1:] != rows[name][:-1]
    if c.T in rows:
        last[:-1] |= rows[c.T][1:] != rows[c.T][:-1] + 1
    return np.flatnonzero(last) + 1


def segments_of(rows: Columns) -> list[Columns]:
    """The rows of each stretch, as views."""
    ends = segment_ends(rows).tolist()
    return [taken(rows, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


class EpisodeJoiner:
    """Puts stretches of one episode together that follow each other, in records that come one after another.

    A stretch is held back until its episode ends, until the episode goes on somewhere else (a record between was left
    out, or the input starts over), or until too many are held.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[int, ...], list[Columns]] = {}
        self._rows = 0

    def push(self, rows: Columns) -> list[Columns]:
        """Takes a record's rows and returns the stretches that are complete."""
        found: list[Columns] = []
        for part in segments_of(rows):
            if c.EPS_ID not in part:
                found.append(part)  # nothing says what it belongs to
                continue
            key = tuple(int(part[name][0]) for name in (c.EPS_ID, c.AGENT_INDEX) if name in part)
            before = self._open.get(key)
            if before is not None and not _follows(before[-1], part):
                found.append(self._release(key))
                before = None
            ended = bool(done(taken(part, count(part) - 1, count(part)))[0])
            if before is None and ended:
                found.append(part)
                continue
            self._open.setdefault(key, []).append(part)
            self._rows += count(part)
            if ended:
                found.append(self._release(key))
        while self._rows > MAX_OPEN_ROWS or len(self._open) > MAX_OPEN_SEGMENTS:
            found.append(self._release(next(iter(self._open))))
        return found

    def _release(self, key: tuple[int, ...]) -> Columns:
        whole = joined(self._open.pop(key))
        self._rows -= count(whole)
        return whole

    @property
    def held(self) -> list[Columns]:
        """The stretches that are held back, in the order in which they came."""
        return [joined(parts) for parts in self._open.values()]

    def hold(self, stretches: list[Columns]) -> None:
        """Goes on with what `held` was."""
        self._open, self._rows = {}, 0
        for part in stretches:
            self._open[tuple(int(part[name][0]) for name in (c.EPS_ID, c.AGENT_INDEX) if name in part)] = [part]
            self._rows += count(part)


def _follows(before: Columns, after: Columns) -> bool:
    """Whether one stretch goes on where the other stopped. Without steps one can only believe it."""
    if c.T not in before or c.T not in after:
        return True
    return int(after[c.T][0]) == int(before[c.T][-1]) + 1


def parts_of(rows: Columns, name: str) -> Iterator[str]:
    """The columns that make up `name`: itself, or `name/...`."""
    return (key for key in rows if key == name or key.startswith(f"{name}/"))


def with_next_obs(rows: Columns, ends: np.ndarray) -> tuple[Columns, np.ndarray]:
    """The rows with `new_obs` where a file lacks it: the observation of the next row.

    At the end of a terminated stretch nobody needs it, so it is the row's own. Any other stretch loses its last row,
    of which it isn't known where it led.

    Args:
        rows: Of stretches one after another.
        ends: One past the last row of each, `[K]`.

    Returns:
        The rows left, and the ends of the stretches left.
    """
    if next(parts_of(rows, c.NEXT_OBS), None) is not None or not len(ends):
        return rows, ends
    terminated = rows[c.TERMINATEDS][ends - 1] if c.TERMINATEDS in rows else np.zeros(len(ends), np.bool_)
    following = np.arange(1, count(rows) + 1)
    following[ends - 1] = ends - 1
    rows = dict(rows)
    for name in list(parts_of(rows, c.OBS)):
        rows[c.NEXT_OBS + name.removeprefix(c.OBS)] = rows[name][following]
    keep = np.ones(count(rows), np.bool_)
    keep[ends[~terminated] - 1] = False
    if keep.all():
        return rows, ends
    lengths = np.diff(ends, prepend=0) - ~terminated
    return {name: x[keep] for name, x in rows.items()}, np.cumsum(lengths)[lengths > 0]


def numbered(rows: Columns, ends: np.ndarray, first_unroll_id: int) -> Columns:
    """The rows with `unroll_id` counting up by stretch, and `eps_id`, `t` and `truncateds` where they are missing."""
    rows, size = dict(rows), count(rows)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    unroll = np.repeat(first_unroll_id + np.arange(len(ends)), ends - starts)
    filled: dict[str, Any] = {c.EPS_ID: unroll, c.T: np.arange(size) - np.repeat(starts, ends - starts)}
    for name in (c.TERMINATEDS, c.TRUNCATEDS):
        filled[name] = np.zeros(size, np.bool_)
    for name, values in filled.items():
        if name not in rows:
            rows[name] = values.astype(c.COLUMNS[name].dtype)
    rows[c.UNROLL_ID] = unroll.astype(np.int64)
    return rows
