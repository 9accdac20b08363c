"""Simplex: shares that sum to one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import EnvError

# How far from one a sum of shares may be.
TOLERANCE = 1e-4


class Simplex(gym.Space[np.ndarray]):
    """Arrays of shares, none below 0, that sum to 1 on the last axis: portfolios, mixtures, allocations.

    Args:
        shape: of an element, `[..., number of shares]`.
        concentration: of the Dirichlet distribution that `sample` draws from, one number above 0 per share; ones (the
            uniform distribution) by default.
        dtype: a floating type.

    Raises:
        EnvError: if these don't fit together.
    """

    def __init__(
        self,
        shape: Sequence[int],
        concentration: Sequence[float] | np.ndarray | None = None,
        dtype: type[np.floating[Any]] | str = np.float32,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        shape = tuple(int(n) for n in shape)
        if not shape or min(shape) < 1:
            raise EnvError(f"Simplex: shape is {list(shape)}, expected at least one dimension, none of them empty")
        if not np.issubdtype(np.dtype(dtype), np.floating):
            raise EnvError(f"Simplex: dtype is {dtype}, expected a floating type")
        weights = np.ones(shape[-1]) if concentration is None else np.asarray(concentration, np.float64)
        if weights.shape != shape[-1:] or not (np.isfinite(weights).all() and (weights > 0).all()):
            raise EnvError(
                f"Simplex: concentration is {weights.tolist()}, expected {shape[-1]} numbers above 0, one per share"
            )
        self.concentration = weights
        super().__init__(shape, np.dtype(dtype), seed)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of an element."""
        return self._shape  # type: ignore[return-value]

    @property
    def is_np_flattenable(self) -> bool:
        """Its elements are arrays of one shape."""
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        """A random element, from the Dirichlet distribution.

        Args:
            mask: not supported.
            probability: not supported.
        """
        if mask is not None or probability is not None:
            raise EnvError("Simplex.sample takes neither mask nor probability")
        return self.np_random.dirichlet(self.concentration, self.shape[:-1]).astype(self.dtype)

    def contains(self, x: Any) -> bool:
        """Whether `x` is an array (or list) of this shape with shares of at least 0 that sum to 1."""
        try:
            array = np.asarray(x)
        except ValueError:
            return False
        if array.shape != self.shape or not (
            np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)
        ):
            return False
        return bool((array >= 0).all() and (np.abs(array.sum(-1, dtype=np.float64) - 1) <= TOLERANCE).all())

    def to_jsonable(self, sample_n: Iterable[np.ndarray]) -> list[Any]:
        """Elements as lists."""
        return [np.asarray(x).tolist() for x in sample_n]

    def from_jsonable(self, sample_n: Sequence[Any]) -> list[np.ndarray]:
        """The inverse of `to_jsonable`."""
        return [np.asarray(x, self.dtype) for x in sample_n]

    def __repr__(self) -> str:
        return f"Simplex({list(self.shape)}, {self.concentration.tolist()}, {self.dtype})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Simplex)
            and self.shape == other.shape
            and self.dtype == other.dtype
            and np.array_equal(self.concentration, other.concentration)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable, as Gymnasium's spaces
