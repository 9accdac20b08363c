"""Writes policies as `.keras` files and SavedModels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from polylib.errors import ExportError
from polylib.models.distributions.framework import FrameworkDistribution
from polylib.models.networks import Layer, NetworkSpec, SpecNetwork, plain_names
from polylib.models.recurrent import CELLS
from polylib.policy.export import Plan
from polylib.policy.tf import keras_ops, ops
from polylib.policy.tf.models import make_network

Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def require(format: str) -> None:
    """Nothing more than TensorFlow is needed."""


def write(plan: Plan, format: str, file: Path, opset: int) -> Call:
    """Writes `file` and loads it: a function of inputs by name.

    Raises:
        ExportError: if the model can't be written in this format.
    """
    with tf.init_scope(), _quiet():
        nets = _eager_networks(plan)
        plan.run(ops, nets, {name: tf.constant(x) for name, x in plan.examples(2).items()}, _normalize)
        nets = {name: nets[name] for name in plan.nets}
        if format == "keras":
            _keras_model(plan, nets).save(str(file))
            return _caller(keras.models.load_model(str(file)))
        _save(plan, nets, file)
        signature = tf.saved_model.load(str(file)).signatures["serving_default"]
    return _caller(lambda inputs: signature(**inputs))


def _caller(function: Callable[..., Any]) -> Call:
    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = function({name: tf.constant(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in out.items()}

    return call


def _eager_networks(plan: Plan) -> dict[str, Any]:
    """The policy's networks; of a graph policy, whose variables are its session's, copies of them."""
    policy = plan.policy
    if policy.framework != "tf":
        return {name: policy.nets[name] for name in plan.nets}
    weights, nets = policy.get_weights(), {}
    for name in plan.nets:
        nets[name] = net = make_network(policy.network_specs[name])
        for key, variable in net.variables.items():
            variable.assign(weights[key])
    return nets


# --- SavedModel


class _Served(tf.Module):
    """What a SavedModel is saved from: the function and the variables it reads."""

    def __init__(self, plan: Plan, nets: Mapping[str, Any]) -> None:
        super().__init__()
        self.networks = [getattr(net, "model", None) for net in nets.values()]
        self.weights = [variable.value for net in nets.values() for variable in net.variables.values()]

        def run(**inputs: Any) -> dict[str, Any]:
            return plan.run(ops, nets, inputs, _normalize)

        specs = {
            item.name: tf.TensorSpec([None, *item.shape], tf.as_dtype(item.dtype), item.name) for item in plan.inputs
        }
        self.run = tf.function(run, autograph=False)
        self.signature = self.run.get_concrete_function(**specs)


def _save(plan: Plan, nets: Mapping[str, Any], folder: Path) -> None:
    served = _Served(plan, nets)
    tf.saved_model.save(served, str(folder), signatures={"serving_default": served.signature})


def _normalize(x: Any, mean: np.ndarray, scale: np.ndarray) -> Any:
    return tf.cast((tf.cast(x, tf.float64) - mean) * scale, tf.float32)


# --- .keras


def _keras_model(plan: Plan, nets: Mapping[str, Any]) -> Any:
    """A functional model of Keras' own layers and operations, and the user's model if there is one."""
    inputs = {item.name: keras.Input(item.shape, name=item.name, dtype=str(item.dtype)) for item in plan.inputs}
    if isinstance(plan.objective.dist, FrameworkDistribution):
        raise ExportError("export: format 'keras' can't hold custom_action_dist's own objects; choose 'saved_model'")
    weights = plan.policy.get_weights()
    stock = {name: _symbolic(net, weights) for name, net in nets.items()}
    outputs = plan.run(keras_ops, stock, inputs, _normalize_symbolic)
    model = keras.Model(inputs, outputs, name="policy")
    for net in stock.values():
        net.set_weights()
    return model


def _normalize_symbolic(x: Any, mean: np.ndarray, scale: np.ndarray) -> Any:
    return keras.ops.cast((keras.ops.cast(x, "float64") - mean) * scale, "float32")


def _symbolic(net: Any, weights: Mapping[str, np.ndarray]) -> Any:
    return StockNetwork(net.spec, weights) if isinstance(net.spec, NetworkSpec) else _UserModel(net, weights)


class _UserModel:
    """A user's Keras model, called on symbolic tensors, and the network that polylib adds to it, if there is one."""

    def __init__(self, net: Any, weights: Mapping[str, np.ndarray]) -> None:
        self._net, self.state, self.state_outputs = net, net.state, net.state_outputs
        self._added = None if net.added is None else StockNetwork(net.added, weights)

    def __call__(self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None) -> dict[str, Any]:
        found = dict(self._net._call(inputs, False)[0])
        return found if self._added is None else {**found, **self._added({**inputs, **found})}

    def set_weights(self) -> None:
        """Of the added network; the user's model has its own."""
        if self._added is not None:
            self._added.set_weights()


class StockNetwork(SpecNetwork):
    """A `NetworkSpec` of layers and operations that Keras has itself, called once on symbolic tensors.

    Args:
        spec: the description.
        weights: the values of its variables by canonical key.
    """

    def __init__(self, spec: NetworkSpec, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__(spec)
        self._weights = {
            layer: [np.asarray(weights[key]) for key in keys] for layer, keys in spec.weight_keys().items()
        }
        self._names = plain_names(layer.name for layer in spec.layers)
        self._made: list[tuple[Any, list[np.ndarray]]] = []

    def __call__(self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None) -> dict[str, Any]:
        """Outputs by name."""
        values = dict(inputs)
        for layer in self.spec.needed():
            sources = [values[name] for name in layer.sources]
            if layer.kind in CELLS:
                values[layer.name], states = self._cell(layer, sources)
                values.update({f"{layer.name}/{i}": state for i, state in enumerate(states)})
            else:
                values[layer.name] = self._apply(layer, sources)
        return {name: values[layer] for name, layer in self.spec.outputs.items()}

    def set_weights(self) -> None:
        """Gives the layers their values."""
        for made, values in self._made:
            made.set_weights([x.reshape(v.shape) for x, v in zip(values, made.weights, strict=True)])

    def _own(self, layer: Layer, made: Any) -> Any:
        self._made.append((made, self._weights[layer.name]))
        return made

    def _apply(self, layer: Layer, sources: list[Any]) -> Any:
        x, name = sources[0], self._names[layer.name]
        if layer.kind == "to_float":
            x = keras.ops.cast(x, "float32")
            return x if layer.gain == 1.0 else x * layer.gain
        if layer.kind == "one_hot":
            return _one_hot(layer, x)
        if layer.kind == "flatten":
            return keras.layers.Reshape((layer.units,), name=name)(x)
        if layer.kind == "concat":
            return keras.layers.Concatenate(name=name)(sources)
        if layer.kind == "activation":
            return keras.layers.Activation(layer.activation, name=name)(x)
        if layer.kind == "dense":
            return self._own(layer, keras.layers.Dense(layer.units, layer.activation, name=name))(x)
        if layer.conv is not None:
            conv = layer.conv
            padding = "same" if any(map(any, conv.pads)) else "valid"
            made = keras.layers.Conv2D(
                conv.filters, conv.kernel, conv.stride, padding, activation=layer.activation, name=name
            )
            return self._own(layer, made)(x)
        if layer.kind == "log_std":
            # The one row of an embedding: trained numbers, the same for every row of the batch.
            index = keras.ops.zeros_like(x[:, 0], dtype="int32")
            numbers = self._own(layer, keras.layers.Embedding(1, layer.units, name=name))(index)
            return keras.ops.concatenate([x, numbers], -1)
        raise ExportError(f"export: format 'keras' has no layer of kind {layer.kind!r}; choose 'saved_model'")

    def _cell(self, layer: Layer, sources: list[Any]) -> tuple[Any, tuple[Any, ...]]:
        """One step of a layer with state, or the like."""
        if layer.kind not in ("lstm", "gru"):
            return CELLS[layer.kind](keras_ops, sources[0], tuple(sources[1:]), tuple(self._weights[layer.name]), 1)
        kind = keras.layers.LSTM if layer.kind == "lstm" else keras.layers.GRU
        made = self._own(layer, kind(layer.units, return_state=True, unroll=True, name=self._names[layer.name]))
        step = keras.layers.Reshape((1, layer.fan_in))(sources[0])
        out, *states = made(step, initial_state=sources[1:])
        return out, tuple(states)


def _one_hot(layer: Layer, x: Any) -> Any:
    """Each component's classes side by side."""
    x = keras.ops.reshape(x, (-1, len(layer.sizes)))
    pairs = enumerate(zip(layer.sizes, layer.offsets, strict=True))
    parts = [keras.ops.one_hot(x[:, i] - offset, size, dtype="float32") for i, (size, offset) in pairs]
    return parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, -1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without TensorFlow's remarks about what it writes."""
    loggers = [tf.get_logger(), logging.getLogger("absl")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
