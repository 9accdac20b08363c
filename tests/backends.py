"""Functions over `Ops` in every backend, with their gradients; NumPy's central differences to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from modes import has

from polylib.policy import numpy_ops

needs_tf = pytest.mark.skipif(not has("tf"), reason="tensorflow isn't installed")
needs_torch = pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
BACKENDS = [
    pytest.param("eager", marks=needs_tf),
    pytest.param("function", marks=needs_tf),
    pytest.param("graph", marks=needs_tf),
    pytest.param("torch", marks=needs_torch),
]

@dataclass
class Case:
    """A call: `f(ops, *arrays)`; `smooth` says which arguments have a gradient there."""

    f: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    smooth: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.arrays = tuple(map(np.asarray, self.arrays))


def _tf_result(f: Callable[..., Any], arrays: tuple[np.ndarray, ...], smooth: tuple[int, ...]) -> Any:
    """The value, and the gradient of its weighted sum, as TensorFlow tensors."""
    import tensorflow as tf

    from polylib.policy.tf import ops

    with tf.GradientTape() as tape:
        tape.watch([arrays[i] for i in smooth])
        value = f(ops, *arrays)
        total = tf.reduce_sum(value * weights_of(value)) if smooth else value
    gradients = tape.gradient(total, [arrays[i] for i in smooth], unconnected_gradients="zero") if smooth else []
    return value, gradients


def weights_of(value: Any) -> Any:
    """Different for neighbouring entries: a sum of equal weights would hide a permutation."""
    import tensorflow as tf

    flat = tf.range(1, tf.size(value) + 1)
    return tf.reshape(tf.cos(tf.cast(flat, value.dtype)), tf.shape(value))


def run_eager(case: Case) -> Any:
    import tensorflow as tf

    value, gradients = _tf_result(case.f, tuple(map(tf.constant, case.arrays)), case.smooth)
    return value.numpy(), [g.numpy() for g in gradients]


def run_function(case: Case) -> Any:
    import tensorflow as tf

    specs = [tf.TensorSpec([None, *x.shape[1:]] if x.ndim else [], x.dtype) for x in case.arrays]
    traced = tf.function(lambda *xs: _tf_result(case.f, xs, case.smooth), specs, autograph=False)
    value, gradients = traced(*map(tf.constant, case.arrays))
    return value.numpy(), [g.numpy() for g in gradients]


def run_graph(case: Case) -> Any:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        shapes = [[None, *x.shape[1:]] if x.ndim else [] for x in case.arrays]
        feeds = [tf.compat.v1.placeholder(x.dtype, s) for x, s in zip(case.arrays, shapes, strict=True)]
        fetches = _tf_result(case.f, tuple(feeds), case.smooth)
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(fetches, dict(zip(feeds, case.arrays, strict=True)))


def run_torch(case: Case) -> Any:
    import torch

    from polylib.policy.torch import ops

    tensors = [torch.tensor(x, requires_grad=i in case.smooth) for i, x in enumerate(case.arrays)]
    value = case.f(ops, *tensors)
    gradients: Any = []
    if case.smooth:
        weights = torch.cos(torch.arange(1, value.numel() + 1).to(value.dtype)).reshape(value.shape)
        sources = [tensors[i] for i in case.smooth]
        gradients = torch.autograd.grad((value * weights).sum(), sources, allow_unused=True, materialize_grads=True)
    return value.detach().numpy(), [g.numpy() for g in gradients]


def numpy_gradients(case: Case, step: float = 1e-6) -> list[np.ndarray]:
    """Central differences in float64."""
    arrays = [np.array(x, np.float64 if i in case.smooth else x.dtype) for i, x in enumerate(case.arrays)]

    def total() -> float:
        value = case.f(numpy_ops, *arrays)
        return float(np.sum(np.asarray(value) * np.cos(np.arange(1, np.size(value) + 1)).reshape(np.shape(value))))

    gradients = []
    for i in case.smooth:
        gradient = np.zeros_like(arrays[i])
        for index in np.ndindex(arrays[i].shape):
            kept = arrays[i][index]
            arrays[i][index] = kept + step
            above = total()
            arrays[i][index] = kept - step
            gradient[index] = (above - total()) / (2 * step)
            arrays[i][index] = kept
        gradients.append(gradient)
    return gradients


RUNNERS = {"eager": run_eager, "function": run_function, "graph": run_graph, "torch": run_torch}


def evaluate(backend: str, f: Callable[..., Any], *arrays: np.ndarray, smooth: tuple[int, ...] = ()) -> Any:
    """`f(ops, *arrays)` in a backend, or on "numpy"; with `smooth`, its value and the gradients there."""
    if backend == "numpy":
        case = Case(f, arrays, smooth)
        value = np.asarray(f(numpy_ops, *case.arrays))
        return (value, numpy_gradients(case)) if smooth else value
    value, gradients = RUNNERS[backend](Case(f, arrays, smooth))
    return (value, gradients) if smooth else value
