"""JsonReader: batches from files of JSON lines, polylib's own and RLlib's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError, did_you_mean
from polylib.offline.checks import Expected
from polylib.offline.errors import CorruptLineError, TraceFileError, TraceFormatError
from polylib.offline.input_reader import InputReader
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import Batch, decode_record
from polylib.offline.sources import Inputs, LineIndex, Lines, TraceFile, find_files
from polylib.policy.sample_batch import concat_samples

logger = logging.getLogger(__name__)

Shuffle = Literal["files", "lines"] | None
_SHUFFLES = (None, "files", "lines")
# Lines one after another that aren't whole JSON: no traces.
_MAX_CORRUPT = 1000
# How many such lines are told one by one, and remembered.
_MAX_TOLD, _MAX_SKIPPED = 100, 100_000


class JsonReader(InputReader):
    """Reads traces line by line: one batch for each.

    Lines of polylib's own come back exactly as they were written. Lines of RLlib's have the dtypes that JSON gives
    them, unless spaces are given; `dones` becomes `terminateds`, and packed columns are read without unpickling.

    A line that isn't whole JSON is left out, with a warning that names it. A line that is, but holds something
    impossible, raises; the next call goes on with the line after it.

    What isn't given is taken from `ioctx`, as far as it has one: its config's `observation_space`, `action_space`,
    `actions_in_input_normalized` and `input_config` (`columns`, `shuffle`, `seed`), and the worker's share.

    Args:
        inputs: A file (`.gz` and `.zip` too), a folder, a pattern (`**` too), an address, or a list of these.
        ioctx: What the run knows.
        loop: Start over at the end, for ever. Otherwise every record is read once.
        observation_space: What `obs` and `new_obs` are checked against and converted to.
        action_space: What `actions` are checked against and converted to.
        required: Columns that every record must have.
        columns: Names in the files to names of columns, where the files have others.
        actions_normalized: The files' Box actions are in [-1, 1]: they are scaled to the space.
        shuffle: `"files"`: files in random order; `"lines"`: all lines in random order, after a pass over the files
            that finds them. None: as they are. Every pass has another order, and every record once.
        seed: Of the order.
        share: `(i, n)`: only the lines of worker i of n, from 1. The shares of n workers are disjoint, and together
            they are all lines.

    Attributes:
        files: The files that are read.
        skipped: `(file, line)` of the lines left out so far, and why.

    Raises:
        TraceFileError: The inputs name no file.
    """

    def __init__(
        self,
        inputs: Inputs,
        ioctx: IOContext | None = None,
        *,
        loop: bool | None = None,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        required: Collection[str] = (),
        columns: Mapping[str, str] | None = None,
        actions_normalized: bool | None = None,
        shuffle: Shuffle = None,
        seed: int | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        ioctx = ioctx or IOContext()
        settings = ioctx.input_config
        self.files: Sequence[TraceFile] = find_files(inputs)
        self.loop = ioctx.loop if loop is None else loop
        self.expected = Expected.of(ioctx, observation_space, action_space, required, columns, actions_normalized)
        wanted = shuffle or settings.get("shuffle")
        # The words of other formats, where there is one way to shuffle.
        self.shuffle: Shuffle = "files" if wanted is True else None if wanted is False else wanted
        if self.shuffle not in _SHUFFLES:
            raise ConfigError(
                f"shuffle={self.shuffle!r}: expected 'files', 'lines' or None."
                f"{did_you_mean(str(self.shuffle), ('files', 'lines'))}"
            )
        self.share = share or ioctx.share
        # Without one, drawn once: all passes of this reader need the same.
        given = ioctx.seed if seed is None else seed
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if given is None else given
        self.skipped: dict[tuple[TraceFile, int], str] = {}
        self._index: LineIndex | None = None
        self._pass = _Pass(self, self.loop)

    @property
    def observation_space(self) -> gym.Space[Any] | None:
        """What `obs` and `new_obs` are checked against."""
        return self.expected.observation_space

    @property
    def action_space(self) -> gym.Space[Any] | None:
        """What `actions` are checked against."""
        return self.expected.action_space

    def next(self) -> Batch:
        """The next line's batch: a SampleBatch, or a MultiAgentBatch where there are several policies.

        Raises:
            StopIteration: All records were read, and the reader doesn't loop.
            TraceFormatError: The line holds something impossible; the message names file, line and column.
            TraceFileError: A file can't be read, or no file has a record.
        """
        return next(self._pass)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the first line on, whatever `next` has read."""
        return _Pass(self, self.loop)

    @property
    def passes(self) -> int:
        """How often `next` has been through all files."""
        return self._pass.epoch

    @property
    def where(self) -> str:
        """File and line of the batch that `next` gave last."""
        if self._pass.place is None:
            return ""
        index, number = self._pass.place
        return f"{self.files[index]}, line {number}"

    def read_all(self) -> Batch:
        """All records as one batch, each read once."""
        return concat_samples(list(_Pass(self, loop=False)))

    def get_state(self) -> dict[str, Any]:
        """Where `next` stands, for `set_state` of a reader of the same files."""
        return {"files": len(self.files), "shuffle": self.shuffle, "seed": self.seed, **self._pass.get_state()}

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called; False if the files or their order are others."""
        if not isinstance(state, dict) or (state.get("files"), state.get("shuffle")) != (len(self.files), self.shuffle):
            return False
        self._pass.close()
        self.seed = state["seed"]
        self._pass = _Pass(self, self.loop, state)
        return True

    def close(self) -> None:
        """Closes the file that is open."""
        self._pass.close()
        if self._index is not None:
            self._index.close()

    def _decode(self, index: int, number: int, line: bytes) -> Batch | None:
        """A line's batch, or None for one that isn't whole."""
        path = self.files[index]
        where = f"{path}, line {number}"
        try:
            batch = decode_record(line, where, self.expected.columns)
        except CorruptLineError as e:
            # Once, however often the file is read.
            if (path, number) not in self.skipped and len(self.skipped) < _MAX_SKIPPED:
                self.skipped[path, number] = str(e)
                if len(self.skipped) <= _MAX_TOLD:
                    logger.warning("left out a line of a trace: %s", e)
                if len(self.skipped) == _MAX_TOLD:
                    logger.warning("further lines that are left out aren't told; the reader's `skipped` has them")
            return None
        return self.expected.prepare(batch, where)

    def _is_mine(self, index: int, number: int) -> bool:
        """Whether a line belongs to this reader's share, if it has one, in whatever order lines are read."""
        worker, workers = self.share
        return (index + number - 1) % workers == worker - 1

    def _indexed(self) -> LineIndex:
        if self._index is None:
            self._index = LineIndex(self.files)
        return self._index


class _Pass(Iterator[Batch]):
    """One way through a reader's lines, or many, one after another. No generator: an error must not end it."""

    def __init__(self, reader: JsonReader, loop: bool, state: Mapping[str, Any] | None = None) -> None:
        self._reader, self._loop = reader, loop
        self.epoch: int = state["epoch"] if state else 0
        # Whether this pass has come to a record, and to a line.
        self._found: bool = state["found"] if state else False
        self._any = state is not None
        self._corrupt = 0  # since the last line that wasn't
        self._lines = self._begin(state["position"]) if state else None
        self.place: tuple[int, int] | None = None  # file and line of the last record

    def _begin(self, position: Any = None) -> Lines | _Shuffled:
        reader = self._reader
        rng = np.random.default_rng([reader.seed, self.epoch])
        if reader.shuffle == "lines":
            return _Shuffled(reader._indexed(), rng, position or 0)
        order = None if reader.shuffle is None else rng.permutation(len(reader.files)).tolist()
        return Lines(reader.files, order, position or (0, 0, 0))

    def __next__(self) -> Batch:
        reader = self._reader
        if self._lines is None:
            self._lines = self._begin()
        while True:
            for index, number, line in self._lines:
                self._any = True
                if reader.share[1] and not reader._is_mine(index, number):
                    continue
                batch = reader._decode(index, number, line)
                if batch is not None:
                    self._corrupt, self._found, self.place = 0, True, (index, number)
                    return batch
                self._corrupt += 1
                if self._corrupt >= _MAX_CORRUPT:
                    self._corrupt = 0
                    raise TraceFormatError(
                        f"{reader.files[index]}, line {number}: the last {_MAX_CORRUPT} lines weren't whole JSON: "
                        "these are no traces"
                    )
            if not self._found:
                raise self._nothing()
            if not self._loop:
                raise StopIteration("all records were read; JsonReader(..., loop=True) starts over at the end")
            self.epoch += 1
            self._found = self._any = False
            self._lines = self._begin()

    def _nothing(self) -> TraceFileError:
        names = ", ".join(map(str, self._reader.files[:3]))
        worker, workers = self._reader.share
        if workers and self._any:
            return TraceFileError(
                f"no record for worker {worker} of {workers} in {names}: lines are shared out, and there are fewer "
                f"good ones than workers; use fewer workers (num_workers=0 or 1 for a single line)"
            )
        return TraceFileError(f"no record in {names}")

    def get_state(self) -> dict[str, Any]:
        lines = self._lines if self._lines is not None else self._begin()
        return {"epoch": self.epoch, "found": self._found, "position": lines.position}

    def close(self) -> None:
        if self._lines is not None:
            self._lines.close()


class _Shuffled(Iterator[tuple[int, int, bytes]]):
    """As `Lines`, in an order of its own."""

    def __init__(self, index: LineIndex, rng: np.random.Generator, position: int) -> None:
        self._index, self._order, self.position = index, rng.permutation(len(index)), position

    def __next__(self) -> tuple[int, int, bytes]:
        if self.position >= len(self._order):
            raise StopIteration
        i = int(self._order[self.position])
        self.position += 1
        return *self._index.place(i), self._index.read(i)

    def close(self) -> None:
        self._index.close()
