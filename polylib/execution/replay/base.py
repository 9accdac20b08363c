"""Replay: what all replay buffers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.errors import BatchError, ConfigError, ConfigTypeError
from polylib.policy.sample_batch import SampleBatch
from polylib.schedules import Schedule, make_schedule


class Replay(ABC):
    """Experience of one policy, to be learned from more than once.

    Attributes:
        capacity: transitions at most.
        prioritized: whether rows are drawn by priority, and `update_priorities` does anything.
        rng: draws what is sampled.

    Args:
        capacity: transitions at most.
        seed: of `rng`; None: another one every time.
    """

    prioritized = False

    def __init__(self, capacity: int, seed: int | None = None) -> None:
        if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or capacity < 1:
            raise ConfigError(f"capacity={capacity!r}: expected how many transitions to keep, an integer >= 1")
        self.capacity = int(capacity)
        self.rng = np.random.default_rng(seed)

    @abstractmethod
    def __len__(self) -> int:
        """How much there is to sample: transitions, or sequences."""

    @abstractmethod
    def add(self, batch: SampleBatch) -> np.ndarray:
        """Stores the rows of a batch `[B]`, as copies.

        The first batch determines the columns. `infos` are left out.

        Returns:
            The index of each row that was stored, as `batch_indexes` of sampled batches has it.

        Raises:
            BatchError: naming the column that doesn't fit those of the first batch.
        """

    @abstractmethod
    def sample(
        self, num: int, beta: float | None = None, timestep: int = 0, rng: np.random.Generator | None = None
    ) -> SampleBatch:
        """Draws rows, with replacement.

        Args:
            num: how many; no more than there are.
            beta: how far weights undo that rows of high priority come more often; None: the buffer's own.
            timestep: at which the buffer's own `beta` is taken, if it is a schedule.
            rng: draws instead of the buffer's own.

        Returns:
            The columns that were added, `batch_indexes: [num] int64` and `weights: [num] float32`.

        Raises:
            BatchError: if the buffer is empty, or has fewer rows.
        """

    def update_priorities(self, indices: np.ndarray, priorities: np.ndarray) -> None:  # noqa: B027
        """Sets the priorities of sampled rows; rows that were overwritten meanwhile are passed over.

        Args:
            indices: `batch_indexes` `[K]`.
            priorities: TD errors, of either sign, or anything that is larger where there is more to learn `[K]`.

        Raises:
            BatchError: if a priority isn't finite.
        """

    @abstractmethod
    def size_bytes(self) -> int:
        """The bytes that what is stored takes."""

    def stats(self) -> dict[str, float]:
        """Figures for `train()`'s result."""
        return {"num_entries": len(self), "capacity": self.capacity, "size_bytes": self.size_bytes()}

    def get_state(self, copy: bool = True) -> dict[str, Any]:
        """All that is needed to go on as if nothing had happened.

        Args:
            copy: False: arrays may be views, which change when the buffer does; for writing them at once.

        Returns:
            `arrays`: by name, for a safetensors file; `values`: for a JSON file (`polylib.json_values`).
        """
        state = self._state(copy)
        state["values"] |= {"kind": type(self).__name__, "rng": self.rng.bit_generator.state}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` gave, the random state included.

        Raises:
            ConfigError: if it is that of another kind of buffer, or one with another capacity.
        """
        kind = state["values"]["kind"]
        if kind != type(self).__name__:
            raise ConfigError(
                f"the stored replay buffer is a {kind}, this one a {type(self).__name__}: restore it with the same "
                "replay_buffer_config['type']"
            )
        self._restore(state)
        self.rng.bit_generator.state = state["values"]["rng"]

    @abstractmethod
    def _state(self, copy: bool) -> dict[str, Any]: ...

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> None: ...

    def _check_batch(self, batch: SampleBatch) -> None:
        if not isinstance(batch, SampleBatch):
            raise BatchError(
                f"a replay buffer holds one policy's rows: expected a SampleBatch, got {type(batch).__name__}"
            )

    def _check_num(self, num: int, what: str = "rows") -> None:
        if num < 1:
            raise BatchError(f"sample({num}): expected how many {what} to draw, at least 1")
        if num > len(self):
            has = f"has {len(self)}" if len(self) else "is empty"
            raise BatchError(
                f"sample({num}): the replay buffer {has}; add {num} {what} or more before sampling "
                "(num_steps_sampled_before_learning_starts), and let its capacity hold that many"
            )


class Priorities:
    """How priorities become probabilities and weights (arXiv:1511.05952).

    Attributes:
        alpha: the exponent of priorities.
        largest: the largest priority so far, which new rows get.

    Args:
        alpha: 0: all rows alike, 1: in proportion to their priority.
        beta: of importance weights: a number, or a schedule (`[[timestep, value], ...]`).
        eps: is added to priorities, so that no row is lost.
    """

    def __init__(self, alpha: float, beta: Any, eps: float) -> None:
        self.alpha, self.eps = _number("prioritized_replay_alpha", alpha), _number("prioritized_replay_eps", eps)
        if not self.eps:
            raise ConfigError("prioritized_replay_eps=0: expected a number > 0; a row with TD error 0 would be lost")
        schedule = make_schedule(beta, "prioritized_replay_beta")
        if schedule is None:
            raise ConfigTypeError(
                "prioritized_replay_beta=None: expected a number >= 0, or a list of [timestep, value] pairs"
            )
        if not isinstance(beta, Schedule):
            for value in [x for _, x in beta] if isinstance(beta, list | tuple) else [beta]:
                _number("prioritized_replay_beta", value)
        self._beta: Schedule = schedule
        self.largest = 1.0

    def beta(self, beta: float | None, timestep: int) -> float:
        """What was passed, else the own one at this timestep."""
        beta = self._beta.value(timestep) if beta is None else float(beta)
        if not beta >= 0:
            raise ConfigError(f"prioritized_replay_beta={beta!r}: expected a number >= 0")
        return beta

    def of(self, priorities: np.ndarray, count: int) -> np.ndarray:
        """What rows are drawn in proportion to `[K] float64`."""
        found = np.abs(np.asarray(priorities, np.float64))
        if found.shape != (count,):
            raise BatchError(f"priorities have shape {found.shape}, expected one for each of {count} indices")
        if not count:
            return found
        largest = float(np.maximum.reduce(found))  # NaN if there is one
        if not largest < np.inf:
            bad = int(np.argmin(np.isfinite(found)))
            raise BatchError(f"priority {bad} is {np.asarray(priorities)[bad]}, expected finite numbers")
        found += self.eps
        self.largest = max(self.largest, largest + self.eps)
        return found**self.alpha

    def of_new(self) -> float:
        """What new rows are drawn in proportion to."""
        return float(self.largest**self.alpha)

    @staticmethod
    def weights(values: np.ndarray, smallest: float, beta: float) -> np.ndarray:
        """Importance weights (N P(i)) ** -beta over the largest of all rows: those of `values`, `[K] float32`."""
        # N and the sum of all values, which are in both, cancel out.
        return ((smallest / values) ** beta).astype(np.float32)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ConfigTypeError(f"{name}={value!r}: expected a number >= 0")
    if not 0 <= value < np.inf:
        raise ConfigError(f"{name}={value!r}: expected a number >= 0")
    return float(value)
