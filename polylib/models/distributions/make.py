"""From an action space, and what the configuration says about it, to a distribution."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError, ConfigTypeError, EnvError, did_you_mean
from polylib.models.distributions.base import Distribution
from polylib.models.distributions.bernoulli import Bernoulli
from polylib.models.distributions.beta import Beta
from polylib.models.distributions.categorical import Categorical, MultiCategorical
from polylib.models.distributions.deterministic import Deterministic
from polylib.models.distributions.dirichlet import Dirichlet
from polylib.models.distributions.framework import FrameworkFactory
from polylib.models.distributions.gaussian import DiagGaussian, SquashedGaussian
from polylib.models.distributions.product import Product
from polylib.models.spaces import is_nested, leaves
from polylib.registry import registered_action_dist
from polylib.utils.spaces.simplex import Simplex

_KEY = "config key 'model.custom_action_dist'"


class _BuiltIn(NamedTuple):
    """A distribution by name: its class, the spaces it is for, and how to make it of (space, normalize, clip)."""

    kind: type[Distribution]
    space: type[gym.Space[Any]]
    make: Callable[[Any, bool, bool], Distribution]


_BUILT_IN = {
    entry.kind.__name__: entry
    for entry in (
        _BuiltIn(Categorical, gym.spaces.Discrete, lambda s, n, c: Categorical(int(s.n), int(s.start))),
        _BuiltIn(
            MultiCategorical,
            gym.spaces.MultiDiscrete,
            lambda s, n, c: MultiCategorical(s.nvec, getattr(s, "start", None)),
        ),
        _BuiltIn(Bernoulli, gym.spaces.MultiBinary, lambda s, n, c: Bernoulli(s.shape)),
        _BuiltIn(DiagGaussian, gym.spaces.Box, DiagGaussian),
        _BuiltIn(SquashedGaussian, gym.spaces.Box, lambda s, n, c: SquashedGaussian(s)),
        _BuiltIn(Beta, gym.spaces.Box, lambda s, n, c: Beta(s)),
        _BuiltIn(Deterministic, gym.spaces.Box, Deterministic),
        _BuiltIn(Dirichlet, Simplex, lambda s, n, c: Dirichlet(s.shape)),
    )
}
# The first that is for a space is its default.
_DEFAULTS = ("Categorical", "MultiCategorical", "Bernoulli", "DiagGaussian", "Dirichlet")


def make_distribution(
    space: gym.Space[Any],
    normalize_actions: bool = True,
    clip_actions: bool = False,
    custom: Any = None,
    framework: str | None = None,
) -> Distribution:
    """The distribution of an action space.

    Args:
        space: Discrete, MultiDiscrete, MultiBinary, a Box of floats, Simplex, or a Dict or Tuple of these.
        normalize_actions: policies act in [-1, 1] of bounded Box dimensions.
        clip_actions: clip Box actions to the bounds also when they aren't normalised.
        custom: the config's `model.custom_action_dist`. None: the space's default. A name registered with
            `polylib.register_action_dist`, a built-in one ("SquashedGaussian", "Beta", "Deterministic", ...; in a Dict
            or Tuple it is for the parts it fits, the others keep their default) or "module:attribute". A
            `Distribution` subclass or a function, called with the action space. Or `framework_distribution(...)` of a
            function of inputs that returns a TensorFlow Probability or torch distribution; such a function with an
            attribute `inputs_size` does, too.
        framework: of the policy; a framework's own distribution is checked at once where it is given.

    Raises:
        ConfigError: if `custom` is none of these.
        EnvError: for a space that has no distribution, or that `custom` doesn't fit.
        FrameworkError: if `custom` makes distributions of another framework.
    """
    if custom is None or custom == "":
        return _by_space(space, normalize_actions, clip_actions, None)
    custom, label = _resolve(custom)
    if isinstance(custom, _BuiltIn):
        return _by_space(space, normalize_actions, clip_actions, custom)
    if hasattr(custom, "inputs_size") and not isinstance(custom, type | FrameworkFactory):
        custom = FrameworkFactory(custom, custom.inputs_size)
    if isinstance(custom, FrameworkFactory):
        return custom(space, normalize_actions, clip_actions, framework)
    return _made_by(custom, label, space)


def _resolve(custom: Any) -> tuple[Any, str]:
    """What a name stands for; the built-in of a built-in's class."""
    label = repr(custom) if isinstance(custom, str) else getattr(custom, "__qualname__", type(custom).__name__)
    if isinstance(custom, str):
        name = custom
        custom = registered_action_dist(name) or _BUILT_IN.get(name) or _imported(name)
    built_in = next((entry for entry in _BUILT_IN.values() if entry.kind is custom), None)
    if built_in is None and not callable(custom) and not isinstance(custom, _BuiltIn):
        raise ConfigTypeError(
            f"{_KEY}: got {custom!r} ({type(custom).__name__}), expected a name, a Distribution class, a function of "
            "the action space that returns one, or polylib.models.distributions.framework_distribution(factory, "
            "inputs_size)"
        )
    return built_in or custom, label


def _imported(name: str) -> Any:
    module, separator, attribute = name.partition(":")
    if not separator:
        known = sorted(_BUILT_IN)
        raise ConfigError(
            f"{_KEY}: unknown distribution {name!r}.{did_you_mean(name, known)} Built in are {', '.join(known)}; "
            "others are registered with polylib.register_action_dist or named as 'module:attribute'"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a user's module raises
        raise ConfigError(
            f"{_KEY}: can't load {name!r}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _made_by(custom: Callable[[gym.Space[Any]], Any], label: str, space: gym.Space[Any]) -> Distribution:
    hint = (
        "a function of inputs that returns a tfp or torch distribution has to be passed as "
        "polylib.models.distributions.framework_distribution(function, inputs_size)"
    )
    try:
        dist = custom(space)
    except (ConfigError, EnvError):
        raise
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"{_KEY}: {label} called with the action space raised {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; {hint}"
        ) from error
    if not isinstance(dist, Distribution):
        raise ConfigError(
            f"{_KEY}: {label} called with the action space returned {type(dist).__module__}.{type(dist).__qualname__}, "
            f"expected a polylib.models.distributions.Distribution; {hint}"
        )
    return dist


def _by_space(space: gym.Space[Any], normalize: bool, clip: bool, custom: _BuiltIn | None) -> Distribution:
    spaces = leaves(space, "actions")
    fits = {name: custom is not None and isinstance(part, custom.space) for name, part in spaces.items()}
    if custom is not None and not any(fits.values()):
        raise EnvError(f"{_KEY}: {custom.kind.__name__} is for {custom.space.__name__}, the action space is {space}")
    makers = {name: custom if fits[name] and custom else _default(part, space) for name, part in spaces.items()}
    parts = {}
    for name, part in spaces.items():
        _refuse_odd_box(part, space)
        parts[name] = makers[name].make(part, normalize, clip)
    return Product(space, parts) if is_nested(space) else parts["actions"]


def _default(part: gym.Space[Any], whole: gym.Space[Any]) -> _BuiltIn:
    found = next((_BUILT_IN[name] for name in _DEFAULTS if isinstance(part, _BUILT_IN[name].space)), None)
    if found is None:
        raise EnvError(
            f"action space {whole} isn't supported: {part} is {type(part).__name__}, expected Discrete, MultiDiscrete, "
            "MultiBinary, a Box of floats, Simplex, or a Dict or Tuple of these"
        )
    return found


def _refuse_odd_box(part: gym.Space[Any], whole: gym.Space[Any]) -> None:
    if not isinstance(part, gym.spaces.Box):
        return
    if not np.issubdtype(part.dtype, np.floating):
        raise EnvError(
            f"action space {whole}: {part} is a Box of integers, which no distribution is for; make it "
            "MultiDiscrete(nvec=high - low + 1, start=low)"
        )
    if not part.low.size:
        raise EnvError(f"action space {whole}: {part} has no entries, expected at least one float")
