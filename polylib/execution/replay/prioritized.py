"""PrioritizedReplayBuffer: rows from which there is more to learn come more often (arXiv:1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.execution.replay.base import Priorities
from polylib.execution.replay.storage import SHARE_ABOVE
from polylib.execution.replay.tree import SumTree
from polylib.execution.replay.uniform import ReplayBuffer
from polylib.policy.sample_batch import SampleBatch


class PrioritizedReplayBuffer(ReplayBuffer):
    """Transitions in a ring, drawn with probability proportional to (|priority| + eps) ** alpha.

    New rows have the largest priority so far. A batch is drawn as in the paper, a row from each of as many equal shares
    of the total: every row comes as often as in independent draws, but batches vary less.

    Args:
        capacity: transitions at most.
        alpha: the exponent of priorities; 0 draws all rows alike.
        beta: the exponent of importance weights, a number or a schedule (`[[timestep, value], ...]`).
        eps: is added to priorities.
        seed: of what is drawn.
        share_above: bytes of one observation above which `new_obs` isn't stored twice.
    """

    prioritized = True

    def __init__(
        self,
        capacity: int = 50_000,
        alpha: float = 0.6,
        beta: Any = 0.4,
        eps: float = 1e-6,
        seed: int | None = None,
        share_above: int | None = SHARE_ABOVE,
    ) -> None:
        super().__init__(capacity, seed, share_above)
        self._priorities = Priorities(alpha, beta, eps)
        self._tree = SumTree(self.capacity)

    def add(self, batch: SampleBatch, priorities: np.ndarray | None = None) -> np.ndarray:
        """Stores rows; see `Replay.add`.

        Args:
            batch: the rows `[B]`.
            priorities: theirs `[B]`; None: the largest so far.
        """
        self._check_batch(batch)
        values: Any = None
        if priorities is not None:
            values = self._priorities.of(priorities, batch.count)[-self.capacity :]
        numbers = super().add(batch)
        count = len(numbers)
        if count:
            new = self._priorities.of_new()
            begin = int(numbers[0]) % self.capacity
            split = min(count, self.capacity - begin)
            self._tree.set_range(begin, begin + split, new if values is None else values[:split])
            if split < count:
                self._tree.set_range(0, count - split, new if values is None else values[split:])
        return numbers

    def sample(
        self, num: int, beta: float | None = None, timestep: int = 0, rng: np.random.Generator | None = None
    ) -> SampleBatch:
        """Draws rows; see `Replay.sample`."""
        self._check_num(num)
        beta = self._priorities.beta(beta, timestep)
        slots = self._tree.find((np.arange(num) + (rng or self.rng).random(num)) / num)
        weights = self._priorities.weights(self._tree.values[slots], self._tree.smallest(), beta)
        newest = self.storage.added - 1
        return self._batch(newest - (newest - slots) % self.capacity, slots, weights)

    def update_priorities(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities; see `Replay.update_priorities`."""
        indices = np.asarray(indices, np.int64)
        lowest, highest = (int(indices.min()), int(indices.max())) if len(indices) else (0, -1)
        if highest >= self.storage.added or lowest < 0:
            raise BatchError(
                f"update_priorities: index {highest} is of no row that was ever added; take them from the column "
                "'batch_indexes' of sampled batches"
            )
        values = self._priorities.of(priorities, len(indices))
        if lowest < self.storage.oldest:
            there = indices >= self.storage.oldest
            indices, values = indices[there], values[there]
        self._tree.set(indices % self.capacity, values)

    def size_bytes(self) -> int:
        """The bytes that the rows and their priorities take."""
        return super().size_bytes() + 8 * len(self)

    def stats(self) -> dict[str, float]:
        """Figures for `train()`'s result."""
        return {**super().stats(), "max_priority": self._priorities.largest}

    def _state(self, copy: bool) -> dict[str, Any]:
        state = super()._state(copy)
        values = self._tree.values[: len(self)]
        state["arrays"]["priorities"] = values.copy() if copy else values
        state["values"]["max_priority"] = self._priorities.largest
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        self._priorities.largest = float(state["values"]["max_priority"])
        self._tree = SumTree(self.capacity)
        self._tree.set_range(0, len(self), state["arrays"]["priorities"])
