"""Episodes in a few numbers each: length, return, actions, what the columns hold, what is wrong.

Read once, record by record, so that a folder may be larger than memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from polylib.offline.episode_cutting import Columns, Cut, Cutter, EpisodeKey, Run
from polylib.offline.episodes import opened, records_of
from polylib.offline.errors import TraceFileError, TraceFormatError
from polylib.offline.json_format import Batch
from polylib.offline.sources import Inputs
from polylib.policy import columns as c

# Integer actions that differ by more than this are numbers, not choices.
_MAX_CHOICES = 4096
# Actions of more parts than this are described as a whole.
_MAX_PARTS = 64
_LOW, _HIGH, _NANS, _INFS = range(4)


class ColumnKind(NamedTuple):
    """A column as the records have it.

    Attributes:
        name: such as `obs`, or `obs/camera` for a part.
        shape: of one row.
        dtype: its name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class ColumnStats(NamedTuple):
    """What a column of an episode holds.

    Attributes:
        kind: its name, shape and dtype.
        low: the smallest number; NaN where there is none.
        high: the largest one.
        nans: how many numbers are NaN.
        infs: how many are infinite.
    """

    kind: ColumnKind
    low: float
    high: float
    nans: int
    infs: int


class Ranges:
    """Of a Box action: the smallest, the largest and the mean of each part, `[k]`."""

    __slots__ = ("count", "high", "low", "total")

    def __init__(self, low: np.ndarray, high: np.ndarray, total: np.ndarray, count: int) -> None:
        self.low, self.high, self.total, self.count = low, high, total, count

    @property
    def mean(self) -> np.ndarray:
        """The mean of each part."""
        return self.total / self.count

    def __add__(self, other: Ranges) -> Ranges:
        low, high = np.fmin(self.low, other.low), np.fmax(self.high, other.high)
        return Ranges(low, high, self.total + other.total, self.count + other.count)


class EpisodeSummary:
    """An episode in a few numbers; grows with every record that has rows of it.

    Attributes:
        length: the steps that were recorded, each counted once.
        total_reward: the sum of their rewards; NaN without any.
        choices: for actions of whole numbers, how often each was taken, by column and part.
        ranges: for other actions, by column.
    """

    __slots__ = ("_kinds", "_run", "_stats", "choices", "length", "ranges", "total_reward")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.length, self.total_reward = 0, math.nan
        self.choices: dict[tuple[str, int], Counter[int]] = {}
        self.ranges: dict[str, Ranges] = {}
        self._kinds: tuple[ColumnKind, ...] = ()
        self._stats = np.empty((0, 4))

    @property
    def key(self) -> EpisodeKey:
        """Which episode."""
        return self._run.key

    @property
    def end(self) -> str | None:
        """`"terminated"`, `"truncated"`, or None where no end was recorded."""
        return self._run.end

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The steps that are missing before the last one: from, and up to but not including."""
        return self._run.gaps

    @property
    def whole(self) -> bool:
        """Whether all steps from the first to the end are there."""
        return self.end is not None and not self.gaps

    @property
    def missing(self) -> int:
        """How many steps are missing."""
        return sum(stop - start for start, stop in self.gaps)

    @property
    def duplicates(self) -> int:
        """Rows left out because their step was there already."""
        return self._run.duplicates

    @property
    def columns(self) -> list[ColumnStats]:
        """What each column holds."""
        rows = zip(self._kinds, self._stats.tolist(), strict=True)
        return [ColumnStats(kind, row[_LOW], row[_HIGH], int(row[_NANS]), int(row[_INFS])) for kind, row in rows]

    @property
    def nans(self) -> dict[str, int]:
        """How many numbers are NaN, by column, of those that have any."""
        return {kind.name: int(n) for kind, n in zip(self._kinds, self._stats[:, _NANS], strict=True) if n}

    def problems(self) -> list[str]:
        """What is wrong with it, in words."""
        # A likelihood that nobody knows is NaN, and nothing is wrong with that.
        found = [f"{count} NaN in {name}" for name, count in self.nans.items() if name != c.ACTION_LOGP]
        infs = zip(self._kinds, self._stats[:, _INFS], strict=True)
        found += [f"{int(count)} infinite in {kind.name}" for kind, count in infs if count]
        if self.gaps:
            shown = ", ".join(f"{a}" if b == a + 1 else f"{a}-{b - 1}" for a, b in self.gaps[:3])
            more = f" and {len(self.gaps) - 3} more gaps" if len(self.gaps) > 3 else ""
            found.append(f"{self.missing} step{'s' * (self.missing != 1)} missing (t {shown}{more})")
        if self.duplicates:
            found.append(f"{self.duplicates} duplicate{'s' * (self.duplicates != 1)}")
        if self.end is None:
            found.append("no end")
        return found

    def add(self, kinds: tuple[ColumnKind, ...], stats: np.ndarray, length: int, reward: float | None) -> None:
        """Adds the rows of one record.

        Args:
            kinds: their columns.
            stats: `[len(kinds), 4]`: smallest, largest, how many NaN and infinite.
            length: how many rows.
            reward: the sum of their rewards, or None.
        """
        self.length += length
        if reward is not None:
            self.total_reward = reward if math.isnan(self.total_reward) and not self._kinds else (
                self.total_reward + reward
            )
        if kinds == self._kinds:
            _merge(self._stats, stats)
            return
        if not self._kinds:
            self._kinds, self._stats = kinds, stats.copy()
            return
        known = {kind.name: i for i, kind in enumerate(self._kinds)}
        merged, numbers = list(self._kinds), list(self._stats)
        for kind, row in zip(kinds, stats, strict=True):
            if kind.name in known:
                _merge(numbers[known[kind.name]], row)
            else:
                merged.append(kind)
                numbers.append(row)
        self._kinds, self._stats = tuple(merged), np.array(numbers)


def _merge(stats: np.ndarray, more: np.ndarray) -> None:
    stats[..., _LOW] = np.fmin(stats[..., _LOW], more[..., _LOW])
    stats[..., _HIGH] = np.fmax(stats[..., _HIGH], more[..., _HIGH])
    stats[..., _NANS:] += more[..., _NANS:]


class Summary:
    """What traces hold.

    Attributes:
        episodes: each one, in the order in which they began.
        files: how many files were read; 0: the reader doesn't say.
        records: how many records were read.
        skipped: what was wrong with lines that were left out.
        guessed: policies without `eps_id`, whose episodes were told apart by their ends.
    """

    def __init__(self) -> None:
        self.episodes: list[EpisodeSummary] = []
        self.files = self.records = 0
        self.skipped: list[str] = []
        self.guessed: set[str] = set()

    @property
    def steps(self) -> int:
        """Rows, each counted once."""
        return sum(episode.length for episode in self.episodes)

    @property
    def whole(self) -> list[EpisodeSummary]:
        """The episodes that are whole; all if none is. What a part of an episode returned says little of the others."""
        return [episode for episode in self.episodes if episode.whole] or self.episodes

    @property
    def policies(self) -> list[str]:
        """The ids of policies, in order."""
        return sorted({episode.key.policy_id for episode in self.episodes})

    @property
    def several_agents(self) -> bool:
        """Whether a policy has several agents, so that an episode's id and policy don't tell whose rows they are."""
        pairs = {(episode.key.policy_id, episode.key.agent_index) for episode in self.episodes}
        return len(pairs) > len(self.policies)

    def columns(self, policy_id: str) -> list[ColumnStats]:
        """What the columns of a policy hold, over all episodes."""
        total: EpisodeSummary | None = None
        for episode in self.episodes:
            if episode.key.policy_id == policy_id:
                total = total or EpisodeSummary(episode._run)
                total.add(episode._kinds, episode._stats, 0, None)
        return total.columns if total else []


def summarise(inputs: Inputs | Iterable[Batch]) -> Summary:
    """Reads traces once; lines that aren't whole or hold something impossible are left out and noted.

    Args:
        inputs: what `open_dataset` takes, such as a file or folder; or a reader that doesn't loop, or batches.

    Raises:
        TraceFileError: a file is missing or can't be read, or there is no record in any.
    """
    summary, cutter = Summary(), Cutter()
    by_run: dict[int, EpisodeSummary] = {}
    reader = opened(inputs)
    kinds: dict[tuple[ColumnKind, ...], tuple[ColumnKind, ...]] = {}

    def left_out(error: TraceFormatError) -> None:
        summary.skipped.append(str(error))

    try:
        for batch in records_of(reader, left_out):
            summary.records += 1
            for cut in cutter.cut(batch):
                for piece in cut.pieces:
                    if id(piece.run) not in by_run:
                        by_run[id(piece.run)] = EpisodeSummary(piece.run)
                        summary.episodes.append(by_run[id(piece.run)])
                found = tuple(ColumnKind(n, x.shape[1:], str(x.dtype)) for n, x in cut.columns.items())
                if cut.pieces:
                    _add(cut, kinds.setdefault(found, found), [by_run[id(piece.run)] for piece in cut.pieces])
    except TraceFileError as error:
        reasons = [*summary.skipped, *getattr(reader, "skipped", {}).values()]
        if summary.records or not reasons:
            raise
        raise TraceFileError(f"{error}: {reasons[0]}") from None
    summary.files = len(getattr(reader, "files", ()))
    summary.skipped += getattr(reader, "skipped", {}).values()
    summary.guessed = cutter.guessed
    return summary


def _add(cut: Cut, kinds: tuple[ColumnKind, ...], episodes: list[EpisodeSummary]) -> None:
    starts = np.array([piece.start for piece in cut.pieces])
    _add_rows(cut.columns, kinds, starts, [piece.stop - piece.start for piece in cut.pieces], episodes)


def _add_rows(
    columns: Columns,
    kinds: tuple[ColumnKind, ...],
    starts: np.ndarray,
    lengths: list[int],
    episodes: list[EpisodeSummary],
) -> None:
    # All pieces of a record at once: episodes can be short, and a call into NumPy for each would take most of the time.
    stats = np.stack([_statistics(columns[kind.name], starts) for kind in kinds], 1)
    rewards, rows = columns.get(c.REWARDS), sum(lengths)
    sums: list[Any] = [None] * len(episodes)
    if rewards is not None and rewards.dtype.kind in "biuf" and rewards.size == rows:
        sums = np.add.reduceat(rewards.reshape(rows).astype(np.float64), starts).tolist()
    for i, episode in enumerate(episodes):
        episode.add(kinds, stats[i], lengths[i], sums[i])
    for kind in kinds:
        if kind.name.partition("/")[0] == c.ACTIONS:
            _add_actions(kind.name, columns[kind.name], starts, lengths, episodes)


def _statistics(column: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Smallest, largest, NaNs and infinities of a column's pieces `[P, 4]`."""
    out = np.zeros((len(starts), 4))
    flat = column.reshape(len(column), -1) if column.size else column
    if column.dtype.kind not in "biuf" or not column.size:
        out[:, : _HIGH + 1] = np.nan
        return out
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        out[:, _LOW] = np.fmin.reduceat(np.fmin.reduce(flat, 1), starts)
        out[:, _HIGH] = np.fmax.reduceat(np.fmax.reduce(flat, 1), starts)
        out[:, _NANS] = np.add.reduceat(np.isnan(flat).sum(1), starts)
        out[:, _INFS] = np.add.reduceat(np.isinf(flat).sum(1), starts)
        return out
    out[:, _LOW] = np.minimum.reduceat(flat.min(1), starts)
    out[:, _HIGH] = np.maximum.reduceat(flat.max(1), starts)
    return out


def _add_actions(
    name: str, column: np.ndarray, starts: np.ndarray, lengths: list[int], episodes: list[EpisodeSummary]
) -> None:
    if column.dtype.kind not in "biuf" or not column.size:
        return
    flat = column.reshape(len(column), -1)
    if flat.shape[1] > _MAX_PARTS:
        flat = np.stack([np.fmin.reduce(flat, 1), np.fmax.reduce(flat, 1)], 1)
    low = int(flat.min()) if flat.dtype.kind != "f" else 0
    if flat.dtype.kind != "f" and int(flat.max()) - low < _MAX_CHOICES:
        place = np.repeat(np.arange(len(starts)), lengths)
        width = int(flat.max()) - low + 1
        for part in range(flat.shape[1]):
            choice = flat[:, part].astype(np.int64) - low
            counts = np.bincount(place * width + choice, minlength=len(starts) * width).reshape(len(starts), width)
            for episode, row in zip(episodes, counts, strict=True):
                seen = np.flatnonzero(row)
                taken = episode.choices.setdefault((name, part), Counter())
                for value, count in zip((seen + low).tolist(), row[seen].tolist(), strict=True):
                    taken[value] += count
        return
    numbers = flat.astype(np.float64)
    lows, highs = np.fmin.reduceat(numbers, starts), np.fmax.reduceat(numbers, starts)
    totals = np.add.reduceat(numbers, starts)
    for i, episode in enumerate(episodes):
        more = Ranges(lows[i], highs[i], totals[i], lengths[i])
        known = episode.ranges.get(name)
        episode.ranges[name] = more if known is None or len(known.low) != len(more.low) else known + more
