"""torch modules from network descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polylib.models.custom import CustomNetwork
from polylib.models.networks import SEQ_MASK, Convolution, Layer, NetworkSpec, SpecNetwork, plain_names
from polylib.models.recurrent import CELLS
from polylib.policy.torch import ops
from polylib.policy.torch.custom import CustomTorchNetwork
from polylib.policy.torch.fused import linear
from polylib.policy.torch.stack import Stack

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}


#: From torch's layout of a kernel to the canonical one; other variables have the same in both.
_AXES = {"dense": (1, 0), "conv": (1, 2, 3, 0)}


def _linear(layer: Layer, parts: tuple[torch.Tensor, torch.Tensor] | None) -> nn.Linear:
    # The policy sets the canonical weights right after; torch's own would be drawn from the process's global generator.
    made = nn.Linear(layer.fan_in, layer.units, device="meta", dtype=torch.float32)
    if parts is None:
        return made.to_empty(device="cpu")
    made.weight, made.bias = (nn.Parameter(part) for part in parts)
    return made


def _empty(shape: tuple[int, ...]) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=torch.float32))


class Conv2d(nn.Module):
    """A convolution of channels-last images, with padding on each side of its own; its weight is `[out, h, w, in]`."""

    def __init__(self, conv: Convolution) -> None:
        super().__init__()
        self.conv = conv
        # Seen as torch's [out, in, h, w] it is channels-last like the images: torch copies neither.
        self.weight, self.bias = _empty((conv.filters, *conv.kernel, conv.shape[2])), _empty((conv.filters,))
        (top, bottom), (left, right) = conv.pads
        self.pads = (left, right, top, bottom)

    def extra_repr(self) -> str:
        """For `print(model)`."""
        conv = self.conv
        return f"{conv.shape[2]}, {conv.filters}, kernel_size={conv.kernel}, stride={conv.stride}, pads={self.pads}"

    def forward(self, x: Any) -> Any:
        """`[N, H, W, C]` to `[N, H', W', F]`."""
        x = x.permute(0, 3, 1, 2)
        if any(self.pads):
            x = F.pad(x, self.pads)
        y = F.conv2d(x, self.weight.permute(0, 3, 1, 2), self.bias, self.conv.stride)
        return y.permute(0, 2, 3, 1)


class LogStd(nn.Module):
    """Appends trained numbers, the same for every row."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.log_std = _empty((units,))

    def forward(self, x: Any) -> Any:
        """`[N, k]` to `[N, k + units]`."""
        return torch.cat([x, self.log_std.expand(x.shape[0], -1)], -1)


class Recurrent(nn.Module):
    """A layer of a kind in `CELLS`; the kernels of an LSTM and a GRU are `[out, in]`, others in the canonical layout.

    Args:
        layer: the description.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.kind, self.leaves = layer.kind, tuple(layer.leaves())
        self.turned = tuple(name for name in self.leaves if layer.kind in _FUSED and name.endswith("kernel"))
        for name, leaf in layer.leaves().items():
            # torch's loop is half as fast on views of kernels that lie the other way round.
            self.register_parameter(name, _empty(leaf.shape[::-1] if name in self.turned else leaf.shape))
        self.layer = layer

    def extra_repr(self) -> str:
        """For `print(model)`."""
        return f"{self.kind}, {self.layer.fan_in}, {self.layer.units}"

    def forward(self, x: Any, states: tuple[Any, ...], time: int = 1) -> tuple[Any, tuple[Any, ...]]:
        """Outputs `[N, units]` and new states, as `polylib.models.recurrent` says."""
        weights = tuple(getattr(self, name) for name in self.leaves)
        fused = _FUSED.get(self.kind)
        if time > 1 and fused is not None:
            return fused(x, states, weights, time)
        weights = tuple(w.t() if name in self.turned else w for name, w in zip(self.leaves, weights, strict=True))
        return CELLS[self.kind](ops, x, states, weights, time)


def _lstm(x: Any, states: tuple[Any, ...], weights: tuple[Any, ...], time: int) -> tuple[Any, tuple[Any, ...]]:
    """All steps in torch's own loop; its second bias is 0."""
    kernel, recurrent, bias = weights
    hidden, cell = (state[None] for state in states)
    x = x.reshape(-1, time, x.shape[-1])
    params = [kernel, recurrent, bias, torch.zeros_like(bias)]
    out, hidden, cell = torch.lstm(x, (hidden, cell), params, True, 1, 0.0, False, False, True)
    return out.reshape(-1, out.shape[-1]), (hidden[0], cell[0])


def _gru(x: Any, states: tuple[Any, ...], weights: tuple[Any, ...], time: int) -> tuple[Any, tuple[Any, ...]]:
    """All steps in torch's own loop, whose gates are r, z, h."""
    kernel, recurrent, bias = weights
    units = recurrent.shape[1]

    def swapped(w: Any) -> Any:
        return torch.cat([w[units : 2 * units], w[:units], w[2 * units :]])

    x = x.reshape(-1, time, x.shape[-1])
    params = [swapped(w) for w in (kernel, recurrent, bias[0], bias[1])]
    out, hidden = torch.gru(x, states[0][None], params, True, 1, 0.0, False, False, True)
    return out.reshape(-1, out.shape[-1]), (hidden[0],)


_FUSED: dict[str, Callable[..., tuple[Any, tuple[Any, ...]]]] = {"lstm": _lstm, "gru": _gru}


def _make(layer: Layer, stack: Stack) -> nn.Module:
    if layer.kind == "dense":
        return _linear(layer, stack.parts.get(layer.name))
    if layer.conv is not None:
        return Conv2d(layer.conv)
    return LogStd(layer.units) if layer.kind == "log_std" else Recurrent(layer)


class TorchNetwork(SpecNetwork, nn.Module):
    """A `NetworkSpec` as a torch module.

    Attributes:
        spec: the description.
        layers: module of each layer that has weights, by its plain name.
        stack: its dense layers.
        axes: key to the order of axes that makes the canonical array of a variable, for those that differ.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        nn.Module.__init__(self)
        SpecNetwork.__init__(self, spec)
        self.layers = nn.ModuleDict()
        self.stack = Stack(spec)
        self.axes: dict[str, tuple[int, ...]] = {}
        self._variables: dict[str, nn.Parameter] = {}
        self._made: dict[str, nn.Module] = {}
        keys = spec.weight_keys()
        names = plain_names(keys)
        for layer in spec.layers:
            if layer.name not in keys:
                continue
            made = self._made[layer.name] = self.layers[names[layer.name]] = _make(layer, self.stack)
            for key, leaf in zip(keys[layer.name], layer.leaves(), strict=True):
                name = "weight" if leaf == "kernel" and layer.kind in _AXES else leaf
                self._variables[key] = getattr(made, name)
                if name == "weight":
                    self.axes[key] = _AXES[layer.kind]
                elif leaf in getattr(made, "turned", ()):
                    self.axes[key] = (1, 0)
        if spec.copy_of is not None:
            self.requires_grad_(False)  # nobody differentiates a target network

    def variables(self) -> dict[str, nn.Parameter]:
        """Canonical key to parameter, in creation order; see `axes`."""
        return dict(self._variables)

    def stacked(self) -> dict[str, torch.Tensor]:
        """The parts of the stack's vector by the keys of the parameters that they are."""
        keys = self.spec.weight_keys()
        parts = self.stack.parts.items()
        return {key: part for name, both in parts for key, part in zip(keys[name], both, strict=True)}

    def summary(self, print_fn: Callable[[str], Any] = print) -> None:
        """Prints the layers and the number of parameters, as the Keras models of the other frameworks do."""
        print_fn(f"{self}\nTotal params: {sum(p.numel() for p in self._variables.values()):,}")

    def _apply_layer(self, layer: Layer, x: Any) -> Any:
        if layer.kind == "to_float":
            return x.float() if layer.gain == 1.0 else x.float() * layer.gain
        if layer.kind == "activation":
            return ACTIVATIONS[layer.activation or ""](x)
        if layer.kind == "flatten":
            return x.reshape(-1, layer.units)
        if layer.kind == "one_hot":
            return _one_hot(layer, x)
        made: Any = self._made[layer.name]
        if layer.kind == "dense":
            if layer.activation in ("tanh", "relu"):
                return linear(x, made.weight, made.bias, layer.activation)
            x = F.linear(x, made.weight, made.bias)
        elif layer.conv is not None and layer.conv.whole:
            x = linear(x.flatten(1), made.weight.flatten(1), made.bias)[:, None, None]
        else:
            x = made(x)
        return ACTIVATIONS[layer.activation](x) if layer.activation else x

    def forward(self, inputs: Any, outputs: Iterable[str] | None = None, training: bool = False) -> dict[str, Any]:
        """Outputs by name, each `[N, units]`; only what `outputs` needs is computed.

        Args:
            inputs: a mapping of inputs, or the observation `[N, *obs_shape]` alone.
            outputs: names of the outputs wanted, all by default.
            training: ignored by these layers.
        """
        given = inputs if isinstance(inputs, Mapping) else {"obs": inputs}
        values = {name: x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for name, x in given.items()}
        names = list(self.spec.outputs if outputs is None else outputs)
        for layer in self.spec.needed(names):
            self.compute(layer, values)
        return {name: values[self.spec.outputs[name]] for name in names}

    def compute(self, layer: Layer, values: dict[str, Any]) -> None:
        """Adds to `values` what a layer makes of those of its sources."""
        if layer.kind in CELLS:
            time = values[SEQ_MASK].shape[1] if SEQ_MASK in values else 1
            states = tuple(values[name] for name in layer.sources[1:])
            values[layer.name], states = self._made[layer.name](values[layer.source], states, time)
            values.update({f"{layer.name}/{i}": state for i, state in enumerate(states)})
        elif layer.kind == "concat":
            values[layer.name] = torch.cat([values[name] for name in layer.sources], -1)
        else:
            values[layer.name] = self._apply_layer(layer, values[layer.source])


def _one_hot(layer: Layer, x: Any) -> Any:
    """Each component's classes side by side."""
    x = x.reshape(-1, len(layer.sizes))
    parts = []
    for i, (size, offset) in enumerate(zip(layer.sizes, layer.offsets, strict=True)):
        classes = torch.arange(offset, offset + size, device=x.device)
        parts.append((x[:, i, None] == classes).float())
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def make_network(spec: NetworkSpec | CustomNetwork) -> Any:
    """The network of a description."""
    if isinstance(spec, NetworkSpec):
        return TorchNetwork(spec)
    return CustomTorchNetwork(spec, TorchNetwork)
