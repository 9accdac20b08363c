"""First values of weights, made in NumPy: the same seed gives the same network under every framework.

`NAMED` are those that a config's `fcnet_weights_initializer` and its like take.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from polylib.errors import ConfigError, nearest

#: From a generator and a shape (inputs first, units last) to an array of that shape.
Initializer: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All 0."""
    return np.zeros(shape)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All 1."""
    return np.ones(shape)


def filled(value: float) -> Initializer:
    """All `value`."""
    return lambda rng, shape: np.full(shape, value)


def normc(std: float = 1.0) -> Initializer:
    """Normally distributed, each column (all but the last axis) of length `std`."""

    def initial(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        kernel = rng.standard_normal((math.prod(shape[:-1]), shape[-1]))
        kernel *= std / np.sqrt(np.square(kernel).sum(0, keepdims=True))
        return kernel.reshape(shape)

    return initial


def orthogonal(gain: float = 1.0) -> Initializer:
    """Columns (all but the last axis) of length `gain` at right angles; rows, if there are fewer (arXiv:1312.6120)."""

    def initial(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
        # QR leaves signs open. With these every orthogonal matrix is as likely as any other.
        q = q * np.sign(np.diag(r))
        return gain * (q if rows >= columns else q.T).reshape(shape)

    return initial


def xavier_uniform(gain: float = 1.0) -> Initializer:
    """Uniform with variance `gain ** 2 * 2 / (inputs + units)` (Glorot and Bengio, 2010)."""
    return lambda rng, shape: _uniform(rng, shape, gain * math.sqrt(6.0 / (math.prod(shape[:-1]) + shape[-1])))


def xavier_normal(gain: float = 1.0) -> Initializer:
    """Normally distributed with variance `gain ** 2 * 2 / (inputs + units)` (Glorot and Bengio, 2010)."""
    return lambda rng, shape: rng.standard_normal(shape) * gain * math.sqrt(2.0 / (math.prod(shape[:-1]) + shape[-1]))


def he_uniform(gain: float = math.sqrt(2.0)) -> Initializer:
    """Uniform with variance `gain ** 2 / inputs` (arXiv:1502.01852)."""
    return lambda rng, shape: _uniform(rng, shape, gain * math.sqrt(3.0 / math.prod(shape[:-1])))


def he_normal(gain: float = math.sqrt(2.0)) -> Initializer:
    """Normally distributed with variance `gain ** 2 / inputs` (arXiv:1502.01852)."""
    return lambda rng, shape: rng.standard_normal(shape) * gain / math.sqrt(math.prod(shape[:-1]))


def normal(std: float = 0.05) -> Initializer:
    """Normally distributed with standard deviation `std`."""
    return lambda rng, shape: rng.standard_normal(shape) * std


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], limit: float) -> np.ndarray:
    return rng.uniform(-limit, limit, shape)


#: By name: what makes it, and the only setting that it takes.
NAMED: dict[str, tuple[Callable[..., Initializer], str]] = {
    "normc": (normc, "std"),
    "orthogonal": (orthogonal, "gain"),
    "xavier_uniform": (xavier_uniform, "gain"),
    "xavier_normal": (xavier_normal, "gain"),
    "he_uniform": (he_uniform, "gain"),
    "he_normal": (he_normal, "gain"),
    "normal": (normal, "std"),
}
# What Keras and torch call them; torch's names end with an underscore, too.
_OTHER_NAMES = {
    "glorot_uniform": "xavier_uniform",
    "glorot_normal": "xavier_normal",
    "kaiming_uniform": "he_uniform",
    "kaiming_normal": "he_normal",
    "random_normal": "normal",
}


def canonical(name: Any) -> str | None:
    """A name as `NAMED` has it; None stays, and is each layer's own default.

    Raises:
        ValueError: with what was expected.
    """
    if name is None:
        return None
    found = name.removesuffix("_") if isinstance(name, str) else name
    found = _OTHER_NAMES.get(found, found) if isinstance(found, str) else found
    if isinstance(found, str) and found in NAMED:
        return found
    close = nearest(found, [*NAMED, *_OTHER_NAMES]) if isinstance(found, str) else None
    hint = f" (did you mean {close!r}?)" if close else ""
    raise ValueError(f"None or one of {', '.join(map(repr, NAMED))}{hint}")


def configured(model: Mapping[str, Any], prefix: str) -> Initializer | None:
    """What a config's `model` asks for with `<prefix>_weights_initializer` and its `_config`; None: nothing.

    Raises:
        ConfigError: naming the key.
    """
    key = f"{prefix}_weights_initializer"
    value, settings = model.get(key), model.get(f"{key}_config") or {}
    try:
        name = canonical(value)
    except ValueError as error:
        raise ConfigError(f"config key 'model.{key}': got {value!r}, expected {error}") from None
    if name is None:
        if settings:
            raise ConfigError(
                f"config key 'model.{key}_config': {settings!r} does nothing without {key}: set it to one of "
                f"{', '.join(map(repr, NAMED))}"
            )
        return None
    make, setting = NAMED[name]
    if not isinstance(settings, Mapping) or not set(settings) <= {setting}:
        raise ConfigError(
            f"config key 'model.{key}_config': got {settings!r}, expected a dict with at most the key {setting!r}: "
            f"{value!r} takes no other"
        )
    number = settings.get(setting)
    if number is None:
        return make()
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if not real or not 0.0 < float(number) < math.inf:
        raise ConfigError(f"config key 'model.{key}_config': {setting!r} is {number!r}, expected a number > 0")
    return make(float(number))
