"""Networks as data: a graph of layers that every backend builds alike, with the same weights under the same keys.

A `NetworkSpec` lists its layers in creation order. Weights are keyed by network, position among the layers that have
weights, and leaf name (`policy/003/kernel`), in one canonical layout, and are initialised here, in NumPy: the same seed
gives the same network under every framework. `default_networks.py` makes specs from spaces and a config's `model`.

Rows and time. Inputs are rows `[N, ...]`. A recurrent network is given its state as inputs `state_0`, `state_1`, ...:
`[B, *state_shape]`. When acting, a row is a step of its own and B = N. When learning from sequences, the input
`seq_mask: [B, T]` says that the rows are B sequences of T steps, one after another: N = B * T; padded steps are False.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import gymnasium as gym
import numpy as np

from polylib.models.initializers import Initializer, filled, normc, ones, orthogonal, xavier_uniform, zeros

Kind = Literal[
    "to_float",
    "one_hot",
    "flatten",
    "activation",
    "concat",
    "conv",
    "dense",
    "noisy",
    "log_std",
    "variable",
    "lstm",
    "gru",
    "gtrxl",
]

#: Inputs that carry time, not observations.
SEQ_MASK = "seq_mask"


@dataclass(frozen=True)
class Convolution:
    """The sizes of a two-dimensional convolution on `[N, height, width, channels]`.

    Attributes:
        shape: height, width and channels of the source.
        kernel: height and width.
        stride: downwards and to the right.
        pads: zeros added `((top, bottom), (left, right))`.
        filters: channels of the result.
    """

    shape: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[tuple[int, int], tuple[int, int]]
    filters: int

    @classmethod
    def make(
        cls, shape: tuple[int, int, int], filters: int, kernel: tuple[int, int], stride: tuple[int, int], same: bool
    ) -> Convolution:
        """With padding as TensorFlow's "same" (the odd zero goes to the bottom and right) or none."""
        pads = []
        for size, k, s in zip(shape[:2], kernel, stride, strict=True):
            total = max((-(-size // s) - 1) * s + k - size, 0) if same else 0
            pads.append((total // 2, total - total // 2))
        return cls(shape, kernel, stride, (pads[0], pads[1]), filters)

    @property
    def whole(self) -> bool:
        """Whether the kernel covers the source: a product with everything in it."""
        return self.kernel == self.shape[:2] and not any(map(any, self.pads))

    @property
    def out(self) -> tuple[int, int, int]:
        """Height, width and channels of the result."""
        height, width = (
            (size + sum(pad) - k) // s + 1
            for size, pad, k, s in zip(self.shape[:2], self.pads, self.kernel, self.stride, strict=True)
        )
        return height, width, self.filters


@dataclass(frozen=True)
class Layer:
    """One step of a network.

    Attributes:
        name: unique in the network.
        kind: `to_float`, times `gain`; `one_hot` of each component of an integer row, `sizes[i]` classes from class
            `offsets[i]` on, side by side; `flatten` to `[N, units]`; `concat` of sources `[N, ...]` on the last axis;
            `conv`; `dense` to `[N, units]`; `noisy`: a dense layer whose second source is its noise; `log_std`: a
            source with `units` trained numbers after it, the same for all rows; `variable`: such numbers alone;
            `activation` alone;
            `lstm`, `gru`, `gtrxl` to `[N, units]`, whose new states are called `name/0`, `name/1`, ...
        sources: names of inputs or earlier layers; the states of recurrent layers come last.
        units: width of the result.
        fan_in: width of a dense or recurrent layer's first source.
        activation: of a dense layer or convolution, None for linear.
        gain: length of each column of a kernel at the start.
        initializer: makes a dense layer's first kernel instead.
        sizes: of a one_hot.
        offsets: of a one_hot.
        conv: of a conv.
        heads: of a gtrxl.
        head_dim: of a gtrxl: width of each head.
        memory: of a gtrxl: how many steps it looks back.
        mlp: of a gtrxl: width of the layer between its two gates.
        gate_bias: of a gtrxl: how far its gates are shut at the start.
    """

    name: str
    kind: Kind
    sources: tuple[str, ...]
    units: int = 0
    fan_in: int = 0
    activation: str | None = None
    gain: float = 1.0
    initializer: Initializer | None = None
    sizes: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    conv: Convolution | None = None
    heads: int = 0
    head_dim: int = 0
    memory: int = 0
    mlp: int = 0
    gate_bias: float = 0.0

    @property
    def source(self) -> str:
        """The first source."""
        return self.sources[0]

    def leaves(self) -> dict[str, Leaf]:
        """The layer's weights by leaf name, in creation order."""
        make = _LEAVES.get(self.kind)
        return {} if make is None else make(self)


@dataclass(frozen=True)
class Leaf:
    """One array of weights.

    Attributes:
        shape: in the canonical layout.
        initial: makes its first value.
    """

    shape: tuple[int, ...]
    initial: Initializer


def _forgetful(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros, but 1 in the forget gate: a new LSTM remembers (Jozefowicz et al., 2015)."""
    units = shape[0] // 4
    return np.concatenate([np.zeros(units), np.ones(units), np.zeros(2 * units)])


def _dense_leaves(layer: Layer) -> dict[str, Leaf]:
    return {
        "kernel": Leaf((layer.fan_in, layer.units), layer.initializer or normc(layer.gain)),
        "bias": Leaf((layer.units,), zeros),
    }


def _conv_leaves(layer: Layer) -> dict[str, Leaf]:
    conv = layer.conv
    if conv is None:
        raise ValueError(f"layer {layer.name!r} of kind 'conv' has no Convolution")
    return {
        "kernel": Leaf((*conv.kernel, conv.shape[2], conv.filters), normc(layer.gain)),
        "bias": Leaf((conv.filters,), zeros),
    }


def _lstm_leaves(layer: Layer) -> dict[str, Leaf]:
    """Gates i, f, c, o."""
    return {
        "kernel": Leaf((layer.fan_in, 4 * layer.units), xavier_uniform()),
        "recurrent_kernel": Leaf((layer.units, 4 * layer.units), orthogonal()),
        "bias": Leaf((4 * layer.units,), _forgetful),
    }


def _gru_leaves(layer: Layer) -> dict[str, Leaf]:
    """Gates z, r, h; the bias of the input, then that of the state."""
    return {
        "kernel": Leaf((layer.fan_in, 3 * layer.units), xavier_uniform()),
        "recurrent_kernel": Leaf((layer.units, 3 * layer.units), orthogonal()),
        "bias": Leaf((2, 3 * layer.units), zeros),
    }


def _gtrxl_leaves(layer: Layer) -> dict[str, Leaf]:
    """As `polylib.models.attention.gtrxl` takes them; gates r, z, h."""
    width, inner = layer.units, layer.heads * layer.head_dim

    def norm(name: str) -> dict[str, Leaf]:
        return {f"{name}_scale": Leaf((width,), ones), f"{name}_offset": Leaf((width,), zeros)}

    def gate(name: str) -> dict[str, Leaf]:
        return {
            f"{name}_kernel": Leaf((width, 3 * width), xavier_uniform()),
            f"{name}_recurrent_kernel": Leaf((width, 3 * width), xavier_uniform()),
            f"{name}_bias": Leaf((width,), filled(layer.gate_bias)),
        }

    return {
        **norm("norm"),
        **{f"{name}_kernel": Leaf((width, inner), xavier_uniform()) for name in ("query", "key", "value", "position")},
        "content_bias": Leaf((layer.heads, layer.head_dim), zeros),
        "position_bias": Leaf((layer.heads, layer.head_dim), zeros),
        "out_kernel": Leaf((inner, width), xavier_uniform()),
        **gate("gate"),
        **norm("mlp_norm"),
        "mlp_kernel_0": Leaf((width, layer.mlp), xavier_uniform()),
        "mlp_bias_0": Leaf((layer.mlp,), zeros),
        "mlp_kernel_1": Leaf((layer.mlp, width), xavier_uniform()),
        "mlp_bias_1": Leaf((width,), zeros),
        **gate("mlp_gate"),
    }


def _noisy_leaves(layer: Layer) -> dict[str, Leaf]:
    """First values of arXiv:1706.10295, section 3.2, for factorised noise; `gain` is sigma_0."""
    limit = 1.0 / math.sqrt(layer.fan_in)

    def mean(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(-limit, limit, shape)

    def scale(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, layer.gain * limit)

    kernel, bias = (layer.fan_in, layer.units), (layer.units,)
    return {
        "kernel": Leaf(kernel, mean),
        "bias": Leaf(bias, mean),
        "kernel_noise": Leaf(kernel, scale),
        "bias_noise": Leaf(bias, scale),
    }


def _variable_leaves(layer: Layer) -> dict[str, Leaf]:
    """All start at `gain`."""
    return {"value": Leaf((layer.units,), lambda rng, shape: np.full(shape, layer.gain))}


_LEAVES: dict[str, Callable[[Layer], dict[str, Leaf]]] = {
    "noisy": _noisy_leaves,
    "variable": _variable_leaves,
    "dense": _dense_leaves,
    "conv": _conv_leaves,
    "log_std": lambda layer: {"log_std": Leaf((layer.units,), zeros)},
    "lstm": _lstm_leaves,
    "gru": _gru_leaves,
    "gtrxl": _gtrxl_leaves,
}


@dataclass(frozen=True)
class NetworkSpec:
    """A network's description.

    Attributes:
        name: prefix of its weight keys.
        inputs: shape (without batch axis) and dtype of each input, states not among them.
        layers: in creation order, sources before their users.
        outputs: output name to layer name (`state_out_0`, ... of a recurrent network too).
        state: shapes of the recurrent state; empty for feed-forward networks.
        copy_of: the network that this one follows, as a target network does; its own weights aren't trained.
    """

    name: str
    inputs: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    layers: tuple[Layer, ...]
    outputs: dict[str, str]
    state: tuple[tuple[int, ...], ...] = field(default=())
    copy_of: str | None = None

    def copy(self, name: str) -> NetworkSpec:
        """A target network of this one, called `name`."""
        return replace(self, name=name, copy_of=self.name)

    @property
    def convolutional(self) -> bool:
        """Whether it has convolutions."""
        return any(layer.conv is not None for layer in self.layers)

    def needed(self, outputs: Iterable[str] | None = None) -> tuple[Layer, ...]:
        """The layers behind some outputs (all by default), in creation order."""
        wanted = {self.outputs[name] for name in (self.outputs if outputs is None else outputs)}
        kept: list[Layer] = []
        for layer in reversed(self.layers):
            if layer.name in wanted or any(name.startswith(f"{layer.name}/") for name in wanted):
                kept.append(layer)
                wanted.update(layer.sources)
        return tuple(reversed(kept))

    def weight_keys(self) -> dict[str, tuple[str, ...]]:
        """Layer name to the keys of its leaves, in the leaves' order."""
        found: dict[str, tuple[str, ...]] = {}
        for layer in self.layers:
            leaves = layer.leaves()
            if leaves:
                found[layer.name] = tuple(f"{self.name}/{len(found):03d}/{leaf}" for leaf in leaves)
        return found

    def _all_leaves(self) -> dict[str, Leaf]:
        keys = self.weight_keys()
        return {
            key: leaf
            for layer in self.layers
            if layer.name in keys
            for key, leaf in zip(keys[layer.name], layer.leaves().values(), strict=True)
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key, in the canonical layout."""
        return {key: leaf.shape for key, leaf in self._all_leaves().items()}

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """First values of all variables by key; all float32."""
        return {key: leaf.initial(rng, leaf.shape).astype(np.float32) for key, leaf in self._all_leaves().items()}


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """For each name one of letters, digits and `_`, as frameworks want them; no two are the same."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = base = re.sub(r"[^A-Za-z0-9_]", "_", name)
        count = 1
        while plain in taken:
            plain, count = f"{base}_{count}", count + 1
        found[name] = plain
        taken.add(plain)
    return found


class Network(Protocol):
    """What backends make of a `NetworkSpec` or a user's model, and objectives call.

    Attributes:
        state: shapes of the recurrent state; empty for feed-forward networks.
        state_outputs: `state_out_0`, ...: the names under which a call returns the next state.
    """

    state: tuple[tuple[int, ...], ...]
    state_outputs: tuple[str, ...]

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Any]:
        """Outputs by name, each `[N, units]`."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key, in the canonical layout."""

    def trainable_keys(self) -> list[str]:
        """The keys of variables that learning moves."""

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """First values of variables that polylib initialises, by key."""

    def penalties(self) -> Sequence[Any]:
        """Scalars to add to the loss: a user's regularisation, as of the last call with `training`."""


class SpecNetwork:
    """The part of `Network` that a `NetworkSpec` answers by itself; backends' networks inherit it."""

    def __init__(self, spec: NetworkSpec) -> None:
        self.spec = spec
        self.state, self.state_outputs = spec.state, tuple(f"state_out_{i}" for i in range(len(spec.state)))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key, in the canonical layout."""
        return self.spec.shapes()

    def trainable_keys(self) -> list[str]:
        """All keys; none of a target network."""
        return [] if self.spec.copy_of else list(self.spec.shapes())

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """First values of all variables by key."""
        return self.spec.initial_weights(rng)

    def penalties(self) -> tuple[()]:
        """None."""
        return ()


def batch_dtype(space: gym.Space[Any]) -> np.dtype[Any]:
    """The dtype in which batches hold a space's values: its own, but float32 for float64 and int64 for Discrete."""
    if isinstance(space, gym.spaces.Discrete):
        return np.dtype(np.int64)
    return np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)
