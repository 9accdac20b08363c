"""The GTrXL unit against numbers worked out by hand, and against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from backends import BACKENDS, evaluate

from polylib.models.attention import gate, gtrxl, layer_norm, relative_attention
from polylib.models.networks import Layer
from polylib.policy import numpy_ops

F32, F64 = np.float32, np.float64


def test_layer_norm_by_hand():
    """[1, 3]: mean 2, variance 1; a constant row is 0 before the offset."""
    y = layer_norm(numpy_ops, F64([[1, 3], [5, 5]]), F64([2, 3]), F64([0.5, -0.5]))
    one = 1 / math.sqrt(1 + 1e-5)
    assert y.tolist() == [pytest.approx([0.5 - 2 * one, 3 * one - 0.5]), pytest.approx([0.5, -0.5])]


def test_the_gate_by_hand():
    """D = 1: r = sigmoid(y + 2 x), z = sigmoid(-y + x - bias), h = tanh(3 y + 0.5 r x)."""
    x, y, bias = 0.7, -0.4, 1.5
    r, z = 1 / (1 + math.exp(-(y + 2 * x))), 1 / (1 + math.exp(-(-y + x - bias)))
    expected = (1 - z) * x + z * math.tanh(3 * y + 0.5 * r * x)
    found = gate(numpy_ops, F64([[x]]), F64([[y]]), (F64([[1, -1, 3]]), F64([[2, 1, 0.5]]), F64([bias])))
    assert found[0, 0] == pytest.approx(expected)


def test_a_shut_gate_lets_the_stream_pass():
    x = F64([[0.3, -2]])
    weights = np.ones((2, 6)), np.ones((2, 6)), np.full(2, 50.0)
    np.testing.assert_allclose(gate(numpy_ops, x, F64([[5, 5]]), weights), x)


def test_a_unit_by_hand():
    """Memory of one step (zeros), one head of width 1, on x = [1, 3]."""
    one = 1 / math.sqrt(1 + 1e-5)  # the norm of x is [-one, one], that of the memory [0, 0]
    # query -one, keys 0 and 2 one, u = 0.5: scores 0 and (0.5 - one) 2 one; values 0 and -one
    share = 1 / (1 + math.exp(-(0.5 - one) * 2 * one))
    attended = share * -one  # through [-1, 1] and relu: [-attended, 0]
    # The gate without biases is half open: x / 2 + tanh(y) / 2; the second one gets 0.
    stream = [0.5 * 1 + 0.5 * math.tanh(-attended), 0.5 * 3]
    zero = np.zeros((2, 6))
    candidate = np.concatenate([np.zeros((2, 4)), np.eye(2)], 1)
    weights = (
        *(np.ones(2), np.zeros(2)),
        *(F64([[1], [0]]), F64([[0], [2]]), F64([[1], [0]]), np.zeros((2, 1))),
        *(F64([[0.5]]), F64([[0]]), F64([[-1, 1]])),
        *(candidate, zero, np.zeros(2)),
        *(np.ones(2), np.zeros(2)),
        *(np.zeros((2, 1)), np.zeros(1), np.zeros((1, 2)), np.zeros(2)),
        *(candidate, zero, np.zeros(2)),
    )
    out, (memory,) = gtrxl(numpy_ops, F64([[1, 3]]), (np.zeros((1, 1, 2)),), weights, 1)
    assert out[0] == pytest.approx([stream[0] / 2, stream[1] / 2])
    assert memory.tolist() == [[[1, 3]]]


def loops(x: np.ndarray, weights: tuple[np.ndarray, ...], time: int) -> np.ndarray:
    """`relative_attention` of one sequence, entry by entry."""
    query, key, value, position, u, v, out = weights
    heads, size = u.shape
    memory, width = len(x) - time, x.shape[1]
    half = -(-width // 2)
    rows = []
    for t in range(time):
        now, mixed = memory + t, []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            q, scores, seen = x[now] @ query[:, part], [], []
            for j in range(now - memory, now + 1):
                angles = [(now - j) / 10000 ** (i / half) for i in range(half)]
                place = np.array([*map(math.sin, angles), *map(math.cos, angles)][:width])
                k, p = x[j] @ key[:, part], place @ position[:, part]
                scores.append(((q + u[h]) @ k + (q + v[h]) @ p) / math.sqrt(size))
                seen.append(x[j] @ value[:, part])
            shares = np.exp(scores) / np.exp(scores).sum()
            mixed.append(shares @ np.array(seen))
        rows.append(np.concatenate(mixed) @ out)
    return np.array(rows)


def random_weights(rng: np.random.Generator, width: int, heads: int, size: int) -> tuple[np.ndarray, ...]:
    inner = heads * size
    shapes = [(width, inner)] * 4 + [(heads, size)] * 2 + [(inner, width)]
    return tuple(0.7 * rng.standard_normal(shape) for shape in shapes)


@pytest.mark.parametrize(("memory", "time"), [(1, 1), (3, 1), (1, 4), (3, 2), (2, 7), (5, 5)])
@pytest.mark.parametrize("width", [3, 4])
def test_attention_is_what_loops_compute(memory, time, width):
    """Each step sees itself and the memory before it, at its own distances."""
    rng = np.random.default_rng(memory * 10 + time)
    weights = random_weights(rng, width, 2, 3)
    x = rng.standard_normal((2, memory + time, width))
    found = relative_attention(numpy_ops, x, weights, time)
    for i in range(2):
        np.testing.assert_allclose(found[i], loops(x[i], weights, time), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("time", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
def test_backends_agree(backend, time, heads):
    """In a graph and traced with batches of any size, gradients included."""
    rng = np.random.default_rng(time)
    layer = Layer("unit", "gtrxl", ("x", "state_0"), 4, 4, heads=heads, head_dim=2, memory=2, mlp=3, gate_bias=0.5)
    weights = tuple(F32(0.5 * rng.standard_normal(leaf.shape)) for leaf in layer.leaves().values())
    x, state = F32(rng.standard_normal((2 * time, 4))), F32(rng.standard_normal((2, 2, 4)))
    # Weights don't vary in size, and the runners let the first axis vary.
    sizes = [w.size for w in weights]
    flat = np.concatenate([w.ravel() for w in weights])[None]

    def f(ops, x, state, flat):
        parts, at = [], 0
        for w, size in zip(weights, sizes, strict=True):
            parts.append(ops.reshape(flat[0][at : at + size], w.shape))
            at += size
        out, (after,) = gtrxl(ops, x, (state,), tuple(parts), time)
        return ops.concat([ops.reshape(out, (-1,)), ops.reshape(after, (-1,))])

    value, slopes = evaluate(backend, f, x, state, flat, smooth=(0, 1, 2))
    expected, wanted = evaluate("numpy", f, F64(x), F64(state), F64(flat), smooth=(0, 1, 2))
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    for slope, want in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(slope, want, rtol=1e-4, atol=2e-5)
