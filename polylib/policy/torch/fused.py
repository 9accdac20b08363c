"""Dense layers by oneDNN: large products are faster than torch's own there, and activations come with them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Linear = Callable[..., torch.Tensor]  # (x, weight, bias, activation, its arguments, its variant)

# A call of oneDNN takes some 10 us longer than one of torch's own product: what makes up for it, in multiplications,
# and in results of tanh.
_LARGE, _MANY = 1 << 20, 1 << 12
# torch's own product takes its time for results of a few columns, but not for such of a few rows.
_FEW = 8

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda y: y,
    "tanh": torch.tanh,
    "relu": F.relu,
}
_IN_PLACE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"tanh": torch.tanh_, "relu": torch.relu_}
#: The gradient before the activation, from the one after it and the activation's result.
SLOPES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "none": lambda g, y: g,
    "tanh": lambda g, y: torch.ops.aten.tanh_backward.default(g, y),
    "relu": lambda g, y: torch.ops.aten.threshold_backward.default(g, y, 0),
}
#: The same in the memory of the gradient.
SLOPES_IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "none": lambda g, y: g,
    "tanh": lambda g, y: torch.ops.aten.tanh_backward.grad_input(g, y, grad_input=g),
    "relu": lambda g, y: torch.ops.aten.threshold_backward.grad_input(g, y, 0, grad_input=g),
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


def _chosen(left: torch.Tensor, right: torch.Tensor, activation: str = "none") -> Linear | None:
    """The kernel, where it is faster than torch's own product: `left @ right.T`."""
    rows, (units, fan_in) = left.shape[0], right.shape
    if rows * fan_in * units < _LARGE and not (activation == "tanh" and rows * units >= _MANY):
        return None
    return _kernel()


def _packed(x: torch.Tensor) -> torch.Tensor:
    """Rows or columns one after another: with gaps between them oneDNN takes a hundred times as long."""
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


def _call(kernel: Linear, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str) -> torch.Tensor:
    x = _packed(x)
    if activation != "relu":
        return kernel(x, weight, bias, activation, [], "")
    # oneDNN's relu makes 0 of NaN, which would hide that learning has diverged.
    return torch.relu_(kernel(x, weight, bias, "none", [], ""))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str, kernel: Linear
    ) -> torch.Tensor:
        y = _call(kernel, x, weight, bias, activation)
        ctx.save_for_backward(x, weight, y)
        ctx.activation = activation
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        g = SLOPES[ctx.activation](grads[0], y)
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
    kernel = _chosen(x, weight, activation)
    return plain(x, weight, bias, activation) if kernel is None else _Linear.apply(x, weight, bias, activation, kernel)


# --- for those who do without autograd


def dense(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, activation: str) -> torch.Tensor:
    """`linear` of float32 on the CPU, where nobody asks for gradients."""
    kernel = _chosen(x, weight, activation)
    if kernel is not None:
        return _call(kernel, x, weight, bias, activation)
    y = torch.addmm(bias, x, weight.t())
    return y if activation == "none" else _IN_PLACE[activation](y)


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """`left @ right.T` of float32 on the CPU.

    Args:
        left: `[M, K]`.
        right: `[N, K]`.
        out: where to put it.
    """
    # With gradients enabled somebody wants the gradient's gradient, which only torch's own product has.
    kernel = None if torch.is_grad_enabled() else _chosen(left, right)
    if kernel is not None:
        result = kernel(_packed(left), _packed(right), None, "none", [], "")
    elif right.shape[0] <= _FEW and left.numel() >= _FEW << 10:
        result = torch.mm(right, left.t()).t()
    else:
        return torch.mm(left, right.t()) if out is None else torch.mm(left, right.t(), out=out)
    return result if out is None else out.copy_(result)
