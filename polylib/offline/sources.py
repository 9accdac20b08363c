"""Where traces lie: files named one by one, by folder or by pattern, and their lines."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from polylib.offline.errors import TraceFileError

Inputs: TypeAlias = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Lines are long: with the usual 8 KiB most of the time would go into putting them together.
_BUFFER = 1 << 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded, absolute.

    Raises:
        TraceFileError: It is the address of another machine.
    """
    text = os.fspath(path)
    if _SCHEME.match(text):
        raise TraceFileError(f"{text!r}: traces are read from and written to local files and folders only")
    return Path(os.path.abspath(os.path.expanduser(text)))


def find_files(inputs: Inputs) -> list[Path]:
    """The files that inputs name.

    Args:
        inputs: A file; a folder, which stands for the `*.json` in it; a pattern (`*`, `?`, `[...]`, and `**` for
            folders of any depth); or several of these.

    Returns:
        The files, those of a folder or pattern in the order of their names, with numbers in names ordered as numbers.

    Raises:
        TraceFileError: One of them names no file.
    """
    several = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    if not several:
        raise TraceFileError("no traces to read: the list of inputs is empty")
    return [file for item in several for file in _find(local_path(item))]


def _find(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.json"), key=_natural)
        if not found:
            raise TraceFileError(f"the folder {str(path)!r} has no *.json files to read traces from")
        return found
    if path.exists():
        if path.suffix in (".zip", ".gz"):
            raise TraceFileError(f"{str(path)!r}: packed files can't be read: unpack it first")
        return [path]
    found = sorted((Path(name) for name in glob.glob(str(path), recursive=True)), key=_natural)
    files = [file for file in found if file.is_file()]
    if not files:
        what = "no file matches" if glob.has_magic(str(path)) else "there is no file or folder"
        raise TraceFileError(f"no traces to read: {what} {str(path)!r}")
    return files


def _natural(path: Path) -> list[str | int]:
    # Text and numbers alternate, so that two keys always compare like with like.
    return [
        int(part) if part.isdecimal() and i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", str(path)))
    ]


def lines_of(files: Iterable[Path]) -> Iterator[tuple[Path, int, bytes]]:
    """File, number (from 1) and content of every line that isn't blank.

    Raises:
        TraceFileError: A file can't be read.
    """
    for path in files:
        try:
            with path.open("rb", buffering=_BUFFER) as file:
                for number, line in enumerate(file, 1):
                    if not line.isspace():
                        yield path, number, line
        except OSError as e:
            raise TraceFileError(f"{str(path)!r} can't be read: {e.strerror or e}") from e
