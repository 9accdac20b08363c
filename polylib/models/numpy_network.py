"""A network's forward pass in NumPy, from its description and its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from polylib.models.networks import Layer, NetworkSpec

Step = Callable[[np.ndarray], np.ndarray]


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none, and SciPy is no dependency


def _gelu(x: np.ndarray) -> np.ndarray:
    return (x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(np.zeros((), x.dtype), x),
}


class NumpyNetwork:
    """Calls a `NetworkSpec` on NumPy arrays.

    Args:
        spec: the description.
        weights: arrays by canonical key; their dtype (float32 or float64) is that of the results.
    """

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, np.ndarray]) -> None:
        self.spec, self.weights, self._keys = spec, dict(weights), spec.weight_keys()
        self.dtype = next(iter(weights.values())).dtype
        self._plans: dict[tuple[str, ...], list[tuple[str, str, Step]]] = {}

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, np.ndarray]:
        """Outputs by name, each `[B, units]`; only what `outputs` needs is computed."""
        names = tuple(self.spec.outputs if outputs is None else outputs)
        plan = self._plans.get(names)
        if plan is None:
            plan = [(layer.name, layer.source, self._step(layer)) for layer in self.spec.needed(names)]
            self._plans[names] = plan
        values: dict[str, Any] = dict(inputs)
        for name, source, step in plan:
            values[name] = step(values[source])
        return {name: values[self.spec.outputs[name]] for name in names}

    def _step(self, layer: Layer) -> Step:
        if layer.kind == "to_float":
            return lambda x: x.astype(self.dtype)
        if layer.kind == "flatten":
            return lambda x: x.reshape(len(x), layer.units)
        if layer.kind == "one_hot":
            classes = np.arange(layer.offset, layer.offset + layer.units)
            return lambda x: (x[:, None] == classes).astype(self.dtype)
        weights = self.weights
        kernel, bias = self._keys[layer.name]
        activation = ACTIVATIONS[layer.activation] if layer.activation else None

        def dense(x: np.ndarray) -> np.ndarray:
            x = x @ weights[kernel]
            x += weights[bias]
            return x if activation is None else activation(x)

        return dense
