"""Rows as sequences: how recurrent policies learn. A batch of flat rows becomes padded sequences `[S, T, ...]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.models.networks import SEQ_MASK
from polylib.policy.ops import Array


def segment_starts(batch: Mapping[str, Any], rows: int) -> np.ndarray:
    """The first row of each uninterrupted stretch of one episode, `[K] int64`, by `unroll_id` and `eps_id`."""
    new = np.zeros(rows, np.bool_)
    new[0] = True
    for name in ("unroll_id", "eps_id"):
        if name in batch:
            ids = np.asarray(batch[name])
            new[1:] |= ids[1:] != ids[:-1]
    return np.flatnonzero(new)


def cut(batch: Mapping[str, Any], rows: int, max_seq_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Where sequences begin and how long they are, `[S] int64` each.

    Sequences never cross the end of a segment and are at most `max_seq_len` long. A column `seq_lens: [S]`, as RLlib
    writes it, is taken as it is.

    Raises:
        BatchError: if `seq_lens` doesn't add up to the rows, or one is longer than `max_seq_len`.
    """
    if "seq_lens" in batch:
        lengths = np.asarray(batch["seq_lens"], np.int64)
        if lengths.ndim != 1 or lengths.min(initial=1) < 1 or lengths.sum() != rows:
            raise BatchError(f"column 'seq_lens' adds up to {lengths.sum()} rows, the batch has {rows}")
        if lengths.max() > max_seq_len:
            raise BatchError(f"column 'seq_lens' holds {lengths.max()}, more than max_seq_len={max_seq_len}")
        return np.cumsum(lengths) - lengths, lengths
    starts = segment_starts(batch, rows)
    ends = np.append(starts[1:], rows)
    counts = -(-(ends - starts) // max_seq_len)
    order = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.repeat(starts, counts) + order * max_seq_len
    return firsts, np.minimum(np.repeat(ends, counts) - firsts, max_seq_len)


def pad(columns: Mapping[str, np.ndarray], firsts: np.ndarray, lengths: np.ndarray, time: int) -> dict[str, np.ndarray]:
    """Columns `[rows, ...]` as sequences `[S, T, ...]`, with `seq_mask: [S, T]`.

    Padded steps repeat the sequence's last row: what is computed for them stays finite, and the mask leaves it out.
    """
    steps = np.arange(time)
    index = firsts[:, None] + np.minimum(steps, lengths[:, None] - 1)
    padded = {name: x[index] for name, x in columns.items()}
    padded[SEQ_MASK] = steps < lengths[:, None]
    return padded


def as_rows(ops: Any, columns: Mapping[str, Array]) -> Mapping[str, Array]:
    """What losses work on: sequences `[S, T, ...]` as rows `[S * T, ...]`; states and `seq_mask` stay as they are."""
    if SEQ_MASK not in columns:
        return columns
    return {
        name: x if name == SEQ_MASK or name.startswith("state_") else ops.reshape(x, (-1, *x.shape[2:]))
        for name, x in columns.items()
    }


def row_mask(ops: Any, batch: Mapping[str, Array]) -> Array | None:
    """Which rows are real, `[N] float32`; None: all."""
    mask = batch.get(SEQ_MASK)
    return None if mask is None else ops.to_float(ops.reshape(mask, (-1,)))
