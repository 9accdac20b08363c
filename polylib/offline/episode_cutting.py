"""Cuts records into pieces of episodes, and knows of each episode which steps were there, in a few numbers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from polylib.offline.json_format import Batch
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

Columns: TypeAlias = dict[str, np.ndarray]
# From and to which step something reaches, the second one not included.
Span: TypeAlias = tuple[int, int]


class EpisodeKey(NamedTuple):
    """What tells one episode from another.

    Attributes:
        policy_id: whose rows they are.
        eps_id: as recorded; where nothing was, the episode's number.
        agent_index: which of the policy's agents.
        run: 1, or 2, 3, ... for further episodes with the same `eps_id`, as two runs into one folder write them.
    """

    policy_id: str
    eps_id: int | str
    agent_index: int = 0
    run: int = 1

    @property
    def label(self) -> str:
        """The episode's id as people type it: `17`, or `17~2` for the second one of that id."""
        return f"{self.eps_id}" if self.run == 1 else f"{self.eps_id}~{self.run}"


class Piece(NamedTuple):
    """Consecutive rows of a record that belong to one episode.

    Attributes:
        run: the episode.
        start: the first row in the record's columns.
        stop: the row after the last.
    """

    run: Run
    start: int
    stop: int


class Cut(NamedTuple):
    """One policy's rows of a record, cut into pieces; rows whose step was there before are left out.

    Attributes:
        columns: `[B, ...]`, nested ones by part.
        t: the step of each row `[B]`.
        ended: `[B]`, 1 for terminated, 2 for truncated.
        pieces: which rows belong to which episode; without gaps between them.
    """

    columns: Columns
    t: np.ndarray
    ended: np.ndarray
    pieces: list[Piece]


class Run:
    """What is known of an episode's steps so far: a few numbers, however long it is.

    Attributes:
        key: which episode.
        spans: the steps that were seen, ascending, apart from each other.
        duplicates: rows whose step was there already.
        end: as in `Episode`.
    """

    __slots__ = ("duplicates", "end", "first", "key", "spans")

    def __init__(self, key: EpisodeKey, first: tuple[int, int]) -> None:
        self.key = key
        self.first = first  # the first row's step, and a checksum of the row
        self.spans: list[Span] = []
        self.duplicates = 0
        self.end: str | None = None

    @property
    def gaps(self) -> list[Span]:
        """The steps that are missing before the last one."""
        edges = [0, *(edge for span in self.spans for edge in span)]
        return [(a, b) for a, b in zip(edges[:-1:2], edges[1::2], strict=True) if a < b]

    def new_rows(self, t: np.ndarray) -> np.ndarray | None:
        """Which of these steps, ascending, weren't seen before `[B] bool`; None: none was."""
        if not self.spans or t[0] >= self.spans[-1][1]:
            new = None
        else:
            new = np.ones(len(t), np.bool_)
            for start, stop in self.spans:
                new &= (t < start) | (t >= stop)
        if len(t) > 1 and not _unbroken(t):
            again = np.zeros(len(t), np.bool_)
            again[1:] = t[1:] == t[:-1]
            if again.any():
                new = ~again if new is None else new & ~again
        return None if new is None or new.all() else new

    def add(self, t: np.ndarray, ended: int) -> None:
        """Notes these steps, ascending, none of which was seen; `ended` is how the last one ended, 0 for not."""
        if not len(t):
            return
        parts = [t] if _unbroken(t) else np.split(t, np.flatnonzero(np.diff(t) != 1) + 1)
        for part in parts:
            self._add_span(int(part[0]), int(part[-1]) + 1)
        if ended:
            self.end = "terminated" if ended == 1 else "truncated"

    def _add_span(self, start: int, stop: int) -> None:
        if self.spans and self.spans[-1][1] == start:
            self.spans[-1] = (self.spans[-1][0], stop)
            return
        spans: list[Span] = []
        for span in sorted([*self.spans, (start, stop)]):
            if spans and spans[-1][1] == span[0]:
                spans[-1] = (spans[-1][0], span[1])
            else:
                spans.append(span)
        self.spans = spans


class Cutter:
    """Cuts records into pieces of episodes, and remembers of each episode which steps were there.

    Attributes:
        runs: all episodes so far, in the order in which they appeared.
        guessed: policies whose records have no `eps_id`, so that episodes were told apart by their ends.
    """

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.guessed: set[str] = set()
        self._by_id: dict[tuple[str, int | str, int], list[Run]] = {}
        self._open: dict[str, Run] = {}  # of policies in `guessed`: the episode that the last record ended in

    def cut(self, batch: Batch) -> Iterator[Cut]:
        """The pieces of a record, for each policy that has rows in it."""
        for policy_id, columns in batch.as_multi_agent().policy_batches.items():
            if columns.count:
                yield self._cut(policy_id, flat_columns(columns))

    def _cut(self, policy_id: str, columns: Columns) -> Cut:
        rows = len(next(iter(columns.values())))
        ended = _ended(columns, rows)
        ids, agents, t = _ids(columns, rows), _integers(columns, c.AGENT_INDEX, rows), _steps(columns, rows)
        starts = _starts(ids, agents, ended)
        if ids is not None and t is not None and _out_of_order(t, starts):
            order = np.lexsort((t, agents, np.unique(ids, return_inverse=True)[1]))
            columns = {name: column[order] for name, column in columns.items()}
            ids, agents, t, ended = ids[order], agents[order], t[order], ended[order]
            starts = _starts(ids, agents, np.zeros_like(ended))
        if t is None:
            t = np.arange(rows) - np.repeat(starts, np.diff([*starts, rows]))
            numbered = True
        else:
            numbered = False
        pieces, keep = [], np.ones(rows, np.bool_)
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), rows], strict=True):
            last = int(ended[stop - 1])
            first = _Row(columns, start, int(t[start]))
            if ids is None:
                run = self._follow(policy_id, int(agents[start]), first, numbered)
                self._open[policy_id] = run
            else:
                run = self._find((policy_id, _plain(ids[start]), int(agents[start])), first, numbered)
            if numbered and run.spans:
                t[start:stop] += run.spans[-1][1]
            steps = t[start:stop]
            new = run.new_rows(steps)
            if new is not None:
                keep[start:stop] = new
                run.duplicates += int((~new).sum())
                steps = steps[new]
            run.add(steps, last)
            pieces.append(Piece(run, start, stop))
        return Cut(columns, t, ended, pieces) if keep.all() else _without_rows(columns, t, ended, pieces, keep)

    def _find(self, key: tuple[str, int | str, int], first: _Row, numbered: bool) -> Run:
        """The episode that rows with this id belong to; a new one if they start an episode that isn't the known one."""
        runs = self._by_id.setdefault(key, [])
        if not runs:
            return self._new(EpisodeKey(*key), first)
        if numbered:
            return self._new(EpisodeKey(*key, len(runs) + 1), first) if runs[-1].end else runs[-1]
        if any(start <= first.t < stop for start, stop in runs[-1].spans):
            beginning = [run for run in runs if run.first[0] == first.t]
            same = next((run for run in beginning if run.first[1] == first.checksum), None)
            if same is not None:
                return same
            if beginning:
                return self._new(EpisodeKey(*key, len(runs) + 1), first)
        return runs[-1]

    def _follow(self, policy_id: str, agent: int, first: _Row, numbered: bool) -> Run:
        """The episode of rows without an id: the one that was open, if they go on from it, or a new one."""
        self.guessed.add(policy_id)
        run = self._open.get(policy_id)
        follows = run is not None and run.end is None and run.key.agent_index == agent
        if run is not None and follows and (numbered or first.t == run.spans[-1][1]):
            return run
        return self._new(EpisodeKey(policy_id, len(self.runs), agent), first)

    def _new(self, key: EpisodeKey, first: _Row) -> Run:
        run = Run(key, (first.t, first.checksum))
        self.runs.append(run)
        self._by_id.setdefault(key[:3], []).append(run)
        return run


class _Row:
    """A piece's first row, of which a checksum is taken when there is doubt."""

    def __init__(self, columns: Columns, row: int, t: int) -> None:
        self.t = t
        self._columns, self._row = columns, row

    @property
    def checksum(self) -> int:
        value = 0
        for name, column in self._columns.items():
            if name.partition("/")[0] in (c.OBS, c.NEXT_OBS, c.ACTIONS, c.REWARDS) and column.dtype != np.object_:
                value = zlib.crc32(np.ascontiguousarray(column[self._row]).tobytes(), value)
        return value


def _without_rows(columns: Columns, t: np.ndarray, ended: np.ndarray, pieces: list[Piece], keep: np.ndarray) -> Cut:
    places = np.concatenate([[0], np.cumsum(keep)])
    moved = [Piece(run, int(places[start]), int(places[stop])) for run, start, stop in pieces]
    left = {name: column[keep] for name, column in columns.items()}
    return Cut(left, t[keep], ended[keep], [piece for piece in moved if piece.start < piece.stop])


def _ended(columns: Columns, rows: int) -> np.ndarray:
    """1 where a row ends its episode for good, 2 where it was truncated, else 0 `[B]`."""
    ended = np.zeros(rows, np.int8)
    for name, value in ((c.TRUNCATEDS, 2), (c.DONES, 1), (c.TERMINATEDS, 1)):
        column = columns.get(name)
        if column is not None and column.dtype.kind in "biuf" and column.size == rows:
            ended[column.reshape(rows) != 0] = value
    return ended


def _ids(columns: Columns, rows: int) -> np.ndarray | None:
    column = columns.get(c.EPS_ID)
    if column is None or column.size != rows:
        return None
    flat = column.reshape(rows)
    return flat.astype(str) if flat.dtype.kind == "O" else flat


def _integers(columns: Columns, name: str, rows: int) -> np.ndarray:
    column = columns.get(name)
    if column is None or column.dtype.kind not in "biuf" or column.size != rows:
        return np.zeros(rows, np.int64)
    with np.errstate(invalid="ignore"):  # what is no int64 is a gap, which is told
        return np.nan_to_num(column.reshape(rows)).astype(np.int64)


def _unbroken(t: np.ndarray) -> bool:
    """Whether these steps, ascending, follow each other. In Python's integers, as a file may hold any."""
    return int(t[-1]) - int(t[0]) == len(t) - 1


def _steps(columns: Columns, rows: int) -> np.ndarray | None:
    return _integers(columns, c.T, rows) if c.T in columns else None


def _starts(ids: np.ndarray | None, agents: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """The rows where another episode begins, 0 among them."""
    cut = (agents[1:] != agents[:-1]) | (ended[:-1] != 0)
    if ids is not None:
        cut |= ids[1:] != ids[:-1]
    return np.concatenate([[0], np.flatnonzero(cut) + 1])


def _out_of_order(t: np.ndarray, starts: np.ndarray) -> bool:
    falls = np.flatnonzero(t[1:] <= t[:-1]) + 1
    return bool(falls.size) and not np.isin(falls, starts).all()


def _plain(value: Any) -> int | str:
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and plain.is_integer():
        return int(plain)
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else str(plain)


def flat_columns(batch: SampleBatch) -> Columns:
    """The columns of a batch, nested ones as one for each part: `obs/camera`, `obs/arm/0`."""
    found: Columns = {}
    for name, value in batch.items():
        _add_parts(found, name, value)
    return found


def _add_parts(found: Columns, name: str, value: Any) -> None:
    # No function inside of `flat_columns`: calling itself, it would keep the columns until the collector comes by.
    if isinstance(value, dict):
        for key, part in value.items():
            _add_parts(found, f"{name}/{key}", part)
    elif isinstance(value, tuple | list):
        for i, part in enumerate(value):
            _add_parts(found, f"{name}/{i}", part)
    else:
        found[name] = np.asarray(value)
