"""MixedInput: experience from several sources, each as often as its weight says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.errors import ConfigError
from polylib.offline.input_reader import InputReader
from polylib.offline.json_format import Batch

_TOLERANCE = 1e-6


class MixedInput(InputReader):
    """Draws for every batch which reader it comes from.

    A reader that ends is left out from then on, and the mix ends with the last; readers of `endless` names don't keep
    it going.

    Args:
        readers: By name.
        weights: How likely each is; they sum to 1.
        seed: Of the draws, or their generator; None: a random one.
        endless: Names of readers that never end, as a sampler.

    Raises:
        ConfigError: The weights aren't those of a mix.
    """

    def __init__(
        self,
        readers: Mapping[str, InputReader],
        weights: Mapping[str, float],
        seed: Any = None,
        endless: tuple[str, ...] = (),
    ) -> None:
        check_weights(weights)
        self._readers = [readers[name] for name in weights]
        self._weights = np.array(list(weights.values()), np.float64)
        self._alive = self._weights > 0
        self._endless = np.array([name in endless for name in weights])
        self._rng = np.random.default_rng(seed)

    def next(self) -> Batch:
        """The next batch of a reader that was drawn.

        Raises:
            StopIteration: All readers that can end have ended.
        """
        while (self._alive & ~self._endless).any() or (self._alive.any() and self._endless[self._weights > 0].all()):
            bounds = np.cumsum(np.where(self._alive, self._weights, 0.0))
            which = int(np.searchsorted(bounds, self._rng.random() * bounds[-1], side="right"))
            which = min(which, int(np.flatnonzero(self._alive)[-1]))
            try:
                return self._readers[which].next()
            except StopIteration:
                self._alive[which] = False
        raise StopIteration("all parts of the mix were read")

    def get_state(self) -> Any:
        """Where every reader stands, and the state of the draws."""
        return {
            "rng": self._rng.bit_generator.state,
            "weights": self._weights.tolist(),
            "alive": self._alive.tolist(),
            "readers": [reader.get_state() for reader in self._readers],
        }

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called; False if a reader that can end couldn't."""
        if not isinstance(state, dict) or state.get("weights") != self._weights.tolist():
            return False
        self._rng.bit_generator.state = state["rng"]
        self._alive = np.array(state["alive"], np.bool_)
        done = [reader.set_state(part) for reader, part in zip(self._readers, state["readers"], strict=True)]
        return all(ok or endless for ok, endless in zip(done, self._endless, strict=True))

    def close(self) -> None:
        """Closes all readers."""
        for reader in self._readers:
            reader.close()


def check_weights(weights: Mapping[Any, Any]) -> None:
    """Checks the weights of a mix.

    Raises:
        ConfigError: One isn't a number from 0 to 1, or they don't sum to 1.
    """
    if not weights:
        raise ConfigError("input={}: a mix needs at least one part, as in {'sampler': 0.5, '/tmp/traces': 0.5}")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise ConfigError(f"input: the part {name!r} has the weight {weight!r}: expected a number from 0 to 1")
    total = math.fsum(weights.values())
    if abs(total - 1) > _TOLERANCE:
        raise ConfigError(f"input: the weights of {', '.join(map(repr, weights))} sum to {total:g}: expected 1")
