"""One record of a trace: a batch as one line of JSON, and back.

A line always has RLlib's layout of several policies, `{"type": "MultiAgentBatch", "count": n, "policy_batches":
{policy_id: {column: values}}}`, and one key more, `"polylib"`, which RLlib's reader skips in this layout and only in
this one. That key holds what lists of numbers can't say (`array_codec.py`), so that `decode_record` gives back exactly
the batch that `encode_record` was given. The line is strict JSON.

Lines without that key are read too: RLlib's of both layouts and all ages.
"""

from __future__ import annotations

import codecs
import gc
import json
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import orjson

from polylib.errors import BatchError
from polylib.offline.array_codec import Encoding, Note, decode_array, dumps, encode_array
from polylib.offline.budget import Budget
from polylib.offline.errors import CorruptLineError, TraceFormatError
from polylib.offline.foreign import column_from_rllib, rllib_batch
from polylib.policy.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch

Batch: TypeAlias = SampleBatch | MultiAgentBatch
Format = Literal["json", "polylib"]
FORMATS = ("json", "polylib")
VERSION = 1
_KEY = "polylib"
_MAX_DEPTH = 32


def encode_record(
    batch: Batch,
    compress_columns: Collection[str] = (),
    format: Format = "json",
    spaces: Mapping[str, Any] | None = None,
) -> bytes:
    """A batch as one line, with its newline.

    Args:
        batch: What is to be recorded.
        compress_columns: Names of columns that are packed (lz4); the others are lists of numbers.
        format: `"json"`, or `"polylib"`: raw bytes in base64 for all columns, none compressed. Reads and writes faster
            than lists, and only polylib reads it.
        spaces: JSON that is noted as the spaces of all records of the file.

    Raises:
        TraceFormatError: A column can't be recorded; the message names it.
    """
    multi = batch.as_multi_agent()
    policy_batches: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    for policy_id, columns in multi.policy_batches.items():
        values, notes[policy_id] = {}, {}
        for name, column in columns.items():
            encoding: Encoding = "raw" if format == "polylib" else "lz4" if name in compress_columns else "list"
            try:
                values[name], notes[policy_id][name] = _encode(column, encoding)
            except TypeError as e:
                what = f"column {name!r} of policy {policy_id!r}"
                raise TraceFormatError(f"{what} can't be recorded: it holds {e}") from e
        policy_batches[policy_id] = values
    key = {"version": VERSION, "type": type(batch).__name__, "columns": notes}
    if spaces:
        key["spaces"] = spaces
    record = {
        "type": "MultiAgentBatch",
        "count": multi.count,
        _KEY: key,
        "policy_batches": policy_batches,
    }
    try:
        return dumps(record) + b"\n"
    except TypeError as e:
        raise TraceFormatError(f"a batch can't be recorded as JSON: {e}") from e


def spaces_in(line: bytes, where: str) -> Any:
    """What a line notes as spaces, as JSON; None if it notes none, or isn't a record of polylib's.

    Raises:
        CorruptLineError: It isn't whole JSON.
    """
    record = _parse(line, where)
    key = record.get(_KEY) if isinstance(record, dict) else None
    return key.get("spaces") if isinstance(key, dict) else None


def _encode(column: Any, encoding: Encoding, depth: int = 0) -> tuple[Any, Note]:
    if isinstance(column, np.ndarray):
        return encode_array(column, encoding)
    if depth >= _MAX_DEPTH:
        raise TypeError(f"parts nested more than {_MAX_DEPTH} deep")
    if isinstance(column, Mapping):
        if not all(isinstance(key, str) for key in column):
            raise TypeError("a dict whose keys aren't all strings")
        parts = {key: _encode(part, encoding, depth + 1) for key, part in column.items()}
        return {k: value for k, (value, _) in parts.items()}, {"dict": {k: note for k, (_, note) in parts.items()}}
    items = [_encode(part, encoding, depth + 1) for part in column]
    return [value for value, _ in items], {"tuple": [note for _, note in items]}


def decode_record(line: bytes, where: str, renamed: Mapping[str, str] | None = None) -> Batch:
    """The batch of a line.

    Args:
        line: One line, ours or RLlib's.
        where: The file and line, for messages.
        renamed: Names in the line to names that the columns get.

    Raises:
        CorruptLineError: It isn't whole JSON.
        TraceFormatError: It isn't a batch, or a column's content is impossible or refused; the message names it.
    """
    # Thousands of short-lived lists would start the cycle collector again and again, for a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        # Of overflows: values that the noted dtype can't hold. Set here, as it takes longer than making a small array.
        with np.errstate(over="raise"):
            return _decode_record(line, where, renamed)
    finally:
        if collects:
            gc.enable()


def _decode_record(line: bytes, where: str, renamed: Mapping[str, str] | None) -> Batch:
    record = _parse(line, where)
    if isinstance(record, dict) and isinstance(record.get("value"), dict) and "type" not in record:
        record = record["value"]  # as RLlib's dataset writer wraps it
    kind = record.get("type") if isinstance(record, dict) else None
    if kind not in ("SampleBatch", "MultiAgentBatch"):
        raise TraceFormatError(
            f"{where}: no record of a trace: expected a JSON object whose 'type' is 'MultiAgentBatch' or 'SampleBatch'"
        )
    try:
        if kind == "SampleBatch":
            values = {name: value for name, value in record.items() if name not in ("type", "count", _KEY)}
            record = {"policy_batches": {DEFAULT_POLICY_ID: values}}
        return _decode_multi(record, where, renamed)
    except RecursionError:
        raise TraceFormatError(f"{where}: values nested too deeply") from None


def _parse(line: bytes, where: str) -> Any:
    line = line.removeprefix(codecs.BOM_UTF8)  # which Windows' editors put before a file's first line
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as strict:
        # RLlib writes NaN and Infinity, which are no JSON but Python's own reader takes.
        if b"NaN" in line or b"Infinity" in line:
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                pass
        raise CorruptLineError(f"{where}: not whole JSON ({strict})") from None


def _decode_multi(record: dict[str, Any], where: str, renamed: Mapping[str, str] | None) -> Batch:
    policies = record.get("policy_batches")
    if not isinstance(policies, dict) or not all(isinstance(values, dict) for values in policies.values()):
        raise TraceFormatError(f"{where}: 'policy_batches' isn't an object that holds the columns of each policy")
    ours = record.get(_KEY)
    if renamed:
        policies = _rename(policies, renamed, where)
    budget = Budget()
    if ours is None:
        batches = {p: _foreign_batch(values, p, where, budget) for p, values in policies.items()}
    else:
        notes = _check_key(ours, where)
        if renamed:
            notes = {p: _renamed(note, renamed) for p, note in notes.items() if isinstance(note, dict)}
        batches = {p: _our_batch(values, notes.get(p), p, where, budget) for p, values in policies.items()}
    count = record.get("count", max((batch.count for batch in batches.values()), default=0))
    if type(count) is not int or count < 0:
        raise TraceFormatError(f"{where}: 'count' is {str(count)[:40]!r}: expected the number of environment steps")
    if ours is None:
        return MultiAgentBatch.wrap_as_needed(batches, count)
    if ours.get("type") == "SampleBatch" and list(batches) == [DEFAULT_POLICY_ID]:
        return batches[DEFAULT_POLICY_ID]
    return MultiAgentBatch(batches, count)


def _rename(policies: dict[str, dict[str, Any]], renamed: Mapping[str, str], where: str) -> dict[str, dict[str, Any]]:
    there = {name for values in policies.values() for name in values}
    for theirs, ours in renamed.items():
        if theirs not in there and ours not in there:
            raise TraceFormatError(
                f"{where}, column {theirs!r}: missing, but `columns` says that it is to be {ours!r}; the record has "
                f"{', '.join(map(repr, sorted(there))) or 'no columns'}"
            )
    for policy_id, values in policies.items():
        new = _renamed(values, renamed)
        if len(new) < len(values):
            twice = next(ours for theirs, ours in renamed.items() if theirs in values and ours in values)
            raise TraceFormatError(
                f"{place(where, policy_id, twice)}: two columns would have this name, by what `columns` says"
            )
    return {policy_id: _renamed(values, renamed) for policy_id, values in policies.items()}


def _renamed(values: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    return {renamed.get(name, name): value for name, value in values.items()}


def _check_key(ours: Any, where: str) -> dict[str, Any]:
    version = ours.get("version") if isinstance(ours, dict) else None
    if type(version) is int and version > VERSION:
        raise TraceFormatError(
            f"{where}: written by a newer polylib (trace version {version}, this one reads up to {VERSION}): "
            "upgrade polylib"
        )
    if version != VERSION or not isinstance(ours.get("columns"), dict):
        raise TraceFormatError(f"{where}: the key {_KEY!r} is damaged: it has no version or no columns")
    return ours["columns"]


def _our_batch(values: dict[str, Any], notes: Any, policy_id: str, where: str, budget: Budget) -> SampleBatch:
    if not isinstance(notes, dict) or notes.keys() != values.keys():
        raise TraceFormatError(f"{where}: the key {_KEY!r} doesn't list the columns that policy {policy_id!r} has")
    columns = {}
    for name, value in values.items():
        try:
            columns[name] = _decode(value, notes[name], budget)
        except (ValueError, OverflowError, MemoryError) as e:
            raise TraceFormatError(f"{place(where, policy_id, name)}: {e}") from None
    return _batch(columns, policy_id, where)


def _decode(value: Any, note: Any, budget: Budget) -> Any:
    if not isinstance(note, dict):
        raise ValueError("its dtype and shape aren't noted")
    if "dict" in note or "tuple" in note:
        parts = note.get("dict", note.get("tuple"))
        if type(parts) is dict and type(value) is dict and parts.keys() == value.keys():
            return {key: _decode(part, parts[key], budget) for key, part in value.items()}
        if type(parts) is list and type(value) is list and len(parts) == len(value):
            return tuple(_decode(part, n, budget) for part, n in zip(value, parts, strict=True))
        raise ValueError("its parts aren't those that were noted")
    return decode_array(value, note, budget)


def _foreign_batch(values: dict[str, Any], policy_id: str, where: str, budget: Budget) -> SampleBatch:
    columns = {}
    for name, value in values.items():
        try:
            columns[name] = column_from_rllib(name, value, budget)
        except (ValueError, OverflowError, MemoryError) as e:
            raise TraceFormatError(f"{place(where, policy_id, name)}: {e}") from None
    try:
        columns = rllib_batch(columns)
    except ValueError as e:
        raise TraceFormatError(f"{place(where, policy_id, 'seq_lens')}: {e}") from None
    return _batch(columns, policy_id, where)


def _batch(columns: dict[str, Any], policy_id: str, where: str) -> SampleBatch:
    """The columns together; the error for those that don't fit names the odd one out and where it stands."""
    batch = SampleBatch()
    for name, column in columns.items():
        try:
            batch[name] = column
        except BatchError as e:
            raise TraceFormatError(f"{place(where, policy_id, name)}: {e}") from None
    return batch


def place(where: str, policy_id: str, column: str) -> str:
    """Where a column stands, for messages."""
    policy = "" if policy_id == DEFAULT_POLICY_ID else f", policy {policy_id!r}"
    return f"{where}{policy}, column {column!r}"
