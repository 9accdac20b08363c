"""Sums and minima over many numbers of which a few change at a time: what prioritized sampling needs."""

from __future__ import annotations

import numpy as np

# Children of a node: few levels, so few NumPy calls, and a node's children are two cache lines.
_FAN = 16
# A level that small is searched as a whole.
_TOP = 4096


class SumTree:
    """Non-negative numbers with a minimum of the positive ones, and drawing in proportion to them.

    Args:
        size: how many; all are 0 at first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # From the numbers themselves to the top, each level a multiple of _FAN long.
        self._sums: list[np.ndarray] = []
        self._minima: list[np.ndarray] = []
        count = size
        while True:
            padded = -(-count // _FAN) * _FAN
            self._sums.append(np.zeros(padded))
            self._minima.append(np.full(padded, np.inf))
            if padded <= _TOP:
                break
            count = padded // _FAN

    @property
    def values(self) -> np.ndarray:
        """The numbers `[size]`, to be read only."""
        return self._sums[0][: self.size]

    def total(self) -> float:
        """The sum of all."""
        return float(self._sums[-1].sum())

    def smallest(self) -> float:
        """The smallest positive number, infinity if there is none."""
        return float(self._minima[-1].min())

    def set(self, index: np.ndarray, values: np.ndarray | float) -> None:
        """Changes numbers.

        Args:
            index: which `[K]`; of one that stands there twice the last counts.
            values: to what `[K]`, or one for all.
        """
        self._sums[0][index] = values
        self._minima[0][index] = np.where(np.asarray(values) > 0, values, np.inf)
        for level in range(1, len(self._sums)):
            index = index // _FAN
            for levels, reduce in ((self._sums, np.add.reduce), (self._minima, np.minimum.reduce)):
                levels[level][index] = reduce(levels[level - 1].reshape(-1, _FAN)[index], axis=1)

    def set_range(self, start: int, stop: int, values: np.ndarray | float) -> None:
        """Changes the numbers from start up to, not including, stop."""
        self._sums[0][start:stop] = values
        self._minima[0][start:stop] = np.where(np.asarray(values) > 0, values, np.inf)
        for level in range(1, len(self._sums)):
            start, stop = start // _FAN, -(-stop // _FAN)
            for levels, reduce in ((self._sums, np.add.reduce), (self._minima, np.minimum.reduce)):
                levels[level][start:stop] = reduce(levels[level - 1].reshape(-1, _FAN)[start:stop], axis=1)

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Where these shares of the total lie, never at a 0.

        Args:
            shares: `[K]` in [0, 1].

        Returns:
            For each the first index at which the sum of all numbers up to it is above its share of the total `[K]`.
        """
        sums = np.cumsum(self._sums[-1])
        mass = np.minimum(shares * sums[-1], np.nextafter(sums[-1], 0.0))
        index = np.searchsorted(sums, mass, "right")
        mass -= np.where(index > 0, sums[index - 1], 0.0)
        rows = np.arange(len(index))
        for level in reversed(self._sums[:-1]):
            sums = np.cumsum(level.reshape(-1, _FAN)[index], axis=1)
            # Sums in another order differ in the last digit: past the end would be another node's.
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= mass[:, None]).sum(axis=1)
            mass -= np.where(child > 0, sums[rows, child - 1], 0.0)
            index = index * _FAN + child
        return index
