"""`Ops` on NumPy: the reference that every other backend is compared with. It keeps float64 where it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

framework = "numpy"

abs, exp, log, sqrt, square, tanh = np.abs, np.exp, np.log, np.sqrt, np.square, np.tanh  # noqa: A001
minimum, maximum, clip, where, zeros_like = np.minimum, np.maximum, np.clip, np.where, np.zeros_like
constant, matmul, transpose = np.asarray, np.matmul, np.transpose


def sigmoid(x: Any) -> Any:  # noqa: D103
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def relu(x: Any) -> Any:  # noqa: D103
    return np.maximum(x, 0)


def huber(x: Any, threshold: float) -> Any:  # noqa: D103
    size = np.abs(x)
    small = np.minimum(size, threshold)
    return small * (size - 0.5 * small)


def softplus(x: Any) -> Any:  # noqa: D103
    return np.logaddexp(np.zeros((), x.dtype), x)


def lgamma(x: Any) -> Any:  # noqa: D103
    from scipy.special import gammaln  # a fifth of a second that most policies don't need

    return gammaln(x)


def digamma(x: Any) -> Any:  # noqa: D103
    from scipy.special import digamma as function

    return function(x)


# Workers act with these: NumPy's functions of the same names take several times as long for a few numbers.
def sum(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return np.add.reduce(x, axis)


def mean(x: Any, axis: int | None = None) -> Any:  # noqa: D103
    x = np.asarray(x)
    return np.add.reduce(x, axis) / (x.size if axis is None else x.shape[axis])


def max(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return np.maximum.reduce(x, axis)


def min(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return np.minimum.reduce(x, axis)


def argmax(x: Any) -> Any:  # noqa: D103
    return x.argmax(-1)


def logsumexp(x: Any, axis: int = -1) -> Any:  # noqa: D103
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, np.zeros((), x.dtype))  # inf - inf is NaN
    return np.squeeze(top, axis) + np.log(np.sum(np.exp(x - top), axis=axis))


def log_softmax(x: Any) -> Any:  # noqa: D103
    shifted = x - np.maximum.reduce(x, -1, keepdims=True)
    return shifted - np.log(np.add.reduce(np.exp(shifted), -1, keepdims=True))


def one_hot(index: Any, size: int) -> Any:  # noqa: D103
    index = np.asarray(index)
    return (index[..., None] == np.arange(size)).astype(np.float32)


def pick(x: Any, index: Any) -> Any:  # noqa: D103
    if x.ndim == 2:
        return x[np.arange(len(x)), index]  # a third of the time
    return np.take_along_axis(x, index[..., None], axis=-1)[..., 0]


def to_float(x: Any) -> Any:  # noqa: D103
    x = np.asarray(x)
    return x if x.dtype == np.float64 else x.astype(np.float32, copy=False)


def to_int(x: Any) -> Any:  # noqa: D103
    return np.asarray(x).astype(np.int64, copy=False)


def reshape(x: Any, shape: tuple[int, ...]) -> Any:  # noqa: D103
    return np.asarray(x).reshape(shape)


def stack(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return np.stack(xs, axis)


def concat(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return np.concatenate(xs, axis)


def stop_gradient(x: Any) -> Any:  # noqa: D103
    return x


def no_gradient(compute: Callable[[], Any]) -> Any:  # noqa: D103
    return compute()


def reverse_scan(step: Callable[..., Any], init: Any, xs: Sequence[Any]) -> Any:  # noqa: D103
    acc, out = init, []
    for t in range(len(xs[0]) - 1, -1, -1):
        acc = step(acc, *[x[t] for x in xs])
        out.append(acc)
    return np.stack(out[::-1])
