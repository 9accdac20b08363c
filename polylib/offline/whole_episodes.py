"""WholeEpisodes: records, which hold pieces of episodes, as one batch per episode."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.offline.errors import TraceFormatError
from polylib.offline.input_reader import InputReader
from polylib.offline.joined import Joiner
from polylib.offline.json_format import decode_record, encode_record
from polylib.policy import columns as c
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

logger = logging.getLogger(__name__)

# What unfinished episodes may take: in logs without ends, or with another episode in every row, none is ever finished.
MAX_OPEN_ROWS = 1_000_000
MAX_OPEN_BYTES = 1 << 30
# A state above this isn't worth keeping.
_MAX_STATE_BYTES = 64 << 20


class WholeEpisodes(InputReader):
    """Puts episodes together from the pieces that a reader's records hold.

    An episode ends where a row is terminated or truncated. One whose end the records don't have is given as far as it
    goes: at the end of the input, where it starts anew, or when too many are unfinished. Batches of several agents are
    handed on as they are.

    Args:
        reader: Gives the records.
    """

    def __init__(self, reader: InputReader) -> None:
        self._reader, self._joiner = reader, Joiner()
        self._ready: deque[SampleBatch | MultiAgentBatch] = deque()
        self._open: dict[Any, list[SampleBatch]] = {}
        self._open_rows = self._open_bytes = 0
        self._ended = self._warned = False

    def next(self) -> SampleBatch | MultiAgentBatch:
        """The next episode whose end was read.

        Raises:
            StopIteration: The reader has no more.
            TraceFormatError: Rows don't say which episode they belong to.
        """
        while not self._ready:
            if self._ended:
                raise StopIteration("all episodes were read")
            try:
                batch = self._reader.next()
            except StopIteration:
                self._ended = True
                for key in list(self._open):
                    self._finish(key)
                continue
            if isinstance(batch, MultiAgentBatch):
                self._ready.append(batch)
            elif batch.count:
                self._add(batch)
        return self._ready.popleft()

    @property
    def passes(self) -> int:
        """How often the reader has been through its records."""
        return self._reader.passes

    def _add(self, batch: SampleBatch) -> None:
        ids, ends = batch.get(c.EPS_ID), _ends(batch)
        if ids is None and ends is None:
            raise TraceFormatError(
                f"whole episodes need the column {c.EPS_ID!r}, or {c.TERMINATEDS!r} or {c.TRUNCATEDS!r}: the record "
                f"has {', '.join(batch)}"
            )
        cut = np.zeros(batch.count - 1, np.bool_) if ends is None else ends[:-1].copy()
        if ids is not None:
            cut |= ids[1:] != ids[:-1]
        bounds = [0, *(np.flatnonzero(cut) + 1).tolist(), batch.count]
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            key = None if ids is None else ids[start].item()
            is_end = ends is not None and bool(ends[stop - 1])
            piece = batch[start:stop]
            # A view would keep all of the record for as long as the episode is open.
            self._add_piece(key, piece if is_end else piece.copy(), is_end)

    def _add_piece(self, key: Any, piece: SampleBatch, is_end: bool) -> None:
        pieces = self._open.get(key)
        if pieces is not None and c.T in piece and c.T in pieces[-1] and piece[c.T][0] != pieces[-1][c.T][-1] + 1:
            self._finish(key)  # the rows between are missing, or the input has started over
        self._open.setdefault(key, []).append(piece)
        self._open_rows += piece.count
        self._open_bytes += piece.size_bytes()
        if is_end:
            self._finish(key)
        while self._open_rows > MAX_OPEN_ROWS or self._open_bytes > MAX_OPEN_BYTES:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "episodes of the input don't end: %d rows of %d of them are held, so the oldest are used as far "
                    "as they go",
                    self._open_rows,
                    len(self._open),
                )
            self._finish(next(iter(self._open)))

    def _finish(self, key: Any) -> None:
        pieces = self._open.pop(key)
        self._open_rows -= sum(piece.count for piece in pieces)
        self._open_bytes -= sum(piece.size_bytes() for piece in pieces)
        self._ready.append(self._joiner.join(pieces))

    def get_state(self) -> Any:
        """The reader's state, and what was read of episodes that weren't given yet."""
        reader = self._reader.get_state()
        if reader is None or self._open_bytes + sum(batch.size_bytes() for batch in self._ready) > _MAX_STATE_BYTES:
            return None
        try:
            ready = [_to_text(batch) for batch in self._ready]
            opened = [[_to_text(piece) for piece in pieces] for pieces in self._open.values()]
        except BatchError:
            return None  # objects that can't be recorded
        return {"reader": reader, "ended": self._ended, "ready": ready, "open": opened}

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called."""
        if not isinstance(state, dict) or not self._reader.set_state(state["reader"]):
            return False
        self._ended = state["ended"]
        self._ready = deque(decode_record(text.encode(), "the reader's state") for text in state["ready"])
        self._open, self._open_rows, self._open_bytes = {}, 0, 0
        for texts in state["open"]:
            for text in texts:
                piece = decode_record(text.encode(), "the reader's state")
                if isinstance(piece, SampleBatch):
                    key = piece[c.EPS_ID][0].item() if c.EPS_ID in piece else None
                    self._add_piece(key, piece, False)
        return True

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()


def _ends(batch: SampleBatch) -> np.ndarray | None:
    """Which rows are the last of their episodes, or None if no column says it."""
    found = [np.asarray(batch[name], np.bool_) for name in (c.TERMINATEDS, c.TRUNCATEDS, c.DONES) if name in batch]
    return np.logical_or.reduce(found) if found else None


def _to_text(batch: SampleBatch | MultiAgentBatch) -> str:
    return encode_record(batch, format="polylib").decode()
