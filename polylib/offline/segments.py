"""Rows of records as uninterrupted stretches of episodes, and those that records hold apart put together again."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from polylib.offline.joined import Joiner
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

logger = logging.getLogger(__name__)

# Until when the beginning of an episode is kept for the rest of it to come, where something waits for rows.
MAX_OPEN_SEGMENTS = 256
MAX_OPEN_ROWS = 100_000
MAX_OPEN_BYTES = 1 << 30
# What tells whose rows they are.
_IDS = (c.EPS_ID, c.AGENT_INDEX, c.ENV_ID)


def done(rows: SampleBatch) -> np.ndarray:
    """In which rows an episode ended, `[B] bool`."""
    ended = np.zeros(rows.count, np.bool_)
    for name in (c.TERMINATEDS, c.TRUNCATEDS, c.DONES):
        if name in rows:
            ended |= rows[name].astype(np.bool_, copy=False)
    return ended


def segment_ends(rows: SampleBatch) -> np.ndarray:
    """One past the last row of each uninterrupted stretch of one episode of one agent, `[K] int64`.

    Rows follow each other while the episode doesn't end and its id, its step `t` and the agent say so, as far as they
    are there.
    """
    if not rows.count:
        return np.zeros(0, np.int64)
    last = done(rows)
    last[-1] = True
    ids = _IDS if c.EPS_ID in rows or c.T in rows else (*_IDS, c.UNROLL_ID)
    for name in ids:
        if name in rows:
            last[:-1] |= rows[name][1:] != rows[name][:-1]
    if c.T in rows:
        last[:-1] |= rows[c.T][1:] != rows[c.T][:-1] + 1
    return np.flatnonzero(last) + 1


def segments_of(rows: SampleBatch) -> list[SampleBatch]:
    """The rows of each stretch, as views."""
    ends = segment_ends(rows).tolist()
    return [rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


class EpisodeJoiner:
    """Puts stretches of one episode together that follow each other, in records that come one after another.

    A stretch is held back until its episode ends, until the episode goes on somewhere else (a record between was left
    out, or the input starts over), or until too much is held.

    Args:
        by_ends: Rows without an id go on until an end; otherwise nothing says what they belong to, and they are given
            as they come.
        max_rows: Rows that are held at most.
        max_segments: Likewise stretches.
    """

    def __init__(
        self, by_ends: bool = False, max_rows: int = MAX_OPEN_ROWS, max_segments: int = MAX_OPEN_SEGMENTS
    ) -> None:
        self._by_ends, self._max_rows, self._max_segments = by_ends, max_rows, max_segments
        self._joiner = Joiner()
        self._open: dict[tuple[Any, ...], list[SampleBatch]] = {}
        self._rows = self.bytes = 0
        self._warned = False

    def push(self, rows: SampleBatch) -> list[SampleBatch]:
        """Takes a record's rows and returns the stretches that are complete."""
        found: list[SampleBatch] = []
        ended = done(rows)
        start = 0
        for end in segment_ends(rows).tolist():
            part, start, is_end = rows[start:end], end, bool(ended[end - 1])
            if c.EPS_ID not in part and not self._by_ends:
                found.append(part)
                continue
            key = _key(part)
            before = self._open.get(key)
            if before is not None and not _follows(before[-1], part):
                found.append(self._release(key))
                before = None
            if before is None and is_end:
                found.append(part)
                continue
            # A view would keep all of the record for as long as the episode is open.
            self._hold(key, part.copy() if not is_end and 2 * part.count < rows.count else part)
            if is_end:
                found.append(self._release(key))
        while self._rows > self._max_rows or len(self._open) > self._max_segments or self.bytes > MAX_OPEN_BYTES:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "episodes of the input don't end: %d rows of %d of them are held, so the oldest are used as far "
                    "as they go",
                    self._rows,
                    len(self._open),
                )
            found.append(self._release(next(iter(self._open))))
        return found

    def flush(self) -> list[SampleBatch]:
        """Returns all stretches that are held back, since there is no more."""
        return [self._release(key) for key in list(self._open)]

    def _hold(self, key: tuple[Any, ...], part: SampleBatch) -> None:
        self._open.setdefault(key, []).append(part)
        self._rows += part.count
        self.bytes += part.size_bytes()

    def _release(self, key: tuple[Any, ...]) -> SampleBatch:
        parts = self._open.pop(key)
        self._rows -= sum(part.count for part in parts)
        self.bytes -= sum(part.size_bytes() for part in parts)
        return self._joiner.join(parts)

    @property
    def held(self) -> list[SampleBatch]:
        """The stretches that are held back, in the order in which they came."""
        return [self._joiner.join(parts) for parts in self._open.values()]

    def hold(self, stretches: Iterable[SampleBatch]) -> None:
        """Goes on with what `held` was."""
        self._open, self._rows, self.bytes = {}, 0, 0
        for part in stretches:
            self._hold(_key(part), part)


def _key(part: SampleBatch) -> tuple[Any, ...]:
    return tuple(part[name].item(0) for name in _IDS if name in part)


def _follows(before: SampleBatch, after: SampleBatch) -> bool:
    """Whether one stretch goes on where the other stopped. Without steps one can only believe it."""
    if c.T not in before or c.T not in after:
        return True
    return int(after[c.T][0]) == int(before[c.T][-1]) + 1


def parts_of(rows: Mapping[str, Any], name: str) -> Iterator[str]:
    """The columns that make up `name`: itself, or `name/...`."""
    return (key for key in rows if key == name or key.startswith(f"{name}/"))


def with_next_obs(rows: SampleBatch, ends: np.ndarray) -> tuple[SampleBatch, np.ndarray]:
    """The rows with `new_obs` where a file lacks it: the observation of the next row.

    At the end of a terminated stretch nobody needs it, so it is the row's own. Any other stretch loses its last row,
    of which it isn't known where it led.

    Args:
        rows: Of stretches one after another, with flat columns.
        ends: One past the last row of each, `[K]`.

    Returns:
        The rows left, and the ends of the stretches left.
    """
    if next(parts_of(rows, c.NEXT_OBS), None) is not None or not len(ends):
        return rows, ends
    terminated = rows[c.TERMINATEDS][ends - 1] if c.TERMINATEDS in rows else np.zeros(len(ends), np.bool_)
    following = np.arange(1, rows.count + 1)
    following[ends - 1] = ends - 1
    rows = rows.copy(shallow=True)
    for name in list(parts_of(rows, c.OBS)):
        rows[c.NEXT_OBS + name.removeprefix(c.OBS)] = rows[name][following]
    keep = np.ones(rows.count, np.bool_)
    keep[ends[~terminated] - 1] = False
    if keep.all():
        return rows, ends
    lengths = np.diff(ends, prepend=0) - ~terminated
    return rows.take(keep), np.cumsum(lengths)[lengths > 0]


def numbered(rows: SampleBatch, ends: np.ndarray, first_unroll_id: int) -> SampleBatch:
    """The rows with `unroll_id` counting up by stretch, and `eps_id`, `t` and `truncateds` where they are missing."""
    rows, size = rows.copy(shallow=True), rows.count
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
