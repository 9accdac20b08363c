"""The default networks: from spaces and a config's `model` to a `NetworkSpec`."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError, EnvError
from polylib.models.initializers import Initializer, configured
from polylib.models.networks import Convolution, Layer, NetworkSpec, batch_dtype
from polylib.models.spaces import is_nested, leaves, mask_column
from polylib.utils.spaces.simplex import Simplex

logger = logging.getLogger(__name__)

#: Convolutions for common image sizes (height and width): [filters, kernel, stride], the last one without padding.
CONV_FILTERS: dict[tuple[int, int], list[list[Any]]] = {
    (42, 42): [[16, [4, 4], 2], [32, [4, 4], 2], [256, [11, 11], 1]],
    (64, 64): [[32, [4, 4], 2], [64, [4, 4], 2], [128, [4, 4], 2], [256, [8, 8], 1]],
    (84, 84): [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]],
    (96, 96): [[16, [8, 8], 4], [32, [4, 4], 2], [256, [12, 12], 1]],
}
# Boxes of rank 3 that are at least this high and wide are images; smaller ones are flattened unless told otherwise.
_IMAGE_SIZE = 16
# A convolution with this activation loses half of what it gets: twice the variance keeps the scale.
_GAINS = {"relu": math.sqrt(2.0)}
# What puts a layer with state on top.
_WRAPPERS = ("use_lstm", "use_gru", "use_attention")


class _Builder:
    """Collects layers; each method returns the name of its result."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def add(self, layer: Layer) -> str:
        self.layers.append(layer)
        return layer.name

    def dense(
        self,
        name: str,
        source: str,
        fan_in: int,
        units: int,
        activation: str | None,
        gain: float = 1.0,
        initializer: Initializer | None = None,
    ) -> str:
        return self.add(Layer(name, "dense", (source,), units, fan_in, activation, gain, initializer))

    def mlp(
        self,
        prefix: str,
        source: str,
        width: int,
        hiddens: Sequence[int],
        activation: str | None,
        initializer: Initializer | None = None,
    ) -> tuple[str, int]:
        for i, units in enumerate(hiddens):
            name = f"{prefix}_{i}"
            source, width = self.dense(name, source, width, units, activation, initializer=initializer), units
        return source, width

    def concat(self, name: str, parts: Sequence[tuple[str, int]]) -> tuple[str, int]:
        if len(parts) == 1:
            return parts[0]
        width = sum(part[1] for part in parts)
        return self.add(Layer(name, "concat", tuple(part[0] for part in parts), width)), width


def _activation(name: str | None) -> str | None:
    return None if name == "linear" else name


def encode(space: gym.Space[Any], source: str = "obs") -> tuple[list[Layer], int]:
    """Layers that turn one array of an observation into a flat float vector, and its width.

    Args:
        space: Box of any shape and dtype, Discrete or MultiDiscrete (one-hot), MultiBinary, or Simplex.
        source: name of the input.

    Raises:
        EnvError: for any other space.
    """
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary | Simplex):
        width = math.prod(space.shape or ())
        layers = []
        if space.dtype != np.float32:
            layers.append(Layer(f"{source}_float", "to_float", (source,), gain=_byte_gain(space)))
        if len(space.shape or ()) != 1:
            layers.append(Layer(f"{source}_flat", "flatten", (layers[-1].name if layers else source,), width))
        return layers, width
    if isinstance(space, gym.spaces.Discrete):
        n = int(space.n)
        return [Layer(f"{source}_one_hot", "one_hot", (source,), n, sizes=(n,), offsets=(int(space.start),))], n
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        starts = getattr(space, "start", np.zeros_like(space.nvec))
        offsets = tuple(int(n) for n in np.asarray(starts).ravel())
        width = sum(sizes)
        return [Layer(f"{source}_one_hot", "one_hot", (source,), width, sizes=sizes, offsets=offsets)], width
    raise EnvError(
        f"observation space {space} of {source!r} isn't supported: expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or Tuple of these. Turn it into one with gymnasium.wrappers.TransformObservation"
    )


def _byte_gain(space: gym.Space[Any]) -> float:
    """Bytes of pictures become numbers up to 1."""
    return 1.0 / 255.0 if space.dtype == np.uint8 and len(space.shape or ()) == 3 else 1.0


def observation_columns(space: gym.Space[Any]) -> dict[str, gym.Space[Any]]:
    """What networks see of an observation, by column: all its arrays but the action mask."""
    found = leaves(space)
    found.pop(mask_column(space) or "", None)
    if not found:
        raise EnvError(f"observation space {space} holds nothing but an action mask: a network needs something to see")
    for name, part in found.items():
        if 0 in (part.shape or ()):
            raise EnvError(f"observation space: {name!r} has shape {list(part.shape or ())}, which holds no numbers")
    return found


def _is_image(space: gym.Space[Any], model: dict[str, Any]) -> bool:
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 3:
        return False
    filters = model.get("conv_filters")
    return min(space.shape[:2]) >= _IMAGE_SIZE if filters is None else bool(filters)


def _suggestion(height: int, width: int) -> list[list[Any]]:
    """Halves the image until 12 pixels or fewer are left, then takes what is left in one kernel."""
    filters: list[list[Any]] = []
    channels = 16
    while max(height, width) > 12:
        filters.append([channels, [4, 4], 2])
        height, width, channels = -(-height // 2), -(-width // 2), min(2 * channels, 128)
    return [*filters, [256, [height, width], 1]]


def _pair(value: Any) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) and not isinstance(value, bool) else tuple(value)
    if len(pair) != 2 or not all(isinstance(x, int) and x > 0 for x in pair):
        raise ValueError(value)
    return pair


def _convolutions(space: gym.spaces.Box, filters: Any) -> list[Convolution]:
    """The convolutions on an image, padded to "same" but for the last.

    Raises:
        ConfigError: if `conv_filters` is malformed or doesn't fit the image, with filters that would.
    """
    height, width, channels = space.shape
    suggestion = f"for {height}x{width} pixels conv_filters={_suggestion(height, width)} would fit"
    if filters is None:
        filters = CONV_FILTERS.get((height, width))
        if filters is None:
            sizes = ", ".join(f"{h}x{w}" for h, w in CONV_FILTERS)
            raise ConfigError(
                f"config key 'conv_filters': there is no default for images of {height}x{width} pixels (only for "
                f"{sizes}); {suggestion}; [] flattens the image"
            )
    if not isinstance(filters, list | tuple):
        raise ConfigError(
            f"config key 'conv_filters' is {filters!r}, expected a list of [filters, kernel, stride]; {suggestion}"
        )
    shape, found = (height, width, channels), []
    for i, item in enumerate(filters):
        try:
            count, kernel, stride = item
            kernel, stride = _pair(kernel), _pair(stride)
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(count)
        except (TypeError, ValueError):
            raise ConfigError(
                f"config key 'conv_filters': item {i} is {item!r}, expected [filters, kernel, stride] such as "
                "[16, [8, 8], 4]"
            ) from None
        last = i == len(filters) - 1
        conv = Convolution.make(shape, count, kernel, stride, same=not last)
        if min(conv.out) < 1:
            raise ConfigError(
                f"config key 'conv_filters': item {i}, {item!r}, doesn't fit: {shape[0]}x{shape[1]} pixels are left "
                f"and the last kernel is not padded; {suggestion}"
            )
        found.append(conv)
        shape = conv.out
    return found


class _Trunk:
    """What a network computes before its heads."""

    def __init__(self, builder: _Builder, observation_space: gym.Space[Any], model: dict[str, Any]) -> None:
        self.builder, self.model = builder, model
        self.columns = observation_columns(observation_space)
        self.nested = is_nested(observation_space)
        self.images = [name for name, space in self.columns.items() if _is_image(space, model)]
        self._check_model()
        self.initializer, self._post_initializer = configured(model, "fcnet"), configured(model, "post_fcnet")
        self.encoded = [self._encode(name) for name in self.columns if name not in self.images]

    def _check_model(self) -> None:
        """Says which settings would change nothing, and warns of pictures that look turned around."""
        model = self.model
        if model.get("conv_filters") and not self.images:
            logger.warning(
                "config key 'conv_filters' does nothing here: no observation is a picture [height, width, channels]"
            )
        for key in ("lstm_use_prev_action", "lstm_use_prev_reward"):
            if model.get(key) and not (model.get("use_lstm") or model.get("use_gru")):
                raise ConfigError(f"config key {key!r}: it does nothing without use_lstm or use_gru")
        for name, space in self.columns.items():
            shape = tuple(space.shape or ())
            if len(shape) == 3 and shape[0] <= 4 and min(shape[1:]) >= _IMAGE_SIZE:
                logger.warning(
                    "observation %r has shape %s: as [channels, height, width] it is flattened like any other array; "
                    "convolutions take pictures as [height, width, channels]",
                    name,
                    list(shape),
                )

    def _encode(self, name: str) -> tuple[str, int]:
        made, width = encode(self.columns[name], name)
        self.builder.layers += made
        return (made[-1].name if made else name), width

    def branch(self, prefix: str, hiddens: Sequence[int] | None = None) -> tuple[str, int]:
        """Its own hidden layers on the shared encoding: name and width of the last."""
        builder, model = self.builder, self.model
        activation = _activation(model["fcnet_activation"])
        hiddens = model["fcnet_hiddens"] if hiddens is None else hiddens
        if not self.images:
            last = builder.mlp(f"{prefix}hidden", *self._flat(), hiddens, activation, self.initializer)
            return self.after(prefix, *last)
        parts = [self._convolved(prefix, name) for name in self.images]
        if self.encoded:
            parts.append(builder.mlp(f"{prefix}hidden", *self._flat(), hiddens, activation, self.initializer))
        return self.after(prefix, *builder.concat(f"{prefix}branches", parts))

    def after(self, prefix: str, source: str, width: int) -> tuple[str, int]:
        """The layers of `post_fcnet_hiddens` on top of everything else: name and width of the last."""
        model = self.model
        hiddens = model.get("post_fcnet_hiddens") or []
        activation = _activation(model.get("post_fcnet_activation", "relu"))
        return self.builder.mlp(f"{prefix}post", source, width, hiddens, activation, self._post_initializer)

    def _flat(self) -> tuple[str, int]:
        name = "encoded"
        width = sum(part[1] for part in self.encoded)
        if any(layer.name == name for layer in self.builder.layers):
            return name, width
        return self.builder.concat(name, self.encoded)

    def _convolved(self, prefix: str, column: str) -> tuple[str, int]:
        space = self.columns[column]
        if not isinstance(space, gym.spaces.Box):
            raise EnvError(f"{column!r}: {space} is no image")
        builder, source = self.builder, column
        scaled = f"{column}_float"
        if space.dtype != np.float32:
            if not any(layer.name == scaled for layer in builder.layers):
                builder.add(Layer(scaled, "to_float", (column,), gain=_byte_gain(space)))
            source = scaled
        activation = _activation(self.model.get("conv_activation", "relu"))
        convolutions = _convolutions(space, self.model.get("conv_filters"))
        for i, conv in enumerate(convolutions):
            gain = _GAINS.get(activation or "", 1.0)
            source = builder.add(
                Layer(f"{prefix}{column}_conv_{i}", "conv", (source,), activation=activation, gain=gain, conv=conv)
            )
        width = math.prod(convolutions[-1].out)
        return builder.add(Layer(f"{prefix}{column}_conv_flat", "flatten", (source,), width)), width


def is_recurrent(model: dict[str, Any]) -> bool:
    """Whether a `model` config asks for a network with state."""
    return any(model.get(key) for key in _WRAPPERS)


def _recurrent(
    builder: _Builder,
    source: str,
    width: int,
    action_space: gym.Space[Any] | None,
    model: dict[str, Any],
    inputs: dict[str, Any],
) -> tuple[str, int, tuple[tuple[int, ...], ...], dict[str, str]]:
    """An LSTM, GRU or attention on top of `source`: its result, its width, its state's shapes and outputs."""
    asked = [key for key in _WRAPPERS if model.get(key)]
    if len(asked) > 1:
        raise ConfigError(f"config keys {' and '.join(map(repr, asked))} exclude each other: set one of them")
    parts = [(source, width)]
    attention = bool(model.get("use_attention"))
    which = "attention" if attention else "lstm"
    if model.get(f"{which}_use_prev_action") or model.get(f"{which}_use_n_prev_actions"):
        for column, space in leaves(action_space, "prev_actions").items():  # type: ignore[arg-type]
            made, size = encode(space, column)
            builder.layers += made
            parts.append((made[-1].name if made else column, size))
            inputs[column] = (tuple(space.shape or ()), batch_dtype(space))
    if model.get(f"{which}_use_prev_reward") or model.get(f"{which}_use_n_prev_rewards"):
        inputs["prev_rewards"] = ((), np.dtype(np.float32))
        parts.append((builder.add(Layer("prev_rewards_flat", "flatten", ("prev_rewards",), 1)), 1))
    source, width = builder.concat("recurrent_input", parts)
    if attention:
        return _attention(builder, source, width, model)
    units = model["lstm_cell_size"]
    kind: Any = "lstm" if model.get("use_lstm") else "gru"
    count = 2 if kind == "lstm" else 1
    states = tuple(f"state_{i}" for i in range(count))
    last = builder.add(Layer(kind, kind, (source, *states), units, width))
    outputs = {f"state_out_{i}": f"{kind}/{i}" for i in range(count)}
    return last, units, ((units,),) * count, outputs


def _attention(
    builder: _Builder, source: str, width: int, model: dict[str, Any]
) -> tuple[str, int, tuple[tuple[int, ...], ...], dict[str, str]]:
    """GTrXL units (arXiv:1910.06764) on a linear embedding; each unit's state is the inputs of its last steps.

    Raises:
        ConfigError: if training were to remember other steps than acting does.
    """
    dim, memory = model["attention_dim"], model["attention_memory_inference"]
    training = model.get("attention_memory_training", memory)
    if training != memory:
        raise ConfigError(
            f"config key 'attention_memory_training' is {training} and attention_memory_inference {memory}: training "
            "sees what acting saw, so give both the same number of steps"
        )
    source = builder.dense("attention_embedding", source, width, dim, None)
    outputs: dict[str, str] = {}
    for i in range(model["attention_num_transformer_units"]):
        layer = Layer(
            f"gtrxl_{i}",
            "gtrxl",
            (source, f"state_{i}"),
            dim,
            dim,
            heads=model["attention_num_heads"],
            head_dim=model["attention_head_dim"],
            memory=memory,
            mlp=model["attention_position_wise_mlp_dim"],
            gate_bias=model["attention_init_gru_gate_bias"],
        )
        source = builder.add(layer)
        outputs[f"state_out_{i}"] = f"{source}/0"
    return source, dim, ((memory, dim),) * len(outputs), outputs


def actor_critic(
    name: str,
    observation_space: gym.Space[Any],
    num_logits: int,
    model: dict[str, Any],
    action_space: gym.Space[Any] | None = None,
) -> NetworkSpec:
    """The default network: to `logits: [N, num_logits]` and `value: [N, 1]`.

    Args:
        name: prefix of the weight keys.
        observation_space: what the network sees; each image in it goes through convolutions, everything else through
            fully connected layers, and the branches are put side by side.
        num_logits: inputs of the action distribution.
        model: the config's `model`: `fcnet_hiddens`, `fcnet_activation`, `conv_filters`, `conv_activation`,
            `post_fcnet_hiddens`, `post_fcnet_activation`, `fcnet_weights_initializer` and
            `post_fcnet_weights_initializer` with their `_config`, `vf_share_layers` (one branch for both heads),
            `free_log_std`, `no_final_linear`, `use_lstm`, `use_gru`, `use_attention`. Networks with state share all
            but the heads.
        action_space: for networks that see the previous action.

    Raises:
        EnvError: if a space isn't supported.
        ConfigError: naming a key of `model` that doesn't fit.
    """
    builder = _Builder()
    trunk = _Trunk(builder, observation_space, model)
    inputs: dict[str, Any] = {
        column: (tuple(space.shape or ()), batch_dtype(space)) for column, space in trunk.columns.items()
    }
    linear = num_logits
    if model.get("free_log_std"):
        if num_logits % 2 or not isinstance(action_space, gym.spaces.Box | None):
            raise ConfigError(
                f"config key 'free_log_std': needs means and as many log-stds, but this action distribution has "
                f"{num_logits} inputs; it is for Box actions"
            )
        linear = num_logits // 2
    hiddens = list(model["fcnet_hiddens"])
    recurrent = is_recurrent(model)
    final_linear = not model.get("no_final_linear")
    if not final_linear and (recurrent or trunk.images or not hiddens or hiddens[-1] != linear):
        raise ConfigError(
            f"config key 'no_final_linear': the last of fcnet_hiddens={hiddens} is the output then, and must be "
            f"{linear} wide in a fully connected network without state"
        )
    last, width = trunk.branch("")
    state: tuple[tuple[int, ...], ...] = ()
    state_outputs: dict[str, str] = {}
    if recurrent:
        last, width, state, state_outputs = _recurrent(builder, last, width, action_space, model, inputs)
    # Small heads: the first policy is nearly uniform and the first values are nearly 0.
    logits = builder.dense("logits", last, width, linear, None, gain=0.01) if final_linear else last
    if linear != num_logits:
        logits = builder.add(Layer("log_std", "log_std", (logits,), num_logits - linear))
    if not model["vf_share_layers"] and not recurrent:
        last, width = trunk.branch("value_")
    value = builder.dense("value", last, width, 1, None, gain=0.01)
    outputs = {"logits": logits, "value": value, **state_outputs}
    return NetworkSpec(name, inputs, tuple(builder.layers), outputs, state)


def q_network(
    name: str,
    observation_space: gym.Space[Any],
    num_actions: int,
    model: dict[str, Any],
    action_space: gym.Space[Any],
    *,
    hiddens: Sequence[int] = (),
    dueling: bool = True,
    num_atoms: int = 1,
    noisy: bool = False,
    sigma0: float = 0.5,
) -> NetworkSpec:
    """The network of DQN: `advantages: [N, num_actions * num_atoms]` and with `dueling` `state_value: [N, num_atoms]`.

    Args:
        name: prefix of the weight keys.
        observation_space: what the network sees.
        num_actions: discrete choices.
        model: the config's `model`, as for `actor_critic`: the part up to the output `features`.
        action_space: for networks that see the previous action.
        hiddens: layers of each head after the features, with relu.
        dueling: a head for the state's value beside that of advantages (arXiv:1511.06581).
        num_atoms: of a distribution over returns (arXiv:1707.06887); 1: the expected return.
        noisy: the heads' layers are noisy (arXiv:1706.10295); each takes an input `noisy_i: [N, fan_in + units]`.
        sigma0: of the noisy layers.
    """
    builder = _Builder()
    trunk = _Trunk(builder, observation_space, model)
    inputs: dict[str, Any] = {
        column: (tuple(space.shape or ()), batch_dtype(space)) for column, space in trunk.columns.items()
    }
    features, width = trunk.branch("")
    state: tuple[tuple[int, ...], ...] = ()
    outputs: dict[str, str] = {}
    if is_recurrent(model):
        features, width, state, outputs = _recurrent(builder, features, width, action_space, model, inputs)

    sizes: dict[str, Any] = {"hiddens": hiddens, "dueling": dueling, "num_atoms": num_atoms}
    sizes |= {"noisy": noisy, "sigma0": sigma0}
    heads = _q_heads(builder, features, width, inputs, num_actions, **sizes)
    return NetworkSpec(name, inputs, tuple(builder.layers), {**heads, **outputs}, state)


def q_heads(
    name: str, source: str, width: int, num_actions: int, copy_of: str | None = None, **sizes: Any
) -> NetworkSpec:
    """The part of `q_network` behind its features.

    Args:
        name: prefix of the weight keys.
        source: the input that holds the features, `[N, width]`.
        width: see there.
        num_actions: discrete choices.
        copy_of: as of a `NetworkSpec`.
        **sizes: `hiddens`, `dueling`, `num_atoms`, `noisy` and `sigma0` as of `q_network`; none of them: there are no
            heads, the input is what they would return.
    """
    builder = _Builder()
    inputs: dict[str, Any] = {source: ((width,), np.dtype(np.float32))}
    outputs = {"advantages": source, "features": source}
    if sizes:
        outputs.update(_q_heads(builder, source, width, inputs, num_actions, **sizes))
    return NetworkSpec(name, inputs, tuple(builder.layers), outputs, copy_of=copy_of)


def _q_heads(
    builder: _Builder,
    features: str,
    width: int,
    inputs: dict[str, Any],
    num_actions: int,
    *,
    hiddens: Sequence[int],
    dueling: bool,
    num_atoms: int,
    noisy: bool,
    sigma0: float,
) -> dict[str, str]:
    """Adds the heads on features `[N, width]`, and noise to the inputs: the outputs `advantages` and so on."""

    def layer(layer_name: str, source: str, fan_in: int, units: int, activation: str | None) -> str:
        if not noisy:
            return builder.dense(layer_name, source, fan_in, units, activation)
        column = f"noisy_{sum(key.startswith('noisy_') for key in inputs)}"
        inputs[column] = ((fan_in + units,), np.dtype(np.float32))
        made = builder.add(Layer(layer_name, "noisy", (source, column), units, fan_in, gain=sigma0))
        if activation is None:
            return made
        return builder.add(Layer(f"{layer_name}_{activation}", "activation", (made,), units, activation=activation))

    def head(head_name: str, units: int) -> str:
        source, fan_in = features, width
        for i, size in enumerate(hiddens):
            source, fan_in = layer(f"{head_name}_hidden_{i}", source, fan_in, size, "relu"), size
        return layer(head_name, source, fan_in, units, None)

    heads = {"advantages": head("advantages", num_actions * num_atoms)}
    if dueling:
        heads["state_value"] = head("state_value", num_atoms)
    return {**heads, "features": features}


def actor_network(
    name: str,
    observation_space: gym.Space[Any],
    num_outputs: int,
    model: dict[str, Any],
    activation: str | None = None,
    free: int = 0,
) -> NetworkSpec:
    """A policy without a value: `logits: [N, num_outputs + free]`.

    Args:
        name: prefix of the weight keys.
        observation_space: what the network sees.
        num_outputs: inputs of the action distribution.
        model: as for `actor_critic`.
        activation: of the output, `tanh` for actions in [-1, 1].
        free: how many outputs behind those are numbers of their own, the same for every observation (log-stds).
    """
    builder = _Builder()
    trunk = _Trunk(builder, observation_space, model)
    inputs = {column: (tuple(space.shape or ()), batch_dtype(space)) for column, space in trunk.columns.items()}
    last, width = trunk.branch("")
    logits = builder.dense("logits", last, width, num_outputs, activation, gain=0.01)
    if free:
        logits = builder.add(Layer("log_std", "log_std", (logits,), free))
    return NetworkSpec(name, inputs, tuple(builder.layers), {"logits": logits})


def critic_network(
    name: str,
    observation_space: gym.Space[Any],
    model: dict[str, Any],
    *,
    action_size: int = 0,
    num_values: int = 1,
    twins: int = 1,
) -> NetworkSpec:
    """Values of actions, by one network or several side by side: `q1: [N, num_values]`, `q2`, ...

    Args:
        name: prefix of the weight keys.
        observation_space: what the networks see.
        model: as for `actor_critic`.
        action_size: width of the input `action_units`, the action in [-1, 1]; 0: the networks see no action.
        num_values: 1, or one for each of several actions.
        twins: how many networks; they share nothing but what turns observations into numbers.
    """
    builder = _Builder()
    trunk = _Trunk(builder, observation_space, model)
    inputs: dict[str, Any] = {
        column: (tuple(space.shape or ()), batch_dtype(space)) for column, space in trunk.columns.items()
    }
    if action_size:
        inputs["action_units"] = ((action_size,), np.dtype(np.float32))
    hiddens, activation = model["fcnet_hiddens"], _activation(model["fcnet_activation"])
    for i in range(1, twins + 1):
        if not action_size:
            last, width = trunk.branch(f"q{i}_")
        elif trunk.images:
            last, width = trunk.branch(f"q{i}_")
            last, width = builder.concat(f"q{i}_input", [(last, width), ("action_units", action_size)])
            last, width = builder.mlp(f"q{i}_hidden", last, width, hiddens, activation, trunk.initializer)
        else:
            # The action goes in together with the observation.
            last, width = builder.concat(f"q{i}_input", [*trunk.encoded, ("action_units", action_size)])
            last, width = builder.mlp(f"q{i}_hidden", last, width, hiddens, activation, trunk.initializer)
            last, width = trunk.after(f"q{i}_", last, width)
        builder.dense(f"q{i}", last, width, num_values, None, gain=0.01)
    return NetworkSpec(name, inputs, tuple(builder.layers), {f"q{i}": f"q{i}" for i in range(1, twins + 1)})


def variable_network(name: str, units: int, value: float) -> NetworkSpec:
    """Trained numbers `value: [N, units]`, the same in all rows; `rewards: [N]` says how many rows."""
    layers = (Layer("value", "variable", ("rewards",), units, gain=value),)
    return NetworkSpec(name, {"rewards": ((), np.dtype(np.float32))}, layers, {"value": "value"})


def feature_network(name: str, observation_space: gym.Space[Any], units: int, model: dict[str, Any]) -> NetworkSpec:
    """What a state is like: `features: [N, units]`, linear.

    Args:
        name: prefix of the weight keys.
        observation_space: what the network sees.
        units: width of the output.
        model: as for `actor_critic`.
    """
    builder = _Builder()
    trunk = _Trunk(builder, observation_space, model)
    inputs = {column: (tuple(space.shape or ()), batch_dtype(space)) for column, space in trunk.columns.items()}
    last, width = trunk.branch("")
    builder.dense("features", last, width, units, None)
    return NetworkSpec(name, inputs, tuple(builder.layers), {"features": "features"})


def mlp_network(name: str, width: int, hiddens: Sequence[int], activation: str | None, units: int) -> NetworkSpec:
    """Fully connected layers: `given: [N, width]` to `out: [N, units]`."""
    builder = _Builder()
    last, last_width = builder.mlp("hidden", "given", width, hiddens, _activation(activation))
    builder.dense("out", last, last_width, units, None)
    return NetworkSpec(name, {"given": ((width,), np.dtype(np.float32))}, tuple(builder.layers), {"out": "out"})
