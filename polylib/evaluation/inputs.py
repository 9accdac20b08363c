"""What a config's `input` asks for, and what hands out rows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polylib.offline.input_reader import InputReader, SamplerInput
from polylib.offline.make_input import SAMPLER, is_of_files
from polylib.offline.mixed_input import MixedInput, check_weights
from polylib.policy.sample_batch import SampleBatch
from polylib.registry import registered_input

# Of how many draws, at least, a fragment of mixed files is made.
_PIECES = 20


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


def fragments_of(
    value: Any,
    rows: int,
    make_reader: Callable[[Any, int], InputReader],
    sample: Callable[[], SampleBatch],
    rng: np.random.Generator,
) -> InputReader:
    """A reader of fragments, or, of a mix of files, of parts of one.

    Sources take turns by rows, not by records, so that the weights are shares of rows. Where the environment is among
    them they do so by fragments, since those of the environment stay whole.

    Args:
        value: a config's `input`.
        rows: of a fragment.
        make_reader: makes of one source, and a number of rows, a reader whose batches have so many.
        sample: a fragment of the environment.
        rng: draws.

    Raises:
        ConfigError: the weights aren't those of a mix.
    """
    if not isinstance(value, Mapping):
        return make_reader(value, rows)
    check_weights(value)
    weights = {source: weight for source, weight in value.items() if weight}
    if all(map(reads, weights)):
        rows = next(size for size in range(max(1, rows // _PIECES), 0, -1) if rows % size == 0)
    readers = {source: make_reader(source, rows) if reads(source) else SamplerInput(sample) for source in weights}
    return MixedInput(readers, weights, rng, endless=(SAMPLER,))
