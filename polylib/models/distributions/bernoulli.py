"""Independent switches: the space MultiBinary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.models.distributions.base import MASKED_LOGIT, Distribution
from polylib.policy.ops import Array

_OFF, _ON = np.zeros((), np.int8), np.ones((), np.int8)


def _logits(ops: Any, inputs: Array) -> Array:
    # Infinite logits would make 0 * inf of entropies.
    return ops.clip(inputs, MASKED_LOGIT, -MASKED_LOGIT)


class Bernoulli(Distribution):
    """Independent bits; inputs are the logits of 1.

    A false flag in an action mask keeps its bit at 0.

    Args:
        shape: of an action.
    """

    maskable = True

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(shape)
        self.inputs_size = self.noise_size = math.prod(self.shape)

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Logistic noise."""
        return rng.logistic(size=(batch_size, self.noise_size)).astype(np.float32)

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, None]:
        """1 where logit + logistic noise is positive, `[B, *shape] int8`."""
        bits = ops.where(inputs + noise > 0, ops.constant(_ON), ops.constant(_OFF))
        return ops.reshape(bits, (-1, *self.shape)), None

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Sum over bits of log sigmoid(logit) or log sigmoid(-logit)."""
        logits = _logits(ops, inputs)
        on = ops.to_int(ops.reshape(actions, (-1, self.inputs_size))) > 0
        return -ops.sum(ops.softplus(ops.where(on, -logits, logits)), -1)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Sum over bits of -p log p - (1 - p) log(1 - p)."""
        logits = _logits(ops, inputs)
        minus_log_on, minus_log_off = ops.softplus(-logits), ops.softplus(logits)
        bits = ops.exp(-minus_log_on) * minus_log_on + ops.exp(-minus_log_off) * minus_log_off
        return ops.sum(bits, -1)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Sum over bits of p (log p - log q) + (1 - p) (log(1 - p) - log(1 - q))."""
        p, q = _logits(ops, inputs), _logits(ops, other)
        on = ops.exp(-ops.softplus(-p)) * (ops.softplus(-q) - ops.softplus(-p))
        off = ops.exp(-ops.softplus(p)) * (ops.softplus(q) - ops.softplus(p))
        return ops.sum(on + off, -1)

    def mask(self, ops: Any, inputs: Array, action_mask: Array | None) -> Array:
        """As `Categorical.mask`."""
        return inputs if action_mask is None else ops.where(action_mask, inputs, MASKED_LOGIT + ops.zeros_like(inputs))

    def check_mask(self, action_mask: np.ndarray) -> None:
        """All bits at 0 is always left."""

    def check_actions(self, actions: np.ndarray, column: str = "actions") -> None:
        """0 and 1."""
        flat = np.asarray(actions).reshape(len(actions), -1)
        bad = (flat != 0) & (flat != 1)
        if bad.any():
            row, bit = np.argwhere(bad)[0]
            raise BatchError(f"column {column!r}: row {row} holds {flat[row, bit]}, expected 0 or 1")
