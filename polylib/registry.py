"""Environments by name: Gymnasium's own registry plus the names users register here.

The registry is per process; Ray workers get the creator itself with their config, so a name registered in the driver
works in every worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from polylib.errors import ConfigTypeError, EnvError, did_you_mean

EnvCreator = Callable[[dict[str, Any]], Any]

_envs: dict[str, EnvCreator] = {}


def register_env(name: str, creator: EnvCreator) -> None:
    """Makes `env=name` create environments with `creator`.

    Args:
        name: the name that configs and the command line use.
        creator: takes the config's `env_config` dict, returns a `gymnasium.Env` or `gymnasium.vector.VectorEnv`.

    Raises:
        ConfigTypeError: if `creator` isn't callable.
    """
    if not callable(creator):
        raise ConfigTypeError(f"register_env({name!r}): the creator must be callable, got {creator!r}")
    _envs[name] = creator


def env_creator(env: Any) -> EnvCreator:
    """The function that makes `env` from an `env_config`.

    Args:
        env: a registered name, a Gymnasium id, `"module:Class"`, or a class or function that takes the `env_config`.

    Raises:
        EnvError: if there is no such environment; offers the nearest name.
    """
    if isinstance(env, str):
        if env in _envs:
            return _envs[env]
        return _creator_from_text(env)
    if callable(env):
        return env
    raise EnvError(
        f"config key 'env': got {env!r} ({type(env).__name__}), expected a Gymnasium id, a name registered with "
        "polylib.register_env, or a class or function that takes the env_config"
    )


def env_name(env: Any) -> str:
    """A short name of an environment for messages and experiment names."""
    return env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__)


def _creator_from_text(env: str) -> EnvCreator:
    import gymnasium

    if env in gymnasium.registry or _newest_version(env, gymnasium.registry):
        return lambda env_config: gymnasium.make(env, **env_config)
    module, separator, attribute = env.partition(":")
    if separator and attribute not in gymnasium.registry:
        # "my_package.envs:MyEnv": a class or creator; "my_package:MyEnv-v0" is Gymnasium's own form, an id that the
        # module registers when it is imported.
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except ImportError as error:
            raise EnvError(f"environment {env!r}: can't import {module!r}: {error}") from error
        if attribute in gymnasium.registry:
            return lambda env_config: gymnasium.make(attribute, **env_config)
        if found is not None:
            return found
        raise EnvError(f"environment {env!r}: module {module!r} has no {attribute!r}, nor registers it with Gymnasium")
    hint = did_you_mean(env, [*_envs, *gymnasium.registry])
    if env.startswith(("ALE/", "Pong", "Breakout")):
        hint += " Atari environments need ale-py: pip install 'polylib[atari]'"
    raise EnvError(
        f"unknown environment {env!r}: it is neither registered with polylib.register_env nor a Gymnasium id.{hint}"
    )


def _newest_version(env: str, registry: Mapping[str, Any]) -> bool:
    """Gymnasium makes the newest version of an id without `-vN`."""
    return any(known.startswith(f"{env}-v") for known in registry)
