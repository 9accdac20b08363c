"""Observation filters (`observation_filter`) and the clipping of rewards (`clip_rewards`), on NumPy arrays.

A filter works on flat dicts of columns, as `models/spaces.py` names them. The statistics of a `MeanStdFilter` are
kept twice: over everything it knows of, and over the rows since the last hand-over, which is what a worker sends to
the driver. The driver merges what its workers send, and sends the whole back.
"""

from __future__ import annotations

import abc
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, ConfigError, ConfigTypeError, WeightsError, did_you_mean
from polylib.models.spaces import leaves, mask_column

#: Statistics of a column: `{"count": int, "mean": [...], "m2": [...]}`, float64; m2 is the sum of squared deviations.
Moments = dict[str, Any]

#: Added to the standard deviation, as RLlib does.
_EPSILON = 1e-8
# Rows with larger numbers are left out of the statistics: their squares would make all that follows infinite.
_LARGEST = 1e100


class Filter(abc.ABC):
    """Turns observations into what the network sees.

    Attributes:
        identity: whether it changes nothing, so that whoever is in a hurry can skip it.
    """

    identity = False

    @abc.abstractmethod
    def __call__(self, flat: Mapping[str, np.ndarray], update: bool = True) -> dict[str, np.ndarray]:
        """Filters a batch.

        Args:
            flat: columns [B, ...] by name, as in `leaves(space, "obs")`; they are left as they are.
            update: whether the rows count in the statistics (before they are normalised).

        Returns:
            A new dict of the same columns; those that are normalised are new float32 arrays, the others the same
            objects.
        """

    @abc.abstractmethod
    def pop_delta(self) -> dict[str, Moments]:
        """The statistics of the rows since the last `pop_delta` or `set_state`, by column; starts new ones."""

    @abc.abstractmethod
    def merge(self, delta: Mapping[str, Moments]) -> None:
        """Adds what another filter's `pop_delta` returned to the statistics, but not to this filter's own delta."""

    @abc.abstractmethod
    def get_state(self) -> dict[str, Moments]:
        """All statistics, by column, as copies."""

    @abc.abstractmethod
    def set_state(self, state: Mapping[str, Moments], keep_delta: bool = False) -> None:
        """Takes over what `get_state` returned, exactly.

        Args:
            state: of a filter of the same space.
            keep_delta: add the rows since the last `pop_delta` to it, and keep them for the next one: for a worker
                that went on sampling while `state` was on its way. Otherwise they are dropped.
        """


class NoFilter(Filter):
    """Changes nothing and has no statistics.

    Args:
        space: of the observations; it makes no difference.
    """

    identity = True

    def __init__(self, space: gym.Space[Any] | None = None):
        self.space = space

    def __call__(self, flat: Mapping[str, np.ndarray], update: bool = True) -> dict[str, np.ndarray]:
        """The same columns."""
        return dict(flat)

    def pop_delta(self) -> dict[str, Moments]:
        """Nothing."""
        return {}

    def merge(self, delta: Mapping[str, Moments]) -> None:
        """Refuses statistics, for they come from another kind of filter."""
        _same_columns(delta, {}, "NoFilter")

    def get_state(self) -> dict[str, Moments]:
        """Nothing."""
        return {}

    def set_state(self, state: Mapping[str, Moments], keep_delta: bool = False) -> None:
        """Refuses statistics, for they come from another kind of filter."""
        _same_columns(state, {}, "NoFilter")


class MeanStdFilter(Filter):
    """Subtracts the running mean and divides by the running standard deviation, element by element.

    It gives `(x - mean) / (std + 1e-8)` with the standard deviation over n - 1, the numbers that RLlib's filter of
    this name gives. As there, nothing is clipped unless `clip` says so, and the first row becomes zeros. Elsewhere
    that formula says nothing useful, so: without any statistics observations stay as they are, and an element that
    never varied is centred only (the quotient would be 1e8 times the first deviation seen).

    Parts of the observation that are float Boxes are normalised. Images and other integers, discrete parts and the
    action mask stay as they are. Rows of a part with a number that is not finite don't count in its statistics, and
    that number stays in the output, where the sampler's check finds it.

    Args:
        space: of the observations.
        clip: if given, results are clipped to [-clip, clip].
    """

    def __init__(self, space: gym.Space[Any], clip: float | None = None):
        if clip is not None and not clip > 0:
            raise ConfigError(f"clip of an observation filter is {clip!r}, expected a number > 0 or None")
        mask = mask_column(space)
        self._stats = {
            column: _Stats(column, part.shape, clip)
            for column, part in leaves(space).items()
            if isinstance(part, gym.spaces.Box) and np.issubdtype(part.dtype, np.floating) and column != mask
        }

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are normalised."""
        return tuple(self._stats)

    def __call__(self, flat: Mapping[str, np.ndarray], update: bool = True) -> dict[str, np.ndarray]:
        """Normalises; see `Filter`.

        Raises:
            BatchError: naming the column that is missing or of another shape.
        """
        done = dict(flat)
        for column, stats in self._stats.items():
            x = done.get(column)
            if x is None:
                raise BatchError(f"observations lack column {column!r}, expected {', '.join(map(repr, self._stats))}")
            if x.shape[1:] != stats.shape or not x.ndim:
                raise BatchError(f"column {column!r} has shape {list(x.shape)}, expected {['B', *stats.shape]}")
            done[column] = stats.update(x) if update else stats.apply(x)
        return done

    def pop_delta(self) -> dict[str, Moments]:
        """See `Filter`."""
        delta = {column: stats.get(1) for column, stats in self._stats.items()}
        for stats in self._stats.values():
            stats.reset(1)
        return delta

    def merge(self, delta: Mapping[str, Moments]) -> None:
        """See `Filter`.

        Raises:
            WeightsError: naming the column that doesn't fit; then nothing has changed.
        """
        for column, moments in self._checked(delta).items():
            self._stats[column].add(*moments)

    def get_state(self) -> dict[str, Moments]:
        """See `Filter`."""
        return {column: stats.get(0) for column, stats in self._stats.items()}

    def set_state(self, state: Mapping[str, Moments], keep_delta: bool = False) -> None:
        """See `Filter`.

        Raises:
            WeightsError: naming the column that doesn't fit; then nothing has changed.
        """
        for column, moments in self._checked(state).items():
            stats = self._stats[column]
            stats.set(*moments)
            if keep_delta:
                stats.add_delta()
            else:
                stats.reset(1)

    def affine(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By column, `mean` and `scale` (float64, of the element's shape) with `(x - mean) * scale` the output."""
        found = {}
        for column, stats in self._stats.items():
            mean, scale = (part.reshape(stats.shape).copy() for part in stats.affine())
            found[column] = mean, scale
        return found

    def __repr__(self) -> str:
        counts = ", ".join(f"{column}: {stats.counts[0]} rows" for column, stats in self._stats.items())
        return f"{type(self).__name__}({counts})"

    def _checked(self, given: Mapping[str, Moments]) -> dict[str, tuple[int, np.ndarray, np.ndarray]]:
        _same_columns(given, self._stats, type(self).__name__)
        return {column: stats.check(given[column]) for column, stats in self._stats.items()}


class ConcurrentMeanStdFilter(MeanStdFilter):
    """A `MeanStdFilter` that several threads may use at the same time."""

    def __init__(self, space: gym.Space[Any], clip: float | None = None):
        super().__init__(space, clip)
        self._lock = threading.Lock()

    def __call__(self, flat: Mapping[str, np.ndarray], update: bool = True) -> dict[str, np.ndarray]:
        """See `MeanStdFilter`."""
        with self._lock:
            return super().__call__(flat, update)

    def pop_delta(self) -> dict[str, Moments]:
        """See `Filter`."""
        with self._lock:
            return super().pop_delta()

    def merge(self, delta: Mapping[str, Moments]) -> None:
        """See `MeanStdFilter`."""
        with self._lock:
            super().merge(delta)

    def get_state(self) -> dict[str, Moments]:
        """See `Filter`."""
        with self._lock:
            return super().get_state()

    def set_state(self, state: Mapping[str, Moments], keep_delta: bool = False) -> None:
        """See `MeanStdFilter`."""
        with self._lock:
            super().set_state(state, keep_delta)

    def affine(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """See `MeanStdFilter`."""
        with self._lock:
            return super().affine()


class _Stats:
    """Count, mean and sum of squared deviations of one column, per element, in float64.

    Index 0 is over all rows, index 1 over those since the last hand-over. They are parts of one array, for with a few
    rows at a time it is the number of calls into NumPy that costs.
    """

    def __init__(self, column: str, shape: tuple[int, ...], clip: float | None):
        self.column, self.shape, self.clip = column, shape, clip
        self._size = size = math.prod(shape)
        self.counts = [0, 0]
        # [all rows or the latest, mean or m2, element], what is added to it, and the factors of that.
        self._moments, self._added, self._factors = np.zeros((2, 2, size)), np.zeros((2, 2, size)), np.zeros((2, 2, 1))
        self._mean, self._m2 = self._moments[:, 0], self._moments[:, 1]
        self._deviation, self._squares = self._added[:, 0], self._added[:, 1]
        # Room for the results of `_update_row`.
        self._own_deviation, self._divisor = np.empty(size), np.empty(size)
        self._inverse, self._epsilon = np.empty(1), np.empty(1)
        self._affine: tuple[np.ndarray, np.ndarray] | None = None

    # --- the forward way

    def update(self, x: np.ndarray) -> np.ndarray:
        """Counts the rows, then normalises them: [B, ...] to float32 [B, ...]."""
        if len(x) == 1:
            done = self._update_row(x)
            if done is not None:
                return done
        rows = x.reshape(len(x), self._size).astype(np.float64)
        flat = rows.reshape(-1)
        # False for NaN, too.
        if not flat.dot(flat) < _LARGEST:
            rows = rows[(np.abs(rows) < _LARGEST).all(axis=1)]
        if len(rows):
            # Relative to the first row, constants give exactly zero and large offsets cost no digits.
            first = rows[0].copy()
            rows -= first
            mean = np.add.reduce(rows, axis=0)
            mean /= len(rows)
            rows -= mean
            mean += first
            self._combine(len(rows), mean, np.einsum("ij,ij->j", rows, rows), both=True)
        return self.apply(x)

    def _update_row(self, x: np.ndarray) -> np.ndarray | None:
        """`update` for one row by Welford's formulas, or None if it must not count."""
        added, factors, deviation = self._added, self._factors, self._own_deviation
        np.subtract(x.reshape(self._size), self._mean, out=self._deviation)
        deviation[:] = added[0, 0]
        # False for NaN, too.
        if not deviation.dot(deviation) < _LARGEST:
            return None
        n, m = self.counts
        self.counts = [n + 1, m + 1]
        np.multiply(self._deviation, self._deviation, out=self._squares)
        factors[0, 0, 0], factors[0, 1, 0] = 1 / (n + 1), n / (n + 1)
        factors[1, 0, 0], factors[1, 1, 0] = 1 / (m + 1), m / (m + 1)
        np.multiply(added, factors, out=added)
        np.add(self._moments, added, out=self._moments)
        self._affine = None
        if not n:
            return np.zeros(x.shape, np.float32)
        # x - new mean = n / (n + 1) (x - old mean), and the new variance is m2 / n: the factors go into the divisor.
        # An element that never varied has deviation 0 here.
        inverse, divisor = (n + 1) / n, self._divisor
        self._inverse[0], self._epsilon[0] = inverse * inverse / n, _EPSILON * inverse
        np.multiply(self._m2[0], self._inverse, out=divisor)
        np.sqrt(divisor, out=divisor)
        np.add(divisor, self._epsilon, out=divisor)
        done = np.empty(self._size, np.float32)
        np.divide(deviation, divisor, out=done)
        if self.clip is not None:
            np.clip(done, -self.clip, self.clip, out=done)
        return done.reshape(x.shape)

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Normalises rows [B, ...] to float32 [B, ...]; shares no memory with other calls."""
        mean, scale = self._affine or self.affine()
        done = np.empty(x.shape, np.float32)
        np.multiply(np.subtract(x, mean), scale, out=done)
        if self.clip is not None:
            np.clip(done, -self.clip, self.clip, out=done)
        return done

    def affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale, each of the element's shape; [1] for a scalar, so that NumPy 1 computes in float64, too."""
        affine = self._affine
        if affine is None:
            std = np.sqrt(self._m2[0] / max(self.counts[0] - 1, 1))
            scale = np.where(std > 0, 1 / (std + _EPSILON), 1.0)
            shape = self.shape or (1,)
            affine = self._affine = self._mean[0].reshape(shape).copy(), scale.reshape(shape)
        return affine

    # --- statistics in and out

    def get(self, i: int) -> Moments:
        mean, m2 = (part[i].reshape(self.shape).copy() for part in (self._mean, self._m2))
        return {"count": self.counts[i], "mean": mean, "m2": m2}

    def reset(self, i: int) -> None:
        self.counts[i], self._mean[i], self._m2[i] = 0, 0, 0
        if i == 0:
            self._affine = None

    def set(self, count: int, mean: np.ndarray, m2: np.ndarray) -> None:
        self.counts[0], self._mean[0], self._m2[0] = count, mean, m2
        self._affine = None

    def add(self, count: int, mean: np.ndarray, m2: np.ndarray) -> None:
        self._combine(count, mean, m2, both=False)

    def add_delta(self) -> None:
        self._combine(self.counts[1], self._mean[1].copy(), self._m2[1].copy(), both=False)

    def _combine(self, count: int, mean: np.ndarray, m2: np.ndarray, both: bool) -> None:
        """Statistics of two disjoint sets of rows, from those of each (Chan, Golub and LeVeque)."""
        if not count:
            return
        added, factors, chosen = self._added, self._factors, slice(2 if both else 1)
        for i in range(2 if both else 1):
            before = self.counts[i]
            share = count / (before + count)
            factors[i, 0, 0], factors[i, 1, 0] = share, before * share
            self.counts[i] = before + count
        np.subtract(mean, self._mean, out=self._deviation)
        np.multiply(self._deviation, self._deviation, out=self._squares)
        np.multiply(added, factors, out=added)
        self._squares += m2
        self._moments[chosen] += added[chosen]
        self._affine = None

    def check(self, moments: Moments) -> tuple[int, np.ndarray, np.ndarray]:
        """Moments from elsewhere, flat, or one error that says what is wrong with them."""
        what = f"observation filter's statistics of {self.column!r}"
        try:
            count = int(moments["count"])
            mean, m2 = (np.asarray(moments[key], np.float64) for key in ("mean", "m2"))
        except (LookupError, TypeError, ValueError) as error:
            raise WeightsError(
                f"{what}: expected a dict of count, mean and m2 ({type(error).__name__}: {error})"
            ) from None
        for key, value in (("mean", mean), ("m2", m2)):
            if value.shape != self.shape:
                raise WeightsError(
                    f"{what}: {key} has shape {list(value.shape)}, expected {list(self.shape)}: they belong to "
                    "another observation space"
                )
        if count < 0 or not np.isfinite(mean).all() or not (np.isfinite(m2) & (m2 >= 0)).all():
            raise WeightsError(f"{what}: count {count}, mean and m2 must be finite, count and m2 not negative")
        return count, mean.reshape(-1), m2.reshape(-1)


def _same_columns(given: Mapping[str, Any], expected: Mapping[str, Any], name: str) -> None:
    if set(given) != set(expected):
        raise WeightsError(
            f"observation filter's statistics are of columns {sorted(given)}, expected {sorted(expected)} for {name}: "
            "they come from another observation_filter or another observation space"
        )


_FILTERS: dict[str, Callable[[gym.Space[Any]], Filter]] = {
    "NoFilter": NoFilter,
    "MeanStdFilter": MeanStdFilter,
    "ConcurrentMeanStdFilter": ConcurrentMeanStdFilter,
}

#: What `observation_filter` can be.
FILTER_NAMES = tuple(_FILTERS)


def make_filter(name: str, space: gym.Space[Any]) -> Filter:
    """The filter that the config key `observation_filter` names.

    Args:
        name: one of FILTER_NAMES.
        space: of the observations.

    Raises:
        ConfigError: if there is none of that name.
    """
    check_filter_name(name)
    return _FILTERS[name](space)


def check_filter_name(name: Any) -> None:
    """Raises ConfigError, naming the nearest, unless `name` is one of FILTER_NAMES."""
    known = ", ".join(map(repr, FILTER_NAMES))
    if not isinstance(name, str):
        raise ConfigTypeError(
            f"config key 'observation_filter' is {name!r} ({type(name).__name__}), expected one of {known}"
        )
    if name not in _FILTERS:
        raise ConfigError(
            f"config key 'observation_filter' is {name!r}, expected one of {known}.{did_you_mean(name, FILTER_NAMES)}"
        )


def clip_rewards(rewards: np.ndarray, how: bool | float | None) -> np.ndarray:
    """Rewards as learning sees them, by the config key `clip_rewards`.

    Args:
        rewards: floats of any shape; left as they are.
        how: True for their signs, a number c > 0 to clip to [-c, c], False or None to leave them.

    Returns:
        An array of the same shape and dtype; `rewards` itself if there is nothing to do.

    Raises:
        ConfigError: if `how` is something else.
    """
    if how is None or how is False:
        return rewards
    check_clip_rewards(how)
    if how is True:
        return np.sign(rewards)
    # A plain float leaves float32 alone; NumPy's float64, which is one of Python's floats as well, wouldn't.
    limit = float(how)
    return np.clip(rewards, -limit, limit)


def check_clip_rewards(how: Any) -> None:
    """Raises ConfigError unless `how` is a value of the config key `clip_rewards`."""
    if how is None or isinstance(how, bool):
        return
    expected = "expected True (signs), a number > 0 (clips to [-number, number]), or False"
    if not isinstance(how, int | float):
        raise ConfigTypeError(f"config key 'clip_rewards' is {how!r} ({type(how).__name__}), {expected}")
    if not 0 < how < math.inf:
        raise ConfigError(f"config key 'clip_rewards' is {how!r}, {expected}")
