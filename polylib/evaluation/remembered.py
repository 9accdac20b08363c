"""Remembered: records that are decoded once and kept in memory, where they are few enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polylib.offline.input_reader import InputReader
from polylib.offline.json_format import Batch
from polylib.policy.sample_batch import SampleBatch

# What a worker keeps at most: some million rows of small observations, or a few thousand frames.
KEEP_BYTES = 128 << 20


class Remembered(InputReader):
    """A source's records as they were made of by a function, over and over.

    Files that fit into memory are read and decoded once. After the first pass records come from there, each pass in
    another order if `permute`, and each record as a copy, since callbacks may write to it. Larger ones are read anew.

    Args:
        make_reader: makes a reader, given whether it starts over at the end.
        decode: makes of a record what is learnt from.
        keep: bytes to keep at most; 0: none, for readers that don't give the same records again.
        seed: of the order.
        permute: whether the order of records is of no importance.
    """

    def __init__(
        self,
        make_reader: Callable[[bool], InputReader],
        decode: Callable[[Batch], SampleBatch],
        keep: int,
        seed: int,
        permute: bool,
    ) -> None:
        self._make_reader, self._decode = make_reader, decode
        self._keep, self._seed, self._permute = keep, seed, permute
        self._reader = make_reader(not keep)
        self._first = bool(keep)  # whether this is the first pass, at whose end it shows what fits
        self._kept: list[SampleBatch] = []
        self._bytes = 0
        self._whole = bool(keep)  # whether `kept` has all records of the pass so far
        self._too_large = False
        self._order: np.ndarray | None = None  # of a pass over what is kept
        self._pass = self._place = 0

    def next(self) -> SampleBatch:
        """The next record.

        Raises:
            StopIteration: a user's reader has ended.
        """
        if self._order is None:
            try:
                record = self._reader.next()
            except StopIteration:
                if not self._first:
                    raise
                self._end_first()
                return self.next()
            rows = self._decode(record)
            self._remember(rows)
        else:
            if self._place == len(self._order):
                self._start(self._pass + 1)
            rows = self._kept[self._order[self._place]]
            self._place += 1
        return rows.copy() if self._keep else rows

    @property
    def passes(self) -> int:
        """How often `next` has been through all records; 0 for readers that can't say."""
        if self._order is not None:
            return self._pass
        return self._reader.passes + bool(self._keep and not self._first)

    @property
    def where(self) -> str:
        """Where the record stands that was read last."""
        return self._reader.where

    def _remember(self, rows: SampleBatch) -> None:
        if not (self._first and self._whole):
            return
        self._bytes += rows.size_bytes()
        self._kept.append(rows)
        if self._bytes > self._keep:
            self._too_large = True
            self._forget()

    def _forget(self) -> None:
        self._kept, self._bytes, self._whole = [], 0, False

    def _end_first(self) -> None:
        """What comes after the first pass."""
        self._reader.close()
        if not self._whole and not self._too_large:
            self._fill()  # this run went on in the middle of the pass
        self._first = False
        if self._whole:
            self._start(1)
        else:
            self._reader = self._make_reader(True)

    def _fill(self) -> None:
        """Reads everything, as far as it fits."""
        self._kept, self._bytes, self._whole = [], 0, True
        self._reader = self._make_reader(False)
        while self._whole:
            try:
                record = self._reader.next()
            except StopIteration:
                break
            self._remember(self._decode(record))
        self._reader.close()

    def _start(self, number: int) -> None:
        self._pass, self._place, size = number, 0, len(self._kept)
        rng = np.random.default_rng([self._seed, number])
        self._order = rng.permutation(size) if self._permute else np.arange(size)

    def get_state(self) -> dict[str, Any] | None:
        """Where reading stands, as a JSON value; None if the reader can't say."""
        if self._order is not None:
            place = {"pass": self._pass, "place": self._place, "records": len(self._kept)}
            return {"seed": self._seed, "memory": place}
        position = self._reader.get_state()
        return None if position is None else {"seed": self._seed, "first": self._first, "reader": position}

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Goes on from `get_state()`; False if that isn't possible."""
        if "memory" in state:
            place = state["memory"]
            if not self._keep:
                return False
            self._first = True
            self._reader.close()
            self._fill()
            if not self._whole or len(self._kept) != place["records"]:
                self._reader, self._order = self._make_reader(False), None
                self._forget()
                return False
            self._first, self._seed = False, int(state["seed"])
            self._start(int(place["pass"]))
            self._place = int(place["place"])
            return True
        first = bool(state["first"] and self._keep)
        reader = self._make_reader(not first)
        if not reader.set_state(state["reader"]):
            return False
        self._reader.close()
        self._reader, self._first, self._seed, self._order = reader, first, int(state["seed"]), None
        self._forget()
        return True

    def close(self) -> None:
        """Closes the reader."""
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()
