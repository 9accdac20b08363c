"""torch's distributions: what a `custom_action_dist` of theirs makes is used through these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from polylib.policy.torch import ops

DISTRIBUTION = "torch.distributions.Distribution"
TENSOR = "torch tensor"


def is_distribution(x: Any) -> bool:
    """Whether `x` is one."""
    return isinstance(x, torch.distributions.Distribution)


def mode(p: Any) -> Any:
    """The mode, or else the mean."""
    try:
        return p.mode
    except NotImplementedError:
        return p.mean


def sample(p: Any, seed: np.ndarray) -> Any:
    """A sample of the batch; `seed: [2]` is all its randomness, and torch's own generator stays as it is."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would seed the GPUs, too.
        torch.default_generator.manual_seed(int(seed[0]) << 31 | int(seed[1]))
        return p.sample()


def kl(p: Any, q: Any) -> Any:
    """KL(p || q)."""
    return torch.distributions.kl_divergence(p, q)


def on_host(f: Callable[..., Any], *arrays: np.ndarray | None) -> Any:
    """`f(ops, *tensors)` without gradients, with NumPy arrays out."""
    with torch.no_grad():
        return _to_numpy(f(ops, *map(_to_tensor, arrays)))


def _to_tensor(x: np.ndarray | None) -> Any:
    if x is None:
        return None
    x = np.asarray(x)
    return torch.tensor(x.astype(np.float32) if x.dtype == np.float64 else x)


def _to_numpy(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_to_numpy, x))
    return x.numpy() if isinstance(x, torch.Tensor) else x
