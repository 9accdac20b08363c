"""JsonWriter: batches into files of JSON lines."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import gymnasium as gym

from polylib.errors import ConfigError, PolylibError, did_you_mean
from polylib.offline.errors import TraceFileError
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import FORMATS, Batch, Format, encode_record
from polylib.offline.sources import local_path
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch
from polylib.spaces_json import space_to_json

logger = logging.getLogger(__name__)

OnError = Literal["raise", "warn"]
ON_ERROR = ("raise", "warn")
COMPRESS_COLUMNS = ("obs", "new_obs")
MAX_FILE_SIZE = 64 * 1024**2
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class JsonWriter:
    """Writes one line per batch into files `output-DATE_TIME_worker-INDEX_NUMBER.json` of a folder.

    A line is handed to the system whole before `write` returns, so a process that is killed loses at most the line it
    was writing. Files that exist are never written to: a writer always starts one of its own.

    Args:
        path: The folder; it is made if there is none.
        ioctx: Gives the worker's index.
        max_file_size: Bytes after which the next file is begun. A single larger line has a file to itself.
        compress_columns: Columns that are packed, which RLlib can't read; `[]` packs none. With format `"polylib"`
            nothing is packed.
        worker_index: For the file names; None: from `ioctx`.
        format: `"json"`: lists, which RLlib's reader takes too; `"polylib"`: base64 of the arrays, many times faster.
        spaces: `(observation_space, action_space)`, noted in the first record of every file, so that whoever reads
            it needs no environment.
        on_error: When a record can't be written, for want of room, say: `"raise"`, or `"warn"`, which loses the record
            and goes on.

    Attributes:
        path: The folder.
        files: The files begun so far.
        lost: How many records could not be written, with `on_error="warn"`.

    Raises:
        TraceFileError: The folder can't be made or written to.
        ConfigError: An unknown format, or column names that aren't a list of names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        ioctx: IOContext | None = None,
        max_file_size: int = MAX_FILE_SIZE,
        compress_columns: Collection[str] = COMPRESS_COLUMNS,
        *,
        worker_index: int | None = None,
        format: Format = "json",
        spaces: tuple[gym.Space[Any] | None, gym.Space[Any] | None] | None = None,
        on_error: OnError = "raise",
    ) -> None:
        if format not in FORMATS:
            raise ConfigError(f"format={format!r}: expected 'json' or 'polylib'.{did_you_mean(str(format), FORMATS)}")
        if on_error not in ON_ERROR:
            raise ConfigError(f"on_error={on_error!r}: expected 'raise' or 'warn'")
        if isinstance(compress_columns, str) or not all(isinstance(name, str) for name in compress_columns):
            raise ConfigError(f"compress_columns={compress_columns!r}: expected a list of column names")
        self.path = local_path(path)
        _make_folder(self.path)
        self.max_file_size, self.format = max_file_size, format
        self.compress_columns = frozenset(compress_columns)
        self.worker_index = worker_index if worker_index is not None else ioctx.worker_index if ioctx else 0
        self.on_error, self.lost = on_error, 0
        self.files: list[Path] = []
        self._spaces = _spaces_note(spaces)
        self._file: io.FileIO | None = None
        self._file_index = self._file_bytes = 0

    def write(self, sample_batch: Batch) -> None:
        """Appends a batch as one line.

        Raises:
            TraceFormatError: The batch holds what can't be recorded; nothing is written.
            TraceFileError: The disk is full or the file can't be written, unless `on_error` is `"warn"`. The lines
                before stay whole, and a later `write` tries again.
        """
        try:
            self._write(sample_batch)
        except TraceFileError as e:
            if self.on_error != "warn":
                raise
            self.lost += 1
            if self.lost & (self.lost - 1) == 0:  # 1, 2, 4, ...: a full disk stays full for a while
                logger.warning("record lost (%d so far): %s", self.lost, e)

    def _write(self, sample_batch: Batch) -> None:
        if not isinstance(sample_batch, SampleBatch | MultiAgentBatch):
            raise TypeError(f"expected a SampleBatch or MultiAgentBatch to write, got {type(sample_batch).__name__}")
        line = encode_record(
            sample_batch, self.compress_columns, self.format, None if self._file_bytes else self._spaces
        )
        if self._file is not None and self._file_bytes and self._file_bytes + len(line) > self.max_file_size:
            self.close()
            if self._spaces:
                line = encode_record(sample_batch, self.compress_columns, self.format, self._spaces)
        if self._file is None:
            self._file = self._next_file()
        try:
            _write_whole(self._file, line)
        except BaseException as e:
            with contextlib.suppress(OSError):
                self._file.truncate(self._file_bytes)
            if not isinstance(e, OSError):
                raise
            raise _write_error(self.files[-1], len(line), e) from e
        self._file_bytes += len(line)

    def close(self) -> None:
        """Ends the current file; a later `write` begins another."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._file_bytes = 0

    def __enter__(self) -> JsonWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _next_file(self) -> io.FileIO:
        while True:
            stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
            path = self.path / f"output-{stamp}_worker-{self.worker_index}_{self._file_index}.json"
            self._file_index += 1
            try:
                # Appending, so that what follows a truncated line stands where the line began.
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except FileExistsError:
                continue  # of a writer with the same index that began in the same second
            except OSError as e:
                raise _folder_error(self.path, e) from e
            self.files.append(path)
            return io.FileIO(descriptor, "w")


def _spaces_note(spaces: Sequence[gym.Space[Any] | None] | None) -> dict[str, Any]:
    """The spaces as JSON, those of kinds that JSON knows."""
    note = {}
    for name, space in zip(("observation_space", "action_space"), spaces or (), strict=False):
        with contextlib.suppress(PolylibError):  # the columns are recorded all the same
            note[name] = space_to_json(space) if space is not None else None
    return {name: value for name, value in note.items() if value is not None}


def _write_whole(file: io.FileIO, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[file.write(rest) :]


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as e:
        raise _folder_error(path, e) from e


def _folder_error(path: Path, e: OSError) -> TraceFileError:
    reason = "there is a file in the way" if isinstance(e, FileExistsError | NotADirectoryError) else e.strerror or e
    return TraceFileError(
        f"traces can't be written to the folder {str(path)!r}: {reason}; give a folder that may be written to"
    )


def _write_error(path: Path, size: int, e: OSError) -> TraceFileError:
    reason = "the disk is full" if e.errno in _DISK_FULL else e.strerror or str(e)
    return TraceFileError(
        f"{str(path)!r}: {reason}: a record of {size} bytes could not be written; the records before it are whole. "
        "Free some space or choose another folder"
    )
