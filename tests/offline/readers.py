"""Readers for the tests that config keys name."""

from __future__ import annotations

from collections.abc import Iterable

from offline.batches import cartpole

from polylib.offline import InputReader, IOContext
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch


class Given(InputReader):
    """Gives what it was given; its state is how much it gave."""

    def __init__(self, batches: Iterable[SampleBatch | MultiAgentBatch]) -> None:
        self._batches = list(batches)
        self._at = 0

    def next(self) -> SampleBatch | MultiAgentBatch:
        if self._at == len(self._batches):
            raise StopIteration
        self._at += 1
        return self._batches[self._at - 1]

    def get_state(self) -> int:
        return self._at

    def set_state(self, state: int) -> bool:
        self._at = state
        return True


class Numbered(InputReader):
    """What a class path names: `input_config["first"]`, then the numbers after it."""

    def __init__(self, context: IOContext) -> None:
        self.context = context
        self.eps_id = context.input_config.get("first", 0)

    def next(self) -> SampleBatch:
        self.eps_id += 1
        return cartpole(eps_id=self.eps_id - 1)


NO_READER = 3
