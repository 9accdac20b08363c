"""InputReader: what hands recorded or sampled experience to an algorithm, batch by batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from polylib.offline.json_format import Batch


class InputReader(ABC):
    """A source of batches. A subclass writes `next`; the rest is there for those that can do more."""

    @abstractmethod
    def next(self) -> Batch:
        """The next batch, a SampleBatch or a MultiAgentBatch.

        Raises:
            StopIteration: there is no more.
        """

    def __iter__(self) -> Iterator[Batch]:
        """The batches that `next` would give, until there are no more."""
        while True:
            try:
                batch = self.next()
            except StopIteration:
                return
            yield batch

    @property
    def passes(self) -> int:
        """How often `next` has been through everything there is; 0 for a reader that can't say."""
        return 0

    @property
    def where(self) -> str:
        """Where the batch stands that `next` gave last, for messages: such as a file and a line; "" if nobody knows."""
        return ""

    def get_state(self) -> Any:
        """Where reading stands, as a JSON value that `set_state` takes; None: this reader can't say."""
        return None

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called.

        Returns:
            False if that isn't possible, so that the reader goes on as it is.
        """
        return False

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Closes what is open; `next` isn't called any more."""


class SamplerInput(InputReader):
    """The word `"sampler"`: batches from a worker's environments.

    Args:
        sample: Returns the next batch.
    """

    def __init__(self, sample: Callable[[], Batch]) -> None:
        self._sample = sample

    def next(self) -> Batch:
        """The batch of the next fragment."""
        return self._sample()
