"""From one format to another, record by record: nothing is held in memory but what is being converted."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import gymnasium as gym

from polylib.errors import ConfigError, did_you_mean
from polylib.offline.episodes import episodes_of
from polylib.offline.errors import TraceFileError
from polylib.offline.formats.open import HDF5, detect_format, open_dataset
from polylib.offline.input_reader import InputReader
from polylib.offline.json_format import Batch
from polylib.offline.json_writer import JsonWriter
from polylib.offline.sources import local_path
from polylib.offline.spaces_of import noted_spaces, spaces_of

logger = logging.getLogger(__name__)

Space: TypeAlias = gym.Space[Any]
Encoding = Literal["lists", "lz4", "packed"]
ENCODINGS = ("lists", "lz4", "packed")
WRITABLE = ("json", "parquet", "minari")


@dataclass
class Converted:
    """What a conversion did.

    Attributes:
        source_format: One of `FORMATS`.
        target_format: One of `WRITABLE`.
        records: Batches read.
        rows: Their rows.
        episodes: Written; None for formats that have no episodes of their own.
        left_out: Episodes that Minari can't hold, since they lack steps or an end.
    """

    source_format: str
    target_format: str
    records: int = 0
    rows: int = 0
    episodes: int | None = None
    left_out: int = 0


def target_format(target: str) -> str:
    """The format that a target's name asks for: `minari:ID`, `NAME.parquet`, or else a folder of JSON traces.

    Raises:
        ConfigError: It is the name of an HDF5 file, which is only read.
    """
    if target.endswith(HDF5):
        raise ConfigError(
            f"{target!r}: HDF5 files are read, not written; give NAME.parquet, minari:NAME, or a folder for JSON traces"
        )
    if target.startswith("minari:"):
        return "minari"
    return "parquet" if target.endswith(".parquet") else "json"


def convert(
    source: Any,
    target: str | os.PathLike[str],
    *,
    source_format: str | None = None,
    to_format: str | None = None,
    encoding: Encoding = "lists",
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    env: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> Converted:
    """Writes what a reader of `source` gives into `target`. If that fails, no files are left of it.

    Args:
        source: Traces, Parquet files, `minari:ID` or a Minari folder, an HDF5 file.
        target: A folder for traces, `NAME.parquet` (or, with `to_format`, a folder), `minari:ID`.
        source_format: One of `FORMATS`; None: as it looks.
        to_format: One of `WRITABLE`; None: as its name says.
        encoding: Of JSON traces: `"lists"`, which RLlib reads too; `"lz4"`: observations packed; `"packed"`: all
            columns as bytes, the fastest.
        observation_space: What observations must fit; Minari data sets need to know it.
        action_space: What actions must fit; likewise.
        env: The Gymnasium id that a Minari data set names.
        columns: Names in the source to names of columns.

    Raises:
        ConfigError: An unknown format, or `columns` isn't a dict of names.
        TraceFileError: The source can't be read, the target is there already or can't be written.
        TraceFormatError: A record holds something impossible.
        FrameworkError: A package that a format needs isn't installed.
    """
    target = os.fspath(target)
    kind = target_format(target) if to_format is None else to_format
    if kind not in WRITABLE:
        raise ConfigError(f"format={kind!r}: expected one of {', '.join(WRITABLE)}.{did_you_mean(kind, WRITABLE)}")
    if encoding not in ENCODINGS:
        raise ConfigError(
            f"encoding={encoding!r}: expected one of {', '.join(ENCODINGS)}.{did_you_mean(encoding, ENCODINGS)}"
        )
    done = Converted(detect_format(source) if source_format is None else source_format, kind)
    spaces: dict[str, Space | None] = {"observation_space": observation_space, "action_space": action_space}
    reader = open_dataset(source, done.source_format, loop=False, columns=columns, **spaces)
    try:
        if kind == "minari":
            _to_minari(reader, target, done, _spaces(reader, source, done, spaces), env)
        else:
            _to_files(reader, local_path(target), done, encoding, _spaces(reader, source, done, spaces))
    finally:
        reader.close()
    return done


def _counted(reader: InputReader, done: Converted) -> Iterator[Batch]:
    while True:
        try:
            batch = reader.next()
        except StopIteration:
            return
        done.records += 1
        done.rows += sum(columns.count for columns in batch.as_multi_agent().policy_batches.values())
        yield batch


def _spaces(reader: InputReader, source: Any, done: Converted, given: dict[str, Space | None]) -> list[Space | None]:
    """Observation and action space: those given, else what the source notes; None for what nobody knows."""
    expected = getattr(reader, "expected", None)
    found = [given[name] or getattr(expected, name, None) for name in given]
    if None in found and done.source_format == "json":
        # A Minari data set can't do without, so that for it they are guessed if need be.
        settings = {"columns": getattr(expected, "columns", None)}
        known = spaces_of(source, settings) if done.target_format == "minari" else noted_spaces(source)
        found = [x or y for x, y in zip(found, known, strict=True)]
    return found


def _to_files(reader: InputReader, path: Path, done: Converted, encoding: str, spaces: list[Space | None]) -> None:
    if done.target_format == "json" and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise TraceFileError(f"{str(path)!r} exists already: give another name, or empty it")
    writer: Any
    if done.target_format == "parquet":
        from polylib.offline.formats.parquet import ParquetWriter

        writer = ParquetWriter(path)
    else:
        writer = JsonWriter(
            path,
            compress_columns=("obs", "new_obs") if encoding == "lz4" else (),
            format="polylib" if encoding == "packed" else "json",
            spaces=(spaces[0], spaces[1]),
        )
    try:
        with writer:
            for batch in _counted(reader, done):
                writer.write(batch)
    except BaseException:  # an interruption, too: half of a data set looks like one
        for file in writer.files if done.target_format == "json" else [writer.path]:
            file.unlink(missing_ok=True)
        raise


def _to_minari(reader: InputReader, target: str, done: Converted, spaces: list[Space | None], env: str | None) -> None:
    from polylib.offline.formats.minari import PREFIX, write_minari

    observation_space, action_space = spaces
    if observation_space is None or action_space is None:
        raise ConfigError(
            "a Minari data set holds its spaces, and the source doesn't say what they are: give observation_space and "
            "action_space, or the environment's id"
        )
    metadata = {"env": env} if env else {}
    policies: set[str] = set()
    episodes = episodes_of(_noting_policies(_counted(reader, done), policies))
    done.episodes, done.left_out = write_minari(
        episodes, target.removeprefix(PREFIX), observation_space, action_space, **metadata
    )
    if len(policies) > 1:
        logger.warning("the Minari data set doesn't say which of the policies %s acted", ", ".join(sorted(policies)))


def _noting_policies(batches: Iterator[Batch], policies: set[str]) -> Iterator[Batch]:
    for batch in batches:
        policies.update(batch.as_multi_agent().policy_batches)
        yield batch
