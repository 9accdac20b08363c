"""Parquet: one row a step, columns of tensors as Arrow's fixed-shape tensors, through pyarrow.

Parts of nested columns stand side by side (`obs/camera`), objects (`infos`) as JSON text. With several policies a
column `policy_id` says whose row it is. Files of others are read too: columns of numbers, of lists of equal length, of
structs, and Ray Data's tensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from polylib.errors import FrameworkError
from polylib.offline.episodes import flat_columns
from polylib.offline.errors import TraceFileError, TraceFormatError
from polylib.offline.foreign import rllib_batch
from polylib.offline.formats.pieces import PieceReader
from polylib.offline.json_format import Batch
from polylib.offline.object_values import from_tagged, to_json, to_tagged
from polylib.offline.sources import local_path
from polylib.policy import columns as c
from polylib.policy.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch

POLICY = "policy_id"
#: Rows that are gathered before they are written as one group, which is what is read at once.
GROUP_ROWS = 10_000
_NESTS = b"polylib"  # metadata of the file: the nested columns' structure
_JSON = {b"polylib": b"json"}  # metadata of a column: its text is JSON


def pyarrow() -> Any:
    """The package pyarrow with its Parquet part.

    Raises:
        FrameworkError: It isn't installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as e:
        raise FrameworkError(f"Parquet files need the package pyarrow: pip install pyarrow ({e})") from e
    return pyarrow


# --- reading


class ParquetReader(PieceReader):
    """Reads Parquet files group of rows by group of rows, one batch for each.

    Args:
        paths: A file, a folder (its `*.parquet`, those in folders of it too), or several of these.
        **kwargs: As for `PieceReader`.

    Attributes:
        files: The files that are read.

    Raises:
        TraceFileError: The paths name no Parquet file, or one can't be read.
        FrameworkError: pyarrow isn't installed.
    """

    def __init__(
        self, paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *args: Any, **kwargs: Any
    ) -> None:
        pyarrow()
        super().__init__(*args, **kwargs)
        several = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        self.files = [file for path in several for file in _find(local_path(path))]
        self._open: tuple[int, Any] | None = None
        self._groups: list[tuple[int, int]] = []
        for i in range(len(self.files)):
            metadata = self._file(i).metadata
            groups = range(metadata.num_row_groups)
            self._groups += [(i, group) for group in groups if metadata.row_group(group).num_rows]

    def _file(self, index: int) -> Any:
        if self._open is None or self._open[0] != index:
            self.close()
            try:
                self._open = (index, pyarrow().parquet.ParquetFile(self.files[index]))
            except (OSError, pyarrow().ArrowException) as e:
                raise TraceFileError(f"{str(self.files[index])!r} can't be read as Parquet: {e}") from None
        return self._open[1]

    def _count(self) -> int:
        return len(self._groups)

    def _where(self, index: int) -> str:
        if not self._groups:
            return ", ".join(map(str, self.files[:3]))
        file, group = self._groups[index]
        return f"{self.files[file]}, row group {group}"

    def _read(self, index: int) -> Batch:
        file, group = self._groups[index]
        try:
            table = self._file(file).read_row_group(group)
        except (OSError, pyarrow().ArrowException) as e:
            raise ValueError(f"it can't be read: {e}") from None
        columns = {}
        for field in table.schema:
            try:
                columns[field.name] = _to_numpy(field, table.column(field.name).combine_chunks())
            except (ValueError, TypeError, pyarrow().ArrowException) as e:
                raise ValueError(f"column {field.name!r}: {e}") from None
        nests = _nests(table.schema.metadata)
        policies = columns.pop(POLICY, None)
        if policies is None:
            return SampleBatch(_nested(rllib_batch(columns), nests))
        return _by_policy(columns, np.asarray(policies), nests)

    def close(self) -> None:
        """Closes the file that is open."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _find(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.exists():
        raise TraceFileError(f"no Parquet files to read: there is no file or folder {str(path)!r}")
    found = sorted(path.rglob("*.parquet"))
    if not found:
        raise TraceFileError(f"the folder {str(path)!r} has no *.parquet files")
    return found


def _to_numpy(field: Any, column: Any) -> np.ndarray | dict[str, Any]:
    """A column as an array [B, ...], or a dict of them."""
    arrow = pyarrow()
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if field.metadata and field.metadata.get(b"polylib") == b"json":
        return _objects([None if text is None else from_tagged(orjson.loads(text)) for text in column.to_pylist()])
    if isinstance(kind, arrow.FixedShapeTensorType):
        return np.asarray(column.to_numpy_ndarray())
    if isinstance(kind, arrow.BaseExtensionType):
        tensors = getattr(column, "to_numpy", None)
        if tensors is not None and "tensor" in str(kind).lower():
            return _stacked(list(tensors(zero_copy_only=False)))
        column, kind = column.storage, column.type.storage_type
    types = arrow.types
    if types.is_struct(kind):
        return {part.name: _to_numpy(part, column.field(i)) for i, part in enumerate(kind)}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(column)
    if types.is_string(kind) or types.is_large_string(kind):
        return np.asarray(column.to_pylist(), dtype=np.str_) if not column.null_count else _objects(column.to_pylist())
    if types.is_dictionary(kind):
        return np.asarray(column.to_pylist(), dtype=np.str_)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise ValueError(f"it is of Arrow's type {kind}: expected numbers, lists of them, structs or text")
    if column.null_count and not types.is_floating(kind):
        raise ValueError(f"{column.null_count} values are missing")
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _lists(column: Any) -> np.ndarray:
    """Lists of equal length, to any depth, as one array."""
    types, sizes, values = pyarrow().types, [len(column)], column
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        if values.null_count:
            raise ValueError("a list is missing")
        lengths = np.unique(np.asarray(values.value_lengths()))
        if len(lengths) > 1:
            raise ValueError(f"its lists have from {lengths[0]} to {lengths[-1]} items: rows need one shape")
        sizes.append(int(lengths[0]) if len(lengths) else 0)
        values = values.flatten()
    if values.null_count and not types.is_floating(values.type):
        raise ValueError(f"{values.null_count} values are missing")
    array = np.asarray(values.to_numpy(zero_copy_only=False))
    if array.dtype.kind not in "biuf":
        raise ValueError(f"it holds lists of {values.type}: expected numbers")
    return array.reshape(sizes)


def _stacked(rows: list[Any]) -> np.ndarray:
    try:
        return np.stack([np.asarray(row) for row in rows])
    except ValueError:
        raise ValueError("its rows have different shapes") from None


def _objects(values: list[Any]) -> np.ndarray:
    column = np.empty(len(values), np.object_)
    column[:] = values
    return column


def _nests(metadata: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(metadata[_NESTS])["nests"]) if metadata and _NESTS in metadata else {}
    except (ValueError, KeyError, TypeError):
        raise ValueError("the file's metadata 'polylib' is damaged") from None


def _nested(columns: dict[str, Any], nests: dict[str, Any]) -> dict[str, Any]:
    """Columns put together again as the file's metadata says."""
    used: set[str] = set()

    def build(name: str, shape: Any) -> Any:
        if shape is None:
            used.add(name)
            return columns[name]
        if isinstance(shape, dict):
            return {key: build(f"{name}/{key}", part) for key, part in shape.items()}
        return tuple(build(f"{name}/{i}", part) for i, part in enumerate(shape))

    try:
        made = {name: build(name, shape) for name, shape in nests.items()}
    except (KeyError, AttributeError, TypeError):
        raise ValueError("the file's metadata 'polylib' names columns that aren't there") from None
    return {**made, **{name: column for name, column in columns.items() if name not in used}}


def _by_policy(columns: dict[str, Any], policies: np.ndarray, nests: dict[str, Any]) -> MultiAgentBatch:
    batches = {}
    for policy_id in dict.fromkeys(policies.tolist()):
        rows = policies == policy_id
        mine = {name: _rows(column, rows) for name, column in columns.items()}
        batches[str(policy_id)] = SampleBatch(_nested(rllib_batch(mine), nests))
    steps = [columns[name] for name in (c.EPS_ID, c.T) if name in columns]
    if len(steps) == 2:
        count = len(np.unique(np.stack(steps, axis=1), axis=0))
    else:
        count = max(batch.count for batch in batches.values())
    return MultiAgentBatch(batches, count)


def _rows(column: Any, rows: np.ndarray) -> Any:
    return {key: _rows(part, rows) for key, part in column.items()} if isinstance(column, dict) else column[rows]


# --- writing


class ParquetWriter:
    """Writes batches into one Parquet file.

    Args:
        path: The file, or a folder in which `data.parquet` is made.

    Attributes:
        path: The file.

    Raises:
        TraceFileError: It is there already, or can't be written.
        FrameworkError: pyarrow isn't installed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        pyarrow()
        path = local_path(path)
        self.path = path if path.suffix == ".parquet" else path / "data.parquet"
        if self.path.exists():
            raise TraceFileError(f"{str(self.path)!r} exists already: give another name")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise TraceFileError(f"{str(self.path)!r} can't be written: {e.strerror or e}") from e
        self._writer: Any = None
        self._tables: list[Any] = []
        self._rows = 0

    def write(self, batch: Batch) -> None:
        """Adds a batch's rows.

        Raises:
            TraceFormatError: It has other columns than the first one, or what Parquet can't hold.
            TraceFileError: The disk is full, or the file can't be written.
        """
        several = isinstance(batch, MultiAgentBatch) and list(batch.policy_batches) != [DEFAULT_POLICY_ID]
        for policy_id, columns in batch.as_multi_agent().policy_batches.items():
            if not columns.count:
                continue
            table = self._table(columns, policy_id if several else None)
            if self._writer is None:
                self._begin(table.schema)
            elif table.schema != self._writer.schema:
                raise TraceFormatError(f"{self.path}: {_differences(self._writer.schema, table.schema)}")
            self._tables.append(table)
            self._rows += len(table)
        if self._rows >= GROUP_ROWS:
            self._flush()

    def _begin(self, schema: Any) -> None:
        try:
            self._writer = pyarrow().parquet.ParquetWriter(self.path, schema, compression="zstd")
        except OSError as e:
            raise TraceFileError(f"{str(self.path)!r} can't be written: {e.strerror or e}") from e

    def _table(self, batch: SampleBatch, policy_id: str | None) -> Any:
        arrow = pyarrow()
        fields, arrays = [], []
        for name, column in flat_columns(batch).items():
            try:
                array, metadata = _to_arrow(column)
            except (TypeError, ValueError, arrow.ArrowException) as e:
                raise TraceFormatError(f"column {name!r} can't be written as Parquet: {e}") from None
            fields.append(arrow.field(name, array.type, metadata=metadata))
            arrays.append(array)
        if policy_id is not None:
            arrays.append(arrow.array(np.full(batch.count, policy_id)))
            fields.append(arrow.field(POLICY, arrays[-1].type))
        nests = {name: _shape(column) for name, column in batch.items() if not isinstance(column, np.ndarray)}
        schema = arrow.schema(fields, metadata={_NESTS: json.dumps({"version": 1, "nests": nests}).encode()})
        return arrow.Table.from_arrays(arrays, schema=schema)

    def _flush(self) -> None:
        if not self._tables:
            return
        try:
            self._writer.write_table(pyarrow().concat_tables(self._tables), row_group_size=max(1, self._rows))
        except OSError as e:
            raise TraceFileError(f"{str(self.path)!r} can't be written: {e.strerror or e}") from e
        self._tables, self._rows = [], 0

    def close(self) -> None:
        """Writes what is left, and the file's end, without which it can't be read."""
        self._flush()
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as e:
                raise TraceFileError(f"{str(self.path)!r} can't be written: {e.strerror or e}") from e
            self._writer = None

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _shape(column: Any) -> Any:
    if isinstance(column, dict):
        return {key: _shape(part) for key, part in column.items()}
    return [_shape(part) for part in column] if isinstance(column, tuple | list) else None


def _to_arrow(column: np.ndarray) -> tuple[Any, Any]:
    """An Arrow array and the metadata of its field."""
    arrow = pyarrow()
    if column.dtype.kind == "O":
        for value in column.ravel():
            to_json(value)  # raises for what can't be recorded
        return arrow.array([orjson.dumps(to_tagged(value)).decode() for value in column.ravel()]), _JSON
    if column.dtype.kind not in "biufU":
        raise TypeError(f"it holds {column.dtype}")
    if column.ndim == 1:
        return arrow.array(column), None
    if column.dtype.kind == "U":
        raise TypeError("it holds text in more than one dimension")
    if not math.prod(column.shape[1:]):
        raise TypeError(f"its rows of shape {list(column.shape[1:])} are empty")
    if column.dtype == np.bool_:
        # Arrow packs bits, of which it makes no tensors.
        values = arrow.array(np.ascontiguousarray(column).ravel())
        array = values
        for size in reversed(column.shape[1:]):
            array = arrow.FixedSizeListArray.from_arrays(array, size)
        return array, None
    return arrow.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(column)), None


def _differences(first: Any, second: Any) -> str:
    ours, theirs = ({field.name: field.type for field in schema} for schema in (first, second))
    missing, new = sorted(ours.keys() - theirs.keys()), sorted(theirs.keys() - ours.keys())
    changed = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
    other = [f"{name!r} ({ours[name]}, now {theirs[name]})" for name in changed]
    parts = [
        f"columns {', '.join(map(repr, missing))} are missing" if missing else "",
        f"columns {', '.join(map(repr, new))} are new" if new else "",
        f"other types: {', '.join(other)}" if other else "",
    ]
    what = "; ".join(part for part in parts if part) or "its nested columns have another structure"
    return f"a record has other columns than the first one ({what}); a Parquet file has one set of them"
