"""What losses do with Q functions of several actions in one state."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from polylib.policy.ops import Array


def repeated(ops: Any, x: Array, times: int) -> Array:
    """`[N, ...]` to `[N * times, ...]`, each row so many times one after the other."""
    return ops.reshape(ops.stack([x] * times, 1), (-1, *x.shape[1:]))


def repeated_obs(ops: Any, inputs: Mapping[str, Array], times: int) -> dict[str, Array]:
    """The columns of the observations, each row so many times one after the other."""
    return {name: repeated(ops, x, times) for name, x in inputs.items() if name.partition("/")[0] == "obs"}


def lowest(ops: Any, values: Sequence[Array]) -> Array:
    """The lower of what one or two Q networks say."""
    return functools.reduce(ops.minimum, values)


def allowed_actions(ops: Any, inputs: Mapping[str, Array], mask: str | None, size: int) -> Array | None:
    """Which discrete actions the mask in the observations allows, `[N, size] bool`.

    Args:
        ops: the backend's `Ops`.
        inputs: columns of observations.
        mask: which of them holds the mask; None: there is none, and none is returned.
        size: how many actions there are.
    """
    if mask is None:
        return None
    # `!=` compares identities in a TF1 graph.
    return ops.to_float(ops.reshape(inputs[mask], (-1, size))) > 0
