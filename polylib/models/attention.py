"""Attention over the last steps: the GTrXL unit (arXiv:1910.06764), once over `ops`.

A unit's state is its own inputs of the last M steps, zeros at an episode's start. A step attends to itself and to the M
steps before it, so that acting step by step and whole sequences compute the same: a sequence's state holds the M steps
before its first one, and a band mask gives every step its own window.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from polylib.policy.ops import Array

_EPSILON = 1e-5  # of layer normalisation


def layer_norm(ops: Any, x: Array, scale: Array, offset: Array) -> Array:
    """`x: [..., D]` with mean 0 and variance 1 on its last axis, times `scale: [D]` plus `offset: [D]`."""
    centred = x - ops.mean(x, -1)[..., None]
    return centred / ops.sqrt(ops.mean(ops.square(centred), -1)[..., None] + _EPSILON) * scale + offset


def gate(ops: Any, x: Array, y: Array, weights: tuple[Array, Array, Array]) -> Array:
    """The GRU-type gate of arXiv:1910.06764, section 3.2: what passes of `y` into the stream `x`, `[..., D]` each.

    Args:
        ops: the backend's `Ops`.
        x: the stream around the sublayer.
        y: the sublayer's output.
        weights: of y `[D, 3 D]`, of x `[D, 3 D]` (gates r, z, h), and the bias `[D]` that starts the gate shut.
    """
    of_y, of_x, bias = weights
    units = bias.shape[0]
    from_y, from_x = ops.matmul(y, of_y), ops.matmul(x, of_x[:, : 2 * units])
    r = ops.sigmoid(from_y[..., :units] + from_x[..., :units])
    z = ops.sigmoid(from_y[..., units : 2 * units] + from_x[..., units:] - bias)
    candidate = ops.tanh(from_y[..., 2 * units :] + ops.matmul(r * x, of_x[:, 2 * units :]))
    return (1.0 - z) * x + z * candidate


@functools.cache
def _sinusoids(memory: int, units: int) -> np.ndarray:
    """Encodings of the distances M, ..., 1, 0: `[M + 1, units]`, sines, then cosines (arXiv:1901.02860)."""
    half = -(-units // 2)
    angles = np.arange(memory, -1, -1)[:, None] / 10000.0 ** (np.arange(half) / max(half, 1))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, :units].astype(np.float32)


@functools.cache
def _window(memory: int, time: int) -> np.ndarray:
    """Which of `M + T` steps each of the last T may see: itself and the M before it. `[T, M + T] bool`."""
    ahead = np.arange(memory + time) - np.arange(time)[:, None]
    return (ahead >= 0) & (ahead <= memory)


def relative_attention(ops: Any, x: Array, weights: tuple[Array, ...], time: int) -> Array:
    """Multi-head attention with relative positions (arXiv:1901.02860, section 3.3).

    Args:
        ops: the backend's `Ops`.
        x: M steps that are seen only, then the T steps that see, `[B, M + T, F]`.
        weights: query, key, value and position kernels `[F, heads * D]`, what is added to queries for the content and
            for the position `[heads, D]` each, and the output's kernel `[heads * D, F]`.
        time: T.

    Returns:
        `[B, T, F]`.
    """
    query, key, value, position, content_bias, position_bias, out = weights
    heads, size = content_bias.shape
    total = x.shape[1]
    memory = total - time

    def split(y: Array, steps: int) -> Array:
        return ops.transpose(ops.reshape(y, (-1, steps, heads, size)), (0, 2, 1, 3))

    queries = ops.reshape(ops.matmul(x[:, memory:], query), (-1, time, heads, size))
    keys, values = split(ops.matmul(x, key), total), split(ops.matmul(x, value), total)
    places = ops.matmul(ops.constant(_sinusoids(memory, x.shape[-1])), position)
    by_content = ops.matmul(
        ops.transpose(queries + content_bias, (0, 2, 1, 3)), ops.transpose(keys, (0, 1, 3, 2))
    )
    # A product for each head over all rows. As one that broadcasts over sequences, TensorFlow's oneDNN (2.21) has wrong
    # gradients for a single head, and crashes.
    seen = ops.reshape(ops.transpose(queries + position_bias, (2, 0, 1, 3)), (heads, -1, size))
    by_place = ops.matmul(seen, ops.transpose(ops.reshape(places, (memory + 1, heads, size)), (1, 2, 0)))
    by_place = ops.transpose(ops.reshape(by_place, (heads, -1, time, memory + 1)), (1, 0, 2, 3))
    # Step t's distances M..0 belong to the steps t..t + M: row t moves right by t. Padded by T and cut into rows that
    # are one shorter, each row starts one later than the one before (Transformer-XL's shift).
    if time > 1:
        padded = ops.concat([by_place, *[ops.zeros_like(by_place[..., :1])] * time], -1)
        flat = ops.reshape(padded, (-1, heads, time * (total + 1)))
        by_place = ops.reshape(flat[..., : time * total], (-1, heads, time, total))
    scores = (by_content + by_place) / math.sqrt(size)
    if time > 1:
        scores = ops.where(ops.constant(_window(memory, time)), scores, -1e9)
    mixed = ops.matmul(ops.exp(ops.log_softmax(scores)), values)
    return ops.matmul(ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (-1, time, heads * size)), out)


def gtrxl(
    ops: Any, x: Array, states: tuple[Array], weights: tuple[Array, ...], time: int
) -> tuple[Array, tuple[Array, ...]]:
    """A unit of GTrXL, arXiv:1910.06764: layer norm, attention, gate; layer norm, two dense layers, gate.

    Args:
        ops: the backend's `Ops`.
        x: `[B * T, F]`.
        states: the inputs of the M steps before the first one, `[B, M, F]`.
        weights: in the order of the layer's leaves, see `polylib.models.networks`.
        time: T.

    Returns:
        Outputs `[B * T, F]`, and the inputs of the last M steps.
    """
    units = x.shape[-1]
    norm, attention, first_gate = weights[:2], weights[2:9], weights[9:12]
    mlp_norm, mlp, second_gate = weights[12:14], weights[14:18], weights[18:]
    x = ops.reshape(x, (-1, time, units))
    steps = ops.concat([states[0], x], 1)
    attended = relative_attention(ops, layer_norm(ops, steps, *norm), attention, time)
    y = gate(ops, x, ops.relu(attended), first_gate)
    hidden = ops.relu(ops.matmul(layer_norm(ops, y, *mlp_norm), mlp[0]) + mlp[1])
    out = gate(ops, y, ops.relu(ops.matmul(hidden, mlp[2]) + mlp[3]), second_gate)
    return ops.reshape(out, (-1, units)), (steps[:, time:],)
