"""ShuffledInput: rows or whole batches in random order, as far as a buffer reaches."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from polylib.errors import ConfigError
from polylib.offline.input_reader import InputReader
from polylib.offline.joined import Joiner
from polylib.offline.json_format import Batch
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch


class ShuffledInput(InputReader):
    """Reads until a buffer has so many rows, hands out all of it in random order, and fills it anew.

    A buffer also ends where the reader starts over, however many rows it may have: it would never be full of fewer.
    So every record is seen once, and where reading stands can be kept. Rows that are shuffled one by one are for
    losses that look at rows one by one: whatever looks at episodes (returns, n steps, sequences) needs `rows=False`
    over batches that are whole episodes.

    Args:
        reader: Gives the batches.
        size: Rows that the buffer holds at least.
        seed: Of the order; None: a random one.
        rows: Shuffle single rows, and hand out the whole buffer as one batch. False: shuffle batches.
    """

    def __init__(self, reader: InputReader, size: int, seed: int | None = None, rows: bool = True) -> None:
        if size < 1:
            raise ConfigError(f"shuffle_buffer_size={size}: expected at least 1")
        self._reader, self._size, self._by_row = reader, size, rows
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._joiner = Joiner()
        self._block = 0
        self._buffer: deque[Batch] = deque()
        # How the reader stood before it filled the buffer, and how many batches were handed out since.
        self._before, self._given = None, 0

    def next(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: The reader has no more.
        """
        if not self._buffer:
            self._fill()
        self._given += 1
        return self._buffer.popleft()

    def _fill(self) -> None:
        before = None if self._by_row else self._reader.get_state()
        batches: list[Batch] = []
        count, passes = 0, self._passes()
        while count < self._size and (self._passes() == passes or not batches):
            try:
                batch = self._reader.next()
            except StopIteration:
                if not batches:
                    raise
                break
            if batch.count:
                batches.append(batch)
                count += batch.count
        rng = np.random.default_rng([self._seed, self._block])
        self._block += 1
        self._before, self._given = before, 0
        self._buffer.extend(in_random_order(batches, rng, self._by_row, self._joiner))

    def _passes(self) -> int:
        return getattr(self._reader, "passes", 0)  # a user's reader may have `next` alone

    def get_state(self) -> Any:
        """Where the next batch is: how the reader stood when the buffer was filled, and what was handed out since."""
        reader = self._before if self._buffer else self._reader.get_state()
        if reader is None:
            return None
        given = self._given if self._buffer else 0
        return {"reader": reader, "seed": self._seed, "block": self._block - bool(self._buffer), "given": given}

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called."""
        if not isinstance(state, dict) or not self._reader.set_state(state["reader"]):
            return False
        self._seed, self._block = state["seed"], state["block"]
        self._buffer.clear()
        if state["given"]:
            self._fill()
            for _ in range(state["given"]):
                self.next()
        return True

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()


def in_random_order(batches: Sequence[Any], rng: np.random.Generator, rows: bool, joiner: Joiner) -> list[Any]:
    """Some batches in random order; with `rows` one batch, of all their rows in random order."""
    if not rows:
        return [batches[i] for i in rng.permutation(len(batches))]
    batch = joiner.join(batches)
    if isinstance(batch, SampleBatch):
        return [batch.take(rng.permutation(batch.count))]
    mixed = {name: b.take(rng.permutation(b.count)) for name, b in batch.policy_batches.items()}
    return [MultiAgentBatch(mixed, batch.count)]
