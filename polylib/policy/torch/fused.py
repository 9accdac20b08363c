"""A dense layer with its activation in one call of oneDNN, faster than torch's own product and twice so with tanh."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Linear = Callable[..., torch.Tensor]  # (x, weight, bias, activation, its arguments, its variant)


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda y: y,
    "tanh": torch.tanh,
    "relu": F.relu,
}
# The gradient before the activation, from the one after it and the activation's result.
_SLOPES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "none": lambda g, y: g,
    "tanh": lambda g, y: torch.ops.aten.tanh_backward.default(g, y),
    "relu": lambda g, y: torch.ops.aten.threshold_backward.default(g, y, 0),
}


def plain(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str = "none") -> torch.Tensor:
    """`activation(x @ weight.T + bias)` by torch's public functions; arguments as in `linear`."""
    return _ACTIVATIONS[activation](F.linear(x, weight, bias))


@functools.cache
def _kernel() -> Linear | None:
    # torch's compiler uses this operator on CPUs, and promises it to nobody: it is tried before it is trusted.
    try:
        kernel = torch.ops.mkldnn._linear_pointwise.default
        with torch.inference_mode(False), torch.no_grad():
            x, weight, bias = (
                torch.linspace(-1, 1, math.prod(shape), dtype=torch.float32, device="cpu").reshape(shape)
                for shape in ((2, 3), (4, 3), (4,))
            )
            results = {name: plain(x, weight, bias, name) for name in _ACTIVATIONS}
            y = results["tanh"]
            # As called forwards, and for gradients: transposed, with neither bias nor activation.
            same = torch.allclose(kernel(y.t(), x.t(), None, "none", [], ""), y.t() @ x, atol=1e-6) and all(
                torch.allclose(kernel(x, weight, bias, name, [], ""), result, atol=1e-6)
                for name, result in results.items()
                if name != "relu"
            )
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return None
    return kernel if same else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str, kernel: Linear
    ) -> torch.Tensor:
        # oneDNN's relu makes 0 of NaN, which would hide that learning has diverged.
        relu = activation == "relu"
        y = kernel(x, weight, bias, "none" if relu else activation, [], "")
        if relu:
            torch.relu_(y)
        ctx.save_for_backward(x, weight, y)
        ctx.kernel, ctx.activation = kernel, activation
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors

        def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            # With gradients enabled somebody wants the gradient's gradient, which only torch's own product has.
            return left @ right.t() if torch.is_grad_enabled() else ctx.kernel(left, right, None, "none", [], "")

        g = _SLOPES[ctx.activation](grads[0], y)
        # The first layer's input is data, and of a network that isn't trained here the weights need nothing.
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        dx = product(g, weight.t()) if needs_x else None
        return dx, product(g.t(), x.t()) if needs_weight else None, g.sum(0) if needs_weight else None, None, None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str = "none") -> torch.Tensor:
    """`activation(x @ weight.T + bias)`, `[B, units]`.

    Args:
        x: `[B, fan_in]`.
        weight: `[units, fan_in]`.
        bias: `[units]`.
        activation: `"none"`, `"tanh"` or `"relu"`.
    """
    if (
        torch.compiler.is_compiling()  # it fuses by itself
        or torch.jit.is_tracing()
        or x.dim() != 2
        or not x.dtype == weight.dtype == bias.dtype == torch.float32
        or not x.device.type == weight.device.type == bias.device.type == "cpu"
    ):
        return plain(x, weight, bias, activation)
    kernel = _kernel()
    return plain(x, weight, bias, activation) if kernel is None else _Linear.apply(x, weight, bias, activation, kernel)
