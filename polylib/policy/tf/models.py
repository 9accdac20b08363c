"""Keras models from network descriptions, and the functions that call them by output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from polylib.errors import FrameworkError
from polylib.models.networks import Layer, NetworkSpec

if keras.backend.backend() != "tensorflow":
    raise FrameworkError(
        f"frameworks 'tf' and 'tf2' need Keras on TensorFlow, here it runs on {keras.backend.backend()!r}: set the "
        "environment variable KERAS_BACKEND=tensorflow before anything imports keras"
    )


class OneHot(keras.layers.Layer):
    """`[B] int` to `[B, units] float32`; class `offset` comes first."""

    def __init__(self, units: int, offset: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.offset = units, offset

    def call(self, inputs: Any) -> Any:
        """The one-hot vectors."""
        return tf.one_hot(inputs - self.offset, self.units)

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        return {**super().get_config(), "units": self.units, "offset": self.offset}


class Cast(keras.layers.Layer):
    """Any dtype to float32."""

    def call(self, inputs: Any) -> Any:
        """The cast tensor."""
        return tf.cast(inputs, tf.float32)


def _make(layer: Layer) -> Any:
    if layer.kind == "to_float":
        # autocast would turn integer inputs into floats before the layer sees them; the cast is the layer's own.
        return Cast(name=layer.name, autocast=False)
    if layer.kind == "one_hot":
        return OneHot(layer.units, layer.offset, name=layer.name, autocast=False)
    if layer.kind == "flatten":
        return keras.layers.Reshape((layer.units,), name=layer.name)
    # Zeros: the policy sets the canonical initial weights, drawn in NumPy, right after.
    return keras.layers.Dense(
        layer.units, layer.activation, kernel_initializer="zeros", name=layer.name, dtype="float32"
    )


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": tf.tanh,
    "relu": tf.nn.relu,
    "elu": tf.nn.elu,
    "silu": tf.nn.silu,
    "swish": tf.nn.silu,
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "sigmoid": tf.sigmoid,
    "softplus": tf.math.softplus,
}


class KerasNetwork:
    """A `NetworkSpec` as a functional Keras model, and a direct way to compute it.

    A policy computes with the model's variables but without Keras' call, which eagerly takes most of the time: for
    layers like these the operations are the same.

    Attributes:
        model: the Keras model; called with the observation, it returns a dict of all outputs.
        variables: canonical key to Keras variable, in creation order.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec = spec
        tensors: dict[str, Any] = {
            name: keras.Input(shape, name=name, dtype=str(dtype)) for name, (shape, dtype) in spec.inputs.items()
        }
        made: dict[str, Any] = {}
        for layer in spec.layers:
            made[layer.name] = _make(layer)
            tensors[layer.name] = made[layer.name](tensors[layer.source])
        inputs = {name: tensors[name] for name in spec.inputs}
        outputs = {output: tensors[name] for output, name in spec.outputs.items()}
        self.model = keras.Model(next(iter(inputs.values())) if len(inputs) == 1 else inputs, outputs, name=spec.name)
        self.variables: dict[str, Any] = {}
        for name, (kernel, bias) in spec.weight_keys().items():
            self.variables[kernel], self.variables[bias] = made[name].kernel, made[name].bias
        self._steps = {layer.name: self._step(layer) for layer in spec.layers}
        self._plans: dict[tuple[str, ...], tuple[Layer, ...]] = {}

    def _step(self, layer: Layer) -> Callable[[Any], Any]:
        if layer.kind == "to_float":
            return lambda x: tf.cast(x, tf.float32)
        if layer.kind == "one_hot":
            return lambda x: tf.one_hot(x - layer.offset, layer.units)
        if layer.kind == "flatten":
            return lambda x: tf.reshape(x, (-1, layer.units))
        kernel, bias = (self.variables[key].value for key in self.spec.weight_keys()[layer.name])
        activation = _ACTIVATIONS[layer.activation] if layer.activation else None

        def dense(x: Any) -> Any:
            x = tf.nn.bias_add(tf.matmul(x, kernel), bias)
            return x if activation is None else activation(x)

        return dense

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Any]:
        """Outputs by name, each `[B, units]`; only what `outputs` needs is computed."""
        names = tuple(self.spec.outputs if outputs is None else outputs)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plans[names] = self.spec.needed(names)
        values: dict[str, Any] = dict(inputs)
        for layer in plan:
            values[layer.name] = self._steps[layer.name](values[layer.source])
        return {name: values[self.spec.outputs[name]] for name in names}


class GraphModel:
    """`policy.model` in `tf` mode: evaluates the Keras model in the policy's session; NumPy in, NumPy out.

    Args:
        network: the network, built in `graph`.
        graph: the policy's graph.
        session: the policy's session.
    """

    def __init__(self, network: KerasNetwork, graph: Any, session: Any) -> None:
        self._network, self._graph, self._session = network, graph, session
        self._feeds: list[Any] = []
        self._fetches: dict[str, Any] = {}

    def __call__(self, obs: Any) -> dict[str, np.ndarray]:
        """Outputs by name for `obs: [B, *obs_shape]`, or `{"obs": obs}`."""
        if isinstance(obs, Mapping):
            obs = obs["obs"]
        spec = self._network.spec
        if not self._feeds:
            with self._graph.as_default():
                self._feeds = [tf.compat.v1.placeholder(d, [None, *s]) for s, d in spec.inputs.values()]
                self._fetches = self._network(dict(zip(spec.inputs, self._feeds, strict=True)))
        values = [np.asarray(obs, next(iter(spec.inputs.values()))[1])]
        return self._session.run(self._fetches, dict(zip(self._feeds, values, strict=True)))

    def get_weights(self) -> list[np.ndarray]:
        """Values of all variables, in creation order."""
        with self._graph.as_default():
            return self._session.run([v.value for v in self._network.variables.values()])

    def summary(self, **kwargs: Any) -> None:
        """Keras' table of layers."""
        with self._graph.as_default():
            self._network.model.summary(**kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network.model, name)
