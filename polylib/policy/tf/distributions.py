"""TensorFlow Probability's distributions: what a `custom_action_dist` of its makes is used through these.

TensorFlow Probability itself is never imported here: whoever has a distribution of it has imported it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from polylib.policy.tf import ops

DISTRIBUTION = "tfp.distributions.Distribution"
TENSOR = "TensorFlow tensor"


def is_distribution(x: Any) -> bool:
    """Whether `x` is one, of TensorFlow's and not of JAX's."""
    names = ((base.__module__, base.__name__) for base in type(x).__mro__)
    return any(module.startswith("tensorflow_probability.python") and name == "Distribution" for module, name in names)


def mode(p: Any) -> Any:
    """The mode, or else the mean."""
    try:
        return p.mode()
    except NotImplementedError:
        return p.mean()


def sample(p: Any, seed: np.ndarray) -> Any:
    """A sample of the batch; `seed: [2]` is all its randomness."""
    return p.sample(seed=tf.constant(seed, tf.int32))


def kl(p: Any, q: Any) -> Any:
    """KL(p || q)."""
    return p.kl_divergence(q)


def on_host(f: Callable[..., Any], *arrays: np.ndarray | None) -> Any:
    """`f(ops, *tensors)`, eagerly whatever graph is being built, with NumPy arrays out."""
    with tf.init_scope():
        return tf.nest.map_structure(_to_numpy, f(ops, *map(_to_tensor, arrays)))


def _to_tensor(x: np.ndarray | None) -> Any:
    if x is None:
        return None
    x = np.asarray(x)
    return tf.constant(x.astype(np.float32) if x.dtype == np.float64 else x)


def _to_numpy(x: Any) -> Any:
    return x.numpy() if tf.is_tensor(x) else x
