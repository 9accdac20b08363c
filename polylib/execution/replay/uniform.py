"""ReplayBuffer: transitions in a ring, all equally likely."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.execution.replay.base import Replay
from polylib.execution.replay.storage import INDEXES, SHARE_ABOVE, WEIGHTS, Storage
from polylib.policy.sample_batch import SampleBatch


class ReplayBuffer(Replay):
    """Transitions in a ring: new ones overwrite the oldest, each is equally likely to be drawn.

    `batch_indexes` are numbers that count up with every row ever added: they still tell rows apart when a slot has been
    overwritten.

    Args:
        capacity: transitions at most.
        seed: of what is drawn.
        share_above: bytes of one observation above which `new_obs` isn't stored twice (see `storage.py`).
    """

    def __init__(self, capacity: int = 50_000, seed: int | None = None, share_above: int | None = SHARE_ABOVE) -> None:
        super().__init__(capacity, seed)
        self.storage = Storage(self.capacity, share_above)

    def __len__(self) -> int:
        return len(self.storage)

    def add(self, batch: SampleBatch) -> np.ndarray:
        """Stores rows; see `Replay.add`."""
        self._check_batch(batch)
        return self.storage.append(batch)

    def sample(
        self, num: int, beta: float | None = None, timestep: int = 0, rng: np.random.Generator | None = None
    ) -> SampleBatch:
        """Draws rows; see `Replay.sample`. All weights are 1."""
        self._check_num(num)
        numbers = (rng or self.rng).integers(self.storage.oldest, self.storage.added, num)
        return self._batch(numbers, numbers % self.capacity, np.ones(num, np.float32))

    def size_bytes(self) -> int:
        """The bytes that the rows take."""
        return self.storage.size_bytes()

    def _batch(self, numbers: np.ndarray, slots: np.ndarray, weights: np.ndarray) -> SampleBatch:
        columns = self.storage.nested(self.storage.rows(slots))
        columns[INDEXES], columns[WEIGHTS] = numbers, weights
        return SampleBatch.of_columns(columns, len(numbers))

    def _state(self, copy: bool) -> dict[str, Any]:
        return self.storage.get_state(copy)

    def _restore(self, state: Mapping[str, Any]) -> None:
        self.storage.set_state(state)
