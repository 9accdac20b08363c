"""What a config key is: its name, group, default, check and meaning. The check is the same on every path.

An `Option` is one row of a table (`common_options.py`, `<algorithm>/config.py`). A check takes the value that somebody
passed and returns the value to store, or raises `ValueError`/`TypeError` with a phrase that completes
"expected ...".
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polylib.callbacks import callback_classes
from polylib.models.initializers import canonical
from polylib.schedules import make_schedule

Check = Callable[[Any], Any]
#: Activations by name, as all configs take them.
ACTIVATIONS = ("tanh", "relu", "elu", "silu", "swish", "gelu", "sigmoid", "softplus", "linear")


@dataclass(frozen=True)
class Option:
    """One config key.

    Attributes:
        name: the canonical key, as in RLlib 2.6's config dict.
        group: the config method that sets it (`"training"`, `"rollouts"`, ...).
        default: its value when nobody sets it.
        check: validates and normalises a value.
        doc: one line of meaning, with the unit.
        aliases: other accepted names (RLlib's newer ones, Python-safe spellings).
        built: False if this version knows the key but not the feature: setting it off its default raises.
    """

    name: str
    group: str
    default: Any
    check: Check
    doc: str
    aliases: tuple[str, ...] = ()
    built: bool = True


def is_search_space(value: Any) -> bool:
    """True for what Ray Tune fills in per trial: `grid_search`, `choice`, `uniform`, a lambda wrapper, ..."""
    if isinstance(value, Mapping):
        return set(value) == {"grid_search"}
    return type(value).__module__.startswith("ray.tune.search.")


def _a_number(value: Any, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(expected)
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(expected) from None
    if math.isnan(result):
        raise ValueError(expected)
    return result


def number(low: float = -math.inf, high: float = math.inf, *, above: bool = False, optional: bool = False) -> Check:
    """A float in [low, high] (in (low, high] with `above`), or None with `optional`."""
    if high == math.inf:
        text = "a number" if low == -math.inf else f"a number {'>' if above else '>='} {low:g}"
    else:
        text = f"a number in {'(' if above else '['}{low:g}, {high:g}]"
    expected = f"{text}{' or None' if optional else ''}"

    def check(value: Any) -> float | None:
        if optional and value is None:
            return None
        result = _a_number(value, expected)
        if result < low or result > high or (above and result == low):
            raise ValueError(expected)
        return result

    return check


def integer(low: int, *, optional: bool = False, or_text: tuple[str, ...] = ()) -> Check:
    """An int >= low (4e3 counts, as JSON writes it), or None with `optional`, or one of `or_text`."""
    expected = " or ".join([f"an integer >= {low}", *(["None"] if optional else []), *(repr(t) for t in or_text)])

    def check(value: Any) -> int | str | None:
        if optional and value is None:
            return None
        if isinstance(value, str) and value in or_text:
            return value
        result = _a_number(value, expected)
        if not math.isfinite(result) or result != int(result) or result < low:
            raise ValueError(expected)
        return int(value) if isinstance(value, numbers.Integral) else int(result)  # floats are exact up to 2 ** 53 only

    return check


def boolean() -> Check:
    """True or False, nothing else."""

    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError("True or False")
        return value

    return check


def choice(*values: Any) -> Check:
    """One of the given values."""
    expected = "one of " + ", ".join(repr(v) for v in values)

    def check(value: Any) -> Any:
        if not isinstance(value, str | bool | int | float | type(None)):
            raise TypeError(expected)
        for allowed in values:
            if value == allowed and isinstance(value, bool) == isinstance(allowed, bool):
                return allowed
        raise ValueError(expected)

    return check


def initializer() -> Check:
    """A name of `polylib.models.initializers.NAMED`, or None."""

    def check(value: Any) -> str | None:
        return canonical(value)

    return check


def mapping() -> Check:
    """A dict, copied."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError("a dict")
        return dict(value)

    return check


def estimation_methods() -> Check:
    """`{name: {"type": ..., **settings}}`; polylib's own classes become names, which checkpoints keep."""

    def named(value: Any) -> Any:
        own = isinstance(value, type) and value.__module__.startswith("polylib.")
        return f"{value.__module__}:{value.__qualname__}" if own else value

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise TypeError("a dict {name: {'type': 'is', ...}}")
        return {
            str(name): {**method, "type": named(method.get("type"))} if isinstance(method, Mapping) else named(method)
            for name, method in value.items()
        }

    return check


def schedule_or_number(low: float = 0.0) -> Check:
    """A number >= low, or a schedule `[[timestep, value], ...]`."""
    single = number(low)

    def check(value: Any) -> Any:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return schedule(low)(value)
        try:
            return single(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error} or a schedule [[timestep, value], ...]") from None

    return check


def schedule(low: float = 0.0) -> Check:
    """None or `[[timestep, value], ...]` with rising timesteps and values >= low."""

    def check(value: Any) -> Any:
        if value is None:
            return None
        expected = f"None or [[timestep, value], ...] with rising timesteps and values >= {low:g}"
        try:
            make_schedule(value, "schedule")
            points = [[_a_number(t, expected), _a_number(v, expected)] for t, v in value]
        except (TypeError, ValueError):
            raise ValueError(expected) from None
        if any(v < low for _, v in points):
            raise ValueError(expected)
        return points

    return check


def sizes() -> Check:
    """A list of layer sizes, each an int >= 1."""

    def check(value: Any) -> list[int]:
        expected = "a list of layer sizes such as [256, 256]"
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(expected)
        try:
            return [integer(1)(item) for item in value]
        except (TypeError, ValueError):
            raise ValueError(expected) from None

    return check


def names() -> Check:
    """A list of names."""

    def check(value: Any) -> list[str]:
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise TypeError("a list of names")
        return list(value)

    return check


def callbacks() -> Check:
    """A subclass of `DefaultCallbacks`, its `"module:Class"`, or a list of them, or None."""

    def check(value: Any) -> Any:
        callback_classes(value)
        return list(value) if isinstance(value, tuple) else value

    return check


def overrides() -> Check:
    """None, or a dict of config keys; of an `AlgorithmConfig` the keys that were set."""

    def check(value: Any) -> Any:
        if value is None:
            return None
        if hasattr(value, "sources") and hasattr(value, "to_dict"):
            return {key: item for key, item in value.to_dict().items() if key in value.sources}
        if not isinstance(value, Mapping):
            raise TypeError("a dict of config keys, or None")
        return dict(value)

    return check


def anything() -> Check:
    """Any value (checked where it is used)."""
    return lambda value: value


def function(optional: bool = True) -> Check:
    """A callable, or None with `optional`."""

    def check(value: Any) -> Any:
        if not callable(value) and not (optional and value is None):
            raise TypeError("a callable or None" if optional else "a callable")
        return value

    return check


def checked(raises: Callable[[Any], None]) -> Check:
    """A value that `raises` lets pass; its errors name the key themselves."""

    def check(value: Any) -> Any:
        raises(value)
        return value

    return check
