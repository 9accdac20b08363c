"""Actions that are the network's outputs."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from polylib.models.distributions.base import BoxUnits, Distribution
from polylib.policy.ops import Array


def _zero(ops: Any, inputs: Array) -> Array:
    # Not a constant: torch refuses gradients of what doesn't depend on anything.
    return 0.0 * ops.sum(inputs, -1)


class Deterministic(BoxUnits, Distribution):
    """The action is the inputs, scaled and clipped as `DiagGaussian` does it; log-probability, entropy and KL are 0.

    Args:
        space: a Box of floats.
        normalize: scale bounded dimensions.
        clip: clip actions to the bounds.
    """

    noise_size = 0

    def __init__(self, space: gym.spaces.Box, normalize: bool = True, clip: bool = False) -> None:
        super().__init__(space, normalize, clip)
        self.inputs_size = self.size

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """None."""
        return self.zero_noise(batch_size)

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, None]:
        """The inputs in the environment's units, `[B, *shape] float32`."""
        return self.to_actions(ops, inputs), None

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """0 for every action."""
        return _zero(ops, inputs)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """0."""
        return _zero(ops, inputs)

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """0."""
        return _zero(ops, inputs)
