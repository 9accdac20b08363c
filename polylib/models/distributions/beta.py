"""Beta distributions for bounded Boxes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from polylib.models.distributions.base import BoxUnits, OnHost
from polylib.policy import numpy_ops
from polylib.policy.ops import Array

# Beyond it lgamma's float32 values are too large for their differences to have enough digits.
MAX_INPUT = 1000.0
# Samples keep this distance from 0 and 1, where log-densities are infinite.
_MARGIN = 1e-6


class Beta(BoxUnits, OnHost):
    """Independent Beta distributions, stretched over the bounds of a Box.

    Inputs are those of alpha, then those of beta; each is `softplus(input) + 1`, with inputs up to 1000. So densities
    have one peak and no pole. The raw sample is the one in (0, 1). The deterministic action is the mean.

    Args:
        space: a Box of floats, bounded in every dimension.

    Raises:
        EnvError: if it isn't.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self.require_bounds("Beta", space)
        self.inputs_size, self.raw_size = 2 * self.size, self.size
        # The unit interval is half as wide as [-1, 1].
        self.log_width = self.log_scale + self.size * float(np.log(2.0))

    def _split(self, ops: Any, inputs: Array) -> tuple[Array, Array]:
        both = ops.softplus(ops.clip(inputs, -MAX_INPUT, MAX_INPUT)) + 1.0
        return both[:, : self.size], both[:, self.size :]

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array]:
        """The means, `[B, *shape] float32`; as raw samples `[B, k]`, too."""
        alpha, beta = self._split(ops, inputs)
        raw = alpha / (alpha + beta)
        return self.to_actions(ops, 2.0 * raw - 1.0), raw

    def draw(self, rng: np.random.Generator, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Samples `[B, *shape] float32`, raw `[B, k]` and log-probability `[B]`."""
        # NaN in inputs stays to be seen in the log-probability.
        alpha, beta = self._split(numpy_ops, np.nan_to_num(inputs))
        raw = np.clip(rng.beta(alpha, beta), _MARGIN, 1 - _MARGIN).astype(np.float32)
        actions = self.to_actions(numpy_ops, 2 * raw - 1)
        return actions, raw, self.logp(numpy_ops, inputs, actions, raw)

    def _log_normalizer(self, ops: Any, alpha: Array, beta: Array) -> Array:
        return ops.lgamma(alpha) + ops.lgamma(beta) - ops.lgamma(alpha + beta)

    def to_drawn(self, ops: Any, actions: Array) -> Array:
        """The actions in the unit interval."""
        return 0.5 * (self.to_raw(ops, actions) + 1.0)

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Sum of Beta log-densities, less log(high - low)."""
        if raw is None:
            raw = self.to_drawn(ops, actions)
        raw = ops.clip(raw, _MARGIN, 1 - _MARGIN)
        alpha, beta = self._split(ops, inputs)
        terms = (alpha - 1.0) * ops.log(raw) + (beta - 1.0) * ops.log(1.0 - raw)
        return ops.sum(terms - self._log_normalizer(ops, alpha, beta), -1) - self.log_width

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Closed form."""
        alpha, beta = self._split(ops, inputs)
        total = ops.digamma(alpha + beta)
        # The digammas' differences come first: the products alone would be a thousand times larger.
        terms = (alpha - 1.0) * (total - ops.digamma(alpha)) + (beta - 1.0) * (total - ops.digamma(beta))
        return ops.sum(self._log_normalizer(ops, alpha, beta) + terms, -1) + self.log_width

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Closed form; the width cancels."""
        (alpha, beta), (alpha_q, beta_q) = self._split(ops, inputs), self._split(ops, other)
        total = ops.digamma(alpha + beta)
        terms = (alpha - alpha_q) * (ops.digamma(alpha) - total) + (beta - beta_q) * (ops.digamma(beta) - total)
        normalizers = self._log_normalizer(ops, alpha_q, beta_q) - self._log_normalizer(ops, alpha, beta)
        return ops.sum(normalizers + terms, -1)
