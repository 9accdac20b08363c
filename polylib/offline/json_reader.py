"""JsonReader: batches from files of JSON lines, polylib's own and RLlib's."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym

from polylib.offline.checks import check_required, fit_to_spaces
from polylib.offline.errors import CorruptLineError, TraceFileError
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import Batch, decode_record
from polylib.offline.sources import Inputs, find_files, lines_of
from polylib.policy.sample_batch import concat_samples

logger = logging.getLogger(__name__)


class JsonReader:
    """Reads traces line by line: one batch for each.

    Lines of polylib's own come back exactly as they were written. Lines of RLlib's have the dtypes that JSON gives
    them, unless spaces are given; `dones` becomes `terminateds`, and packed columns are read without unpickling.

    A line that isn't whole JSON is left out, with a warning that names it. A line that is, but holds something
    impossible, raises; the next call goes on with the line after it.

    Args:
        inputs: A file, a folder (its `*.json`), a pattern (`**` too), or a list of these.
        ioctx: Gives the spaces, if its config has them and they aren't given here.
        loop: Start over at the end, for ever. Otherwise every record is read once.
        observation_space: What `obs` and `new_obs` are checked against and converted to.
        action_space: What `actions` are checked against and converted to.
        required: Columns that every record must have.

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
        loop: bool = False,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        required: Collection[str] = (),
    ) -> None:
        config = ioctx.config if ioctx else {}
        self.files = find_files(inputs)
        self.loop = loop
        self.observation_space = observation_space or config.get("observation_space")
        self.action_space = action_space or config.get("action_space")
        self.required = tuple(required)
        self.skipped: dict[tuple[Path, int], str] = {}
        self._batches = iter(self)

    def next(self) -> Batch:
        """The next line's batch: a SampleBatch, or a MultiAgentBatch where there are several policies.

        Raises:
            StopIteration: All records were read, and the reader doesn't loop.
            TraceFormatError: The line holds something impossible; the message names file, line and column.
            TraceFileError: A file can't be read, or no file has a record.
        """
        return next(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        """The batches from the first line on, whatever `next` has read."""
        return _Pass(self)

    def read_all(self) -> Batch:
        """All records as one batch, each read once."""
        return concat_samples(list(_Pass(self, loop=False)))

    def _decode(self, path: Path, number: int, line: bytes) -> Batch | None:
        """A line's batch, or None for one that isn't whole."""
        where = f"{path}, line {number}"
        try:
            batch = decode_record(line, where)
        except CorruptLineError as e:
            if (path, number) not in self.skipped:  # once, however often the file is read
                self.skipped[path, number] = str(e)
                logger.warning("left out a line of a trace: %s", e)
            return None
        check_required(batch, self.required, where)
        return fit_to_spaces(batch, self.observation_space, self.action_space, where)


class _Pass(Iterator[Batch]):
    """One way through a reader's lines. No generator: an error must not end it."""

    def __init__(self, reader: JsonReader, loop: bool | None = None) -> None:
        self._reader, self._loop = reader, reader.loop if loop is None else loop
        self._lines = lines_of(reader.files)
        self._found = False

    def __next__(self) -> Batch:
        reader = self._reader
        while True:
            for path, number, line in self._lines:
                batch = reader._decode(path, number, line)
                if batch is not None:
                    self._found = True
                    return batch
            if not self._found:
                raise TraceFileError(f"no record in {', '.join(map(str, reader.files[:3]))}")
            if not self._loop:
                raise StopIteration("all records were read; JsonReader(..., loop=True) starts over at the end")
            self._lines, self._found = lines_of(reader.files), False
