"""Users' Keras models as networks of a policy: built, checked against what is asked of them, and called.

A model is built eagerly in every mode, so that its constructor may load weights and look at values. `tf2` calls it as
it is. `tf` gives each of its variables a twin in the policy's graph and calls it with the twins' values in the
variables' places; what the call would have assigned (moving statistics, seeds) is assigned to the twins.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork, example_inputs, misfit
from polylib.models.finished_keras import Recipe, is_functional, refuse_instance
from polylib.models.finished_torch import refuse_module
from polylib.models.networks import SEQ_MASK
from polylib.models.spaces import is_nested, unflatten
from polylib.policy.policy import random_stream
from polylib.policy.tf.models import KerasNetwork

# Steps of a sequence up to which a graph repeats the model: four times faster than a loop, but made more slowly; of a
# loop's steps, such as those of Keras' recurrent layers, too slowly.
_UNROLLED = 32
_ROWS = 7  # of the example that a new model is tried on


class CustomKerasNetwork:
    """A user's Keras model, with the default network that polylib adds to it: values beside it, heads on its outputs.

    Args:
        spec: what is asked of the model.
        seed: of its initialisers; None: whatever they draw.
        graph: the graph of a `tf` policy; must not be the default one yet.

    Attributes:
        model: the user's model.
        variables: canonical key to Keras variable, in creation order: all float variables of the model, frozen ones
            and moving statistics too, as `<name>/<position of the layer>/<leaf>`; then those of the added network.
        added: what polylib adds, None if nothing.
        headed: whether that goes on from the model's outputs.
        own: those of the model, eagerly made in every mode.
        state: shapes of the recurrent state.
        state_outputs: `state_out_0`, ...
        widths: of the model's own outputs, in order.

    Raises:
        ConfigError: if the model isn't what is asked for, with what was expected beside what came.
    """

    def __init__(self, spec: CustomNetwork, seed: int | None = None, graph: Any = None) -> None:
        self.spec = spec
        self._what = described(spec.model)
        with seeded(seed, spec.name):
            self.model = self._made(graph is not None)
            self.state = self._find_state()
            self.state_outputs = tuple(f"state_out_{i}" for i in range(len(self.state)))
            self._arrange = self._arrangement()
            self._twins: dict[int, Any] | None = None
            self._penalties: list[Any] = []
            out = self._tried()
        self._check_outputs(out)
        self.widths = {name: int(out[name].shape[1]) for name in spec.outputs if name in out}
        self.added = spec.added(spec, self.widths)
        self.headed = self.added is not None and not self.widths.keys().isdisjoint(self.added.inputs)
        self.own = keyed(self.model, spec.name, self._what)
        self._check_variables()
        self._graph_calls: dict[bool, Callable[..., Any]] = {}
        self._session_model: SessionModel | None = None
        values = {key: variable.numpy() for key, variable in self.own.items()}
        if graph is None:
            self._finish(dict(self.own))
        else:
            without_eager_tensors(self.model)
            now = [(v, v.numpy()) for v in self.model.variables]
            with graph.as_default():
                self._twins = {id(v): _twin(v, value) for v, value in now}
                self._finish({key: self._twins[id(v)] for key, v in self.own.items()})
        self._first = values

    def _finish(self, variables: dict[str, Any]) -> None:
        self.variables = variables
        self._addition = None if self.added is None else KerasNetwork(self.added)
        if self._addition is not None:
            self.variables.update(self._addition.variables)

    # --- Network

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Any]:
        """Outputs by name, each `[N, units]`."""
        added = () if self.added is None else self.added.outputs
        names = (*self.spec.outputs, *added, *self.state_outputs) if outputs is None else tuple(outputs)
        found: dict[str, Any] = {}
        if self.headed or any(name not in added for name in names):
            found = self._unrolled(inputs, training)
        wanted = [name for name in names if name in added]
        if self._addition is not None and wanted:
            found = {**found, **self._addition({**inputs, **found}, wanted)}
        return {name: found[name] for name in names}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key."""
        return {key: tuple(v.shape) for key, v in self.variables.items()}

    def trainable_keys(self) -> list[str]:
        """The keys of what isn't frozen; none of a target network."""
        if self.spec.copy_of:
            return []
        frozen = {key for key, variable in self.own.items() if id(variable) not in self._trainable}
        return [key for key in self.variables if key not in frozen]

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The model's own values, as its constructor left them, and first ones for the added network."""
        return self._first if self._addition is None else self._first | self._addition.initial_weights(rng)

    def penalties(self) -> list[Any]:
        """The model's losses (regularisation, `add_loss`) in its last call with `training=True`."""
        found, self._penalties = self._penalties, []
        return found

    # --- calling

    def _unrolled(self, inputs: Mapping[str, Any], training: bool) -> dict[str, Any]:
        """A step for each row, or the steps of sequences one after another with the state carried along."""
        if not self.state or SEQ_MASK not in inputs:
            out, losses = self._call(inputs, training)
        else:
            out, losses = self._sequences(inputs, training)
        if training:
            self._penalties = losses
        return out

    def _sequences(self, inputs: Mapping[str, Any], training: bool) -> tuple[dict[str, Any], list[Any]]:
        """Outputs of all steps as rows, the last states; losses are means over steps: weights are penalised once."""
        time = inputs[SEQ_MASK].shape[1]
        columns = {name: tf.reshape(inputs[name], (-1, time, *inputs[name].shape[1:])) for name in self.spec.inputs}
        names = list(self.widths)

        def step(given: dict[str, Any], states: list[Any]) -> tuple[list[Any], list[Any], Any]:
            given.update({f"state_{i}": x for i, x in enumerate(states)})
            out, losses = self._call(given, training)
            return [out[name] for name in self.state_outputs], [out[name] for name in names], tf.add_n([0.0, *losses])

        states = [inputs[f"state_{i}"] for i in range(len(self.state))]
        if time <= _UNROLLED and not self._loops:
            states, outs, loss = _repeated(step, columns, states, time)
        else:
            widths = list(self.widths.values())
            states, outs, loss = _looped(step, columns, states, time, widths)
        rows = {name: tf.reshape(x, (-1, self.widths[name])) for name, x in zip(names, outs, strict=True)}
        return {**rows, **dict(zip(self.state_outputs, states, strict=True))}, [loss / float(time)]

    def _call(self, inputs: Mapping[str, Any], training: bool) -> tuple[dict[str, Any], list[Any]]:
        """The model's outputs by name, and its losses if it is training."""
        given = {name: inputs[name] for name in (*self.spec.inputs, *(f"state_{i}" for i in range(len(self.state))))}
        if self._twins is None:
            out = self.model(self._arrange(given), training=training)
            return self._named(out), self._losses(training)
        if tf.inside_function():
            return self._with_twins(given, training)
        # A graph takes eager constants (small ones) only inside a function.
        call = self._graph_calls.get(training)
        if call is None:
            call = self._graph_calls[training] = tf.function(
                lambda given: self._with_twins(given, training), autograph=False
            )
        return call(given)

    def _losses(self, training: bool) -> list[Any]:
        return [tf.reduce_sum(tf.convert_to_tensor(x)) for x in self.model.losses] if training else []

    def _with_twins(self, given: dict[str, Any], training: bool) -> tuple[dict[str, Any], list[Any]]:
        """The same with the twins' values in the places of the model's; when training, updates go to the twins."""
        pairs = self.twins()
        before = [(v, tf.convert_to_tensor(twin.value)) for v, twin in pairs]
        with keras.StatelessScope(before, collect_losses=True, initialize_variables=False) as scope:
            out = self.model(self._arrange(given), training=training)
            losses = self._losses(training)
        if training:
            for (variable, old), (_, twin) in zip(before, pairs, strict=True):
                new = scope.get_current_value(variable)
                if new is not old:
                    twin.value.assign(new)
        return self._named(out), losses

    def _named(self, out: Any) -> dict[str, Any]:
        """A model's outputs by name: a dict as it is, a sequence in order, a tensor is the first one."""
        required = [name for name in self.spec.outputs if name not in self.spec.optional]
        if isinstance(out, Mapping):
            return dict(out)
        parts = list(out) if isinstance(out, list | tuple) else [out]
        names = (*self.spec.outputs, *self.state_outputs)
        if len(parts) == len(required) + len(self.state):
            names = (*required, *self.state_outputs)
        return {name: x for name, x in zip((*names, *(f"output {i}" for i in range(len(parts)))), parts, strict=False)}

    # --- building and checking

    def _made(self, in_graph: bool) -> Any:
        """The model of the config's factory, class or finished model."""
        maker = self.spec.model
        if isinstance(maker, keras.Model):
            if not is_functional(maker):
                if in_graph:
                    raise refuse_instance(maker, "framework 'tf' needs a copy of it in its graph")
                if self.spec.copy_of is not None:
                    raise refuse_instance(maker, "a target network is a second copy of it")
                if self.spec.config:
                    raise refuse_instance(maker, "a custom_model_config can't change it")
                return maker
            maker = Recipe(maker)
        refuse_module(maker)
        if not callable(maker):
            raise ConfigError(
                f"config key 'custom_model': got {maker!r}, expected a factory, a keras.Model or a registered name"
            )
        spec = self.spec
        try:
            model = maker(spec.observation_space, spec.action_space, dict(spec.outputs), **spec.config)
        except ConfigError:
            raise
        except Exception as error:
            call = "(observation_space, action_space, outputs, **custom_model_config)"
            raise self._raised(error, f"when it was called with {call}") from error
        refuse_module(model)
        if not isinstance(model, keras.Model):
            raise ConfigError(
                f"config key 'custom_model': {self._what} returned {type(model).__module__}.{type(model).__name__}, "
                "expected a keras.Model"
            )
        return model

    def _raised(self, error: Exception, when: str) -> ConfigError:
        text = " ".join(str(error).split())
        return ConfigError(
            f"config key 'custom_model': {self._what} raised {type(error).__name__} {when}: {text[:500]}"
        )

    def _find_state(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of `state_0`, `state_1`, ...: inputs of a functional model, `state_shapes` of another one."""
        if not self._is_symbolic():
            shapes = getattr(self.model, "state_shapes", ())
            try:
                return tuple(tuple(int(n) for n in shape) for shape in shapes)
            except (TypeError, ValueError):
                raise ConfigError(
                    f"config key 'custom_model': {self._what} has state_shapes={shapes!r}, expected the shape of each "
                    "state without the batch axis, such as [(64,), (64,)]"
                ) from None
        found: dict[str, tuple[int, ...]] = {}
        for name, tensor in _named_inputs(self.model.input):
            if name.startswith("state_"):
                found[name] = tuple(tensor.shape[1:])
        expected = [f"state_{i}" for i in range(len(found))]
        if sorted(found) != sorted(expected) or any(n is None for shape in found.values() for n in shape):
            raise misfit(
                self._what,
                [(name, name, f"{_brackets(shape)}") for name, shape in found.items()],
                f"its state inputs must be called {', '.join(expected)} and have a whole shape",
            )
        return tuple(found[name] for name in expected)

    def _is_symbolic(self) -> bool:
        """Whether the model says itself which inputs it takes: a functional one, also of a class of its user's."""
        kind: Any = type(self.model)
        functional: Any = next((c for c in kind.__mro__ if c.__name__ == "Functional"), None)
        return functional is not None and kind.call is functional.call

    def _arrangement(self) -> Callable[[Mapping[str, Any]], Any]:
        """A function from input columns to the nest that the model takes."""
        space, states = self.spec.observation_space, [f"state_{i}" for i in range(len(self.state))]
        if not self._is_symbolic():
            if not states:
                return lambda given: unflatten(space, given)
            return lambda given: {"obs": unflatten(space, given), **{name: given[name] for name in states}}
        columns = self._columns()
        return lambda given: keras.tree.map_structure(lambda column: given[column], columns)

    def _columns(self) -> Any:
        """The nest of a functional model's inputs with the name of a column in each place."""
        known = {name: name for name in (f"state_{i}" for i in range(len(self.state)))}
        shapes = {name: shape for name, (shape, _) in self.spec.inputs.items()}
        shapes.update(zip(known, self.state, strict=True))
        nested = is_nested(self.spec.observation_space)
        for column in self.spec.inputs:
            for alias in (column, column.removeprefix("obs/").replace("/", "_"), column.replace("/", "_")):
                known.setdefault(alias, column)
        names = [name for name, _ in _named_inputs(self.model.input)]
        others = [name for name in names if not name.startswith("state_")]
        if not nested and len(others) == 1:
            known[others[0]] = "obs"  # whatever it is called
        if nested and isinstance(self.model.input, list | tuple) and len(others) == len(self.spec.inputs):
            if not all(name in known for name in others):  # a Tuple's parts in order
                known.update(zip(others, self.spec.inputs, strict=True))
        rows, wrong = [], False
        for name, tensor in _named_inputs(self.model.input):
            found = known.get(name)
            got = _brackets(("N", *tensor.shape[1:]))
            if found is None:
                wrong, text = True, "no such input"
            else:
                text = _brackets(("N", *shapes[found]))
                wrong = wrong or not _compatible(tuple(tensor.shape[1:]), shapes[found])
            rows.append((name, text, got))
        if wrong:
            expected = ", ".join(column.removeprefix("obs/").replace("/", "_") for column in self.spec.inputs)
            raise misfit(f"{self._what}: an input", rows, f"its inputs may be called {expected}")
        flat = [known[name] for name in names]
        return keras.tree.pack_sequence_as(self.model.input, flat)

    def _tried(self) -> dict[str, Any]:
        """The outputs for an example; builds models that aren't built yet."""
        example = {name: tf.constant(x) for name, x in example_inputs(self.spec, _ROWS).items()}
        example.update({f"state_{i}": tf.zeros((_ROWS, *shape)) for i, shape in enumerate(self.state)})
        late: list[str] = []
        try:
            self.model(self._arrange(example), training=False)
            with refusing_variables(late), tf.GradientTape() as tape:
                out = self.model(self._arrange(example), training=False)
        except Exception as error:
            if late:
                raise ConfigError(
                    f"config key 'custom_model': {self._what} creates a variable ({late[0]}) when it is called: make "
                    "all layers and variables in its constructor or in build()"
                ) from None
            nest = keras.tree.map_structure(lambda x: f"{x.dtype.name}{_brackets(x.shape)}", self._arrange(example))
            raise self._raised(error, f"when it was called with {nest}") from error
        own = {id(v.value) for v in self.model.variables}
        for variable in tape.watched_variables():
            if id(variable) not in own:
                raise ConfigError(
                    f"config key 'custom_model': {self._what} uses variable {variable.name!r}, which Keras doesn't "
                    "know of: make it with self.add_weight(...), or keep the layer that owns it as an attribute"
                )
        return self._named(out)

    def _check_outputs(self, out: dict[str, Any]) -> None:
        """Names, shapes and dtypes of what came; raises one error with all of them."""
        spec = self.spec
        self._check_recurrent_layers()
        expected = spec.expected({name: getattr(x, "shape", ()) for name, x in out.items()})
        expected.update(zip(self.state_outputs, self.state, strict=True))
        rows, wrong = [], False
        for name, shape in expected.items():
            text = f"float32[{', '.join(map(str, ('N', *shape)))}]"
            got = _described(out[name]) if name in out else "missing"
            may_miss = name in spec.optional and name not in out
            wrong = wrong or (got != text and not may_miss)
            rows.append((name, text, got))
        for name in out:
            if name not in expected:
                wrong = True
                rows.append((name, "nothing of that name", _described(out[name])))
        if wrong:
            raise misfit(self._what, rows, f"its outputs are not what is asked for{spec.hint}")
        broken = [name for name, x in out.items() if np.isnan(x.numpy()).any()]
        if broken:
            raise misfit(
                self._what,
                [(name, "numbers", "NaN" if name in broken else "numbers") for name in out],
                "it returns NaN for observations of the space",
            )

    def _check_recurrent_layers(self) -> None:
        """Recurrent layers that would forget: of a model without states over one step, or with Keras' own state."""
        self._loops = False
        for layer in self.model._flatten_layers(include_self=False):
            if not isinstance(layer, keras.layers.RNN):
                continue
            self._loops = self._loops or not layer.unroll
            shapes = layer.get_build_config() or {}
            shape = shapes.get("input_shape") or next(iter(shapes.get("shapes_dict", {}).values()), None)
            one_step = shape is not None and len(shape) > 1 and shape[1] == 1
            if not layer.stateful and (self.state or not one_step):
                continue
            kind, units = type(layer).__name__, getattr(layer, "units", "units")
            count = 2 if isinstance(layer.cell, keras.layers.LSTMCell) else 1
            given = ", ".join(f"state_{i}" for i in range(count))
            how = (
                "with stateful=True it would mix the episodes of several environments"
                if layer.stateful
                else "it sees one step at a time and would forget all before"
            )
            raise ConfigError(
                f"config key 'custom_model': {self._what}: layer {layer.name!r} ({kind}): {how}. Make its state inputs "
                f"and outputs of the model: inputs {given} [{units}], "
                f"x, *states = keras.layers.{kind}({units}, return_state=True, unroll=True)(x, "
                f"initial_state=[{given}]), "
                f"outputs {', '.join(f'state_out_{i}' for i in range(count))}"
            )

    def _check_variables(self) -> None:
        self._trainable = {id(v) for v in self.model.trainable_variables}
        learns = self._trainable or (self.headed and self.added is not None and self.added.shapes())
        if not learns:
            raise ConfigError(
                f"config key 'custom_model': {self._what} has nothing to learn: expected at least one trainable "
                f"weight, got none and {len(self.own)} frozen ones"
            )

    # --- looking inside

    def session_model(self, graph: Any, session: Any) -> Any:
        """`policy.model` in `tf` mode; always the same one."""
        if self._session_model is None:
            self._session_model = SessionModel(self, graph, session)
        return self._session_model

    def twins(self) -> list[tuple[Any, Any]]:
        """The model's variables, each with its twin in the graph."""
        twins = self._twins or {}
        return [(v, twins[id(v)]) for v in self.model.variables]


class SessionModel:
    """`policy.model` of a user's model in `tf` mode: the model, with the values that the session has now.

    Calling it takes what the model takes, as arrays, and returns what the model returns, as arrays. Everything else is
    the model's own; changing its weights doesn't change the policy's, `policy.set_weights` does.

    Args:
        network: the model's network.
        graph: the policy's graph.
        session: the policy's session.
    """

    def __init__(self, network: CustomKerasNetwork, graph: Any, session: Any) -> None:
        self._network, self._graph, self._session = network, graph, session
        self._fetches: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs for `[B, ...]` arrays."""
        self._refresh()
        # The model itself is no part of the graph.
        return keras.tree.map_structure(lambda x: x.numpy(), self._network.model(*args, **kwargs))

    def _refresh(self) -> None:
        with self._graph.as_default():
            pairs = self._network.twins()
            if not self._fetches:
                self._fetches = [tf.convert_to_tensor(twin.value) for _, twin in pairs]
            values = self._session.run(self._fetches)
        for (variable, _), value in zip(pairs, values, strict=True):
            variable.assign(value)

    def get_weights(self) -> list[np.ndarray]:
        """Values of the model's weights, in its own order."""
        self._refresh()
        return self._network.model.get_weights()

    def summary(self, **kwargs: Any) -> None:
        """Keras' table of layers."""
        self._network.model.summary(**kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_network" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._refresh()
        return getattr(self._network.model, name)


# --- parts


_Step = Callable[[dict[str, Any], list[Any]], tuple[list[Any], list[Any], Any]]


def _repeated(step: _Step, columns: dict[str, Any], states: list[Any], time: int) -> tuple[list[Any], list[Any], Any]:
    """The last states, outputs `[B, T, units]` and the sum of losses over `columns: [B, T, ...]`, step by step."""
    outs, losses = [], []
    for t in range(time):
        states, out, loss = step({name: x[:, t] for name, x in columns.items()}, states)
        outs.append(out)
        losses.append(loss)
    return states, [tf.stack(parts, 1) for parts in zip(*outs, strict=True)], tf.add_n(losses)


def _looped(
    step: _Step, columns: dict[str, Any], states: list[Any], time: int, widths: list[int]
) -> tuple[list[Any], list[Any], Any]:
    """The same as a loop of TensorFlow's, in which a graph has the model once."""
    steps = {name: tf.transpose(x, (1, 0, *range(2, len(x.shape)))) for name, x in columns.items()}
    arrays = [tf.TensorArray(tf.float32, time, element_shape=(None, width)) for width in widths]

    def body(t: Any, states: list[Any], arrays: list[Any], total: Any) -> tuple[Any, list[Any], list[Any], Any]:
        states, out, loss = step({name: x[t] for name, x in steps.items()}, states)
        return t + 1, states, [array.write(t, x) for array, x in zip(arrays, out, strict=True)], total + loss

    first = (tf.constant(0), states, arrays, tf.constant(0.0))
    _, states, arrays, total = tf.while_loop(lambda t, *_: t < time, body, first, parallel_iterations=1)
    return states, [tf.transpose(array.stack(), (1, 0, 2)) for array in arrays], total


def described(model: Any) -> str:
    """A user's model in words."""
    if isinstance(model, keras.Model):
        return f"model {model.name!r}"
    name = getattr(model, "__qualname__", None) or getattr(model, "__name__", None)
    return f"model {name!r}" if name else f"model {type(model).__name__!r}"


@contextmanager
def seeded(seed: int | None, name: str) -> Iterator[None]:
    """Seeds what Keras' initialisers draw their seeds from, and NumPy's global generator, for a while."""
    if seed is None:
        yield
        return
    first = int(random_stream(seed, 4, zlib.crc32(name.encode())).integers(1 << 31))
    states = random.getstate(), np.random.get_state()
    random.seed(first)
    np.random.seed(first)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def refusing_variables(refused: list[str]) -> Iterator[None]:
    """Creating a TensorFlow variable meanwhile raises an error, and adds its name to `refused`."""

    def refuse(next_creator: Any, **kwargs: Any) -> Any:
        # What is raised in a call comes out of Keras in other words.
        refused.append(kwargs.get("name") or "unnamed")
        raise RuntimeError("a variable is created")

    with tf.variable_creator_scope(refuse):
        yield


def keyed(model: Any, name: str, what: str) -> dict[str, Any]:
    """The model's float variables by canonical key: by the position of their layer and their own name.

    Never by Keras' paths, which count how many models a process has built.
    """
    found: dict[str, Any] = {}
    place, owner, leaves = -1, None, set[str]()
    for variable in model.weights:
        prefix, _, leaf = variable.path.rpartition("/")
        if prefix != owner or leaf in leaves:
            place, owner, leaves = place + 1, prefix, set()
        leaves.add(leaf)
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if "float" not in dtype:
            continue
        if dtype != "float32":
            raise ConfigError(
                f"config key 'custom_model': {what}: variable {variable.path!r} has dtype {dtype}, expected float32: "
                "make its layer with dtype='float32'"
            )
        found[f"{name}/{place:03d}/{leaf}"] = variable
    return found


def without_eager_tensors(model: Any) -> None:
    """Turns eager tensors that layers keep (a Normalization's mean) into arrays, which a graph can take."""
    for layer in model._flatten_layers():
        for name, value in list(vars(layer).items()):
            if isinstance(value, tf.Tensor) and not isinstance(value, tf.Variable):
                setattr(layer, name, value.numpy())


def _twin(variable: Any, value: np.ndarray) -> Any:
    """A variable of the same kind in the default graph: 0 until it is set, but for counters and seeds."""
    zeros = value.dtype.kind == "f"
    return keras.Variable(
        (lambda shape, dtype: tf.zeros(shape, dtype)) if zeros else value,
        shape=tuple(variable.shape) if zeros else None,
        dtype=keras.backend.standardize_dtype(variable.dtype),
        trainable=variable.trainable,
        name=variable.name,
    )


def _named_inputs(nest: Any) -> list[tuple[str, Any]]:
    """Names and tensors of a functional model's inputs, in Keras' order: a dict's keys, else the tensors' names."""
    found = []
    for path, tensor in keras.tree.flatten_with_path(nest):
        keys = [str(key) for key in path]
        plain = all(isinstance(key, str) for key in path)
        keys = keys[1:] if len(keys) > 1 and keys[0] == "obs" else keys
        found.append(("_".join(keys) if keys and plain else tensor.name, tensor))
    return found


def _compatible(declared: tuple[int | None, ...], shape: tuple[int, ...]) -> bool:
    """Whether Keras takes arrays `[N, *shape]` for an input: a last axis of 1 may be missing or too much."""
    if len(declared) == len(shape):
        return all(d is None or d == n for d, n in zip(declared, shape, strict=True))
    longer, shorter = (declared, shape) if len(declared) > len(shape) else (shape, declared)
    if len(longer) != len(shorter) + 1 or longer[-1] != 1:
        return False
    return all(a is None or b is None or a == b for a, b in zip(longer, shorter, strict=False))


def _brackets(shape: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _described(x: Any) -> str:
    """Dtype and shape of an output for the example, whose rows are `N`."""
    shape = getattr(x, "shape", None)
    if shape is None:
        return type(x).__name__
    sizes = list(shape)
    if sizes and sizes[0] == _ROWS:
        sizes[0] = "N"
    return f"{keras.backend.standardize_dtype(x.dtype)}{_brackets(sizes)}"
