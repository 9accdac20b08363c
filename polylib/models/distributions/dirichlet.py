"""Dirichlet distributions for shares that sum to one: the space Simplex."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.models.distributions.base import OnHost
from polylib.policy import numpy_ops
from polylib.policy.ops import Array
from polylib.utils.spaces.simplex import TOLERANCE

# Concentrations from 0.007 to 403: smaller ones draw nothing but corners, and of larger ones lgamma's float32 values
# are too large for their differences to have enough digits.
LOG_CONCENTRATION_RANGE = (-5.0, 6.0)
# Shares are at least this: the log-density of a zero is infinite.
_LEAST_SHARE = 1e-6


class Dirichlet(OnHost):
    """Shares that sum to one on the last axis; `concentration = exp(input)`, with inputs in [-5, 6].

    The deterministic action is the mean, `softmax(inputs)`.

    Args:
        shape: of an action; everything but the last axis counts independent simplexes.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(shape)
        self.inputs_size = math.prod(self.shape)

    def _concentration(self, ops: Any, inputs: Array) -> Array:
        # [B, simplexes, shares]
        return ops.exp(ops.clip(ops.reshape(inputs, (-1, *self._rows)), *LOG_CONCENTRATION_RANGE))

    @property
    def _rows(self) -> tuple[int, int]:
        return math.prod(self.shape[:-1]), self.shape[-1]

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, None]:
        """The means, `[B, *shape] float32`."""
        concentration = self._concentration(ops, inputs)
        mean = concentration / ops.sum(concentration, -1)[:, :, None]
        return ops.reshape(mean, (-1, *self.shape)), None

    def draw(self, rng: np.random.Generator, inputs: np.ndarray) -> tuple[np.ndarray, None, np.ndarray]:
        """Samples `[B, *shape] float32`, None, and log-probability `[B]`."""
        # NaN in inputs stays to be seen in the log-probability.
        concentration = self._concentration(numpy_ops, np.nan_to_num(inputs)).astype(np.float64)
        shares = _gamma_shares(rng, concentration)
        actions = shares.astype(np.float32).reshape(-1, *self.shape)
        return actions, None, self.logp(numpy_ops, inputs, actions)

    def _log_normalizer(self, ops: Any, concentration: Array) -> Array:
        # [B, simplexes]
        return ops.sum(ops.lgamma(concentration), -1) - ops.lgamma(ops.sum(concentration, -1))

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Sum of log-densities over simplexes; shares below 1e-6 count as that."""
        concentration = self._concentration(ops, inputs)
        shares = ops.maximum(ops.to_float(ops.reshape(actions, (-1, *self._rows))), _LEAST_SHARE)
        terms = ops.sum((concentration - 1.0) * ops.log(shares), -1)
        return ops.sum(terms - self._log_normalizer(ops, concentration), -1)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Closed form."""
        concentration = self._concentration(ops, inputs)
        total = ops.sum(concentration, -1)
        # The digammas' differences come first: the products alone would be a thousand times larger.
        differences = ops.digamma(total)[:, :, None] - ops.digamma(concentration)
        terms = ops.sum((concentration - 1.0) * differences, -1)
        return ops.sum(self._log_normalizer(ops, concentration) + terms, -1)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Closed form."""
        p, q = self._concentration(ops, inputs), self._concentration(ops, other)
        differences = ops.digamma(p) - ops.digamma(ops.sum(p, -1))[:, :, None]
        terms = ops.sum((p - q) * differences, -1)
        return ops.sum(self._log_normalizer(ops, q) - self._log_normalizer(ops, p) + terms, -1)

    def check_actions(self, actions: np.ndarray, column: str = "actions") -> None:
        """Shares of at least 0 that sum to 1."""
        flat = np.asarray(actions).reshape(len(actions), *self._rows)
        bad = ~((flat >= 0).all((1, 2)) & (np.abs(flat.sum(-1) - 1) <= TOLERANCE).all(-1))
        if bad.any():
            row = int(np.argmax(bad))
            raise BatchError(
                f"column {column!r}: row {row} holds {actions[row].tolist()}, expected shares of at "
                "least 0 that sum to 1"
            )


def _gamma_shares(rng: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    """Dirichlet samples along the last axis; `rng.dirichlet` takes one concentration at a time."""
    # log Gamma(c) = log Gamma(c + 1) + log(u) / c: with a small c, Gamma(c) itself is 0 in all shares at once.
    exponential = rng.standard_exponential(concentration.shape)
    logs = np.log(rng.standard_gamma(concentration + 1)) - exponential / concentration
    shares = np.exp(logs - logs.max(-1, keepdims=True))
    shares = np.maximum(shares / shares.sum(-1, keepdims=True), _LEAST_SHARE)
    return shares / shares.sum(-1, keepdims=True)
