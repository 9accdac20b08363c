"""Environments, models and action distributions by name: what users register here, plus Gymnasium's own registry.

The registry is per process. Rollout workers get what a name stands for with their config, and Tune's trials look into
the stores that the Tune adapter adds, so an environment or a model registered in the driver works everywhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from polylib.atari_ids import classic_ids, is_atari_id, register_atari, resembles_atari
from polylib.errors import ConfigError, ConfigTypeError, EnvError, did_you_mean

EnvCreator = Callable[[dict[str, Any]], Any]

# "envpool:CartPole-v1": EnvPool's environment of that name.
_ENVPOOL = "envpool:"


class EnvStore(Protocol):
    """Where registered environments are kept for other processes."""

    def put(self, name: str, creator: EnvCreator) -> None:
        """Keeps what a name stands for."""

    def find(self, name: str) -> EnvCreator | None:
        """What a name stands for, or None."""


class Store(Protocol):
    """Where registered models or inputs are kept for other processes."""

    def put(self, name: str, value: Any) -> None:
        """Keeps what a name stands for."""

    def find(self, name: str) -> Any:
        """What a name stands for, or None."""


class _Shelf(dict[str, Any]):
    """What was registered under which name, here and in the stores that were added."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: list[Store] = []

    def put(self, name: str, value: Any) -> None:
        self[name] = value
        for store in self.stores:
            store.put(name, value)

    def add_store(self, store: Store) -> None:
        if store not in self.stores:
            self.stores.append(store)
        for name, value in self.items():
            store.put(name, value)

    def find(self, name: Any) -> Any:
        if not isinstance(name, str):
            return None
        found = [self.get(name), *(store.find(name) for store in self.stores)]
        return next((value for value in found if value is not None), None)


InputCreator = Callable[[Any], Any]
_envs: dict[str, EnvCreator] = {}
_action_dists: dict[str, Callable[..., Any]] = {}
_models, _inputs = _Shelf(), _Shelf()
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


def register_action_dist(name: str, factory: Callable[..., Any]) -> None:
    """Makes `custom_action_dist=name` use an action distribution of the user's.

    The name is known in this process only; "module:attribute" needs no registering and works in every process.

    Args:
        name: the name that configs and the command line use; goes before a built-in one.
        factory: a `polylib.models.distributions.Distribution` subclass or a function, called with the action space,
            or `framework_distribution(...)` from there.

    Raises:
        ConfigTypeError: if `factory` isn't callable.
    """
    if not callable(factory):
        raise ConfigTypeError(f"register_action_dist({name!r}): the factory must be callable, got {factory!r}")
    _action_dists[name] = factory


def registered_action_dist(name: str) -> Callable[..., Any] | None:
    """What an action distribution was registered as, or None."""
    return _action_dists.get(name)


def register_model(name: str, model: Any) -> None:
    """Makes `custom_model=name` use a network of the user's.

    Rollout workers get the model with their config, Tune's trials find it through Ray. "module:attribute" needs no
    registering.

    Args:
        name: the name that configs use.
        model: a factory `(observation_space, action_space, outputs, **custom_model_config)`, a class that takes the
            same, or a finished model, see `polylib.models.custom`.

    Raises:
        ConfigTypeError: if `model` isn't callable.
    """
    if not callable(model):
        raise ConfigTypeError(f"register_model({name!r}): expected a factory, a class or a model, got {model!r}")
    _models.put(name, model)


def add_model_store(store: Store) -> None:
    """Puts every model registered now and later into `store`, and finds there what isn't registered here."""
    _models.add_store(store)


def register_input(name: str, creator: InputCreator) -> None:
    """Makes `input=name` read experience with a reader of the user's.

    Rollout workers get what the name stands for with their config, Tune's trials find it through Ray. "module:Class"
    needs no registering.

    Args:
        name: the name that configs use; goes before a file or folder of that name.
        creator: takes a `polylib.offline.IOContext`, returns a `polylib.offline.InputReader`.

    Raises:
        ConfigTypeError: if `creator` isn't callable.
    """
    if not callable(creator):
        raise ConfigTypeError(f"register_input({name!r}): the creator must be callable, got {creator!r}")
    _inputs.put(name, creator)


def add_input_store(store: Store) -> None:
    """Puts every input registered now and later into `store`, and finds there what isn't registered here."""
    _inputs.add_store(store)


def registered_input(name: Any) -> InputCreator | None:
    """What an input was registered as, here or in the process that started this one; None for others."""
    return _inputs.find(name)


def registered_model(name: Any) -> Any:
    """What a model was registered as, here or in the process that started this one; None for others."""
    return _models.find(name)


def named_model(name: str) -> Any:
    """What a model's name stands for: what was registered, or "module:attribute".

    Raises:
        ConfigError: if there is none; offers the nearest name.
    """
    registered = registered_model(name)
    if registered is not None:
        return registered
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ConfigError(
            f"config key 'custom_model': no model is registered as {name!r}.{did_you_mean(name, _models)} Call "
            "polylib.register_model first, or write 'module:attribute'"
        )
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever a user's module raises
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ConfigError(f"config key 'custom_model': {name!r}: can't import {module!r}: {text}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"config key 'custom_model': {name!r}: {module!r} has no {attribute!r}") from None
    if not callable(found):
        raise ConfigError(f"config key 'custom_model': {name!r} is {found!r}, expected a factory, a class or a model")
    return found


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
        env: a registered name, a Gymnasium id (or a classic one of an Atari game), `"envpool:ID"`, `"module:Class"`,
            or a class or function that takes the `env_config`.

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


class EnvPoolMaker:
    """Makes pools of one of EnvPool's environments.

    Args:
        name: `"envpool:ID"`.

    Raises:
        EnvError: if EnvPool isn't installed or has no such environment.
    """

    def __init__(self, name: str) -> None:
        self.name, self._id = name, name.removeprefix(_ENVPOOL)
        try:
            # Not at the module's top: it is optional and takes a second.
            self._envpool = importlib.import_module("envpool")
        except Exception as error:  # its compiled parts may not fit this machine
            if isinstance(error, ModuleNotFoundError) and error.name == "envpool":
                raise EnvError(
                    f"environment {name!r} needs EnvPool, which isn't installed: pip install envpool. Without it, "
                    f"{self._id!r} with vectorization_mode='vector_entry_point' steps Gymnasium's own vector, for "
                    "environments that have one"
                ) from None
            text = " ".join(str(error).split())
            raise EnvError(f"environment {name!r}: can't import EnvPool: {type(error).__name__}: {text}") from error
        known = self._envpool.list_all_envs()
        if self._id not in known:
            raise EnvError(f"unknown environment {name!r}: EnvPool has no {self._id!r}.{did_you_mean(self._id, known)}")

    def __call__(self, env_config: dict[str, Any]) -> Any:
        """A pool with the arguments `env_config`."""
        return self._envpool.make_gymnasium(self._id, **env_config)


def _creator_from_text(env: str) -> EnvCreator:
    import gymnasium

    if env.startswith(_ENVPOOL):
        return EnvPoolMaker(env)
    if is_atari_id(env):
        register_atari(env)
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
    atari = resembles_atari(env)
    hint = did_you_mean(env, [*_envs, *gymnasium.registry, *(classic_ids() if atari else ())])
    if atari:
        hint += " Atari environments are called like ALE/Pong-v5, PongNoFrameskip-v4 or PongDeterministic-v4"
    raise EnvError(
        f"unknown environment {env!r}: it is neither registered with polylib.register_env nor a Gymnasium id.{hint}"
    )


def _newest_version(env: str, registry: Mapping[str, Any]) -> bool:
    """Gymnasium makes the newest version of an id without `-vN`."""
    return any(known.startswith(f"{env}-v") for known in registry)
