"""Values that change with the number of steps sampled: learning rates, entropy coefficients, exploration."""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from polylib.errors import ConfigError, ConfigTypeError


class Schedule(ABC):
    """A number as a function of time (usually environment steps)."""

    @abstractmethod
    def value(self, t: float) -> float:
        """The value at time t."""

    def __call__(self, t: float) -> float:
        """The value at time t."""
        return self.value(t)


class ConstantSchedule(Schedule):
    """The same value at all times."""

    def __init__(self, value: float) -> None:
        self._value = _number(value, "value", "a number")

    def value(self, t: float) -> float:
        """The value, whatever t is."""
        return self._value

    def __repr__(self) -> str:
        return f"ConstantSchedule({self._value!r})"


class PiecewiseSchedule(Schedule):
    """Straight lines between given points.

    Args:
        endpoints: Pairs (t, value), with t strictly increasing.
        outside_value: The value before the first and after the last point. None: the first value before the first
            point, and the last value after the last.
        name: What an error calls the endpoints (the config key they come from).
    """

    def __init__(
        self,
        endpoints: Sequence[Sequence[float]],
        outside_value: float | None = None,
        name: str = "endpoints",
    ) -> None:
        points = _points(endpoints, name)
        self._times = [t for t, _ in points]
        self._values = [v for _, v in points]
        self._outside = None if outside_value is None else _number(outside_value, "outside_value", "a number or None")

    def value(self, t: float) -> float:
        """The value at time t."""
        times, values = self._times, self._values
        if t < times[0]:
            return values[0] if self._outside is None else self._outside
        if t > times[-1]:
            return values[-1] if self._outside is None else self._outside
        if t == times[-1]:
            return values[-1]
        i = bisect.bisect_right(times, t) - 1
        share = (t - times[i]) / (times[i + 1] - times[i])
        return values[i] + share * (values[i + 1] - values[i])

    def __repr__(self) -> str:
        return f"PiecewiseSchedule({list(zip(self._times, self._values, strict=True))!r})"


def make_schedule(spec: Any, name: str) -> Schedule | None:
    """A schedule from what a config holds.

    Args:
        spec: A number (constant), a list of [t, value] pairs (linear between them), or a Schedule. None stands for
            "no schedule".
        name: The config key, for error messages.

    Returns:
        The schedule; None for None.

    Raises:
        ConfigError: The spec is none of these; the message names the key.
    """
    if spec is None or isinstance(spec, Schedule):
        return spec
    if isinstance(spec, list | tuple):
        return PiecewiseSchedule(spec, name=name)
    return ConstantSchedule(_number(spec, name, "a number, None, or a list of [t, value] pairs"))


def _points(spec: Any, name: str) -> list[tuple[float, float]]:
    expected = "a list of [t, value] pairs such as [[0, 0.001], [100000, 0.0]]"
    if not isinstance(spec, list | tuple):
        raise ConfigTypeError(f"{name}={spec!r}: expected {expected}.")
    if not spec:
        raise ConfigError(f"{name} is empty: expected {expected}, or None for no schedule.")
    points: list[tuple[float, float]] = []
    for i, pair in enumerate(spec):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise ConfigError(f"{name}[{i}]={pair!r} is not a [t, value] pair: {name} has to be {expected}.")
        t = _number(pair[0], f"{name}[{i}][0]", "the time as a number")
        points.append((t, _number(pair[1], f"{name}[{i}][1]", "the value as a number")))
        if i and t <= points[i - 1][0]:
            raise ConfigError(
                f"{name}[{i}] has t={pair[0]!r} after t={spec[i - 1][0]!r}: sort the pairs, with t strictly increasing."
            )
    return points


def _number(value: Any, name: str, expected: str) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise ConfigTypeError(f"{name}={value!r}: expected {expected}.")
    number = float(value)
    if not math.isfinite(number):
        raise ConfigError(f"{name}={value!r}: expected {expected}, finite.")
    return number
