"""HDF5 as d3rlpy (both its versions) and D4RL write it: episodes, in or out of one long table."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from polylib.errors import FrameworkError
from polylib.offline.errors import TraceFileError
from polylib.offline.formats.pieces import PieceReader
from polylib.offline.segments import segment_ends
from polylib.offline.sources import local_path
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

# Columns of one long table, and what they are called here.
_TABLE = {"observations": c.OBS, "actions": c.ACTIONS, "rewards": c.REWARDS}
_NEEDED = ("observations", "actions", "rewards", "terminals")
_ENDS = ("timeouts", "episode_terminals")
# Data sets for each episode: `observations_0`, or `observations_0_0`, `observations_0_1` for tuples.
_PER_EPISODE = ("observations", "actions", "rewards", "terminated")


def h5py() -> Any:
    """The package h5py.

    Raises:
        FrameworkError: It isn't installed.
    """
    try:
        import h5py
    except ImportError as e:
        raise FrameworkError("HDF5 files need the package h5py: pip install 'polylib[minari]' or h5py") from e
    return h5py


class Hdf5Reader(PieceReader):
    """Reads the episodes of an HDF5 file, one batch for each.

    Three layouts are known by the names in the file: one table with `observations`, `actions`, `rewards`, `terminals`
    and maybe `timeouts` or `episode_terminals` and `next_observations` (D4RL, d3rlpy 1), and a data set per episode
    (`observations_0`, ..., d3rlpy 2). Batches have `new_obs` only where there are `next_observations`; algorithms that
    learn from the batches make it of the rows that follow.

    Args:
        path: The file.
        **kwargs: As for `PieceReader`.

    Raises:
        TraceFileError: It can't be read.
        TraceFormatError: It has none of these layouts; the message says what it has.
        FrameworkError: h5py isn't installed.
    """

    def __init__(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.path = local_path(path)
        try:
            self._file = h5py().File(self.path, "r")
        except OSError as e:
            raise TraceFileError(f"{str(self.path)!r} can't be read as HDF5: {e}") from None
        self._episodes: list[tuple[int, int]] | None = None
        self._ended: dict[str, np.ndarray] = {}
        if "num_episodes" in self._file:
            self._total = int(self._file["num_episodes"][()])
        else:
            self._table()

    def _table(self) -> None:
        missing = [name for name in _NEEDED if name not in self._file]
        if missing:
            raise TraceFileError(
                f"{str(self.path)!r}: it has no {', '.join(map(repr, missing))}; expected D4RL's or d3rlpy's columns "
                f"({', '.join(_NEEDED)}), found {', '.join(sorted(self._file)) or 'nothing'}"
            )
        rows = len(self._file["rewards"])
        terminated = self._column("terminals", rows).astype(np.bool_)
        cut = np.zeros(rows, np.bool_)
        for name in _ENDS:
            if name in self._file:
                cut |= self._column(name, rows).astype(np.bool_)
        self._ended = {c.TERMINATEDS: terminated, c.TRUNCATEDS: cut & ~terminated}
        ends = segment_ends(SampleBatch(self._ended)).tolist()
        self._episodes = list(zip([0, *ends[:-1]], ends, strict=True))
        self._total = len(self._episodes)

    def _column(self, name: str, rows: int) -> np.ndarray:
        column = np.asarray(self._file[name][()]).reshape(len(self._file[name]), -1)
        if column.shape != (rows, 1):
            raise TraceFileError(
                f"{str(self.path)!r}, column {name!r}: shape {list(self._file[name].shape)} where {rows} rows of one "
                "number were expected"
            )
        return column[:, 0]

    def _count(self) -> int:
        return self._total

    def _where(self, index: int) -> str:
        return f"{self.path}, episode {index}"

    def _read(self, index: int) -> SampleBatch:
        if self._episodes is None:
            return self._own_data_sets(index)
        start, stop = self._episodes[index]
        columns = {ours: np.asarray(self._file[theirs][start:stop]) for theirs, ours in _TABLE.items()}
        columns |= {name: ended[start:stop] for name, ended in self._ended.items()}
        if "next_observations" in self._file:
            columns[c.NEXT_OBS] = np.asarray(self._file["next_observations"][start:stop])
        return _episode(columns, index)

    def _own_data_sets(self, index: int) -> SampleBatch:
        parts = {name: self._own(name, index) for name in _PER_EPISODE}
        rows = len(parts["rewards"])
        ended = np.zeros(rows, np.bool_)
        last = bool(np.asarray(parts["terminated"]).any())
        ended[-1:] = True
        columns = {ours: parts[theirs] for theirs, ours in _TABLE.items()}
        columns[c.TERMINATEDS], columns[c.TRUNCATEDS] = ended & last, ended & (not last)
        return _episode(columns, index)

    def _own(self, name: str, index: int) -> Any:
        if f"{name}_{index}" in self._file:
            return np.asarray(self._file[f"{name}_{index}"][()])
        parts: list[np.ndarray] = []
        while f"{name}_{index}_{len(parts)}" in self._file:
            parts.append(np.asarray(self._file[f"{name}_{index}_{len(parts)}"][()]))
        if not parts:
            raise ValueError(f"there is no data set {f'{name}_{index}'!r}")
        return tuple(parts)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _episode(columns: dict[str, Any], index: int) -> SampleBatch:
    """An episode's batch, numbered."""
    rows = len(columns[c.TERMINATEDS])
    for name in (c.ACTIONS, c.REWARDS):  # d3rlpy writes [B, 1]
        column = columns[name]
        if (
            isinstance(column, np.ndarray)
            and column.shape == (rows, 1)
            and (name == c.REWARDS or column.dtype.kind in "iu")
        ):
            columns[name] = column[:, 0]
    columns[c.REWARDS] = np.asarray(columns[c.REWARDS], np.float32)
    columns[c.EPS_ID], columns[c.T] = np.full(rows, index, np.int64), np.arange(rows, dtype=np.int32)
    return SampleBatch(columns)
