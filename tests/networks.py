"""Networks from descriptions, called in every backend, with their gradients; for tests of layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from backends import needs_tf, needs_torch

from polylib.models.networks import NetworkSpec
from polylib.models.numpy_network import NumpyNetwork

Arrays = dict[str, np.ndarray]
FRAMEWORKS = [pytest.param("keras", marks=needs_tf), pytest.param("torch", marks=needs_torch)]


def spread(weights: Arrays, seed: int = 0, scale: float = 0.5) -> Arrays:
    """Weights that are far from the first ones: no zero bias, no small head."""
    rng = np.random.default_rng(seed)
    return {key: (w + scale * rng.standard_normal(w.shape)).astype(np.float32) for key, w in weights.items()}


def make_weights(spec: NetworkSpec, seed: int = 0) -> Arrays:
    """Weights for a test of a network."""
    return spread(spec.initial_weights(np.random.default_rng(seed)), seed)


def call(
    framework: str, spec: NetworkSpec, weights: Arrays, inputs: Arrays, outputs: Iterable[str] | None = None
) -> Arrays:
    """Outputs by name, computed by "numpy", "keras", "keras_model" (Keras' own call), or "torch"."""
    if framework == "numpy":
        return NumpyNetwork(spec, weights)(inputs, outputs)
    network = built(framework, spec, weights)
    if framework == "torch":
        import torch

        with torch.no_grad():
            return {name: x.numpy() for name, x in network(inputs, outputs).items()}
    import tensorflow as tf

    if framework == "keras_model":
        from polylib.policy.tf.models import input_names

        names = input_names(spec)
        given = {names[name]: tf.convert_to_tensor(x) for name, x in inputs.items()}
        found = network.model(given if len(given) > 1 else next(iter(given.values())))
    else:
        found = network({name: tf.convert_to_tensor(x) for name, x in inputs.items()}, outputs)
    return {name: x.numpy() for name, x in found.items()}


def built(framework: str, spec: NetworkSpec, weights: Arrays) -> Any:
    """The network of a framework with these weights."""
    if framework == "torch":
        import torch

        from polylib.policy.torch.models import TorchNetwork

        network: Any = TorchNetwork(spec)
        with torch.no_grad():
            for key, p in network.variables().items():
                axes = network.axes.get(key)
                value = weights[key] if axes is None else weights[key].transpose(np.argsort(axes))
                p.copy_(torch.from_numpy(np.array(value, order="C")))
        return network
    from polylib.policy.tf.models import KerasNetwork

    network = KerasNetwork(spec)
    for key, variable in network.variables.items():
        variable.assign(weights[key])
    return network


def total(outputs: Arrays, mask: np.ndarray | None = None) -> float:
    """A number that depends on every entry of every output, on each in another way; padded rows don't count."""
    return sum(float(np.sum(x * _coefficients(x.shape, i, mask))) for i, x in enumerate(outputs.values()))


def _coefficients(shape: tuple[int, ...], i: int, mask: np.ndarray | None) -> np.ndarray:
    found = np.cos(np.arange(int(np.prod(shape))) + i).reshape(shape)
    return found if mask is None else found * mask.reshape(-1, *[1] * (len(shape) - 1))


def gradients(
    framework: str, spec: NetworkSpec, weights: Arrays, inputs: Arrays, names: tuple[str, ...], mask: Any = None
) -> Arrays:
    """Gradients of `total` of the outputs `names` by key, in the canonical layout; "numpy": central differences."""
    if framework == "numpy":
        return _differences(spec, weights, inputs, names, mask)
    network = built(framework, spec, weights)
    if framework == "torch":
        import torch

        out = network(inputs, names)
        loss = sum((out[n] * torch.tensor(_coefficients(out[n].shape, i, mask))).sum() for i, n in enumerate(names))
        variables = network.variables()
        found = torch.autograd.grad(loss, list(variables.values()), allow_unused=True, materialize_grads=True)
        return {
            key: g.numpy() if network.axes.get(key) is None else g.numpy().transpose(network.axes[key])
            for key, g in zip(variables, found, strict=True)
        }
    import tensorflow as tf

    with tf.GradientTape() as tape:
        out = network({name: tf.convert_to_tensor(x) for name, x in inputs.items()}, names)
        loss = sum(
            tf.reduce_sum(out[n] * _coefficients(tuple(out[n].shape), i, mask).astype(np.float32))
            for i, n in enumerate(names)
        )
    found = tape.gradient(loss, [v.value for v in network.variables.values()], unconnected_gradients="zero")
    return {key: g.numpy() for key, g in zip(network.variables, found, strict=True)}


def _differences(spec: NetworkSpec, weights: Arrays, inputs: Arrays, names: tuple[str, ...], mask: Any) -> Arrays:
    wide = {key: w.astype(np.float64) for key, w in weights.items()}
    inputs = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in inputs.items()}
    network, step, found = NumpyNetwork(spec, wide), 1e-6, {}
    for key, w in network.weights.items():  # the network looks them up in this dict
        found[key] = np.zeros_like(w)
        for index in np.ndindex(w.shape):
            kept, ends = w[index], []
            for sign in (1, -1):
                w[index] = kept + sign * step
                ends.append(total(network(inputs, names), mask))
            w[index] = kept
            found[key][index] = (ends[0] - ends[1]) / (2 * step)
    return found
