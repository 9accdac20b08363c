"""Networks as data: a list of layers that every backend builds alike, with the same weights under the same keys.

A `NetworkSpec` is a small graph in creation order. Weights are keyed by network, position among the layers that have
weights, and leaf name (`policy/003/kernel`), in one canonical layout (dense kernels `[in, out]`), and are initialised
here, in NumPy: the same seed gives the same network under every framework.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from polylib.errors import EnvError

Kind = Literal["to_float", "one_hot", "flatten", "dense"]


@dataclass(frozen=True)
class Layer:
    """One step of a network.

    Attributes:
        name: unique in the network.
        kind: `to_float`; `one_hot` of `units` classes, the first being class `offset`; `flatten` to `[B, units]`;
            `dense` to `[B, units]`.
        source: the name of an input or an earlier layer.
        units: width of the result.
        fan_in: width of a dense layer's source.
        activation: of a dense layer, None for linear.
        gain: length of each column of a dense kernel at the start.
        offset: first class of a one_hot.
    """

    name: str
    kind: Kind
    source: str
    units: int = 0
    fan_in: int = 0
    activation: str | None = None
    gain: float = 1.0
    offset: int = 0


@dataclass(frozen=True)
class NetworkSpec:
    """A network's description.

    Attributes:
        name: prefix of its weight keys.
        inputs: shape (without batch axis) and dtype of each input.
        layers: in creation order, sources before their users.
        outputs: output name to layer name.
        state: shapes of the recurrent state; empty for feed-forward networks.
    """

    name: str
    inputs: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    layers: tuple[Layer, ...]
    outputs: dict[str, str]
    state: tuple[tuple[int, ...], ...] = field(default=())

    def needed(self, outputs: Iterable[str] | None = None) -> tuple[Layer, ...]:
        """The layers behind some outputs (all by default), in creation order."""
        wanted = {self.outputs[name] for name in (self.outputs if outputs is None else outputs)}
        kept: list[Layer] = []
        for layer in reversed(self.layers):
            if layer.name in wanted:
                kept.append(layer)
                wanted.add(layer.source)
        return tuple(reversed(kept))

    def weight_keys(self) -> dict[str, tuple[str, str]]:
        """Layer name to its kernel's and bias' keys."""
        dense = [layer.name for layer in self.layers if layer.kind == "dense"]
        return {
            name: (f"{self.name}/{i:03d}/kernel", f"{self.name}/{i:03d}/bias") for i, name in enumerate(dense)
        }

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Kernels `[in, out]` with normally distributed columns of length `gain`, biases 0; all float32."""
        keys, weights = self.weight_keys(), {}
        for layer in self.layers:
            if layer.kind == "dense":
                kernel = rng.standard_normal((layer.fan_in, layer.units))
                kernel *= layer.gain / np.sqrt(np.square(kernel).sum(0, keepdims=True))
                weights[keys[layer.name][0]] = kernel.astype(np.float32)
                weights[keys[layer.name][1]] = np.zeros(layer.units, np.float32)
        return weights


def encode(space: gym.Space[Any], source: str = "obs") -> tuple[list[Layer], int]:
    """Layers that turn an observation into a flat float vector, and its width.

    Args:
        space: Box of any shape and dtype, or Discrete (one-hot).
        source: name of the input.

    Raises:
        EnvError: for any other space.
    """
    if isinstance(space, gym.spaces.Box):
        width = math.prod(space.shape)
        layers = []
        if space.dtype != np.float32:
            layers.append(Layer("obs_float", "to_float", source))
        if len(space.shape) != 1:
            layers.append(Layer("obs_flat", "flatten", layers[-1].name if layers else source, units=width))
        return layers, width
    if isinstance(space, gym.spaces.Discrete):
        n = int(space.n)
        return [Layer("obs_one_hot", "one_hot", source, units=n, offset=int(space.start))], n
    raise EnvError(f"observation space {space} isn't supported in this version: expected Box or Discrete")


def batch_dtype(space: gym.Space[Any]) -> np.dtype[Any]:
    """The dtype in which batches hold a space's values: its own, but float32 for float64 and int64 for Discrete."""
    if isinstance(space, gym.spaces.Discrete):
        return np.dtype(np.int64)
    return np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)


def actor_critic(
    name: str, observation_space: gym.Space[Any], num_logits: int, model: dict[str, Any]
) -> NetworkSpec:
    """The default network: hidden layers to `logits: [B, num_logits]` and `value: [B, 1]`.

    Args:
        name: prefix of the weight keys.
        observation_space: what the network sees.
        num_logits: inputs of the action distribution.
        model: the config's `model`: `fcnet_hiddens`, `fcnet_activation`, `vf_share_layers` (one branch for both heads).
    """
    layers, width = encode(observation_space)
    activation = None if model["fcnet_activation"] == "linear" else model["fcnet_activation"]
    source = layers[-1].name if layers else "obs"

    def branch(prefix: str) -> tuple[str, int]:
        last, fan_in = source, width
        for i, units in enumerate(model["fcnet_hiddens"]):
            layers.append(Layer(f"{prefix}_{i}", "dense", last, units=units, fan_in=fan_in, activation=activation))
            last, fan_in = layers[-1].name, units
        return last, fan_in

    last, fan_in = branch("hidden")
    # Small heads: the first policy is nearly uniform and the first values are nearly 0.
    layers.append(Layer("logits", "dense", last, units=num_logits, fan_in=fan_in, gain=0.01))
    if not model["vf_share_layers"]:
        last, fan_in = branch("value_hidden")
    layers.append(Layer("value", "dense", last, units=1, fan_in=fan_in, gain=0.01))
    inputs = {"obs": (tuple(observation_space.shape or ()), batch_dtype(observation_space))}
    return NetworkSpec(name, inputs, tuple(layers), {"logits": "logits", "value": "value"})
