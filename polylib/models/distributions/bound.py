"""`policy.dist_class`: a distribution with its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.models.distributions.base import Distribution
from polylib.models.distributions.product import Product
from polylib.models.spaces import flatten, unflatten
from polylib.policy.ops import Array


def _to_numpy(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else np.asarray(x)


class BoundDistribution:
    """A distribution with its inputs, for people who look inside a policy: `policy.dist_class(inputs)`.

    Actions of a Dict or Tuple space are nested as the space is.

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

    def _nested(self, actions: Any) -> Any:
        return unflatten(self.dist.space, actions, "actions") if isinstance(self.dist, Product) else actions

    def _apply_noise(self, noise: np.ndarray) -> Any:
        return self._nested(self.dist.sample(self.ops, self.inputs, self.ops.constant(noise))[0])

    def sample(self) -> Any:
        """Random actions `[B, *action_shape]`."""
        if not self.dist.on_host:
            return self._apply_noise(self.dist.noise(self.rng, int(self.inputs.shape[0])))
        actions, _, _ = self.dist.draw(self.rng, _to_numpy(self.inputs))
        if isinstance(self.dist, Product):
            return self._nested({name: self.ops.constant(x) for name, x in actions.items()})
        return self.ops.constant(actions)

    def deterministic_sample(self) -> Any:
        """The most likely actions `[B, *action_shape]`, or their mean, as the distribution has it."""
        return self._apply_noise(self.dist.zero_noise(int(self.inputs.shape[0])))

    def logp(self, actions: Any) -> Array:
        """Log-probability `[B]` of actions."""
        if isinstance(self.dist, Product):
            actions = flatten(self.dist.space, actions, "actions")
        return self.dist.logp(self.ops, self.inputs, actions)

    def entropy(self) -> Array:
        """Entropy `[B]`."""
        return self.dist.entropy(self.ops, self.inputs)

    def kl(self, other: BoundDistribution) -> Array:
        """KL(self || other) `[B]`."""
        return self.dist.kl(self.ops, self.inputs, other.inputs)
