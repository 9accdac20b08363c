"""PieceReader: what readers of other formats share. A piece is what is read at once: an episode, a group of rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError
from polylib.offline.checks import Expected
from polylib.offline.errors import TraceFileError, TraceFormatError
from polylib.offline.input_reader import InputReader
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import Batch
from polylib.policy.sample_batch import SampleBatch, concat_samples


class PieceReader(InputReader):
    """Reads a data set piece by piece: one batch for each. Subclasses write `_count`, `_read` and `_where`.

    What isn't given is taken from `ioctx`, as far as it has one, as `JsonReader` does.

    Args:
        ioctx: What the run knows.
        loop: Start over at the end, for ever. Otherwise every piece is read once.
        observation_space: What observations are checked against and converted to.
        action_space: What actions are checked against and converted to.
        required: Columns that every batch must have.
        columns: Names in the files to names of columns.
        actions_normalized: The files' Box actions are in [-1, 1]: they are scaled to the space.
        shuffle: Pieces in random order, another one in every pass.
        seed: Of the order.
        share: `(i, n)`: only the pieces of worker i of n, from 1.
    """

    def __init__(
        self,
        ioctx: IOContext | None = None,
        *,
        loop: bool | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        required: Collection[str] = (),
        columns: Mapping[str, str] | None = None,
        actions_normalized: bool | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        ioctx = ioctx or IOContext()
        self.loop = ioctx.loop if loop is None else loop
        self.expected = Expected.of(ioctx, observation_space, action_space, required, columns, actions_normalized)
        self.shuffle = bool(ioctx.input_config.get("shuffle")) if shuffle is None else shuffle
        self.share = share or ioctx.share
        given = ioctx.seed if seed is None else seed
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if given is None else given
        self._epoch = self._at = 0
        self._order: np.ndarray | None = None  # of this pass

    @abstractmethod
    def _count(self) -> int:
        """How many pieces there are."""

    @abstractmethod
    def _read(self, index: int) -> Batch:
        """A piece as it stands in the file.

        Raises:
            ValueError: It can't be read as a batch; the message may begin with the column.
        """

    @abstractmethod
    def _where(self, index: int) -> str:
        """Where a piece stands, for messages."""

    def next(self) -> Batch:
        """The next piece's batch.

        Raises:
            StopIteration: All pieces were read, and the reader doesn't loop.
            TraceFormatError: A piece holds something impossible; the next call goes on after it.
            TraceFileError: There is no piece for this reader.
        """
        order = self._pass()
        if self._at >= len(order):
            if not self.loop:
                raise StopIteration("all records were read; with loop=True the reader starts over")
            self._epoch, self._at, self._order = self._epoch + 1, 0, None
            order = self._pass()
        index = int(order[self._at])
        self._at += 1
        return self._piece(index)

    @property
    def where(self) -> str:
        """Where the batch stands that `next` gave last."""
        return self._where(int(self._pass()[self._at - 1])) if self._at else ""

    def read_all(self) -> Batch:
        """All pieces as one batch."""
        return concat_samples([self._piece(int(index)) for index in self._mine()])

    @property
    def passes(self) -> int:
        """How often `next` has been through all pieces."""
        return self._epoch

    def get_state(self) -> dict[str, Any]:
        """Where `next` stands, for `set_state` of a reader of the same data set."""
        return {"seed": self.seed, "pieces": self._count(), "epoch": self._epoch, "at": self._at}

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called; False if the data set is another one."""
        if not isinstance(state, dict) or state.get("pieces") != self._count():
            return False
        self.seed, self._epoch, self._at, self._order = state["seed"], state["epoch"], state["at"], None
        return True

    def _mine(self) -> np.ndarray:
        worker, workers = self.share
        return np.arange(worker - 1, self._count(), workers) if workers else np.arange(self._count())

    def _pass(self) -> np.ndarray:
        if self._order is None:
            mine = self._mine()
            if not len(mine):
                worker, workers = self.share
                which = f" for worker {worker} of {workers}: use fewer workers" if workers and self._count() else ""
                raise TraceFileError(f"no record in {self._where(0)}{which}")
            rng = np.random.default_rng([self.seed, self._epoch])
            self._order = rng.permutation(mine) if self.shuffle else mine
        return self._order

    def _piece(self, index: int) -> Batch:
        where = self._where(index)
        try:
            batch = self._read(index)
        except (ValueError, TypeError, BatchError) as e:
            raise TraceFormatError(f"{where}: {e}") from None
        return self.expected.prepare(self._renamed(batch, where), where)

    def _renamed(self, batch: Batch, where: str) -> Batch:
        names = self.expected.columns
        if not names or not isinstance(batch, SampleBatch):
            return batch
        renamed = SampleBatch()
        for name, column in batch.items():
            new = names.get(name, name)
            if new in renamed or (new != name and new in batch and new not in names):
                raise TraceFormatError(f"{where}, column {name!r}: renamed to {new!r}, of which there is one already")
            renamed[new] = column
        return renamed
