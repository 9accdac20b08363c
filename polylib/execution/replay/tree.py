"""Sums and minima over many numbers of which a few change at a time: what prioritized sampling needs."""

from __future__ import annotations

import math

import numpy as np

# Children of a node: few levels, so few NumPy calls, and no long sums in any of them.
_FAN = 32
# A level that small is searched as a whole.
_TOP = 4096


class SumTree:
    """Non-negative numbers with a minimum of the positive ones, and drawing in proportion to them.

    Args:
        size: how many; all are 0 at first.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        # From the numbers themselves to the top, each level a multiple of _FAN long; minima from the second level on.
        self._sums: list[np.ndarray] = []
        self._minima: list[np.ndarray] = []
        count = size
        while True:
            padded = -(-count // _FAN) * _FAN
            self._sums.append(np.zeros(padded))
            if len(self._sums) > 1:
                self._minima.append(np.full(padded, np.inf))
                if padded <= _TOP:
                    break
            count = padded // _FAN
        # By level, its nodes: a row of children for each number of the level above.
        self._nodes = [x.reshape(-1, _FAN) for x in self._sums]
        self._minima_nodes = [x.reshape(-1, _FAN) for x in self._minima]

    @property
    def values(self) -> np.ndarray:
        """The numbers `[size]`, to be read only."""
        return self._sums[0][: self.size]

    def total(self) -> float:
        """The sum of all."""
        return float(np.add.reduce(self._sums[-1]))

    def smallest(self) -> float:
        """The smallest positive number, infinity if there is none."""
        return float(np.minimum.reduce(self._minima[-1]))

    def set(self, index: np.ndarray, values: np.ndarray | float) -> None:
        """Changes numbers.

        Args:
            index: which `[K]`; of one that stands there twice the last counts.
            values: to what `[K]`, or one for all.
        """
        self._sums[0][index] = values
        for level in range(1, len(self._sums)):
            index = index // _FAN
            self._update(level, index)

    def set_range(self, start: int, stop: int, values: np.ndarray | float) -> None:
        """Changes the numbers from start up to, not including, stop."""
        self._sums[0][start:stop] = values
        for level in range(1, len(self._sums)):
            start, stop = start // _FAN, -(-stop // _FAN)
            self._update(level, slice(start, stop))

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Where these shares of the total lie, never at a 0.

        Args:
            shares: `[K]` in [0, 1].

        Returns:
            For each the first index at which the sum of all numbers up to it is above its share of the total `[K]`.
        """
        sums = np.add.accumulate(self._sums[-1])
        total = float(sums[-1])
        mass = np.minimum(shares * total, math.nextafter(total, 0.0))
        index = sums.searchsorted(mass, "right")
        before = np.where(index > 0, sums.take(index - 1, mode="wrap"), 0.0)
        for nodes in reversed(self._nodes[:-1]):
            mass = mass - before
            sums = np.add.accumulate(nodes.take(index, 0), 1)
            # Sums in another order differ in the last digit: past the end would be another node's.
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums > mass[:, None]).argmax(1)
            if nodes is not self._nodes[0]:
                before = np.where(child > 0, sums[np.arange(len(child)), child - 1], 0.0)
            index = index * _FAN + child
        return index

    def _update(self, level: int, index: np.ndarray | slice) -> None:
        """Changes numbers of a level to what their children add up to."""
        children = self._nodes[level - 1][index]
        self._sums[level][index] = np.add.reduce(children, 1)
        if level == 1:
            smallest = np.where(children > 0.0, children, np.inf)
        else:
            smallest = self._minima_nodes[level - 2][index]
        self._minima[level - 1][index] = np.minimum.reduce(smallest, 1)
