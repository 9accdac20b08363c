"""ReservoirReplayBuffer: a uniform sample of everything that was ever added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.execution.replay.base import Replay
from polylib.execution.replay.storage import INDEXES, WEIGHTS, Storage
from polylib.policy.sample_batch import SampleBatch


class ReservoirReplayBuffer(Replay):
    """Transitions of which each one ever added is kept with the same probability (Vitter's algorithm R).

    `new_obs` is always stored: neighbours are rarely kept both.

    Args:
        capacity: transitions at most.
        seed: of what is kept and drawn.
    """

    def __init__(self, capacity: int = 50_000, seed: int | None = None) -> None:
        super().__init__(capacity, seed)
        self.storage = Storage(self.capacity, share_above=None)
        # By slot, the number of the row in it; rows that weren't kept are counted, too.
        self._numbers = np.zeros(self.capacity, np.int64)
        self._seen = 0

    def __len__(self) -> int:
        return min(self._seen, self.capacity)

    def add(self, batch: SampleBatch) -> np.ndarray:
        """Stores some of the rows; see `Replay.add`."""
        self._check_batch(batch)
        flat = self.storage.flattened(batch)
        numbers = np.arange(self._seen, self._seen + batch.count)
        # Row n takes a slot at random out of n + 1, which is one of the buffer's with probability capacity / (n + 1).
        slots = numbers.copy()
        later = numbers >= self.capacity
        slots[later] = self.rng.integers(0, numbers[later] + 1)
        kept = np.flatnonzero(slots < self.capacity)
        # Of several rows for a slot the last one stays.
        _, last = np.unique(slots[kept][::-1], return_index=True)
        kept = np.sort(kept[::-1][last])
        self.storage.put({name: x[kept] for name, x in flat.items()}, slots[kept])
        self._numbers[slots[kept]] = numbers[kept]
        self._seen += batch.count
        return numbers[kept]

    def sample(
        self, num: int, beta: float | None = None, timestep: int = 0, rng: np.random.Generator | None = None
    ) -> SampleBatch:
        """Draws rows; see `Replay.sample`. All weights are 1."""
        self._check_num(num)
        slots = (rng or self.rng).integers(0, len(self), num)
        columns = self.storage.nested(self.storage.rows(slots))
        return SampleBatch({**columns, INDEXES: self._numbers[slots], WEIGHTS: np.ones(num, np.float32)})

    def size_bytes(self) -> int:
        """The bytes that the rows take."""
        row = sum(x.nbytes for x in self.storage.columns.values()) // self.capacity
        return len(self) * (row + self._numbers.itemsize)

    def _state(self, copy: bool) -> dict[str, Any]:
        self.storage.added = len(self)
        state = self.storage.get_state(copy)
        numbers = self._numbers[: len(self)]
        state["arrays"]["numbers"] = numbers.copy() if copy else numbers
        state["values"]["seen"] = self._seen
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.storage.set_state(state)
        self._seen = int(state["values"]["seen"])
        self._numbers[: len(self)] = state["arrays"]["numbers"]
