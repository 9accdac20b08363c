"""The errors polylib raises for people: one clear line that says what was passed, what was expected and how to fix it.

Every class derives from `PolylibError`, which the command line prints without a traceback, and from the built-in
class that Python users would catch (`ValueError`, `TypeError`, ...).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PolylibError(Exception):
    """A mistake somebody can fix; `str(error)` is one line written for them."""

    def __str__(self) -> str:
        # KeyError would quote its message.
        return str(self.args[0]) if self.args else ""


class ConfigError(PolylibError, ValueError):
    """A config key has a bad value, or keys contradict each other; the message names the key."""


class ConfigTypeError(ConfigError, TypeError):
    """A config value has the wrong type; the message names the key."""


class UnknownKeyError(ConfigError, KeyError):
    """A config key, algorithm or option that doesn't exist; the message offers the nearest one."""


class NotBuiltError(ConfigError, NotImplementedError):
    """A known key whose feature this version doesn't have was set off its default."""


class EnvError(PolylibError, RuntimeError):
    """An environment is unknown, can't be made, raises, or returns what its spaces don't allow."""


class FrameworkError(PolylibError, ImportError):
    """A framework is unknown, not installed, or not supported by the algorithm."""


class BatchError(PolylibError, ValueError):
    """Columns of a batch are missing or don't fit together; the message names the column."""


class WeightsError(PolylibError, ValueError):
    """Weights don't fit the policy; the message names the variable."""


class DivergedError(PolylibError, ArithmeticError):
    """Learning produced numbers that are not finite; the weights are of no use from here on."""


class WorkerError(PolylibError, RuntimeError):
    """A rollout worker was lost."""


class ExportError(PolylibError, RuntimeError):
    """A policy can't be written in a format, or what was written isn't the policy."""


class RetraceError(PolylibError, RuntimeError):
    """A traced function was traced more often than `eager_max_retraces` allows."""


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that `name` most probably meant, or None."""
    found = difflib.get_close_matches(str(name), list(choices), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest choice, or an empty string."""
    match = nearest(name, choices)
    return f" Did you mean {match!r}?" if match else ""
