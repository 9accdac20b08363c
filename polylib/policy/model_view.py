"""`policy.model` where polylib's layers are in it, and the `model` of a user's loss: RLlib's way to call a network."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, FrameworkError, WeightsError
from polylib.models.custom import CustomNetwork
from polylib.models.networks import SEQ_MASK, Layer, NetworkSpec, batch_dtype
from polylib.models.preprocessors import restore
from polylib.models.spaces import flatten, is_nested, leaves, mask_column
from polylib.policy.objective import Objective
from polylib.policy.ops import Array

Columns = dict[str, Any]


class Head:
    """Layers of a network from its features to one of its outputs, to look at.

    Args:
        name: of the output.
        layers: in creation order.
        weights: their variables by key, when called.
    """

    def __init__(self, name: str, layers: Sequence[Layer], weights: Callable[[], Mapping[str, Any]]) -> None:
        self.name, self.layers, self._weights = name, list(layers), weights

    def variables(self, as_dict: bool = False) -> Any:
        """The framework's own variables, in creation order; with `as_dict` by key."""
        found = dict(self._weights())
        return found if as_dict else list(found.values())

    def summary(self, print_fn: Callable[[str], Any] | None = None) -> None:
        """Prints the layers, their widths and numbers of parameters.

        Args:
            print_fn: takes each line; None: standard output.
        """
        write = print_fn or (lambda line: sys.stdout.write(f"{line}\n"))
        write(f"Head: {self.name}")
        total = 0
        for layer in self.layers:
            count = sum(math.prod(leaf.shape) for leaf in layer.leaves().values())
            total += count
            activation = f", {layer.activation}" if layer.activation else ""
            write(f"  {layer.name} ({layer.kind}{activation}): [B, {layer.units}], {count:,} params")
        write(f"Total params: {total:,}")

    def __repr__(self) -> str:
        return f"Head({self.name!r}, {', '.join(layer.name for layer in self.layers)})"


class ModelView:
    """A network called as `model({"obs": obs}) -> (logits, state_out)`.

    What it takes and returns is the backend's: EagerTensors (tf2), tensors with gradients (torch), NumPy arrays (tf,
    numpy). NumPy arrays are taken everywhere. Attributes that are not here are the base model's.

    Args:
        objective: of the policy, for its spaces and its distribution.
        description: of the network.
        network: the backend's.
        ops: of what `network` returns.
        variables: the network's variables by canonical key, when called.
        base_model: what the framework's users know: a Keras model, a torch module.
        training: passed to the network.
        defaults: flat columns used where a call has none: the memory of a batch.

    Attributes:
        base_model: see above.
        obs_space: of one agent.
        action_space: of one agent.
        model_config: the config's `model`.
        num_outputs: how many logits there are.
    """

    def __init__(
        self,
        objective: Objective,
        description: NetworkSpec | CustomNetwork,
        network: Any,
        ops: Any,
        variables: Callable[[], Mapping[str, Any]] = dict,
        base_model: Any = None,
        training: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.base_model, self._network, self._ops, self._variables = base_model, network, ops, variables
        self._objective, self._description, self._features = objective, description, None
        self._dist, self._training, self._defaults = objective.dist, training, dict(defaults or {})
        self.obs_space: gym.Space[Any] = objective.spec.observation_space
        self.action_space: gym.Space[Any] = objective.spec.action_space
        self.model_config, self.num_outputs = objective.config.get("model", {}), objective.dist.inputs_size
        self._previous = {
            name: (shape, dtype) for name, (shape, dtype) in description.inputs.items() if name.startswith("prev_")
        }
        self._mask_column = mask_column(self.obs_space)
        self._out: Columns | None = None

    # --- calling

    def __call__(
        self, input_dict: Any, state: Sequence[Any] | None = None, seq_lens: Any = None
    ) -> tuple[Array, list[Array]]:
        """The inputs of the action distribution, and the next state.

        Args:
            input_dict: `obs`: `[B, *obs_shape]`, nested as the observation space is, filtered as batches hold it; one
                that a preprocessor transformed is fine, too. Where the network takes them `prev_actions`,
                `prev_rewards`, `state_in_i`; `action_mask` `[B, num_outputs]`, which goes
                before one in the observations. An array alone is taken as `obs`.
            state: recurrent state, a list of `[B, *state_shape]`; None: the `state_in_i`, or zeros.
            seq_lens: `[S]`: the rows are S padded sequences of B / S steps each, of which these are real, and `state`
                is `[S, *state_shape]`. None: every row is a step of its own.

        Returns:
            `[B, num_outputs]`, with masked actions masked (of a Q network its features, see
            `get_q_value_distributions`); and a list of `[B, *state_shape]`, empty for feed-forward networks.

        Raises:
            BatchError: if something is missing or doesn't fit.
        """
        inputs = self._inputs(input_dict if isinstance(input_dict, Mapping) else {"obs": input_dict}, state, seq_lens)
        mask = inputs.pop("action_mask", None)
        out = self._out = self._run(inputs)
        if "advantages" in out:  # a Q network: what its heads go on from
            self._features = out["features"]
            return self._features, [out[name] for name in self._network.state_outputs]
        first = out["logits" if "logits" in out else next(iter(out))]
        return self._dist.mask(self._ops, first, mask), [out[name] for name in self._network.state_outputs]

    def value_function(self) -> Array:
        """Values `[B]` of the observations of the last call.

        Raises:
            BatchError: if there was none, or the network has no values.
        """
        if self._out is None:
            raise BatchError("model.value_function() gives the values of the last call of the model: call it first")
        if "value" not in self._out:
            raise BatchError(f"this model has no value function; its outputs are {', '.join(self._out)}")
        return self._out["value"][:, 0]

    # --- of Q networks

    def get_q_values(self, model_out: Any) -> Array:
        """Values `[B, num_actions]` of all actions.

        Args:
            model_out: what the last call of the model returned, or the features in it.

        Raises:
            BatchError: if it isn't, or the model is no Q network.
        """
        out = self._of_call(model_out)
        return self._objective._values(self._ops, self._objective._dueled(self._ops, out), None)  # type: ignore[attr-defined]

    def get_q_value_distributions(self, model_out: Any) -> list[Array]:
        """What the head of actions says, as RLlib's DQN model returns it: advantages, where there is dueling.

        Args:
            model_out: as for `get_q_values`.

        Returns:
            `[scores, logits, probabilities]`, the latter two ones; of distributions over returns `[scores, support,
            logits, logits, probabilities]`. `scores: [B, num_actions]`, `support: [num_atoms]`, the others `[B,
            num_actions, num_atoms]`.

        Raises:
            BatchError: as for `get_q_values`.
        """
        ops, objective = self._ops, self._objective
        advantages = self._of_call(model_out)["advantages"]
        actions, atoms = objective.num_actions, objective.num_atoms  # type: ignore[attr-defined]
        logits = ops.reshape(advantages, (-1, actions, atoms))
        if atoms == 1:
            ones = ops.zeros_like(logits) + 1.0
            return [advantages, ones, ones]
        support = ops.constant(objective.support)  # type: ignore[attr-defined]
        probabilities = ops.exp(ops.log_softmax(logits))
        return [ops.sum(probabilities * support, 2), support, logits, logits, probabilities]

    def get_state_value(self, model_out: Any) -> Array:
        """What the head of the state's value says: `[B, num_atoms]`.

        Args:
            model_out: as for `get_q_values`.

        Raises:
            BatchError: as for `get_q_values`, or without dueling.
        """
        out = self._of_call(model_out)
        if "state_value" not in out:
            raise BatchError("this model has no head for the state's value: dueling=False")
        return out["state_value"]

    @property
    def q_value_head(self) -> Head:
        """The layers from the features to `get_q_value_distributions`."""
        return self._head("advantages")

    @property
    def state_value_head(self) -> Head:
        """The layers from the features to `get_state_value`."""
        return self._head("state_value")

    def _head(self, output: str) -> Head:
        own = self._description
        description = own if isinstance(own, NetworkSpec) else self._network.added  # on a user's model
        if description is None or not {output, "features"} <= set(description.outputs):
            raise BatchError(f"this model has no such head: DQN's have one each for {output!r}, if the config says so")
        below = {layer.name for layer in description.needed(("features",))}
        layers = [layer for layer in description.needed((output,)) if layer.name not in below]
        keys = description.weight_keys()
        mine = [key for layer in layers for key in keys.get(layer.name, ())]
        return Head(output, layers, lambda: {key: self._variables()[key] for key in mine})

    def _of_call(self, model_out: Any) -> Columns:
        """The outputs of the last call, after checking that it's meant."""
        features = model_out[0] if isinstance(model_out, tuple | list) else model_out
        if self._out is None or "advantages" not in self._out:
            raise BatchError("Q values are of the last call of a DQN model: call model({'obs': ...}) first")
        if features is not self._features:
            raise BatchError(
                "Q values are of the last call of the model: pass what model({'obs': ...}) returned, or the first of it"
            )
        return self._out

    def get_initial_state(self) -> list[np.ndarray]:
        """Zeros `[*state_shape]` for each recurrent state."""
        return [np.zeros(shape, np.float32) for shape in self._network.state]

    def _run(self, inputs: Columns) -> Columns:
        return self._network(inputs, training=self._training)

    def _tensor(self, x: Any, dtype: np.dtype[Any]) -> Any:
        """The backend's tensor."""
        return np.asarray(x, dtype)

    # --- what is inside

    def variables(self, as_dict: bool = False) -> Any:
        """The framework's own variables, in creation order; with `as_dict` by key."""
        return dict(self._variables()) if as_dict else list(self._variables().values())

    def trainable_variables(self, as_dict: bool = False) -> Any:
        """Those that learning moves."""
        found = self._variables()
        kept = {key: found[key] for key in self._network.trainable_keys()}
        return kept if as_dict else list(kept.values())

    def get_weights(self) -> list[np.ndarray]:
        """The variables' values, in creation order; copies."""
        return [np.array(x) for x in self._variables().values()]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Sets what `get_weights` returns.

        Raises:
            WeightsError: if there are more or fewer, or shapes differ; nothing is set then.
            FrameworkError: where variables can't be written one by one.
        """
        variables = self.variables()
        expected, got = [list(v.shape) for v in variables], [list(np.shape(w)) for w in weights]
        if expected != got:
            raise WeightsError(f"model.set_weights: got arrays of shapes {got}, expected {expected}")
        for variable, value in zip(variables, weights, strict=True):
            self._assign(variable, np.asarray(value))

    def _assign(self, variable: Any, value: np.ndarray) -> None:
        raise FrameworkError("the weights of this model are set with policy.set_weights({key: array, ...})")

    def __getattr__(self, name: str) -> Any:
        base = self.__dict__.get("base_model")
        if base is None or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(base, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_model!r})"

    # --- inputs

    def _inputs(self, given: Mapping[str, Any], state: Sequence[Any] | None, seq_lens: Any) -> Columns:
        inputs = self._observation(given)
        rows = next(iter(inputs.values())).shape[0]
        mask = given.get("action_mask")
        if mask is not None:
            inputs["action_mask"] = self._tensor(mask, np.dtype(np.bool_))
        elif self._mask_column is not None:
            flags = self._ops.to_float(self._ops.reshape(inputs[self._mask_column], (-1, self.num_outputs)))
            inputs["action_mask"] = flags > 0  # `!=` compares identities in a TF1 graph
        for name, shape in self._objective.quiet_inputs.items():
            inputs[name] = self._tensor(np.zeros((rows, *shape)), np.dtype(np.float32))
        for name, (shape, dtype) in self._previous.items():
            inputs[name] = self._before(given, name, rows, shape, dtype)
        if self._network.state:
            self._add_memory(inputs, given, state, seq_lens, rows)
        return inputs

    def _observation(self, given: Mapping[str, Any]) -> Columns:
        spaces = leaves(self.obs_space)
        if "obs" in given:
            flat = flatten(self.obs_space, self._restored(given["obs"]))
        elif all(name in given for name in spaces):
            flat = {name: given[name] for name in spaces}
        else:
            raise BatchError(f'the model takes {{"obs": observations}}; got a dict with {", ".join(map(repr, given))}')
        columns = {name: self._tensor(flat[name], batch_dtype(space)) for name, space in spaces.items()}
        for name, space in spaces.items():
            got, shape = columns[name].shape, tuple(space.shape or ())
            if tuple(got[1:]) != shape:
                expected = ", ".join(map(str, ("B", *shape)))
                raise BatchError(f"column {name!r} has shape {list(got)}, expected [{expected}]")
        return columns

    def _restored(self, obs: Any) -> Any:
        """Observations as the space has them, of those that a preprocessor made vectors."""
        shape = () if isinstance(obs, Mapping | tuple) else tuple(getattr(obs, "shape", None) or np.shape(obs))
        discrete = isinstance(self.obs_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        if len(shape) == 2 and (is_nested(self.obs_space) or (discrete and shape[1:] != self.obs_space.shape)):
            return restore(self.obs_space, obs.detach().cpu().numpy() if hasattr(obs, "detach") else obs)
        return obs

    def _before(
        self, given: Mapping[str, Any], name: str, rows: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Any:
        """A column of the step before; at an episode's start zeros, or the first class."""
        if name in given:
            return self._tensor(given[name], dtype)
        whole = name.split("/")[0]
        spaces = leaves(self.action_space, "prev_actions") if whole == "prev_actions" else {}
        if whole in given:
            return self._tensor(flatten(self.action_space, given[whole], whole)[name], dtype)
        if name in self._defaults:
            return self._defaults[name]
        return self._tensor(np.zeros((rows, *shape), dtype) + getattr(spaces.get(name), "start", 0), dtype)

    def _add_memory(
        self, inputs: Columns, given: Mapping[str, Any], state: Sequence[Any] | None, seq_lens: Any, rows: Any
    ) -> None:
        count, sequences = len(self._network.state), rows
        if SEQ_MASK in given or SEQ_MASK in self._defaults:
            inputs[SEQ_MASK] = given.get(SEQ_MASK, self._defaults.get(SEQ_MASK))
        elif seq_lens is not None:
            lengths = np.asarray(seq_lens)
            sequences = len(lengths)
            if rows % max(1, sequences) or lengths.max(initial=0) > rows // max(1, sequences):
                raise BatchError(
                    f"seq_lens {lengths.tolist()} don't fit {rows} rows: expected {sequences} sequences, each padded "
                    "to the same number of steps"
                )
            mask = np.arange(rows // sequences) < lengths[:, None]
            inputs[SEQ_MASK] = self._tensor(mask, np.dtype(np.bool_))
        if state is not None and len(state) not in (0, count):
            raise BatchError(f"got {len(state)} state arrays, this model has {count}")
        for i, shape in enumerate(self._network.state):
            name = f"state_{i}"
            found = state[i] if state else given.get(f"state_in_{i}", self._defaults.get(name))
            if found is None:
                found = np.zeros((sequences, *shape), np.float32)
            inputs[name] = self._tensor(found, np.dtype(np.float32))
