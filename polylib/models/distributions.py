"""Action distributions over `ops`: one description per action space, used alike by every backend.

Actions are in the environment's units: `Discrete(3, start=5)` gives 5, 6 or 7, a Box action lies in its bounds, and
log-probabilities are densities in those units. Randomness comes in as `noise`, drawn on the host, so that all backends
with the same seed take the same actions; zero noise gives the most likely action.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, EnvError
from polylib.policy.ops import Array

# log_std outside this range gives a standard deviation that float32 can't work with (case: exp(100) overflows).
LOG_STD_RANGE = (-20.0, 20.0)
# What a masked logit becomes: finite, so that 0 * log(0) stays 0 in entropies and gradients.
MASKED_LOGIT = -1e9
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_NO_MASK = "action masks work with Discrete and MultiDiscrete action spaces only"


class Distribution(ABC):
    """Turns a network's outputs into actions. Stateless; `inputs: [B, inputs_size] float32`.

    Attributes:
        inputs_size: how many numbers per row the network has to give.
        noise_size: how many random numbers per row `sample` takes.
    """

    inputs_size: int
    noise_size: int

    @abstractmethod
    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Randomness for `sample`: `[batch_size, noise_size] float32`."""

    @abstractmethod
    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array | None]:
        """Actions `[B, *action_shape]` in the environment's units, and for Box the raw sample `[B, k]` behind them."""

    @abstractmethod
    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Log-probability `[B]` of actions; `raw` is used where given, since clipping loses what was drawn."""

    @abstractmethod
    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Entropy `[B]` in nats (differential, in the environment's units, for Box)."""

    @abstractmethod
    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """KL(inputs || other), `[B]` in nats."""

    def mask(self, ops: Any, inputs: Array, action_mask: Array | None) -> Array:
        """Inputs under which actions with a false `action_mask: [B, inputs_size]` are never taken.

        Raises:
            EnvError: if a mask is given and the space has no discrete choices.
        """
        if action_mask is None:
            return inputs
        raise EnvError(_NO_MASK)

    def check_mask(self, action_mask: np.ndarray) -> None:
        """Checks a mask `[B, inputs_size] bool` on the host, where an error can still name the row.

        Raises:
            BatchError: if a row allows no action at all, or the space has no discrete choices.
        """
        raise BatchError(f"column 'action_mask': {_NO_MASK}")

    def check_actions(self, actions: np.ndarray) -> None:
        """Checks that actions `[B, *action_shape]` have a probability: backends disagree about those that have none.

        Raises:
            BatchError: naming the row of an action outside the space.
        """
        return None

    def zero_noise(self, batch_size: int) -> np.ndarray:
        """The noise of the most likely action."""
        return np.zeros((batch_size, self.noise_size), np.float32)


def _gumbel(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    # -log of an exponential variate is a Gumbel variate; argmax(logits + Gumbel) is a sample of softmax(logits).
    # One variate in ten million is exactly 0 (the next is 1.3e-7): its noise would be infinite, and choose a masked
    # action.
    return -np.log(np.maximum(rng.standard_exponential(shape, dtype=np.float32), np.float32(2**-24)))


def _finite(ops: Any, logits: Array) -> Array:
    # A network that masks by itself gives -inf, and 0 * -inf is NaN.
    return ops.maximum(logits, MASKED_LOGIT)


class Categorical(Distribution):
    """One choice of `n`; inputs are logits.

    Args:
        n: number of choices.
        start: the action of the first choice.
    """

    def __init__(self, n: int, start: int = 0) -> None:
        self.inputs_size = self.noise_size = int(n)
        self.start = int(start)

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Gumbel noise."""
        return _gumbel(rng, (batch_size, self.noise_size))

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, None]:
        """Gumbel-max sample, `[B] int64`."""
        choice = ops.argmax(inputs + noise)
        return (choice + self.start if self.start else choice), None

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Log-softmax at the action."""
        return ops.pick(ops.log_softmax(_finite(ops, inputs)), actions - self.start if self.start else actions)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """-sum p log p."""
        logp = ops.log_softmax(_finite(ops, inputs))
        return -ops.sum(ops.exp(logp) * logp, -1)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """sum p (log p - log q)."""
        logp = ops.log_softmax(_finite(ops, inputs))
        return ops.sum(ops.exp(logp) * (logp - ops.log_softmax(_finite(ops, other))), -1)

    def mask(self, ops: Any, inputs: Array, action_mask: Array | None) -> Array:
        """Masked logits become very small, not -inf: entropy, KL and gradients stay finite."""
        return inputs if action_mask is None else ops.where(action_mask, inputs, MASKED_LOGIT + ops.zeros_like(inputs))

    def check_mask(self, action_mask: np.ndarray) -> None:
        """Every row needs an action that is allowed."""
        allowed = action_mask.any(-1)
        if not allowed.all():
            raise BatchError(
                f"column 'action_mask': row {int(np.argmin(allowed))} allows no action; at least one of "
                f"{self.inputs_size} has to be true"
            )

    def check_actions(self, actions: np.ndarray) -> None:
        """From `start` to `start + n - 1`."""
        choices = actions - self.start
        bad = (choices < 0) | (choices >= self.inputs_size)
        if bad.any():
            row = int(np.argmax(bad))
            raise BatchError(
                f"column 'actions': row {row} holds {actions[row]}, expected {self.start} to "
                f"{self.start + self.inputs_size - 1}"
            )


class MultiCategorical(Distribution):
    """Independent choices, `nvec` of any shape; inputs are all logits one after another.

    Args:
        nvec: number of choices of each component, any shape.
        start: the action of each component's first choice, same shape.
    """

    def __init__(self, nvec: np.ndarray, start: np.ndarray | None = None) -> None:
        nvec = np.asarray(nvec)
        starts = np.zeros_like(nvec) if start is None else np.asarray(start)
        self.shape = nvec.shape
        self.parts = [Categorical(n, s) for n, s in zip(nvec.ravel(), starts.ravel(), strict=True)]
        self.inputs_size = self.noise_size = int(nvec.sum())
        edges = np.cumsum([0, *nvec.ravel()]).tolist()
        self.slices = list(zip(edges[:-1], edges[1:], strict=True))

    def _split(self, inputs: Array) -> list[tuple[Categorical, Array]]:
        return [(part, inputs[:, a:b]) for part, (a, b) in zip(self.parts, self.slices, strict=True)]

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Gumbel noise for every logit."""
        return _gumbel(rng, (batch_size, self.noise_size))

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, None]:
        """One Gumbel-max sample per component, `[B, *shape] int64`."""
        noises = [noise[:, a:b] for a, b in self.slices]
        choices = [part.sample(ops, x, z)[0] for (part, x), z in zip(self._split(inputs), noises, strict=True)]
        return ops.reshape(ops.stack(choices, -1), (-1, *self.shape)), None

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Sum over components."""
        flat = ops.reshape(actions, (-1, len(self.parts)))
        return sum(part.logp(ops, x, flat[:, i]) for i, (part, x) in enumerate(self._split(inputs)))

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Sum over components."""
        return sum(part.entropy(ops, x) for part, x in self._split(inputs))

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Sum over components."""
        return sum(
            part.kl(ops, x, y) for (part, x), (_, y) in zip(self._split(inputs), self._split(other), strict=True)
        )

    def mask(self, ops: Any, inputs: Array, action_mask: Array | None) -> Array:
        """As `Categorical.mask`, over all logits."""
        return Categorical(self.inputs_size).mask(ops, inputs, action_mask)

    def check_mask(self, action_mask: np.ndarray) -> None:
        """Every component needs a choice that is allowed."""
        for part, mask in self._split(action_mask):
            part.check_mask(mask)

    def check_actions(self, actions: np.ndarray) -> None:
        """Component by component."""
        flat = actions.reshape(len(actions), len(self.parts))
        for i, part in enumerate(self.parts):
            part.check_actions(flat[:, i])


def _inward(bound: np.ndarray, inside: float) -> np.ndarray:
    """A float64 bound in float32, never beyond it: float32(0.1) is above 0.1. Beyond float32's range it is infinite."""
    with np.errstate(over="ignore"):
        rounded = bound.astype(np.float32)
    beyond = np.isfinite(rounded) & ((rounded < bound) if inside > 0 else (rounded > bound))
    return np.where(beyond, np.nextafter(rounded, np.float32(inside)), rounded)


class DiagGaussian(Distribution):
    """Independent normals for a Box; inputs are means, then log standard deviations.

    In a bounded dimension (with `normalize`) the network works in [-1, 1]: `action = raw * scale + shift`. Actions are
    clipped to the bounds (with `clip`), while likelihoods are those of the sample before clipping.

    Args:
        space: a Box of floats.
        normalize: scale bounded dimensions.
        clip: clip actions to the bounds.
    """

    def __init__(self, space: gym.spaces.Box, normalize: bool = True, clip: bool = False) -> None:
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.inputs_size, self.noise_size = 2 * self.size, self.size
        low, high = (np.asarray(b, np.float64).ravel() for b in (space.low, space.high))
        self.low, self.high = _inward(low, np.inf), _inward(high, -np.inf)
        bounded = np.isfinite(self.low) & np.isfinite(self.high) & (high > low)
        scaled = bounded & normalize
        low, high = np.where(scaled, low, -1.0), np.where(scaled, high, 1.0)
        self.scale, self.shift = ((high - low) / 2).astype(np.float32), ((high + low) / 2).astype(np.float32)
        self.identity = not scaled.any()
        self.log_scale = float(np.log(self.scale.astype(np.float64)).sum())
        self.clips = (clip or normalize) and bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def _split(self, ops: Any, inputs: Array) -> tuple[Array, Array]:
        return inputs[:, : self.size], ops.clip(inputs[:, self.size :], *LOG_STD_RANGE)

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Standard normal noise."""
        return rng.standard_normal((batch_size, self.noise_size), dtype=np.float32)

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array]:
        """mean + std * noise, scaled and clipped: `[B, *shape] float32`, and the raw sample `[B, k]`."""
        mean, log_std = self._split(ops, inputs)
        raw = mean + ops.exp(log_std) * noise
        actions = raw if self.identity else raw * ops.constant(self.scale) + ops.constant(self.shift)
        if self.clips:
            actions = ops.minimum(ops.maximum(actions, ops.constant(self.low)), ops.constant(self.high))
        return ops.reshape(actions, (-1, *self.shape)), raw

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Sum of normal log-densities, less log(scale): a density in the environment's units."""
        if raw is None:
            raw = ops.to_float(ops.reshape(actions, (-1, self.size)))
            if not self.identity:
                raw = (raw - ops.constant(self.shift)) / ops.constant(self.scale)
        mean, log_std = self._split(ops, inputs)
        z = (raw - mean) * ops.exp(-log_std)
        return ops.sum(-0.5 * ops.square(z) - log_std, -1) - (self.size * _HALF_LOG_2PI + self.log_scale)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """sum(log_std + 0.5 log(2 pi e)) + log(scale)."""
        _, log_std = self._split(ops, inputs)
        return ops.sum(log_std, -1) + (self.size * (_HALF_LOG_2PI + 0.5) + self.log_scale)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Closed form; the scale cancels."""
        (mean, log_std), (mean_q, log_std_q) = self._split(ops, inputs), self._split(ops, other)
        ratio = ops.exp(2.0 * (log_std - log_std_q))
        distance = ops.square((mean - mean_q) * ops.exp(-log_std_q))
        return ops.sum(log_std_q - log_std + 0.5 * (ratio + distance) - 0.5, -1)


def make_distribution(
    space: gym.Space[Any], normalize_actions: bool = True, clip_actions: bool = False
) -> Distribution:
    """The distribution of an action space.

    Args:
        space: Discrete, MultiDiscrete or a float Box.
        normalize_actions: policies act in [-1, 1] of bounded Box dimensions.
        clip_actions: clip Box actions to the bounds also when they aren't normalised.

    Raises:
        EnvError: for any other space.
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n), int(space.start))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical(space.nvec, getattr(space, "start", None))
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.low.size:
        return DiagGaussian(space, normalize_actions, clip_actions)
    raise EnvError(
        f"action space {space} isn't supported in this version: expected Discrete, MultiDiscrete or a Box of at least "
        "one float"
    )


class BoundDistribution:
    """A distribution with its inputs, for people who look inside a policy: `policy.dist_class(inputs)`.

    Args:
        inputs: `[B, inputs_size]` in the backend's own tensors (NumPy in `tf` mode), or all that the model returned.
        model: ignored; RLlib's second argument.
    """

    def __init__(
        self, dist: Distribution, ops: Any, rng: np.random.Generator, inputs: Array, model: Any = None
    ) -> None:
        if isinstance(inputs, Mapping):
            inputs = inputs["logits"]
        self.dist, self.ops, self.rng, self.inputs = dist, ops, rng, inputs

    def _draw(self, noise: np.ndarray) -> Array:
        return self.dist.sample(self.ops, self.inputs, self.ops.constant(noise))[0]

    def sample(self) -> Array:
        """Random actions `[B, *action_shape]`."""
        return self._draw(self.dist.noise(self.rng, int(self.inputs.shape[0])))

    def deterministic_sample(self) -> Array:
        """The most likely actions `[B, *action_shape]`."""
        return self._draw(self.dist.zero_noise(int(self.inputs.shape[0])))

    def logp(self, actions: Array) -> Array:
        """Log-probability `[B]` of actions."""
        return self.dist.logp(self.ops, self.inputs, actions)

    def entropy(self) -> Array:
        """Entropy `[B]`."""
        return self.dist.entropy(self.ops, self.inputs)

    def kl(self, other: BoundDistribution) -> Array:
        """KL(self || other) `[B]`."""
        return self.dist.kl(self.ops, self.inputs, other.inputs)
