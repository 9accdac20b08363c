"""Keras models from network descriptions, and the functions that call them by output."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from polylib.errors import FrameworkError
from polylib.models.custom import CustomNetwork
from polylib.models.networks import SEQ_MASK, Layer, NetworkSpec, SpecNetwork, plain_names
from polylib.models.recurrent import CELLS
from polylib.policy.tf import ops

if keras.backend.backend() != "tensorflow":
    raise FrameworkError(
        f"frameworks 'tf' and 'tf2' need Keras on TensorFlow, here it runs on {keras.backend.backend()!r}: set the "
        "environment variable KERAS_BACKEND=tensorflow before anything imports keras"
    )


class OneHot(keras.layers.Layer):
    """`[N]` or `[N, ...] int` to `[N, units] float32`: each component's classes side by side."""

    def __init__(self, sizes: Sequence[int], offsets: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sizes, self.offsets = tuple(sizes), tuple(offsets)

    def call(self, inputs: Any) -> Any:
        """The one-hot vectors."""
        return one_hot(inputs, self.sizes, self.offsets)

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        return {**super().get_config(), "sizes": self.sizes, "offsets": self.offsets}


class Cast(keras.layers.Layer):
    """Any dtype to float32, times `scale`."""

    def __init__(self, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, inputs: Any) -> Any:
        """The cast tensor."""
        return cast(inputs, self.scale)

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        return {**super().get_config(), "scale": self.scale}


class LogStd(keras.layers.Layer):
    """Appends trained numbers, the same for every row."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape: Any) -> None:
        """Makes the variable."""
        self.log_std = self.add_weight(shape=(self.units,), initializer="zeros", name="log_std")
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """`[N, k]` to `[N, k + units]`."""
        return append_row(inputs, self.log_std)

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        return {**super().get_config(), "units": self.units}


class OneStep(keras.layers.Layer):
    """`[N, F]` to `[N, 1, F]`, a sequence of one step."""

    def call(self, inputs: Any) -> Any:
        """The sequence."""
        return inputs[:, None]


class Cell(keras.layers.Layer):
    """One step of a layer with state that Keras has none of; holds its weights in the canonical layout.

    Args:
        layer: of a kind in `CELLS`, or its fields as a dict.
    """

    def __init__(self, layer: Layer | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.description = layer if isinstance(layer, Layer) else Layer(**{**layer, "sources": tuple(layer["sources"])})

    def build(self, input_shape: Any) -> None:
        """Makes the variables."""
        for name, leaf in self.description.leaves().items():
            setattr(self, name, self.add_weight(shape=leaf.shape, initializer="zeros", name=name))
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """`[x: [N, F], *states]` to `(outputs, *states)`."""
        x, *states = inputs
        weights = tuple(getattr(self, name).value for name in self.description.leaves())
        outputs, states = CELLS[self.description.kind](ops, x, tuple(states), weights, 1)
        return (outputs, *states)

    def get_config(self) -> dict[str, Any]:
        """For saving."""
        return {**super().get_config(), "layer": dataclasses.asdict(self.description)}


def one_hot(x: Any, sizes: Sequence[int], offsets: Sequence[int]) -> Any:
    """`[N, ...] int` to `[N, sum(sizes)] float32`."""
    if len(sizes) == 1:
        return tf.one_hot(tf.reshape(x, (-1,)) - offsets[0], sizes[0])
    x = tf.reshape(x, (-1, len(sizes)))
    return tf.concat([tf.one_hot(x[:, i] - o, n) for i, (n, o) in enumerate(zip(sizes, offsets, strict=True))], -1)


def cast(x: Any, scale: float) -> Any:
    """float32, times `scale`."""
    x = tf.cast(x, tf.float32)
    return x if scale == 1.0 else x * scale


def append_row(x: Any, row: Any) -> Any:
    """`x: [N, k]` with `row: [j]` after each of its rows."""
    row = tf.convert_to_tensor(row)
    return tf.concat([x, tf.broadcast_to(row, (tf.shape(x)[0], row.shape[0]))], -1)


def input_names(spec: NetworkSpec) -> dict[str, str]:
    """How a Keras model calls its inputs, states among them."""
    return plain_names([*spec.inputs, *(f"state_{i}" for i in range(len(spec.state)))])


def _make(layer: Layer, name: str) -> Any:
    """The Keras layer called `name`; the policy sets the canonical initial weights, drawn in NumPy, right after."""
    if layer.kind == "to_float":
        # autocast would turn integer inputs into floats before the layer sees them; the cast is the layer's own.
        return Cast(layer.gain, name=name, autocast=False)
    if layer.kind == "one_hot":
        return OneHot(layer.sizes, layer.offsets, name=name, autocast=False)
    if layer.kind == "activation":
        return keras.layers.Activation(layer.activation, name=name)
    if layer.kind == "flatten":
        return keras.layers.Reshape((layer.units,), name=name)
    if layer.kind == "concat":
        return keras.layers.Concatenate(name=name)
    if layer.kind == "log_std":
        return LogStd(layer.units, name=name, dtype="float32")
    if layer.conv is not None:
        conv = layer.conv
        padding = "same" if any(map(any, conv.pads)) else "valid"
        return keras.layers.Conv2D(
            conv.filters,
            conv.kernel,
            conv.stride,
            padding,
            activation=layer.activation,
            kernel_initializer="zeros",
            name=name,
            dtype="float32",
        )
    if layer.kind in ("lstm", "gru"):
        kind = keras.layers.LSTM if layer.kind == "lstm" else keras.layers.GRU
        zeros = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros"}
        return kind(layer.units, return_state=True, name=name, dtype="float32", **zeros)
    if layer.kind in CELLS:
        return Cell(layer, name=name, dtype="float32")
    return keras.layers.Dense(layer.units, layer.activation, kernel_initializer="zeros", name=name, dtype="float32")


def _variables(layer: Layer, made: Any) -> list[Any]:
    """A Keras layer's variables in the order of `layer.leaves()`."""
    owner = made.cell if layer.kind in ("lstm", "gru") else made
    return [getattr(owner, leaf) for leaf in layer.leaves()]


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


class KerasNetwork(SpecNetwork):
    """A `NetworkSpec` as a functional Keras model, and a direct way to compute it.

    A policy computes with the model's variables but without Keras' call, which eagerly takes most of the time: for
    layers like these the operations are the same.

    Attributes:
        model: the Keras model; called with the observation, it returns a dict of all outputs.
        variables: canonical key to Keras variable, in creation order.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__(spec)
        memory = {f"state_{i}": (shape, np.dtype(np.float32)) for i, shape in enumerate(spec.state)}
        names, layer_names = input_names(spec), plain_names(layer.name for layer in spec.layers)
        inputs = {
            name: keras.Input(shape, name=names[name], dtype=str(dtype))
            for name, (shape, dtype) in {**spec.inputs, **memory}.items()
        }
        tensors: dict[str, Any] = dict(inputs)
        self.variables: dict[str, Any] = {}
        keys = spec.weight_keys()
        for layer in spec.layers:
            made = _make(layer, layer_names[layer.name])
            sources = [tensors[name] for name in layer.sources]
            if layer.kind in ("lstm", "gru"):
                tensors[layer.name], *states = made(OneStep()(sources[0]), initial_state=sources[1:])
                tensors.update({f"{layer.name}/{i}": state for i, state in enumerate(states)})
            elif layer.kind in CELLS:
                tensors[layer.name], *states = made(sources)
                tensors.update({f"{layer.name}/{i}": state for i, state in enumerate(states)})
            else:
                tensors[layer.name] = made(sources if len(sources) > 1 else sources[0])
            self.variables.update(zip(keys.get(layer.name, ()), _variables(layer, made), strict=True))
        outputs = {output: tensors[name] for output, name in spec.outputs.items()}
        named = {names[name]: tensor for name, tensor in inputs.items()}
        self.model = keras.Model(next(iter(named.values())) if len(named) == 1 else named, outputs, name=spec.name)
        self._keys = keys
        self._steps = {layer.name: self._step(layer) for layer in spec.layers}
        self._plans: dict[tuple[str, ...], tuple[Layer, ...]] = {}

    def _step(self, layer: Layer) -> Callable[..., Any]:
        """The layer's computation as a function of its sources (and the number of steps, if it is recurrent)."""
        if layer.kind == "to_float":
            return lambda x: cast(x, layer.gain)
        if layer.kind == "one_hot":
            return lambda x: one_hot(x, layer.sizes, layer.offsets)
        if layer.kind == "activation":
            return _ACTIVATIONS[layer.activation or ""]
        if layer.kind == "flatten":
            return lambda x: tf.reshape(x, (-1, layer.units))
        if layer.kind == "concat":
            return lambda *xs: tf.concat(xs, -1)
        weights = tuple(self.variables[key].value for key in self._keys[layer.name])
        if layer.kind == "log_std":
            return lambda x: append_row(x, weights[0])
        if layer.kind in CELLS:
            return lambda time, x, *states: CELLS[layer.kind](ops, x, states, weights, time)
        kernel, bias = weights
        activation = _ACTIVATIONS[layer.activation] if layer.activation else None
        if layer.conv is not None and layer.conv.whole:
            size, filters = math.prod(layer.conv.shape), layer.conv.filters
            product = lambda x: tf.matmul(tf.reshape(x, (-1, size)), tf.reshape(kernel, (size, filters)))[:, None, None]  # noqa: E731
        elif layer.conv is not None:
            # The pads are those of "SAME"; spelled out they would keep TensorFlow from its faster kernels.
            stride, pads = layer.conv.stride, "SAME" if any(map(any, layer.conv.pads)) else "VALID"
            shape = (-1, *layer.conv.out)
            # The shape again, since TensorFlow's convolution of no rows returns no rows of the input's shape.
            product = lambda x: tf.reshape(tf.nn.conv2d(x, kernel, stride, pads), shape)  # noqa: E731
        else:
            product = lambda x: tf.matmul(x, kernel)  # noqa: E731

        def dense(x: Any) -> Any:
            x = tf.nn.bias_add(product(x), bias)
            return x if activation is None else activation(x)

        return dense

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Any]:
        """Outputs by name, each `[N, units]`; only what `outputs` needs is computed."""
        names = tuple(self.spec.outputs if outputs is None else outputs)
        plan = self._plans.get(names)
        if plan is None:
            plan = self._plans[names] = self.spec.needed(names)
        values: dict[str, Any] = dict(inputs)
        for layer in plan:
            step, sources = self._steps[layer.name], [values[name] for name in layer.sources]
            if layer.kind in CELLS:
                time = inputs[SEQ_MASK].shape[1] if SEQ_MASK in inputs else 1
                values[layer.name], states = step(time, *sources)
                values.update({f"{layer.name}/{i}": state for i, state in enumerate(states)})
            else:
                values[layer.name] = step(*sources)
        return {name: values[self.spec.outputs[name]] for name in names}


def make_network(spec: NetworkSpec | CustomNetwork, seed: int | None = None, graph: Any = None) -> Any:
    """The network of a description.

    Args:
        spec: the description.
        seed: of a user's model's initialisers.
        graph: where a user's model, which is made eagerly, is to be used; None: eagerly.
    """
    if isinstance(spec, NetworkSpec):
        return KerasNetwork(spec)
    from polylib.policy.tf.custom import CustomKerasNetwork  # it imports this module

    return CustomKerasNetwork(spec, seed, graph)


class GraphModel:
    """`policy.model.base_model` in `tf` mode: the Keras model, called and read in the policy's session.

    Args:
        network: the network, built in `graph`.
        graph: the policy's graph.
        session: the policy's session.
    """

    def __init__(self, network: Any, graph: Any, session: Any) -> None:
        self._network, self._graph, self._session = network, graph, session
        self._fetches: dict[Any, Any] = {}

    def __call__(self, inputs: Any) -> dict[str, np.ndarray]:
        """Outputs by name, for what the Keras model takes: an array, or a dict of arrays by input name."""
        spec = self._network.spec
        kinds = {**spec.inputs, **{f"state_{i}": (shape, np.float32) for i, shape in enumerate(spec.state)}}
        names = input_names(spec)
        given = inputs if isinstance(inputs, Mapping) else {next(iter(names.values())): inputs}
        return self.evaluate({name: np.asarray(given[names[name]], kind[1]) for name, kind in kinds.items()})

    def evaluate(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name, for flat columns."""
        time = columns[SEQ_MASK].shape[1] if SEQ_MASK in columns else None
        key = (time, *columns)
        if key not in self._fetches:
            with self._graph.as_default():
                feeds = {
                    name: tf.compat.v1.placeholder(x.dtype, [None, *x.shape[1:]]) for name, x in columns.items()
                }
                self._fetches[key] = feeds, self._network(feeds)
        feeds, fetches = self._fetches[key]
        return self._session.run(fetches, {feed: columns[name] for name, feed in feeds.items()})

    def get_weights(self) -> list[np.ndarray]:
        """Values of all variables, in creation order."""
        with self._graph.as_default():
            return self._session.run([v.value for v in self._network.variables.values()])

    def summary(self, **kwargs: Any) -> None:
        """Keras' table of layers."""
        with self._graph.as_default():
            self._network.model.summary(**kwargs)

    def __getattr__(self, name: str) -> Any:
        network = self.__dict__.get("_network")
        if network is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(network.model, name)
