"""The tree against sums over the whole array."""

from __future__ import annotations

import numpy as np
import pytest

from polylib.execution.replay.tree import _FAN, _TOP, SumTree

SIZES = [1, 2, 15, 16, 17, 300, _TOP, _TOP + 1, 70_000, 1_100_000]


def consistent(tree: SumTree) -> None:
    """Every inner node is the sum and the minimum of its children."""
    for below, above in zip(tree._sums[:-1], tree._sums[1:], strict=True):
        found = below.reshape(-1, _FAN).sum(axis=1)
        np.testing.assert_array_equal(above[: len(found)], found)
        assert not above[len(found) :].any()
    first = np.where(tree._sums[0] > 0, tree._sums[0], np.inf)
    for below, above in zip([first, *tree._minima[:-1]], tree._minima, strict=True):
        found = below.reshape(-1, _FAN).min(axis=1)
        np.testing.assert_array_equal(above[: len(found)], found)


@pytest.mark.parametrize("size", SIZES)
def test_sums_minima_and_finding_are_those_of_the_array(size: int) -> None:
    rng = np.random.default_rng(size)
    tree, values = SumTree(size), np.zeros(size)
    assert tree.total() == 0 and tree.smallest() == np.inf
    for i in range(6):
        if i % 2:
            index = rng.integers(0, size, 40)
            new = rng.random(40) * (rng.random(40) < 0.8)
            values[index] = new
            tree.set(index, values[index])
        else:
            start = int(rng.integers(0, size))
            stop = int(rng.integers(start, min(size, start + 900) + 1))
            values[start:stop] = rng.random(stop - start)
            tree.set_range(start, stop, values[start:stop])
        np.testing.assert_array_equal(tree.values, values)
        assert tree.total() == pytest.approx(values.sum(), rel=1e-12)
        consistent(tree)
        assert tree.smallest() == values[values > 0].min(initial=np.inf)
    sums = values.cumsum()
    shares = rng.random(500)
    found = tree.find(shares)
    assert (values[found] > 0).all()
    # The first index whose cumulative sum exceeds the mass; up to rounding at its borders.
    mass = shares * sums[-1]
    assert (sums[found] >= mass - 1e-9).all()
    assert (sums[found] - values[found] <= mass + 1e-9).all()
    np.testing.assert_array_equal(values[tree.find(np.array([0.0, 1.0, np.nextafter(1.0, 0.0)]))] > 0, True)


def test_finding_by_hand() -> None:
    tree = SumTree(5)
    tree.set(np.array([0, 2, 3]), np.array([1.0, 2.0, 5.0]))
    # Cumulative sums 1, 1, 3, 8, 8 of total 8.
    shares = np.array([0, 0.99, 1.0, 2.99, 3.0, 7.99, 8.0]) / 8
    assert tree.find(shares).tolist() == [0, 0, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("size", [3, 5000])
def test_zeros_are_never_found_whatever_the_rounding(size: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        tree = SumTree(size)
        there = rng.integers(0, size, 3)
        tree.set(there, 10.0 ** rng.integers(-12, 12, 3))
        found = tree.find(np.concatenate([rng.random(50), 1 - 10.0 ** -np.arange(1, 18)]))
        assert np.isin(found, there).all()


def test_the_last_of_two_values_counts() -> None:
    tree = SumTree(20)
    tree.set(np.array([7, 7]), np.array([1.0, 3.0]))
    assert tree.total() == 3 and tree.smallest() == 3


def test_levels_above_follow_when_somebody_asks() -> None:
    """However many changes there were, by ones and by ranges, and to the same numbers again."""
    rng = np.random.default_rng(0)
    tree, values = SumTree(9000), np.zeros(9000)
    for count in (1, 3, 200):
        for _ in range(count):
            index = rng.integers(0, 9000, 5)
            values[index] = rng.random(5)
            tree.set(index, values[index])
            start = int(rng.integers(0, 8990))
            values[start : start + 3] = 0.5
            tree.set_range(start, start + 3, 0.5)
        assert len(tree._changed) < 64
        found = tree.find(np.linspace(0, 1, 100))
        assert (values[found] > 0).all() and tree.smallest() == values[values > 0].min()
        consistent(tree)
