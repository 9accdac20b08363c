"""When a run stops: as soon as one of the keys in `--stop` has reached its value."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from polylib.errors import PolylibError, did_you_mean

# Parts of a result that may be missing from the first ones.
_LATE = ("evaluation", "custom_metrics", "sampler_results")


class ResultKeyError(PolylibError):
    """A key that a flag names isn't in the results."""


class StopCriteria:
    """Stop criteria `{key: value}`; nested keys have slashes."""

    def __init__(self, criteria: Mapping[str, float]) -> None:
        self._criteria = dict(criteria)

    def met(self, result: Mapping[str, Any]) -> bool:
        """Whether a result has reached one of the values.

        Args:
            result: a result of `train()`, nested.

        Raises:
            ResultKeyError: if a key isn't there; offers the nearest.
        """
        flat = flatten(result)
        require_keys(self._criteria, flat, "--stop", "so the run would never stop")
        if result.get("done"):
            return True
        return any(_reached(flat.get(key), value) for key, value in self._criteria.items())


def require_keys(keys: Iterable[str], flat: Mapping[str, Any], flag: str, consequence: str) -> None:
    """Raises a `ResultKeyError` if a key isn't in the results, and isn't one that comes later.

    Args:
        keys: with slashes.
        flat: a result, flattened.
        flag: who names the keys.
        consequence: what follows from their absence.
    """
    for key in keys:
        if key not in flat and key.partition("/")[0] not in _LATE:
            names = [name for name, value in flat.items() if _is_criterion(name, value)]
            raise ResultKeyError(
                f"{flag}: no key {key!r} in the results, {consequence}.{did_you_mean(key, names)} Keys: {_some(names)}"
            )


def flatten(result: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested result with keys such as `info/learner/default_policy/learner_stats/kl`."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}/"))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _reached(value: Any, bound: float) -> bool:
    try:
        return bool(value >= bound)
    except (TypeError, ValueError):
        return False


def _is_criterion(name: str, value: Any) -> bool:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and not name.startswith("config/") and name not in ("pid", "timestamp")


def _some(names: list[str]) -> str:
    """The keys that people stop at first, then a few others."""
    usual = ("episode_reward_mean", "timesteps_total", "training_iteration", "time_total_s")
    shown = [name for name in usual if name in names]
    rest = [name for name in names if name not in shown and "/" not in name]
    return ", ".join([*shown, *rest[:4]]) + ", ..."
