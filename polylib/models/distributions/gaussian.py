"""Normal distributions: as they are, and squashed into bounds."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.models.distributions.base import BoxUnits, Distribution
from polylib.policy.ops import Array

# log_std outside this range gives a standard deviation that float32 can't work with (case: exp(100) overflows).
LOG_STD_RANGE = (-20.0, 20.0)
# Squashed, a standard deviation of e^2 puts nearly everything on the bounds already.
SQUASHED_LOG_STD_RANGE = (-20.0, 2.0)
# Logged actions on the bounds have no finite atanh.
_NEARLY_ONE = 1 - 1e-6
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _log_density(ops: Any, mean: Array, log_std: Array, raw: Array) -> Array:
    """Per dimension, less the constant `_HALF_LOG_2PI`."""
    return -0.5 * ops.square((raw - mean) * ops.exp(-log_std)) - log_std


def _kl(ops: Any, mean: Array, log_std: Array, mean_q: Array, log_std_q: Array) -> Array:
    ratio = ops.exp(2.0 * (log_std - log_std_q))
    distance = ops.square((mean - mean_q) * ops.exp(-log_std_q))
    return ops.sum(log_std_q - log_std + 0.5 * (ratio + distance) - 0.5, -1)


class DiagGaussian(BoxUnits, Distribution):
    """Independent normals for a Box; inputs are means, then log standard deviations.

    In a bounded dimension (with `normalize`) the network works in [-1, 1]: `action = raw * scale + shift`. Actions are
    clipped to the bounds (with `clip`), while likelihoods are those of the sample before clipping.

    Args:
        space: a Box of floats.
        normalize: scale bounded dimensions.
        clip: clip actions to the bounds.
    """

    def __init__(self, space: gym.spaces.Box, normalize: bool = True, clip: bool = False) -> None:
        super().__init__(space, normalize, clip)
        self.inputs_size, self.noise_size, self.raw_size = 2 * self.size, self.size, self.size

    def _split(self, ops: Any, inputs: Array) -> tuple[Array, Array]:
        return inputs[:, : self.size], ops.clip(inputs[:, self.size :], *LOG_STD_RANGE)

    def log_std(self, ops: Any, inputs: Array) -> Array:
        """Log standard deviations `[B, k]` of the raw sample."""
        return self._split(ops, inputs)[1]

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Standard normal noise."""
        return rng.standard_normal((batch_size, self.noise_size), dtype=np.float32)

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array]:
        """mean + std * noise, scaled and clipped: `[B, *shape] float32`, and the raw sample `[B, k]`."""
        mean, log_std = self._split(ops, inputs)
        raw = mean + ops.exp(log_std) * noise
        return self.to_actions(ops, raw), raw

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Sum of normal log-densities, less log(scale): a density in the environment's units."""
        if raw is None:
            raw = self.to_raw(ops, actions)
        mean, log_std = self._split(ops, inputs)
        return ops.sum(_log_density(ops, mean, log_std, raw), -1) - (self.size * _HALF_LOG_2PI + self.log_scale)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """sum(log_std + 0.5 log(2 pi e)) + log(scale)."""
        _, log_std = self._split(ops, inputs)
        return ops.sum(log_std, -1) + (self.size * (_HALF_LOG_2PI + 0.5) + self.log_scale)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Closed form; the scale cancels."""
        return _kl(ops, *self._split(ops, inputs), *self._split(ops, other))


# Means over a normal as weighted sums over an evenly spaced grid: for functions as smooth as log cosh its error falls
# exponentially. With a quarter of a standard deviation it is below 0.005 nats even at the widest, std = e^2.
_GRID = np.linspace(-5.0, 5.0, 41)
_GRID_WEIGHTS = (np.exp(-0.5 * _GRID**2) / np.exp(-0.5 * _GRID**2).sum()).astype(np.float32)
_GRID = _GRID.astype(np.float32)


def _log_tanh_slope(ops: Any, x: Array) -> Array:
    """log(1 - tanh(x)^2), which has lost all its digits in float32 from |x| = 9 on when computed as written."""
    return 2.0 * (math.log(2.0) - x - ops.softplus(-2.0 * x))


class SquashedGaussian(BoxUnits, Distribution):
    """Independent normals, squashed by tanh into the bounds of a Box; inputs are means, then log standard deviations.

    The raw sample is the one before tanh. Densities are in the environment's units: the slopes of tanh and of the
    range count. Zero noise gives `tanh(mean)`, the median.

    The entropy has no closed form. It is the normal's plus the expected log-slope, the latter by numerical integration
    (to 0.005 nats): unlike an estimate from one sample it has no variance, and its gradient pulls back from the
    bounds. The KL divergence is that of the normals, exactly, since both sides are squashed alike.

    Args:
        space: a Box of floats, bounded in every dimension.

    Raises:
        EnvError: if it isn't.
    """

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self.require_bounds("SquashedGaussian", space)
        self.inputs_size, self.noise_size, self.raw_size = 2 * self.size, self.size, self.size

    def _split(self, ops: Any, inputs: Array) -> tuple[Array, Array]:
        return inputs[:, : self.size], ops.clip(inputs[:, self.size :], *SQUASHED_LOG_STD_RANGE)

    def log_std(self, ops: Any, inputs: Array) -> Array:
        """Log standard deviations `[B, k]` of the raw sample."""
        return self._split(ops, inputs)[1]

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Standard normal noise."""
        return rng.standard_normal((batch_size, self.noise_size), dtype=np.float32)

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array]:
        """tanh(mean + std * noise) in the bounds: `[B, *shape] float32`, and the sample before tanh `[B, k]`."""
        mean, log_std = self._split(ops, inputs)
        raw = mean + ops.exp(log_std) * noise
        return self.to_actions(ops, ops.tanh(raw)), raw

    def to_drawn(self, ops: Any, actions: Array) -> Array:
        """atanh of the actions, which are clipped to 1 - 1e-6 of the range."""
        unit = ops.clip(self.to_raw(ops, actions), -_NEARLY_ONE, _NEARLY_ONE)
        return 0.5 * ops.log((1.0 + unit) / (1.0 - unit))

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Normal log-density of the raw sample, less the logs of the slopes; without `raw` it is `to_drawn`."""
        if raw is None:
            raw = self.to_drawn(ops, actions)
        mean, log_std = self._split(ops, inputs)
        terms = _log_density(ops, mean, log_std, raw) - _log_tanh_slope(ops, raw)
        return ops.sum(terms, -1) - (self.size * _HALF_LOG_2PI + self.log_scale)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """The normal's plus E[log slope], by numerical integration."""
        mean, log_std = self._split(ops, inputs)
        points = mean[:, :, None] + ops.exp(log_std)[:, :, None] * ops.constant(_GRID)
        slope = ops.sum(_log_tanh_slope(ops, points) * ops.constant(_GRID_WEIGHTS), -1)
        return ops.sum(log_std + slope, -1) + (self.size * (_HALF_LOG_2PI + 0.5) + self.log_scale)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """That of the normals."""
        return _kl(ops, *self._split(ops, inputs), *self._split(ops, other))
