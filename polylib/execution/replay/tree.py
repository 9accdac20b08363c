"""Sums and minima over many numbers of which a few change at a time: what prioritized sampling needs."""

from __future__ import annotations

import math

import numpy as np

# Children of a node: few levels, so few NumPy calls, and no long sums in any of them.
_FAN = 32
# After so many changes the levels above follow, though nobody has asked.
_LATER = 64
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
        self._changed: list[np.ndarray] = []  # numbers whose nodes aren't up to date
        # By level, its nodes: a row of children for each number of the level above.
        self._nodes = [x.reshape(-1, _FAN) for x in self._sums]
        self._minima_nodes = [x.reshape(-1, _FAN) for x in self._minima]

    @property
    def values(self) -> np.ndarray:
        """The numbers `[size]`, to be read only."""
        return self._sums[0][: self.size]

    def total(self) -> float:
        """The sum of all."""
        self._refresh()
        return float(np.add.reduce(self._sums[-1]))

    def smallest(self) -> float:
        """The smallest positive number, infinity if there is none."""
        self._refresh()
        return float(np.minimum.reduce(self._minima[-1]))

    def set(self, index: np.ndarray, values: np.ndarray | float) -> None:
        """Changes numbers.

        Args:
            index: which `[K]`; of one that stands there twice the last counts.
            values: to what `[K]`, or one for all.
        """
        self._sums[0][index] = values
        self._note(np.asarray(index))

    def set_range(self, start: int, stop: int, values: np.ndarray | float) -> None:
        """Changes the numbers from start up to, not including, stop."""
        self._sums[0][start:stop] = values
        self._note(np.arange(start - start % _FAN, stop, _FAN))  # one of each node

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Where these shares of the total lie, never at a 0.

        Args:
            shares: `[K]` in [0, 1].

        Returns:
            For each the first index at which the sum of all numbers up to it is above its share of the total `[K]`.
        """
        self._refresh()
        sums = np.zeros(len(self._sums[-1]) + 1)
        np.add.accumulate(self._sums[-1], out=sums[1:])
        total = float(sums[-1])
        mass = np.minimum(shares * total, math.nextafter(total, 0.0))
        index = sums.searchsorted(mass, "right") - 1
        before = sums.take(index)
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

    def _note(self, index: np.ndarray) -> None:
        self._changed.append(index)
        if len(self._changed) >= _LATER:
            self._refresh()

    def _refresh(self) -> None:
        """Brings the levels above up to date: once for all that was changed since somebody asked."""
        if not self._changed:
            return
        index = self._changed[0] if len(self._changed) == 1 else np.concatenate(self._changed)
        self._changed = []
        for level in range(1, len(self._sums)):
            index = index // _FAN
            children = self._nodes[level - 1].take(index, 0)
            self._sums[level][index] = np.add.reduce(children, 1)
            if level == 1:
                smallest = np.where(children > 0.0, children, np.inf)
            else:
                smallest = self._minima_nodes[level - 2].take(index, 0)
            self._minima[level - 1][index] = np.minimum.reduce(smallest, 1)
