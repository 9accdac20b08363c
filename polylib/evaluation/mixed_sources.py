"""What a config's `input` is made of, and several sources in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polylib.evaluation.offline_input import OfflineInput, State, under
from polylib.offline.make_input import SAMPLER, is_of_files
from polylib.policy.sample_batch import SampleBatch, concat_samples
from polylib.registry import registered_input

# How many draws a fragment of mixed files is made of.
_PIECES = 20


class MixedSources:
    """Fragments of several sources, each as often as its weight says.

    Sources take turns by fragments, not by records, so that the weights are shares of rows.

    Args:
        parts: what hands out fragments, by source: an `OfflineInput`, or the function that samples the environment.
        weights: by source.
        rng: draws.
    """

    def __init__(
        self,
        parts: Mapping[Any, OfflineInput | Callable[[], SampleBatch]],
        weights: Mapping[Any, float],
        rng: np.random.Generator,
    ) -> None:
        self._parts, self._rng = list(parts.values()), rng
        shares = np.array([weights[name] for name in parts], np.float64)
        self._shares = shares / shares.sum()
        self._readers = [(str(i), part) for i, part in enumerate(self._parts) if isinstance(part, OfflineInput)]

    def sample(self, rows: int) -> SampleBatch:
        """The next rows; with the environment among the sources those of one of them, else of several."""
        piece = rows if len(self._readers) < len(self._parts) else max(1, rows // _PIECES)
        batches: list[SampleBatch] = []
        while (missing := rows - sum(batch.count for batch in batches)) > 0:
            part = self._parts[self._rng.choice(len(self._parts), p=self._shares)]
            batches.append(part.sample(min(piece, missing)) if isinstance(part, OfflineInput) else part())
        return batches[0] if len(batches) == 1 else _alike(batches)

    def get_state(self) -> State | None:
        """Where every source stands, and the draws."""
        values: dict[str, Any] = {"rng": self._rng.bit_generator.state, "parts": {}}
        arrays: dict[str, np.ndarray] = {}
        for name, part in self._readers:
            state = part.get_state()
            if state is None:
                return None
            values["parts"][name] = state[0]
            arrays.update({f"{name}/{key}": x for key, x in state[1].items()})
        return values, arrays

    def set_state(self, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
        """Goes on from `get_state()`; False if a source can't."""
        if set(values["parts"]) != {name for name, _ in self._readers}:
            return False
        self._rng.bit_generator.state = values["rng"]
        return all([part.set_state(values["parts"][name], under(arrays, f"{name}/")) for name, part in self._readers])

    def close(self) -> None:
        """Closes the readers."""
        for _, part in self._readers:
            part.close()


def _alike(batches: list[SampleBatch]) -> SampleBatch:
    """All rows, with the columns that all batches have."""
    common = [name for name in batches[0] if all(name in batch for batch in batches)]
    return concat_samples([SampleBatch({name: batch[name] for name in common}) for batch in batches])


def reads(value: Any) -> bool:
    """Whether a config's `input` is more than the environment alone."""
    return value is not None and value != SAMPLER


def samples(value: Any) -> bool:
    """Whether a config's `input` takes, or may ask for, steps of the environment."""
    if isinstance(value, Mapping):
        return any(weight and samples(source) for source, weight in value.items())
    return not reads(value) or not is_of_files(value)  # a user's reader may ask for it


def portable_input(value: Any) -> Any:
    """A config's `input` for other processes, with what was registered in the place of names that are known here."""
    if isinstance(value, Mapping):
        return {portable_input(source): weight for source, weight in value.items()}
    return registered_input(value) or value
