"""Discrete choices: one, or several independent ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.models.distributions.base import MASKED_LOGIT, Distribution
from polylib.policy.ops import Array


def _gumbel(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    # -log of an exponential variate is a Gumbel variate; argmax(logits + Gumbel) is a sample of softmax(logits).
    # One variate in ten million is exactly 0 (the next is 1.3e-7): its noise would be infinite, and choose a masked
    # action.
    return -np.log(np.maximum(rng.standard_exponential(shape, dtype=np.float32), np.float32(2**-24)))


def _log_softmax(ops: Any, logits: Array) -> Array:
    # A network that masks by itself gives -inf, and 0 * -inf is NaN.
    return ops.log_softmax(ops.maximum(logits, MASKED_LOGIT))


def _entropy(ops: Any, logp: Array) -> Array:
    return -ops.sum(ops.exp(logp) * logp, -1)


def _kl(ops: Any, logp: Array, other: Array) -> Array:
    return ops.sum(ops.exp(logp) * (logp - other), -1)


class Categorical(Distribution):
    """One choice of `n`; inputs are logits.

    Args:
        n: number of choices.
        start: the action of the first choice.
    """

    maskable = True

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

    def _logp_at(self, ops: Any, logp: Array, actions: Array) -> Array:
        return ops.pick(logp, actions - self.start if self.start else actions)

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """Log-softmax at the action."""
        return self._logp_at(ops, _log_softmax(ops, inputs), actions)

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """-sum p log p."""
        return _entropy(ops, _log_softmax(ops, inputs))

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """sum p (log p - log q)."""
        return _kl(ops, _log_softmax(ops, inputs), _log_softmax(ops, other))

    def loss_terms(
        self, ops: Any, inputs: Array, old_inputs: Array, actions: Array, raw: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """All from one log-softmax."""
        logp, old_logp = _log_softmax(ops, inputs), _log_softmax(ops, old_inputs)
        return self._logp_at(ops, logp, actions), _kl(ops, old_logp, logp), _entropy(ops, logp)

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

    def check_actions(self, actions: np.ndarray, column: str = "actions") -> None:
        """From `start` to `start + n - 1`."""
        choices = actions - self.start
        bad = (choices < 0) | (choices >= self.inputs_size)
        if bad.any():
            row = int(np.argmax(bad))
            raise BatchError(
                f"column {column!r}: row {row} holds {actions[row]}, expected {self.start} to "
                f"{self.start + self.inputs_size - 1}"
            )


class MultiCategorical(Distribution):
    """Independent choices, `nvec` of any shape; inputs are all logits one after another.

    Args:
        nvec: number of choices of each component, any shape.
        start: the action of each component's first choice, same shape.
    """

    maskable = True

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

    def loss_terms(
        self, ops: Any, inputs: Array, old_inputs: Array, actions: Array, raw: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """Sums over components."""
        flat = ops.reshape(actions, (-1, len(self.parts)))
        new, old = self._split(inputs), self._split(old_inputs)
        terms = [p.loss_terms(ops, x, y, flat[:, i]) for i, ((p, x), (_, y)) in enumerate(zip(new, old, strict=True))]
        logp, kl, entropy = (sum(term) for term in zip(*terms, strict=True))
        return logp, kl, entropy

    def mask(self, ops: Any, inputs: Array, action_mask: Array | None) -> Array:
        """As `Categorical.mask`, over all logits."""
        return Categorical(self.inputs_size).mask(ops, inputs, action_mask)

    def check_mask(self, action_mask: np.ndarray) -> None:
        """Every component needs a choice that is allowed."""
        for part, mask in self._split(action_mask):
            part.check_mask(mask)

    def check_actions(self, actions: np.ndarray, column: str = "actions") -> None:
        """Component by component."""
        flat = actions.reshape(len(actions), len(self.parts))
        for i, part in enumerate(self.parts):
            part.check_actions(flat[:, i], column)
