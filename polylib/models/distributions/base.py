"""What every action distribution offers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, EnvError
from polylib.policy import numpy_ops
from polylib.policy.ops import Array

# What a masked logit becomes: finite, so that 0 * log(0) stays 0 in entropies and gradients.
MASKED_LOGIT = -1e9
_NO_MASK = "action masks work with discrete action spaces only (Discrete, MultiDiscrete, MultiBinary)"


class Distribution(ABC):
    """Turns a network's outputs into actions. Stateless; `inputs: [B, inputs_size] float32`.

    Attributes:
        inputs_size: how many numbers per row the network has to give.
        noise_size: how many random numbers per row `sample` takes.
        raw_size: how many numbers per row the raw sample has; 0 if there is none.
        on_host: samples come from `draw`, in NumPy; `sample` gives the deterministic action only.
        maskable: whether an action mask does anything.
    """

    inputs_size: int
    noise_size: int
    raw_size: int = 0
    on_host: bool = False
    maskable: bool = False

    @abstractmethod
    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Randomness for `sample`: `[batch_size, noise_size] float32`."""

    @abstractmethod
    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array | None]:
        """Actions `[B, *action_shape]` in the environment's units, and the raw sample `[B, raw_size]` behind them."""

    @abstractmethod
    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Log-probability `[B]` of actions; `raw` is used where given, since clipping loses what was drawn."""

    @abstractmethod
    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Entropy `[B]` in nats (differential, in the environment's units, for Box)."""

    @abstractmethod
    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """KL(inputs || other), `[B]` in nats."""

    def loss_terms(
        self, ops: Any, inputs: Array, old_inputs: Array, actions: Array, raw: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """What losses are made of: `logp(inputs, actions, raw)`, `kl(old_inputs, inputs)` and `entropy(inputs)`.

        A distribution whose terms have work in common does it once here.
        """
        return self.logp(ops, inputs, actions, raw), self.kl(ops, old_inputs, inputs), self.entropy(ops, inputs)

    def draw(self, rng: np.random.Generator, inputs: np.ndarray) -> tuple[Any, np.ndarray | None, np.ndarray]:
        """Random actions, their raw sample or None, and their log-probability `[B]`, all on the host.

        Args:
            rng: the only source of randomness.
            inputs: `[B, inputs_size]`.
        """
        actions, raw = self.sample(numpy_ops, inputs, self.noise(rng, len(inputs)))
        return actions, raw, self.logp(numpy_ops, inputs, actions, raw)

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

    def check_actions(self, actions: Any, column: str = "actions") -> None:
        """Checks that actions `[B, *action_shape]` have a probability: backends disagree about those that have none.

        Args:
            actions: as `sample` returns them.
            column: what they are called in the error.

        Raises:
            BatchError: naming the row of an action outside the space.
        """
        return None

    def zero_noise(self, batch_size: int) -> np.ndarray:
        """The noise of the most likely action."""
        return np.zeros((batch_size, self.noise_size), np.float32)


class OnHost(Distribution):
    """A distribution that can't be sampled from host noise inside a graph: `draw` samples it."""

    on_host = True
    noise_size = 0

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """None: `sample` is deterministic."""
        return self.zero_noise(batch_size)

    @abstractmethod
    def draw(self, rng: np.random.Generator, inputs: np.ndarray) -> tuple[Any, np.ndarray | None, np.ndarray]:
        """As `Distribution.draw`."""


def _inward(bound: np.ndarray, inside: float) -> np.ndarray:
    """A float64 bound in float32, never beyond it: float32(0.1) is above 0.1. Beyond float32's range it is infinite."""
    with np.errstate(over="ignore"):
        rounded = bound.astype(np.float32)
    beyond = np.isfinite(rounded) & ((rounded < bound) if inside > 0 else (rounded > bound))
    return np.where(beyond, np.nextafter(rounded, np.float32(inside)), rounded)


class BoxUnits:
    """Between a network's [-1, 1] and the units of a Box: `action = raw * scale + shift` in bounded dimensions.

    Args:
        space: a Box of floats.
        normalize: scale bounded dimensions.
        clip: clip actions to the bounds, also where they aren't scaled.
    """

    def __init__(self, space: gym.spaces.Box, normalize: bool = True, clip: bool = False) -> None:
        self.shape = space.shape
        self.size = math.prod(space.shape)
        low, high = (np.asarray(b, np.float64).ravel() for b in (space.low, space.high))
        self.low, self.high = _inward(low, np.inf), _inward(high, -np.inf)
        bounded = np.isfinite(self.low) & np.isfinite(self.high) & (high > low)
        self.scaled = bounded & normalize
        low, high = np.where(self.scaled, low, -1.0), np.where(self.scaled, high, 1.0)
        self.scale, self.shift = ((high - low) / 2).astype(np.float32), ((high + low) / 2).astype(np.float32)
        self.identity = not self.scaled.any()
        self.log_scale = float(np.log(self.scale.astype(np.float64)).sum())
        self.clips = (clip or normalize) and bool(np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def to_actions(self, ops: Any, raw: Array) -> Array:
        """`raw: [B, k]`, scaled and clipped: `[B, *shape] float32`."""
        actions = raw if self.identity else raw * ops.constant(self.scale) + ops.constant(self.shift)
        if self.clips:
            actions = ops.minimum(ops.maximum(actions, ops.constant(self.low)), ops.constant(self.high))
        return ops.reshape(actions, (-1, *self.shape))

    def to_raw(self, ops: Any, actions: Array) -> Array:
        """The raw sample `[B, k]` of actions `[B, *shape]` that weren't clipped."""
        raw = ops.to_float(ops.reshape(actions, (-1, self.size)))
        return raw if self.identity else (raw - ops.constant(self.shift)) / ops.constant(self.scale)

    def to_drawn(self, ops: Any, actions: Array) -> Array:
        """What `sample` drew `[B, k]` for actions `[B, *shape]` that weren't clipped."""
        return self.to_raw(ops, actions)

    def require_bounds(self, name: str, space: gym.spaces.Box) -> None:
        """Refuses a Box that has no bounds to scale to.

        Raises:
            EnvError: naming the distribution `name`.
        """
        if not self.scaled.all():
            raise EnvError(
                f"action space {space}: {name} needs finite bounds with low < high in every dimension; "
                "DiagGaussian takes any Box of floats"
            )
