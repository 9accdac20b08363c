"""Independent parts: the spaces Dict and Tuple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import EnvError
from polylib.models.distributions.base import _NO_MASK, Distribution
from polylib.models.spaces import leaves
from polylib.policy import numpy_ops
from polylib.policy.ops import Array

Actions = Mapping[str, Array]


def _slices(sizes: Sequence[int]) -> list[slice]:
    edges = np.cumsum([0, *sizes]).tolist()
    return [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]


class Product(Distribution):
    """Independent distributions of the parts of a Dict or Tuple.

    Actions are a flat dict, keyed by `leaves(space, "actions")`. Inputs, noise and raw samples of the parts stand side
    by side in that order. It is `on_host` if a part is; then `sample` gives the deterministic action of every part.

    Args:
        space: a Dict or Tuple.
        parts: a distribution for every leaf, by name or in order.
    """

    def __init__(self, space: gym.Space[Any], parts: Mapping[str, Distribution] | Sequence[Distribution]) -> None:
        self.space = space
        names = list(leaves(space, "actions"))
        if isinstance(parts, Mapping):
            parts = [parts[name] for name in names]
        self.parts = dict(zip(names, parts, strict=True))
        self.on_host = any(part.on_host for part in parts)
        self.maskable = any(part.maskable for part in parts)
        self.inputs_size = sum(part.inputs_size for part in parts)
        self.raw_size = sum(part.raw_size for part in parts)
        self.noise_size = 0 if self.on_host else sum(part.noise_size for part in parts)
        self._inputs = _slices([part.inputs_size for part in parts])
        self._raws = _slices([part.raw_size for part in parts])
        self._noises = _slices([part.noise_size for part in parts])

    def _each(self, inputs: Array, raw: Array | None = None) -> list[tuple[str, Distribution, Array, Array | None]]:
        """Name, distribution, inputs and raw sample of every part."""
        return [
            (name, part, inputs[:, columns], None if raw is None or not part.raw_size else raw[:, raws])
            for (name, part), columns, raws in zip(self.parts.items(), self._inputs, self._raws, strict=True)
        ]

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """The parts' noise, drawn in order."""
        if self.on_host:
            return self.zero_noise(batch_size)
        return np.concatenate([part.noise(rng, batch_size) for part in self.parts.values()], 1)

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[dict[str, Array], Array | None]:
        """Actions by leaf and the raw samples of all parts that have one, `[B, raw_size]`."""
        actions, raws = {}, []
        for (name, part, x, _), columns in zip(self._each(inputs), self._noises, strict=True):
            if self.on_host:
                own = ops.zeros_like(x[:, :1]) * ops.constant(np.zeros(part.noise_size, np.float32))
            else:
                own = noise[:, columns]
            actions[name], raw = part.sample(ops, x, own)
            if raw is not None:
                raws.append(raw)
        return actions, (ops.concat(raws, -1) if raws else None)

    def draw(
        self, rng: np.random.Generator, inputs: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None, np.ndarray]:
        """Samples by leaf, raw samples and log-probability, part by part."""
        actions, raws, logps = {}, [], []
        for name, part, x, _ in self._each(inputs):
            actions[name], raw, logp = part.draw(rng, x)
            logps.append(logp)
            if raw is not None:
                raws.append(raw)
        return actions, (numpy_ops.concat(raws, -1) if raws else None), sum(logps)  # type: ignore[return-value]

    def logp(self, ops: Any, inputs: Array, actions: Actions, raw: Array | None = None) -> Array:
        """Sum over parts."""
        return sum(part.logp(ops, x, actions[name], own) for name, part, x, own in self._each(inputs, raw))

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """Sum over parts."""
        return sum(part.entropy(ops, x) for _, part, x, _ in self._each(inputs))

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """Sum over parts."""
        pairs = zip(self._each(inputs), self._each(other), strict=True)
        return sum(part.kl(ops, x, y) for (_, part, x, _), (_, _, y, _) in pairs)

    def loss_terms(
        self, ops: Any, inputs: Array, old_inputs: Array, actions: Actions, raw: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Sums over parts."""
        pairs = zip(self._each(inputs, raw), self._each(old_inputs), strict=True)
        terms = [p.loss_terms(ops, x, y, actions[name], own) for (name, p, x, own), (_, _, y, _) in pairs]
        logp, kl, entropy = (sum(term) for term in zip(*terms, strict=True))
        return logp, kl, entropy

    def mask(self, ops: Any, inputs: Array, action_mask: Array | None) -> Array:
        """Masks the discrete parts; the flags of the others mean nothing."""
        if action_mask is None:
            return inputs
        if not self.maskable:
            raise EnvError(_NO_MASK)
        parts = zip(self._each(inputs), self._inputs, strict=True)
        return ops.concat(
            [p.mask(ops, x, action_mask[:, columns]) if p.maskable else x for (_, p, x, _), columns in parts], -1
        )

    def check_mask(self, action_mask: np.ndarray) -> None:
        """Every discrete part needs a choice that is allowed."""
        if not self.maskable:
            super().check_mask(action_mask)
        for _, part, mask, _ in self._each(action_mask):
            if part.maskable:
                part.check_mask(mask)

    def check_actions(self, actions: Mapping[str, np.ndarray], column: str = "actions") -> None:
        """Part by part."""
        for name, part in self.parts.items():
            part.check_actions(actions[name], column + name.removeprefix("actions"))
