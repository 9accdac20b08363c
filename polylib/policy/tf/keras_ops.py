"""`Ops` on Keras' own operations: what they make of symbolic tensors is saved in `.keras` files and needs no polylib.

Only for exporting: the deterministic action needs none of `lgamma`, `digamma` and `reverse_scan`, which Keras hasn't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras import ops as k

framework = "tf"

abs, exp, log, sqrt, square, tanh = k.absolute, k.exp, k.log, k.sqrt, k.square, k.tanh  # noqa: A001
softplus, clip, zeros_like, stop_gradient = k.softplus, k.clip, k.zeros_like, k.stop_gradient
minimum, maximum, where, reshape = k.minimum, k.maximum, k.where, k.reshape
matmul, transpose, sigmoid, relu = k.matmul, k.transpose, k.sigmoid, k.relu


def sum(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return k.sum(x, axis)


def mean(x: Any, axis: int | None = None) -> Any:  # noqa: D103
    return k.mean(x, axis)


def max(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return k.max(x, axis)


def argmax(x: Any) -> Any:  # noqa: D103
    return k.cast(k.argmax(x, -1), "int64")


def logsumexp(x: Any, axis: int = -1) -> Any:  # noqa: D103
    return k.logsumexp(x, axis)


def log_softmax(x: Any) -> Any:  # noqa: D103
    return k.log_softmax(x, -1)


def one_hot(index: Any, size: int) -> Any:  # noqa: D103
    return k.one_hot(index, size)


def pick(x: Any, index: Any) -> Any:  # noqa: D103
    return k.squeeze(k.take_along_axis(x, k.expand_dims(index, -1), -1), -1)


def to_float(x: Any) -> Any:  # noqa: D103
    return k.cast(x, "float32")


def to_int(x: Any) -> Any:  # noqa: D103
    return k.cast(x, "int64")


def constant(x: Any) -> Any:
    """As it is: an array is saved with the operation that takes it."""
    return x


def stack(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return k.stack(list(xs), axis)


def concat(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return k.concatenate(list(xs), axis)
