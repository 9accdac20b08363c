"""Batches for the tests of traces, and how two are compared."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def cartpole(rows: int = 6, first: int = 0, eps_id: int = 0, **columns: Any) -> SampleBatch:
    """A fragment as a worker records it."""
    rng = np.random.default_rng(first + 100 * eps_id)
    obs = rng.standard_normal((rows + 1, 4)).astype(np.float32)
    return SampleBatch(
        {
            "obs": obs[:-1],
            "new_obs": obs[1:],
            "actions": rng.integers(0, 2, rows),
            "action_logp": rng.standard_normal(rows).astype(np.float32),
            "action_dist_inputs": rng.standard_normal((rows, 2)).astype(np.float32),
            "rewards": np.ones(rows, np.float32),
            "terminateds": np.arange(rows) == rows - 1,
            "truncateds": np.zeros(rows, bool),
            "eps_id": np.full(rows, eps_id),
            "unroll_id": np.full(rows, 1 << 40),
            "t": np.arange(first, first + rows, dtype=np.int32),
            **columns,
        }
    )


def peak(function: Callable[[], Any]) -> int:
    """The most bytes that a function holds at once."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def random_array(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Any dtype, any shape, any bits: non-finite values, subnormal ones and negative zeros among them."""
    shape = (rows, *rng.integers(0, 4, rng.integers(0, 4)).tolist())
    dtype = np.dtype(str(rng.choice(DTYPES)))
    size = int(np.prod(shape, dtype=int))
    if dtype == np.bool_:
        array = rng.integers(0, 2, shape).astype(bool)
    else:
        array = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape).copy()
    if dtype.kind == "f":
        array[np.isnan(array)] = np.nan  # JSON says that it is NaN, not with which bits
        special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0], dtype)
        which = rng.random(shape) < 0.3
        array[which] = rng.choice(special, int(which.sum()))
    if array.ndim > 1 and rng.random() < 0.3:
        array = np.asfortranarray(array)
    return array


def random_column(rng: np.random.Generator, rows: int, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 2 or kind < 0.6:
        return random_array(rng, rows)
    parts = [random_column(rng, rows, depth + 1) for _ in range(rng.integers(1, 4))]
    return {f'part {i} \u00e9"': part for i, part in enumerate(parts)} if kind < 0.8 else tuple(parts)


def random_batch(rng: np.random.Generator) -> SampleBatch:
    rows = int(rng.integers(0, 6))
    return SampleBatch({f"c{i}": random_column(rng, rows) for i in range(rng.integers(1, 6))})


def assert_same(a: Any, b: Any) -> None:
    """The same types, structure, dtypes, shapes and bits."""
    if isinstance(a, MultiAgentBatch):
        assert isinstance(b, MultiAgentBatch) and a.count == b.count
        assert list(a.policy_batches) == list(b.policy_batches)
        for policy_id, batch in a.policy_batches.items():
            assert_same(batch, b.policy_batches[policy_id])
    elif isinstance(a, SampleBatch):
        assert isinstance(b, SampleBatch) and list(a) == list(b) and len(a) == len(b)
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, np.ndarray) and a.dtype != np.object_:
        assert isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape, (a, b)
        assert a.tobytes() == b.tobytes(), (a, b)
    elif isinstance(a, np.ndarray):
        assert isinstance(b, np.ndarray) and b.dtype == np.object_ and a.shape == b.shape
        for x, y in zip(a.ravel(), b.ravel(), strict=True):
            assert_same(x, y)
    elif isinstance(a, dict):
        assert isinstance(b, dict) and list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, tuple | list):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert type(a) is type(b) and (a == b or (a != a and b != b)), (a, b)
