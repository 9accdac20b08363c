"""Columns as RLlib writes them: without dtypes, some packed, some with one row per sequence."""

from __future__ import annotations

from typing import Any

import lz4.frame
import numpy as np
import pybase64

from polylib.offline.budget import Budget
from polylib.offline.pickled import RefusedError, read_pickled
from polylib.policy import columns as c

# Of one packed column, unpacked; a few bytes of lz4 can ask for hundreds each.
MAX_UNPACKED = 1 << 30
_CHUNK = 1 << 20
# Columns that are computed with here.
_FLAT = (c.DONES, c.TERMINATEDS, c.TRUNCATEDS, c.SEQ_LENS)
_STATE_IN, _STATE_OUT = "state_in_", "state_out_"


def column_from_rllib(name: str, value: Any, budget: Budget) -> Any:
    """A column of one of RLlib's lines: an array [B, ...], or dicts and tuples of arrays.

    Args:
        name: The column's name.
        value: What JSON says it is: nested lists, a dict of them, or text, which is a packed column.
        budget: What it may take.

    Raises:
        ValueError: It can't be made an array, or holds more than data.
    """
    if isinstance(value, str):
        value = _unpack(value, budget)
    elif not isinstance(value, list | dict):
        raise ValueError(f"expected a list, a dict of lists or packed text, got {type(value).__name__}")
    column = _to_arrays(name, value)
    if name in _FLAT and not (isinstance(column, np.ndarray) and column.ndim == 1):
        raise ValueError("expected a list with a single value for each row")
    return column


def _unpack(text: str, budget: Budget) -> Any:
    try:
        data = pybase64.b64decode(text, validate=True)
        return read_pickled(_decompress(data), budget)
    except RefusedError as e:
        raise ValueError(f"refused: {e}") from None
    except (ValueError, RuntimeError, EOFError) as e:
        raise ValueError(f"its packed text is damaged ({e})") from None


def _decompress(data: bytes) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    parts = [decompressor.decompress(data, max_length=_CHUNK)]
    while not decompressor.eof:
        if decompressor.needs_input:
            raise ValueError("it is cut short")
        if len(parts) > MAX_UNPACKED // _CHUNK:
            raise RefusedError(f"it unpacks to more than {MAX_UNPACKED >> 20} MiB")
        parts.append(decompressor.decompress(b"", max_length=_CHUNK))
    return b"".join(parts)


def _to_arrays(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, dict):
        return {key: _to_arrays(name, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_to_arrays(name, part) for part in value)
    if not isinstance(value, list):
        raise ValueError(f"expected an array or a list, got {type(value).__name__}")
    if name == c.INFOS or any(isinstance(row, dict) for row in value[:1]):
        array = np.empty(len(value), np.object_)
        array[:] = value
        return array
    try:
        array = np.asarray(value)
        if array.dtype == np.object_:
            array = np.asarray(value, np.float64)  # None, which other writers use for NaN
    except (ValueError, TypeError, OverflowError) as e:
        raise ValueError(f"it can't be made an array of numbers ({e})") from None
    known = c.COLUMNS.get(name)
    text = name == c.EPS_ID and array.dtype.kind == "U"  # what others tell episodes apart by
    if array.dtype.kind not in "biufc" and array.size and known is not None and not text:
        raise ValueError(f"expected numbers, got {array.dtype}")
    return array


def rllib_batch(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with one row per step each, and with `terminateds` and `truncateds` in place of an old `dones`.

    Raises:
        ValueError: `seq_lens` and the other columns contradict each other.
    """
    columns = dict(columns)
    if c.DONES in columns and c.TERMINATEDS not in columns:
        columns = {c.TERMINATEDS if name == c.DONES else name: column for name, column in columns.items()}
    for name in (c.TERMINATEDS, c.TRUNCATEDS):
        if name in columns:
            columns[name] = columns[name].astype(np.bool_)
    if c.TERMINATEDS in columns and c.TRUNCATEDS not in columns:
        columns[c.TRUNCATEDS] = np.zeros_like(columns[c.TERMINATEDS])
    return _rows_of_sequences(columns) if c.SEQ_LENS in columns else columns


def _rows_of_sequences(columns: dict[str, Any]) -> dict[str, Any]:
    """Gives `state_in_*`, which RLlib writes once per sequence, a row for every step, and takes out `seq_lens`.

    The state before a step is the sequence's where it starts, and the one after the step before everywhere else. How
    rows were cut into sequences is no property of the experience: whoever learns cuts them anew.
    """
    lengths = columns.pop(c.SEQ_LENS)
    rows = next((len(column) for column in columns.values() if isinstance(column, np.ndarray)), 0)
    good = lengths.dtype.kind in "iu" and lengths.size
    if not good or lengths.min() < 1 or lengths.sum() != rows:
        raise ValueError(f"the lengths of sequences don't add up to the {rows} rows of the other columns")
    starts = np.cumsum(lengths) - lengths
    for name in [name for name in columns if name.startswith(_STATE_IN)]:
        first, after = columns[name], columns.get(_STATE_OUT + name.removeprefix(_STATE_IN))
        if not isinstance(first, np.ndarray) or len(first) != len(starts) or len(first) == rows:
            continue
        if not isinstance(after, np.ndarray) or after.shape != (rows, *first.shape[1:]):
            del columns[name]  # nothing says what the state was inside a sequence
            continue
        state = np.empty_like(after)
        state[1:] = after[:-1]
        state[starts] = first
        columns[name] = state
    return columns
