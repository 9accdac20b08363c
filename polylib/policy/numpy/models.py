"""A network's forward pass in NumPy, from its description and its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from polylib.models.networks import NetworkSpec


def _gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return (x * 0.5 * (1.0 + erf(x / np.sqrt(2.0).astype(x.dtype)))).astype(x.dtype)


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
        self.spec, self.weights, self._keys = spec, weights, spec.weight_keys()
        self.dtype = next(iter(weights.values())).dtype

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, np.ndarray]:
        """Outputs by name, each `[B, units]`; only what `outputs` needs is computed."""
        names = list(self.spec.outputs if outputs is None else outputs)
        values: dict[str, Any] = dict(inputs)
        for layer in self.spec.needed(names):
            x = values[layer.source]
            if layer.kind == "to_float":
                x = x.astype(self.dtype)
            elif layer.kind == "flatten":
                x = x.reshape(len(x), layer.units)
            elif layer.kind == "one_hot":
                x = (x[:, None] == np.arange(layer.offset, layer.offset + layer.units)).astype(self.dtype)
            else:
                kernel, bias = self._keys[layer.name]
                x = x @ self.weights[kernel]
                x += self.weights[bias]
                if layer.activation:
                    x = ACTIVATIONS[layer.activation](x)
            values[layer.name] = x
        return {name: values[self.spec.outputs[name]] for name in names}
