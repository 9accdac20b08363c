"""Estimators by name, as `off_policy_estimation_methods` and the command line give them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError, did_you_mean
from polylib.offline.estimators.direct_method import DirectMethod
from polylib.offline.estimators.doubly_robust import DoublyRobust
from polylib.offline.estimators.importance_sampling import (
    ImportanceSampling,
    PerDecisionImportanceSampling,
    WeightedImportanceSampling,
    WeightedPerDecisionImportanceSampling,
)
from polylib.offline.estimators.off_policy_estimator import OffPolicyEstimator

#: Short names; the classes' own names work too.
ESTIMATORS: dict[str, type[OffPolicyEstimator]] = {
    "is": ImportanceSampling,
    "wis": WeightedImportanceSampling,
    "pdis": PerDecisionImportanceSampling,
    "wpdis": WeightedPerDecisionImportanceSampling,
    "dm": DirectMethod,
    "dr": DoublyRobust,
}
_KEY = "config key 'off_policy_estimation_methods'"


def estimator_class(value: Any) -> type[OffPolicyEstimator]:
    """The class that `type` stands for: itself, a short name, a class' name, or `"module:Class"`.

    Raises:
        ConfigError: if it stands for no estimator.
    """
    if isinstance(value, type) and issubclass(value, OffPolicyEstimator):
        return value
    if not isinstance(value, str):
        raise ConfigTypeError(
            f"{_KEY}: type is {value!r}, expected a subclass of OffPolicyEstimator, one of "
            f"{', '.join(map(repr, ESTIMATORS))}, or 'module:Class'"
        )
    by_name = {**ESTIMATORS, **{cls.__name__.lower(): cls for cls in ESTIMATORS.values()}}
    found = by_name.get(value.lower())
    if found is not None:
        return found
    module, colon, name = value.partition(":")
    if not colon:
        module, _, name = value.rpartition(".")
    if not module or not name:
        names = [*ESTIMATORS, *(cls.__name__ for cls in ESTIMATORS.values())]
        hint = did_you_mean(value, names)
        raise ConfigError(f"{_KEY}: there is no estimator {value!r}.{hint} Known: {', '.join(names)}")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{_KEY}: type {value!r} can't be loaded: {error}") from None
    if not (isinstance(loaded, type) and issubclass(loaded, OffPolicyEstimator)):
        raise ConfigError(f"{_KEY}: type {value!r} is {loaded!r}, expected a subclass of OffPolicyEstimator")
    return loaded


def parse_methods(methods: Any) -> dict[str, tuple[type[OffPolicyEstimator], dict[str, Any]]]:
    """Classes and settings by the user's names.

    Args:
        methods: `{name: {"type": ..., **settings}}`; a bare type in place of the dict, and a list of types, are
            taken too.

    Raises:
        ConfigError: naming the method that is wrong.
    """
    if isinstance(methods, list | tuple):
        methods = {m if isinstance(m, str) else getattr(m, "__name__", repr(m)): m for m in methods}
    if not isinstance(methods, Mapping):
        raise ConfigTypeError(f"{_KEY} is {methods!r}, expected {{name: {{'type': 'is', ...}}}}")
    found = {}
    for name, method in methods.items():
        settings = dict(method) if isinstance(method, Mapping) else {"type": method}
        if settings.get("type") is None:
            raise ConfigError(
                f"{_KEY}: {name!r} has no 'type', expected one of {', '.join(map(repr, ESTIMATORS))}, or a class"
            )
        cls = estimator_class(settings.pop("type"))
        known = _settings(cls)
        for key in settings:
            if known and key not in known:
                raise UnknownKeyError(
                    f"{_KEY}: {cls.__name__} ({name!r}) has no setting {key!r}.{did_you_mean(key, known)} It has "
                    f"{', '.join(known)}"
                )
        found[str(name)] = (cls, settings)
    return found


def _settings(cls: type[OffPolicyEstimator]) -> list[str]:
    """Names of the arguments of a class' constructor and of those it passes on to; [] if anything goes."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base) or base is object:
            continue
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        names.update({p.name: None for p in parameters if p.name not in ("self", "policy") and p.kind != p.VAR_KEYWORD})
        if not any(p.kind == p.VAR_KEYWORD for p in parameters):
            break
    return list(names)


def make_estimator(cls: type[OffPolicyEstimator], settings: Mapping[str, Any], policy: Any, gamma: float) -> Any:
    """An estimator of a policy; `gamma` unless the settings have their own."""
    return cls(policy, **{"gamma": gamma, **settings})
