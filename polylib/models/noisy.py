"""Layers beside the usual ones over `ops`, called as recurrent cells are: noisy dense layers, and trained numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from polylib.policy.ops import Array


def noisy(
    ops: Any, x: Array, states: tuple[Array, ...], weights: tuple[Array, ...], time: int
) -> tuple[Array, tuple[()]]:
    """A dense layer with factorised Gaussian noise on its weights (arXiv:1706.10295, eq. 9 to 11), a draw for each row.

    Args:
        ops: the backend's `Ops`.
        x: `[N, F]`.
        states: the noise `[N, F + units]`, as `factorised_noise` draws it; zeros: the layer's mean.
        weights: kernel `[F, units]`, bias `[units]`, and the scale of the noise on both.
        time: ignored.

    Returns:
        `[N, units]`.
    """
    kernel, bias, kernel_noise, bias_noise = weights
    (noise,) = states
    width = kernel.shape[0]
    before, after = noise[:, :width], noise[:, width:]
    return ops.matmul(x, kernel) + bias + (ops.matmul(x * before, kernel_noise) + bias_noise) * after, ()


def factorised_noise(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """`sign(e) sqrt(|e|)` of normal e, `[rows, size] float32`."""
    e = rng.standard_normal((rows, size), dtype=np.float32)
    return np.sign(e) * np.sqrt(np.abs(e))


def variable(
    ops: Any, x: Array, states: tuple[Array, ...], weights: tuple[Array, ...], time: int
) -> tuple[Array, tuple[()]]:
    """Trained numbers that depend on nothing, for every row of `x: [N]`: `[N, units]`."""
    return ops.reshape(x, (-1, 1)) * 0.0 + weights[0], ()
