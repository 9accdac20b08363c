"""`Ops` on TensorFlow; every body is legal in a TF1 graph, eagerly and under tf.function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

framework = "tf"

abs, exp, log, sqrt, square, tanh = tf.abs, tf.exp, tf.math.log, tf.sqrt, tf.square, tf.tanh  # noqa: A001
softplus, clip, zeros_like, stop_gradient = tf.math.softplus, tf.clip_by_value, tf.zeros_like, tf.stop_gradient
lgamma, digamma = tf.math.lgamma, tf.math.digamma
minimum, maximum, where, constant = tf.minimum, tf.maximum, tf.where, tf.constant
matmul, transpose, sigmoid, relu = tf.matmul, tf.transpose, tf.sigmoid, tf.nn.relu


def huber(x: Any, threshold: float) -> Any:  # noqa: D103
    size = tf.abs(x)
    small = tf.minimum(size, threshold)
    return small * (size - 0.5 * small)


def no_gradient(compute: Callable[[], Any]) -> Any:  # noqa: D103
    return tf.nest.map_structure(tf.stop_gradient, compute())


def sum(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return tf.reduce_sum(x, axis)


def mean(x: Any, axis: int | None = None) -> Any:  # noqa: D103
    return tf.reduce_mean(x, axis)


def max(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return tf.reduce_max(x, axis)


def min(x: Any, axis: int | None = None) -> Any:  # noqa: A001, D103
    return tf.reduce_min(x, axis)


def argmax(x: Any) -> Any:  # noqa: D103
    return tf.argmax(x, axis=-1)


def logsumexp(x: Any, axis: int = -1) -> Any:  # noqa: D103
    return tf.reduce_logsumexp(x, axis)


def log_softmax(x: Any) -> Any:  # noqa: D103
    return tf.nn.log_softmax(x)


def one_hot(index: Any, size: int) -> Any:  # noqa: D103
    return tf.one_hot(index, size)


def pick(x: Any, index: Any) -> Any:
    """By one-hot: its gradient is dense and faster than gather's scatter for a few actions.

    Not as a product: 0 * -inf, from an entry that wasn't picked, would be NaN.
    """
    picked = tf.one_hot(index, x.shape[-1], True, False, dtype=tf.bool)
    return tf.reduce_sum(tf.where(picked, x, tf.zeros_like(x)), -1)


def to_float(x: Any) -> Any:  # noqa: D103
    return tf.cast(x, tf.float32)


def to_int(x: Any) -> Any:  # noqa: D103
    return tf.cast(x, tf.int64)


def reshape(x: Any, shape: tuple[int, ...]) -> Any:  # noqa: D103
    return tf.reshape(x, shape)


def stack(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return tf.stack(xs, axis)


def concat(xs: Sequence[Any], axis: int = 0) -> Any:  # noqa: D103
    return tf.concat(xs, axis)


def reverse_scan(step: Callable[..., Any], init: Any, xs: Sequence[Any]) -> Any:  # noqa: D103
    return tf.scan(lambda acc, x: step(acc, *x), tuple(xs), initializer=init, reverse=True)
