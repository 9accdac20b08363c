"""From records to whole episodes: rows put together over records and files, in order, with what is missing noted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polylib.offline.episode_cutting import Columns, Cutter, EpisodeKey, Run, Span, flat_columns
from polylib.offline.errors import TraceFormatError
from polylib.offline.formats.open import open_dataset
from polylib.offline.json_format import Batch
from polylib.offline.sources import Inputs
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

__all__ = ["Columns", "Episode", "EpisodeKey", "episodes_of", "flat_columns", "opened", "records_of"]


@dataclass
class Episode:
    """The rows of one agent in one episode, as far as they were recorded.

    Attributes:
        key: which episode.
        columns: its columns `[B, ...]` in the order of steps, each step once; nested ones by part, `obs/camera`.
        t: the number of each step `[B]`, from 0.
        end: `"terminated"`, `"truncated"`, or None where no end was recorded.
        gaps: the steps that are missing before, between and not after the others.
        duplicates: rows left out because their step was there already.
        notes: what else was strange.
    """

    key: EpisodeKey
    columns: Columns
    t: np.ndarray
    end: str | None
    gaps: list[Span] = field(default_factory=list)
    duplicates: int = 0
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.t)

    @property
    def batch(self) -> SampleBatch:
        """The columns as a batch."""
        return SampleBatch(self.columns)

    @property
    def total_reward(self) -> float:
        """The sum of the rewards that were recorded; NaN without any."""
        rewards = self.columns.get(c.REWARDS)
        return float("nan") if rewards is None else float(np.sum(rewards, dtype=np.float64))

    @property
    def whole(self) -> bool:
        """Whether all steps from the first to the end are there."""
        return self.end is not None and not self.gaps


def opened(inputs: Inputs | Iterable[Batch]) -> Iterable[Batch]:
    """A reader where `inputs` names files, of whichever format; else what was given."""
    several = inputs if isinstance(inputs, list | tuple) else [inputs]
    if several and all(isinstance(item, str | os.PathLike) for item in several):
        return open_dataset(inputs, loop=False)
    return inputs  # type: ignore[return-value]


def records_of(batches: Iterable[Batch], on_error: Callable[[TraceFormatError], None] | None = None) -> Iterator[Batch]:
    """The records of a reader, each once.

    Args:
        batches: a reader that doesn't loop, or batches.
        on_error: is told of records that hold something impossible, which are left out; None: the error is raised.
    """
    waiting = iter(batches)
    while True:
        try:
            batch: Any = next(waiting)
        except StopIteration:
            return
        except TraceFormatError as error:
            if on_error is None:
                raise
            on_error(error)
            continue
        yield batch


def episodes_of(
    inputs: Inputs | Iterable[Batch],
    policy_id: str | None = None,
    *,
    wanted: Callable[[EpisodeKey], bool] | None = None,
    on_error: Callable[[TraceFormatError], None] | None = None,
) -> Iterator[Episode]:
    """The episodes in records, put together over records and files.

    An episode is given out as soon as it is whole; those that aren't come at the end, in the order in which they
    began. Only episodes that aren't given out yet are in memory.

    Args:
        inputs: what `open_dataset` takes, such as a file or folder; or a reader that doesn't loop, or batches.
        policy_id: only this policy's; None: all.
        wanted: only those for which it is true.
        on_error: is told of records that hold something impossible, which are left out; None: the error is raised.

    Raises:
        TraceFileError: a file is missing or can't be read, or there is no record in any.
        TraceFormatError: a record holds something impossible.
    """
    cutter, pieces = Cutter(), dict[EpisodeKey, list[tuple[Columns, np.ndarray]]]()
    waiting: dict[EpisodeKey, Run] = {}
    for batch in records_of(opened(inputs), on_error):
        for cut in cutter.cut(batch):
            for run, start, stop in cut.pieces:
                key = run.key
                if (policy_id is not None and key.policy_id != policy_id) or (wanted is not None and not wanted(key)):
                    continue
                rows = {name: column[start:stop] for name, column in cut.columns.items()}
                if 2 * (stop - start) < len(cut.t):  # a view would keep all of the record in memory
                    rows = {name: column.copy() for name, column in rows.items()}
                pieces.setdefault(key, []).append((rows, cut.t[start:stop]))
                waiting[key] = run
            for key in [piece.run.key for piece in cut.pieces]:
                found = waiting.get(key)
                if found is not None and found.end is not None and not found.gaps:
                    del waiting[key]
                    yield _join(found, pieces.pop(key))
    for key, run in waiting.items():
        yield _join(run, pieces.pop(key))


def _join(run: Run, pieces: list[tuple[Columns, np.ndarray]]) -> Episode:
    pieces = sorted(pieces, key=lambda piece: int(piece[1][0]))
    t = np.concatenate([steps for _, steps in pieces])
    order = None if bool((np.diff(t) > 0).all()) else np.argsort(t, kind="stable")
    columns: Columns = {}
    notes: list[str] = []
    for name in dict.fromkeys(name for rows, _ in pieces for name in rows):
        parts = [rows[name] for rows, _ in pieces if name in rows]
        if len(parts) < len(pieces):
            notes.append(f"column {name!r} is in some of its records only")
            continue
        try:
            column = parts[0] if len(parts) == 1 else np.concatenate(parts)
        except (TypeError, ValueError):
            notes.append(f"column {name!r} has rows of different shapes")
            continue
        columns[name] = column if order is None else column[order]
    return Episode(run.key, columns, t if order is None else t[order], run.end, run.gaps, run.duplicates, notes)
