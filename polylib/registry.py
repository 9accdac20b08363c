"""Environments by name: Gymnasium's own registry plus the names users register here.

The registry is per process. Rollout workers get the creator with their config, and Tune's trials look into the
`EnvStore` that the Tune adapter adds, so a name registered in the driver works everywhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from polylib.errors import ConfigTypeError, EnvError, did_you_mean

EnvCreator = Callable[[dict[str, Any]], Any]



class EnvStore(Protocol):
    """Where registered environments are kept for other processes."""

    def put(self, name: str, creator: EnvCreator) -> None:
        """Keeps what a name stands for."""

    def find(self, name: str) -> EnvCreator | None:
        """What a name stands for, or None."""


_envs: dict[str, EnvCreator] = {}
_stores: list[EnvStore] = []


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
    for store in _stores:
        store.put(name, creator)


def add_env_store(store: EnvStore) -> None:
    """Puts everything registered now and later into `store`, and finds there what isn't registered here."""
    if store not in _stores:
        _stores.append(store)
    for name, creator in _envs.items():
        store.put(name, creator)


def registered_creator(env: Any) -> EnvCreator | None:
    """The creator that `env` was registered with, here or in the process that started this one; None for others."""
    if not isinstance(env, str):
        return None
    found = [_envs.get(env), *(store.find(env) for store in _stores)]
    return next((creator for creator in found if creator is not None), None)


def env_creator(env: Any) -> EnvCreator:
    """The function that makes `env` from an `env_config`.

    Args:
        env: a registered name, a Gymnasium id, `"module:Class"`, or a class or function that takes the `env_config`.

    Raises:
        EnvError: if there is no such environment; offers the nearest name.
    """
    if isinstance(env, str):
        return registered_creator(env) or _creator_from_text(env)
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
        except Exception as error:  # whatever a user's module raises
            raise EnvError(
                f"environment {env!r}: can't import {module!r}: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        if attribute in gymnasium.registry:
            return lambda env_config: gymnasium.make(attribute, **env_config)
        if callable(found):
            return found
        if found is not None:
            raise EnvError(f"environment {env!r}: it is {found!r}, expected a class or function of the env_config")
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
