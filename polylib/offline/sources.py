"""Where traces lie: files named one by one, by folder, by pattern or by address, packed or not, and their lines.

Nothing is ever unpacked to a disk: `.gz` files and the members of a `.zip` are read as streams, and lines have a
largest length, so that a small file that unpacks to a huge one takes time at most.
"""

from __future__ import annotations

import glob
import gzip
import io
import os
import re
import zipfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from polylib.offline.errors import TraceFileError, TraceFormatError

Inputs: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Bytes of a line: it is held in memory whole, and takes up to 25 times as many once it is parsed. Those of packed and
# remote files have no file of that size behind them.
MAX_LINE = 1 << 30
MAX_PACKED_LINE = 1 << 27
# Blank lines one after another: a small packed file can hold billions.
_MAX_BLANK = 100_000
# Bytes of a .zip on another machine, which is held in memory too.
MAX_REMOTE_ZIP = 1 << 30
# Lines are long: with the usual 8 KiB most of the time would go into putting them together.
_BUFFER = 1 << 20
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".zip")
# What Ray Tune writes into a run's folder, beside the traces of `output="logdir"`.
_NO_TRACES = ("params.json", "result.json")
# Packages that fsspec needs for an address; it names others itself.
_DRIVERS = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("http", "https"), "aiohttp"),
    **dict.fromkeys(("abfs", "abfss", "adl", "az"), "adlfs"),
    "hdfs": "pyarrow",
}
_LOCAL = ("file", "local")
# How packed files begin: it is their names that say how they are to be read.
_PACKED = {b"\x1f\x8b": ".gz", b"PK\x03\x04": ".zip"}
_HTTP = re.compile("https?://")


@dataclass(frozen=True)
class RemoteFile:
    """A file on another machine.

    Attributes:
        url: Its address, as fsspec takes it.
    """

    url: str

    @property
    def name(self) -> str:
        """The address without what isn't for messages: a password, or a query, which may hold a signature."""
        plain = re.sub(r"//[^/@]*@", "//", self.url)
        return plain.partition("?")[0] if _HTTP.match(plain) else plain

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Member:
    """A file inside a `.zip`.

    Attributes:
        archive: The `.zip`.
        name: The member's name in it.
    """

    archive: Path | RemoteFile
    name: str

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"


TraceFile: TypeAlias = Path | RemoteFile | Member


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded, absolute.

    Raises:
        TraceFileError: It is the address of another machine.
    """
    text = os.fspath(path)
    scheme = _SCHEME.match(text)
    if scheme and scheme[1] in _LOCAL:
        text = text[scheme.end() :]
    elif scheme:
        raise TraceFileError(f"{text!r}: traces are written to local folders only")
    return Path(os.path.abspath(os.path.expanduser(text)))


def is_remote(path: Any) -> bool:
    """Whether a path is the address of another machine."""
    scheme = _SCHEME.match(path) if isinstance(path, str) else None
    return scheme is not None and scheme[1] not in _LOCAL


def find_files(inputs: Inputs) -> list[TraceFile]:
    """The files that inputs name.

    Args:
        inputs: A file, plain, `.gz` or `.zip`; a folder, which stands for the traces in it; a pattern (`*`, `?`,
            `[...]`, and `**` for folders of any depth); each of these as an address (`http://`, `s3://`, ...); or
            several of them.

    Returns:
        The files, those of a folder, pattern or `.zip` in the order of their names, with numbers in names ordered as
        numbers. Local plain and `.gz` files are paths.

    Raises:
        TraceFileError: One of them names no file.
    """
    several = list(inputs) if isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes) else [inputs]
    if not several:
        raise TraceFileError("no traces to read: the list of inputs is empty")
    found: list[TraceFile] = []
    for item in several:
        if not isinstance(item, str | os.PathLike) or not os.fspath(item) or "\0" in str(item):
            raise TraceFileError(
                f"no traces to read: got {item!r} ({type(item).__name__}), expected the path of a file or folder"
            )
        files = _find_remote(str(item)) if is_remote(item) else _find(local_path(item))
        for file in files:
            found.extend(_members(file) if str(file).endswith(".zip") else [file])
    return found


def _find(path: Path) -> Sequence[Path | RemoteFile]:
    if os.path.isdir(path):
        found = sorted((file for file in path.iterdir() if _is_trace(file.name) and file.is_file()), key=_natural)
        if not found:
            raise TraceFileError(f"the folder {str(path)!r} has no {_suffixes()} files to read traces from")
        return found
    if os.path.exists(path):
        if path.is_char_device() or path.is_block_device():  # which may never end
            raise TraceFileError(f"no traces to read: {str(path)!r} is a device, no file")
        return [path]
    found = sorted((Path(name) for name in glob.glob(str(path), recursive=True)), key=_natural)
    # Each once: a link to a folder above leads `**` to the same files again and again.
    several: dict[Path, Path] = {}
    for file in found:
        if file.is_file():
            several.setdefault(file.resolve(), file)
    files = list(several.values())
    if not files:
        what = "no file matches" if glob.has_magic(str(path)) else "there is no file or folder"
        raise TraceFileError(f"no traces to read: {what} {str(path)!r}")
    return files


def _is_trace(name: str) -> bool:
    return name.endswith(_SUFFIXES) and name not in _NO_TRACES and not name.startswith(".")


def _suffixes() -> str:
    return ", ".join(f"*{suffix}" for suffix in _SUFFIXES[:-1]) + f" or *{_SUFFIXES[-1]}"


def _natural(path: Any) -> list[str | int]:
    # Text and numbers alternate, so that two keys always compare like with like.
    return [
        int(part) if part.isdecimal() and i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", str(path)))
    ]


# -- on other machines -------------------------------------------------------------------------------------------------


def _find_remote(url: str) -> Sequence[RemoteFile]:
    system, path = _file_system(url)
    shown = str(RemoteFile(url))
    is_http = _HTTP.match(url) is not None
    try:
        # A question mark begins the query of a web address.
        if re.search(r"[*[]", path) if is_http else glob.has_magic(path):
            names, what = system.glob(path), "no file matches"
        elif shown.endswith(_SUFFIXES) or (is_http and not path.endswith("/")):
            # Asking whether it is a folder would download a file from a server that has no folders.
            return [RemoteFile(url)]
        elif system.isdir(path):
            names = [name for name in system.ls(path, detail=False) if _is_trace(name.rpartition("/")[2])]
            what = f"there are no {_suffixes()} files in"
        else:
            return [RemoteFile(url)]
    except Exception as e:  # whatever a driver raises
        raise TraceFileError(f"{shown!r} can't be read: {_one_line(e)}") from e
    if not names:
        raise TraceFileError(f"no traces to read: {what} {shown!r}")
    return [RemoteFile(system.unstrip_protocol(name)) for name in sorted(names, key=_natural)]


def _file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for an address, and the path in it."""
    import fsspec  # takes a while, and most traces are local

    scheme = url.partition("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as e:
        package = _DRIVERS.get(scheme)
        how = f"which isn't installed: pip install {package}" if package else f"which isn't installed ({_one_line(e)})"
        needs = f"the package {package!r}" if package else "a package"
        raise TraceFileError(f"{str(RemoteFile(url))!r}: reading {scheme}:// needs {needs}, {how}") from None
    except Exception as e:  # an unknown scheme, or whatever a driver raises
        raise TraceFileError(f"{str(RemoteFile(url))!r} can't be read: {_one_line(e)}") from e


def _one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, FileNotFoundError):  # fsspec's, whatever it was that a driver met with
        cause = error.__cause__
        status = getattr(cause, "status", None)
        if cause is None or status == 404:
            return "there is no such file"
        # Without the driver's text, which has the whole address.
        return f"the server answers {status}" if status else _one_line(cause)
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


# -- packed ------------------------------------------------------------------------------------------------------------


def _members(archive: Path | RemoteFile) -> list[Member]:
    try:
        with _open_zip(archive) as file:
            names = [info.filename for info in file.infolist() if not info.is_dir()]
    except TraceFileError:
        raise
    except Exception as e:  # zipfile raises all kinds of errors for damaged files
        raise TraceFileError(f"{str(archive)!r} can't be read: {_one_line(e)}") from e
    names = [name for name in names if not re.search(r"(^|/)(__MACOSX/.*|\.[^/]*)$", name)]
    traces = [name for name in names if _is_trace(name.rpartition("/")[2]) and not name.endswith(".zip")]
    found = sorted(traces or names, key=_natural)
    if not found:
        raise TraceFileError(f"no traces to read: {str(archive)!r} holds no file")
    return [Member(archive, name) for name in found]


def _open_zip(archive: Path | RemoteFile) -> zipfile.ZipFile:
    if isinstance(archive, Path):
        return zipfile.ZipFile(archive)
    # Its directory stands at the end, and a server need not be able to send a file from there.
    with _open_remote(archive) as file:
        data = file.read(MAX_REMOTE_ZIP + 1)
    if len(data) > MAX_REMOTE_ZIP:
        raise TraceFileError(f"{str(archive)!r} has more than {MAX_REMOTE_ZIP >> 20} MiB: download it first")
    return zipfile.ZipFile(io.BytesIO(data))


def _open_remote(file: RemoteFile) -> BinaryIO:
    system, path = _file_system(file.url)
    return system.open(path, "rb")


class _Archives:
    """The `.zip` that was opened last: its members mostly follow each other."""

    def __init__(self) -> None:
        self._last: tuple[Path | RemoteFile, zipfile.ZipFile] | None = None

    def open(self, archive: Path | RemoteFile) -> zipfile.ZipFile:
        if self._last is None or self._last[0] != archive:
            self.close()
            self._last = (archive, _open_zip(archive))
        return self._last[1]

    def close(self) -> None:
        """Closes it; members that are open stay so."""
        if self._last is not None:
            self._last[1].close()
            self._last = None


class _Stream(io.RawIOBase):
    """What a decompressor or a driver reads, with its errors as OSError. It gives what there is, then raises."""

    def __init__(self, file: Any, *under: Any) -> None:
        self._read: Callable[[int], bytes] = getattr(file, "read1", file.read)
        self._open = (file, *under)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._read(len(buffer))
        except Exception as e:  # EOFError, zlib.error, BadZipFile, whatever a driver raises
            raise OSError(0, _one_line(e)) from e
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for file in self._open:
            file.close()
        super().close()


def open_file(file: TraceFile, archives: _Archives | None = None) -> BinaryIO:
    """A stream of a file's content, unpacked.

    Args:
        file: What is read.
        archives: Opens a member's `.zip`; None: anew.

    Raises:
        TraceFileError: It can't be opened.
    """
    try:
        if isinstance(file, Path) and file.suffix != ".gz":
            plain = io.BufferedReader(file.open("rb", buffering=0), _BUFFER)
            suffix = next((suffix for magic, suffix in _PACKED.items() if plain.peek(4).startswith(magic)), None)
            if suffix is None:
                return plain
            plain.close()
            raise TraceFileError(f"{str(file)!r} is packed, but not called so: rename it to end with {suffix}")
        under: list[Any] = []
        if isinstance(file, Member):
            under.append((archives or _Archives()).open(file.archive).open(file.name))
        else:
            under.append(file.open("rb") if isinstance(file, Path) else _open_remote(file))
        if str(file).endswith(".gz"):
            under.insert(0, gzip.GzipFile(fileobj=under[0], mode="rb"))
        return io.BufferedReader(_Stream(*under), _BUFFER)
    except TraceFileError:
        raise
    except Exception as e:  # zipfile and drivers raise all kinds of errors
        raise TraceFileError(f"{str(file)!r} can't be read: {_one_line(e)}") from e


# -- lines -------------------------------------------------------------------------------------------------------------


class Lines(Iterator[tuple[int, int, bytes]]):
    """Which file (by its place in `files`), which line (from 1) and the content of every line that isn't blank.

    No generator: an error ends neither it nor, but for a file that can't be read, the file.

    Args:
        files: What is read.
        order: Places of the files in the order in which they are read; None: as they are.
        position: Where to begin, as `position` says it.

    Attributes:
        position: Where the next line stands: the place in `order`, how many lines come before it in its file, and how
            many bytes.
    """

    def __init__(
        self, files: Sequence[TraceFile], order: Sequence[int] | None = None, position: Sequence[int] = (0, 0, 0)
    ) -> None:
        self._files, self._order = files, range(len(files)) if order is None else order
        self.position: tuple[int, int, int] = (position[0], position[1], position[2])
        self._file: BinaryIO | None = None
        self._archives = _Archives()
        self._limit = 0

    def __next__(self) -> tuple[int, int, bytes]:
        """The next line.

        Raises:
            TraceFileError: A file can't be read; the next call begins the file after it.
            TraceFormatError: A line is too long; the next call goes on after it.
        """
        blank = 0
        while True:
            at, number, offset = self.position
            if at >= len(self._order):
                self.close()
                raise StopIteration
            index = self._order[at]
            try:
                if self._file is None:
                    self._file = open_file(self._files[index], self._archives)
                    self._limit = MAX_LINE if _is_plain(self._files[index]) else MAX_PACKED_LINE
                    if offset:
                        _skip(self._file, offset)
                line = self._file.readline(self._limit + 1)
                size = len(line)
                too_long = size > self._limit
                if too_long and line[-1:] != b"\n":
                    size += _skip_line(self._file)
            except OSError as e:
                self._next_file()
                if isinstance(e, TraceFileError):
                    raise
                place = f" after line {number}" if number else ""
                raise TraceFileError(
                    f"{str(self._files[index])!r} can't be read{place}: {e.strerror or _one_line(e)}"
                ) from e
            if not line:
                self._next_file()
                continue
            self.position = (at, number + 1, offset + size)
            if too_long:
                raise TraceFormatError(
                    f"{self._files[index]}, line {number + 1}: longer than {self._limit} bytes"
                    + (", too much for a packed or remote file" if self._limit < MAX_LINE else "")
                )
            if not line.isspace():
                return index, number + 1, line
            blank += 1
            if blank > _MAX_BLANK:
                self._next_file()
                raise TraceFileError(
                    f"{str(self._files[index])!r} is left out: {blank} blank lines, to line {number + 1}"
                )

    def _next_file(self) -> None:
        self._close_file()
        self.position = (self.position[0] + 1, 0, 0)

    def close(self) -> None:
        """Closes what is open."""
        self._close_file()
        self._archives.close()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _is_plain(file: TraceFile) -> bool:
    return isinstance(file, Path) and file.suffix != ".gz"


def _skip(file: BinaryIO, count: int) -> None:
    if not isinstance(getattr(file, "raw", None), _Stream):
        file.seek(count)
        return
    while count > 0:
        data = file.read(min(count, _BUFFER))
        if not data:
            return
        count -= len(data)


def _skip_line(file: BinaryIO) -> int:
    size = 0
    for part in iter(partial(file.readline, _BUFFER), b""):
        size += len(part)
        if part.endswith(b"\n"):
            break
    return size


class LineIndex:
    """Where every line begins, for reading them in any order. Making it reads all files once.

    Args:
        files: Local files that aren't packed.

    Raises:
        TraceFileError: A file can't be read, or is packed or remote, so that its lines can't be read one by one.
    """

    _MAX_OPEN = 64

    def __init__(self, files: Sequence[TraceFile]) -> None:
        for file in files:
            if not _is_plain(file):
                raise TraceFileError(
                    f"{str(file)!r}: its lines can't be read in random order, which needs local files that aren't "
                    "packed; shuffle='files' and shuffle_buffer_size work for all files"
                )
        self._files = files
        self._open: dict[int, io.FileIO] = {}
        # Numbers, four for a line: lists would take ten times the memory.
        self._where = array("q")
        lines = Lines(files)
        for index, number, line in lines:
            self._where.extend((index, number, lines.position[2] - len(line), len(line)))

    def __len__(self) -> int:
        return len(self._where) // 4

    def place(self, i: int) -> tuple[int, int]:
        """File (by its place in `files`) and number of a line."""
        return self._where[4 * i], self._where[4 * i + 1]

    def read(self, i: int) -> bytes:
        """A line.

        Raises:
            TraceFileError: Its file can't be read any more.
        """
        index, _, offset, size = self._where[4 * i : 4 * i + 4]
        path = self._files[index]
        try:
            file = self._open.pop(index, None)
            if file is None:
                if len(self._open) >= self._MAX_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                # Without a buffer, which would be filled for every line.
                file = io.FileIO(str(path))
            self._open[index] = file  # the last used stands last
            file.seek(offset)
            return file.read(size)
        except OSError as e:
            raise TraceFileError(f"{str(path)!r} can't be read: {_one_line(e)}") from e

    def close(self) -> None:
        """Closes all files."""
        while self._open:
            self._open.popitem()[1].close()
