"""Recurrent layers over `ops`, in the canonical layout of their weights; every backend may have a faster one.

Rows are `[N, units]`: one step each of N sequences, or N = B * T rows of B sequences of T steps, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polylib.models.attention import gtrxl
from polylib.models.noisy import noisy, variable
from polylib.policy.ops import Array

Result = tuple[Array, tuple[Array, ...]]


def _steps(ops: Any, x: Array, time: int) -> list[Array]:
    """`[B * T, F]` as T arrays `[B, F]`."""
    if time == 1:
        return [x]
    x = ops.reshape(x, (-1, time, x.shape[-1]))
    return [x[:, t] for t in range(time)]


def _rows(ops: Any, steps: list[Array]) -> Array:
    """The inverse of `_steps`."""
    return steps[0] if len(steps) == 1 else ops.reshape(ops.stack(steps, 1), (-1, steps[0].shape[-1]))


def lstm(ops: Any, x: Array, states: tuple[Array, Array], weights: tuple[Array, ...], time: int) -> Result:
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), with a forget gate and tanh throughout.

    Args:
        ops: the backend's `Ops`.
        x: `[B * T, F]`.
        states: the output and the cell before the first step, `[B, H]` each.
        weights: kernel `[F, 4 H]`, recurrent kernel `[H, 4 H]`, bias `[4 H]`; gates i, f, c, o.
        time: T.

    Returns:
        Outputs `[B * T, H]`, and the states after the last step.
    """
    kernel, recurrent, bias = weights
    hidden, cell = states
    units = recurrent.shape[0]
    outputs = []
    # What the inputs contribute needs no state: all steps in one product.
    for projected in _steps(ops, ops.matmul(x, kernel) + bias, time):
        gates = projected + ops.matmul(hidden, recurrent)
        i, f, o = (ops.sigmoid(gates[:, k * units : (k + 1) * units]) for k in (0, 1, 3))
        cell = f * cell + i * ops.tanh(gates[:, 2 * units : 3 * units])
        hidden = o * ops.tanh(cell)
        outputs.append(hidden)
    return _rows(ops, outputs), (hidden, cell)


def gru(ops: Any, x: Array, states: tuple[Array], weights: tuple[Array, ...], time: int) -> Result:
    """Gated recurrent unit (arXiv:1406.1078), the reset gate applied after the recurrent product.

    Args:
        ops: the backend's `Ops`.
        x: `[B * T, F]`.
        states: the output before the first step, `[B, H]`.
        weights: kernel `[F, 3 H]`, recurrent kernel `[H, 3 H]`, bias `[2, 3 H]` (of the input, of the state); gates z,
            r, h.
        time: T.

    Returns:
        Outputs `[B * T, H]`, and the state after the last step.
    """
    kernel, recurrent, bias = weights
    (hidden,) = states
    units = recurrent.shape[0]
    outputs = []
    for projected in _steps(ops, ops.matmul(x, kernel) + bias[0], time):
        inner = ops.matmul(hidden, recurrent) + bias[1]
        z = ops.sigmoid(projected[:, :units] + inner[:, :units])
        r = ops.sigmoid(projected[:, units : 2 * units] + inner[:, units : 2 * units])
        candidate = ops.tanh(projected[:, 2 * units :] + r * inner[:, 2 * units :])
        hidden = z * hidden + (1.0 - z) * candidate
        outputs.append(hidden)
    return _rows(ops, outputs), (hidden,)


#: By kind of layer: (ops, x, states, weights, time) to outputs and states.
CELLS: dict[str, Callable[[Any, Array, Any, tuple[Array, ...], int], Result]] = {
    "lstm": lstm,
    "gru": gru,
    "gtrxl": gtrxl,
    "noisy": noisy,
    "variable": variable,
}
