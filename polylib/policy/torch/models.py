"""torch modules from network descriptions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polylib.models.networks import Layer, NetworkSpec

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "elu": F.elu,
    "silu": F.silu,
    "swish": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
}


def _linear(layer: Layer) -> nn.Linear:
    # The policy sets the canonical weights right after; torch's own would be drawn from the process's global generator.
    return nn.Linear(layer.fan_in, layer.units, device="meta", dtype=torch.float32).to_empty(device="cpu")


class TorchNetwork(nn.Module):
    """A `NetworkSpec` as a torch module.

    Attributes:
        spec: the description.
        dense: layer name to `nn.Linear`.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        self.dense = nn.ModuleDict({layer.name: _linear(layer) for layer in spec.layers if layer.kind == "dense"})

    def variables(self) -> dict[str, nn.Parameter]:
        """Canonical key to parameter, in creation order (kernels are transposed at the border)."""
        found: dict[str, Any] = {}
        for name, (kernel, bias) in self.spec.weight_keys().items():
            found[kernel], found[bias] = self.dense[name].weight, self.dense[name].bias
        return found

    def _apply_layer(self, layer: Layer, x: Any) -> Any:
        if layer.kind == "to_float":
            return x.float()
        if layer.kind == "flatten":
            return x.reshape(-1, layer.units)
        if layer.kind == "one_hot":
            classes = torch.arange(layer.offset, layer.offset + layer.units, device=x.device)
            return (x[:, None] == classes).float()
        linear = self.dense[layer.name]
        x = F.linear(x, linear.weight, linear.bias)  # type: ignore[arg-type]
        return _ACTIVATIONS[layer.activation](x) if layer.activation else x

    def forward(self, inputs: Any, outputs: Iterable[str] | None = None, training: bool = False) -> dict[str, Any]:
        """Outputs by name, each `[B, units]`; only what `outputs` needs is computed.

        Args:
            inputs: a mapping of inputs, or the observation `[B, *obs_shape]` alone.
            outputs: names of the outputs wanted, all by default.
            training: ignored by these layers.
        """
        given = inputs if isinstance(inputs, Mapping) else {"obs": inputs}
        values = {name: x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for name, x in given.items()}
        names = list(self.spec.outputs if outputs is None else outputs)
        for layer in self.spec.needed(names):
            values[layer.name] = self._apply_layer(layer, values[layer.source])
        return {name: values[self.spec.outputs[name]] for name in names}
