"""WholeEpisodes: records, which hold pieces of episodes, as one batch per episode."""

from __future__ import annotations

from collections import deque
from typing import Any

from polylib.errors import BatchError
from polylib.offline.errors import TraceFormatError
from polylib.offline.input_reader import InputReader
from polylib.offline.json_format import Batch, decode_record, encode_record
from polylib.offline.segments import EpisodeJoiner
from polylib.policy import columns as c
from polylib.policy.sample_batch import MultiAgentBatch

# What unfinished episodes may take: in logs without ends, or with another episode in every row, none is ever finished.
MAX_OPEN_ROWS = 1_000_000
# A state above this isn't worth keeping.
_MAX_STATE_BYTES = 64 << 20


class WholeEpisodes(InputReader):
    """Puts episodes together from the pieces that a reader's records hold.

    An episode ends where a row is terminated or truncated. One whose end the records don't have is given as far as it
    goes: at the end of the input, where steps are missing or it starts anew, or when too many are unfinished. Batches
    of several agents are handed on as they are.

    Args:
        reader: Gives the records.
    """

    def __init__(self, reader: InputReader) -> None:
        self._reader = reader
        self._joiner = EpisodeJoiner(by_ends=True, max_rows=MAX_OPEN_ROWS, max_segments=MAX_OPEN_ROWS)
        self._ready: deque[Batch] = deque()
        self._ended = False

    def next(self) -> Batch:
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
                self._ready.extend(self._joiner.flush())
                continue
            if isinstance(batch, MultiAgentBatch):
                self._ready.append(batch)
            elif not batch.count or any(n in batch for n in (c.EPS_ID, c.TERMINATEDS, c.TRUNCATEDS, c.DONES)):
                self._ready.extend(self._joiner.push(batch))
            else:
                raise TraceFormatError(
                    f"whole episodes need the column {c.EPS_ID!r}, or {c.TERMINATEDS!r} or {c.TRUNCATEDS!r}: the "
                    f"record has {', '.join(batch)}"
                )
        return self._ready.popleft()

    @property
    def passes(self) -> int:
        """How often the reader has been through its records."""
        return self._reader.passes

    def get_state(self) -> Any:
        """The reader's state, and what was read of episodes that weren't given yet."""
        reader = self._reader.get_state()
        if reader is None or self._joiner.bytes + sum(batch.size_bytes() for batch in self._ready) > _MAX_STATE_BYTES:
            return None
        try:
            ready, held = ([_to_text(batch) for batch in batches] for batches in (self._ready, self._joiner.held))
        except BatchError:
            return None  # objects that can't be recorded
        return {"reader": reader, "ended": self._ended, "ready": ready, "open": held}

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called."""
        if not isinstance(state, dict) or not self._reader.set_state(state["reader"]):
            return False
        self._ended = state["ended"]
        ready, held = ([_of_text(text) for text in state[key]] for key in ("ready", "open"))
        self._ready = deque(ready)
        self._joiner.hold(batch for batch in held if not isinstance(batch, MultiAgentBatch))
        return True

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()


def _to_text(batch: Batch) -> str:
    return encode_record(batch, format="polylib").decode()


def _of_text(text: str) -> Batch:
    return decode_record(text.encode(), "the reader's state")
