"""A network's forward pass in NumPy, from its description and its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from polylib.models.networks import SEQ_MASK, Convolution, Layer, NetworkSpec, SpecNetwork
from polylib.models.recurrent import CELLS
from polylib.policy import numpy_ops

Step = Callable[[np.ndarray], np.ndarray]


_erf = np.vectorize(math.erf, otypes=[np.float64])  # NumPy has none, and SciPy is no dependency


def _gelu(x: np.ndarray) -> np.ndarray:
    return (x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


_ZERO = np.zeros((), np.float32)  # an array: turning a Python number into one takes longer than comparing with it


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, _ZERO),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * _sigmoid(x),
    "swish": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "softplus": lambda x: np.logaddexp(np.zeros((), x.dtype), x),
}


class NumpyNetwork(SpecNetwork):
    """Calls a `NetworkSpec` on NumPy arrays.

    Args:
        spec: the description.
        weights: arrays by canonical key; their dtype (float32 or float64) is that of the results.
    """

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(spec)
        self.weights, self._keys = dict(weights), spec.weight_keys()
        self.dtype = next(iter(weights.values())).dtype
        self._plans: dict[tuple[str, ...], list[tuple[str, str, Step | None, Layer]]] = {}

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, np.ndarray]:
        """Outputs by name, each `[N, units]`; only what `outputs` needs is computed."""
        names = tuple(self.spec.outputs if outputs is None else outputs)
        plan = self._plans.get(names)
        if plan is None:
            plan = [(layer.name, layer.source, self._step(layer), layer) for layer in self.spec.needed(names)]
            self._plans[names] = plan
        values: dict[str, Any] = dict(inputs)
        for name, source, step, layer in plan:
            if step is not None:
                values[name] = step(values[source])
            else:
                self._joint(layer, values)
        return {name: values[self.spec.outputs[name]] for name in names}

    def _joint(self, layer: Layer, values: dict[str, Any]) -> None:
        """A layer of several sources or results."""
        sources = [values[name] for name in layer.sources]
        if layer.kind == "concat":
            values[layer.name] = np.concatenate(sources, -1)
            return
        weights = tuple(self.weights[key] for key in self._keys[layer.name])
        time = values[SEQ_MASK].shape[1] if SEQ_MASK in values else 1
        values[layer.name], states = CELLS[layer.kind](numpy_ops, sources[0], tuple(sources[1:]), weights, time)
        values.update({f"{layer.name}/{i}": state for i, state in enumerate(states)})

    def _step(self, layer: Layer) -> Step | None:
        """The function of a layer with one source; None for the others."""
        if layer.kind in CELLS or layer.kind == "concat":
            return None
        if layer.kind == "to_float":
            gain = self.dtype.type(layer.gain)
            return lambda x: x.astype(self.dtype, copy=False) if gain == 1 else x.astype(self.dtype) * gain
        if layer.kind == "activation":
            return ACTIVATIONS[layer.activation or ""]
        if layer.kind == "flatten":
            return lambda x: x.reshape(len(x), layer.units)
        if layer.kind == "one_hot":
            return self._one_hot(layer)
        weights, keys = self.weights, self._keys[layer.name]
        if layer.kind == "log_std":
            return lambda x: np.concatenate([x, np.broadcast_to(weights[keys[0]], (len(x), layer.units))], -1)
        kernel, bias = keys
        activation = ACTIVATIONS[layer.activation] if layer.activation else None
        conv = layer.conv

        def dense(x: np.ndarray) -> np.ndarray:
            x = x.dot(weights[kernel]) if conv is None else convolve(conv, x, weights[kernel])
            x += weights[bias]
            return x if activation is None else activation(x)

        return dense

    def _one_hot(self, layer: Layer) -> Step:
        classes = np.concatenate([np.arange(o, o + n) for n, o in zip(layer.sizes, layer.offsets, strict=True)])
        if len(layer.sizes) == 1:
            return lambda x: (x[:, None] == classes).astype(self.dtype)
        component = np.repeat(np.arange(len(layer.sizes)), layer.sizes)
        return lambda x: (x.reshape(len(x), -1)[:, component] == classes).astype(self.dtype)


def convolve(conv: Convolution, x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """`x: [N, H, W, C]` with `kernel: [h, w, C, F]` to `[N, H', W', F]`, as one matrix product."""
    if conv.whole:
        return (x.reshape(len(x), math.prod(conv.shape)) @ kernel.reshape(-1, conv.filters))[:, None, None]
    if any(map(any, conv.pads)):
        x = np.pad(x, ((0, 0), *conv.pads, (0, 0)))
    height, width, filters = conv.out
    windows = np.lib.stride_tricks.sliding_window_view(x, conv.kernel, (1, 2))[:, :: conv.stride[0], :: conv.stride[1]]
    columns = windows.transpose(0, 1, 2, 4, 5, 3).reshape(len(x) * height * width, kernel[..., 0].size)
    return (columns @ kernel.reshape(-1, filters)).reshape(len(x), height, width, filters)
