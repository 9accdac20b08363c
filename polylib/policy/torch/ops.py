"""`Ops` on torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

framework = "torch"

abs, exp, log, sqrt, square, tanh = torch.abs, torch.exp, torch.log, torch.sqrt, torch.square, torch.tanh  # noqa: A001
softplus, zeros_like = F.softplus, torch.zeros_like
lgamma, digamma = torch.lgamma, torch.digamma
where, reshape, matmul, transpose = torch.where, torch.reshape, torch.matmul, torch.permute
sigmoid, relu = torch.sigmoid, torch.relu


def minimum(x: Any, y: Any) -> Any:  # noqa: D103
    return torch.minimum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, max=y)


def maximum(x: Any, y: Any) -> Any:  # noqa: D103
    return torch.maximum(x, y) if isinstance(y, torch.Tensor) else torch.clamp(x, min=y)


def huber(x: Any, threshold: float) -> Any:  # noqa: D103
    return F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=threshold)


def clip(x: Any, low: Any, high: Any) -> Any:  # noqa: D103
    return torch.clamp(x, low, high)


def sum(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return torch.sum(x) if axis is None else torch.sum(x, axis)


def mean(x: Any, axis: int | None = None) -> Any:  # noqa: D103
    if axis is not None or not x.numel():
        return torch.mean(x) if axis is None else torch.mean(x, axis)
    return torch.sum(x) * (1.0 / x.numel())  # torch's own makes a tensor of the count first, for twice the time


def max(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return torch.max(x) if axis is None else torch.amax(x, axis)


def min(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return torch.min(x) if axis is None else torch.amin(x, axis)


def argmax(x: Any) -> Any:  # noqa: D103
    return torch.argmax(x, -1)


def logsumexp(x: Any, axis: int = -1) -> Any:  # noqa: D103
    return torch.logsumexp(x, axis)


def log_softmax(x: Any) -> Any:  # noqa: D103
    return F.log_softmax(x, -1)


def one_hot(index: Any, size: int) -> Any:
    """By comparison: `F.one_hot` checks the largest index first, which costs more than the rest."""
    return (index[..., None] == torch.arange(size, device=index.device)).float()


def pick(x: Any, index: Any) -> Any:  # noqa: D103
    return torch.gather(x, -1, index[..., None])[..., 0]


def to_float(x: Any) -> Any:  # noqa: D103
    return x.float()


def to_int(x: Any) -> Any:  # noqa: D103
    return x.long()


def constant(x: Any) -> Any:  # noqa: D103
    return torch.as_tensor(x)


def stack(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return torch.stack(list(xs), axis)


def concat(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return torch.cat(list(xs), axis)


def stop_gradient(x: Any) -> Any:  # noqa: D103
    return x.detach()


def no_gradient(compute: Callable[[], Any]) -> Any:  # noqa: D103
    with torch.no_grad():
        return compute()


def reverse_scan(step: Callable[..., Any], init: Any, xs: Sequence[Any]) -> Any:  # noqa: D103
    acc, out = init, []
    for t in range(xs[0].shape[0] - 1, -1, -1):
        acc = step(acc, *[x[t] for x in xs])
        out.append(acc)
    return torch.stack(out[::-1])
