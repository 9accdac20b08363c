"""Which format a path has, and its reader."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polylib.errors import ConfigError, did_you_mean
from polylib.offline.input_reader import InputReader

FORMATS = ("json", "parquet", "minari", "hdf5")
HDF5 = (".h5", ".hdf5", ".hdf")


def detect_format(source: Any) -> str:
    """One of `FORMATS`, by the name of a file, what a folder holds, or the prefix `minari:`."""
    if not isinstance(source, str | os.PathLike):
        items = list(source) if isinstance(source, Sequence) else []
        kinds = {detect_format(item): item for item in items if isinstance(item, str | os.PathLike)}
        if len(kinds) > 1:
            text = ", ".join(f"{os.fspath(item)!r} is {kind}" for kind, item in kinds.items())
            raise ConfigError(f"a list of inputs has one format: {text}; a mix {{source: share}} takes several")
        return next(iter(kinds), "json")
    name = os.fspath(source)
    if name.startswith("minari:"):
        return "minari"
    path = Path(name).expanduser()
    if path.suffix in HDF5:
        return "hdf5"
    if path.suffix == ".parquet":
        return "parquet"
    if os.path.isdir(path):  # False, too, for what can't be a path
        from polylib.offline.formats.minari import is_minari_folder

        if is_minari_folder(path):
            return "minari"
        if not any(path.glob("*.json*")) and next(path.rglob("*.parquet"), None) is not None:
            return "parquet"
    return "json"


def open_dataset(source: Any, format: str | None = None, *args: Any, **kwargs: Any) -> InputReader:
    """A reader of a data set.

    Args:
        source: A path, or several.
        format: One of `FORMATS`; None: as it looks.
        *args: As for `PieceReader` and `JsonReader`.
        **kwargs: Likewise.

    Raises:
        ConfigError: There is no such format.
        TraceFileError: It can't be read.
        FrameworkError: A package that the format needs isn't installed.
    """
    name = detect_format(source) if format is None else format
    if name not in FORMATS:
        raise ConfigError(f"format={name!r}: expected one of {', '.join(FORMATS)}.{did_you_mean(str(name), FORMATS)}")
    if name == "json":
        from polylib.offline.json_reader import JsonReader

        return JsonReader(source, *args, **kwargs)
    if name == "parquet":
        from polylib.offline.formats.parquet import ParquetReader

        return ParquetReader(source, *args, **kwargs)
    if not isinstance(source, str | os.PathLike):
        if len(source) != 1:
            raise ConfigError(f"format={name!r} takes one path, got {len(source)}")
        source = source[0]
    if name == "minari":
        from polylib.offline.formats.minari import MinariReader

        return MinariReader(os.fspath(source), *args, **kwargs)
    from polylib.offline.formats.hdf5 import Hdf5Reader

    return Hdf5Reader(source, *args, **kwargs)
