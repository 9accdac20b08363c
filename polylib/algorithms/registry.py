"""Algorithms by name. Looking one up imports its config; only its class imports Ray, nothing here a framework."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polylib.errors import ConfigTypeError, UnknownKeyError, did_you_mean

if TYPE_CHECKING:
    from polylib.algorithms.algorithm import Algorithm
    from polylib.algorithms.algorithm_config import AlgorithmConfig
    from polylib.policy.objective import Objective

# name -> "module:Class" of the config, the algorithm and the objective
_BUILT_IN = {
    "PPO": (
        "polylib.algorithms.ppo.config:PPOConfig",
        "polylib.algorithms.ppo.ppo:PPO",
        "polylib.algorithms.ppo.loss:PPOObjective",
    ),
    "PG": (
        "polylib.algorithms.pg.config:PGConfig",
        "polylib.algorithms.pg.pg:PG",
        "polylib.algorithms.pg.loss:PGObjective",
    ),
    "A2C": (
        "polylib.algorithms.a2c.config:A2CConfig",
        "polylib.algorithms.a2c.a2c:A2C",
        "polylib.algorithms.a2c.loss:A2CObjective",
    ),
    "DQN": (
        "polylib.algorithms.dqn.config:DQNConfig",
        "polylib.algorithms.dqn.dqn:DQN",
        "polylib.algorithms.dqn.loss:DQNObjective",
    ),
    "SAC": (
        "polylib.algorithms.sac.config:SACConfig",
        "polylib.algorithms.sac.sac:SAC",
        "polylib.algorithms.sac.loss:SACObjective",
    ),
    "DDPG": (
        "polylib.algorithms.ddpg.config:DDPGConfig",
        "polylib.algorithms.ddpg.ddpg:DDPG",
        "polylib.algorithms.ddpg.loss:DDPGObjective",
    ),
    "TD3": (
        "polylib.algorithms.ddpg.config:TD3Config",
        "polylib.algorithms.ddpg.ddpg:TD3",
        "polylib.algorithms.ddpg.loss:DDPGObjective",
    ),
    "SimpleQ": (
        "polylib.algorithms.dqn.config:SimpleQConfig",
        "polylib.algorithms.dqn.dqn:SimpleQ",
        "polylib.algorithms.dqn.loss:DQNObjective",
    ),
    "BC": (
        "polylib.algorithms.bc.config:BCConfig",
        "polylib.algorithms.bc.bc:BC",
        "polylib.algorithms.marwil.loss:MARWILObjective",
    ),
    "MARWIL": (
        "polylib.algorithms.marwil.config:MARWILConfig",
        "polylib.algorithms.marwil.marwil:MARWIL",
        "polylib.algorithms.marwil.loss:MARWILObjective",
    ),
    "CQL": (
        "polylib.algorithms.cql.config:CQLConfig",
        "polylib.algorithms.cql.cql:CQL",
        "polylib.algorithms.cql.loss:CQLObjective",
    ),
    "CRR": (
        "polylib.algorithms.crr.config:CRRConfig",
        "polylib.algorithms.crr.crr:CRR",
        "polylib.algorithms.crr.loss:CRRObjective",
    ),
    "IQL": (
        "polylib.algorithms.iql.config:IQLConfig",
        "polylib.algorithms.iql.iql:IQL",
        "polylib.algorithms.iql.loss:IQLObjective",
    ),
}
_registered: dict[str, tuple[Any, ...]] = {}
_spelled: dict[str, str] = {}  # a name to the "module:Class" that somebody wrote for it


def algorithm_names() -> list[str]:
    """Names that `--algo` and Tune accept."""
    return sorted({*_BUILT_IN, *_registered})


def register_algorithm(name: str, config_class: type[AlgorithmConfig], algorithm_class: type[Algorithm] | str) -> None:
    """Makes a user's algorithm known as `name` to the command line and, once Tune is used, to Tune.

    Args:
        name: the algorithm's name; its config's `algo_name` must be the same.
        config_class: its config.
        algorithm_class: its class, or `"module:Class"` imported when it is first built.
    """
    if config_class.algo_name != name:
        raise ConfigTypeError(
            f"register_algorithm({name!r}): {config_class.__name__}.algo_name is {config_class.algo_name!r}"
        )
    _registered[name] = (config_class, algorithm_class)
    trainable = sys.modules.get("polylib.algorithms.trainable")
    if trainable is not None:
        trainable.register_trainables()


def get_config_class(name: str) -> type[AlgorithmConfig]:
    """The config class of algorithm `name`.

    Raises:
        UnknownKeyError: offering the nearest name.
    """
    return load_target(_find(name)[0])


def get_algorithm_class(name: str) -> type[Algorithm]:
    """The class of algorithm `name` (imports Ray Tune).

    Raises:
        UnknownKeyError: offering the nearest name.
    """
    return load_target(_find(name)[1])


def get_objective_class(name: str, config: AlgorithmConfig | None = None) -> type[Objective]:
    """The objective class of algorithm `name`; imports neither Ray nor a framework for polylib's own.

    Args:
        name: the algorithm's.
        config: an algorithm may have several, and choose by its config; None: its defaults.

    Raises:
        UnknownKeyError: offering the nearest name.
    """
    found = _find(name)
    if len(found) > 2:
        return load_target(found[2])
    return load_target(found[1]).get_default_policy_class(get_config_class(name)() if config is None else config)


def get_policy_parts(
    name: str, stored: Mapping[str, Any], framework: str | None = None
) -> tuple[type[Objective], dict[str, Any]]:
    """What a policy in a checkpoint of algorithm `name` is built from: the objective class and the whole config.

    Args:
        name: the algorithm's.
        stored: the config values in the checkpoint; keys that it lacks have their defaults.
        framework: in which it is going to run; None: the config's.

    Raises:
        UnknownKeyError: if nobody registered the algorithm here.
        ConfigError: if this version doesn't know a key or value.
    """
    config = get_config_class(name)().update_from_dict(stored)
    chosen = config.copy()
    if framework in chosen.supported_frameworks:
        chosen.framework(framework)
    return get_objective_class(name, chosen), config.to_dict()


def names_that_read_files() -> list[str]:
    """Names of the algorithms that learn from recorded experience."""
    return [name for name in algorithm_names() if get_config_class(name).reads_files]


def is_built_in(name: str) -> bool:
    """Whether an algorithm is polylib's own."""
    return name in _BUILT_IN


def registered_name(name: str) -> str:
    """The name that an algorithm is registered under: of `"module:Class"` the class' own, after importing the module.

    For names that people write; those in files are looked up as they are, and import nothing.

    Raises:
        UnknownKeyError: if the module can't be imported or has no such algorithm.
    """
    if ":" not in name:
        return name
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        raise UnknownKeyError(f"algorithm {name!r}: module {module!r} has no {attribute!r}") from None
    except Exception as error:  # whatever a user's module raises
        reason = " ".join(str(error).split())
        raise UnknownKeyError(f"algorithm {name!r} can't be imported: {type(error).__name__}: {reason}") from error
    config_class: Any = getattr(found, "config_class", None)
    own = getattr(config_class, "algo_name", "")
    if not isinstance(found, type) or not own:
        raise UnknownKeyError(
            f"algorithm {name!r} is {found!r}, expected an Algorithm class with a config_class, such as "
            "polylib.build_algorithm returns"
        )
    known = _registered.get(own) or _BUILT_IN.get(own)
    if known is None:
        register_algorithm(own, config_class, found)
    elif load_target(known[1]) is not found:
        raise UnknownKeyError(
            f"algorithm {name!r} has the config of {own!r}, which is another algorithm: give it a config_class of its "
            f"own with algo_name = {found.__name__!r}"
        )
    _spelled[own] = name
    return own


def spelled_name(name: str) -> str:
    """How an algorithm is named where its module isn't imported yet: the inverse of `registered_name`."""
    return _spelled.get(name, name)


def _find(name: str) -> tuple[Any, ...]:
    if name in _registered:
        return _registered[name]
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    known = algorithm_names()
    # case is what people get wrong most
    hint = next((f" Did you mean {k!r}?" for k in known if k.lower() == str(name).lower()), did_you_mean(name, known))
    raise UnknownKeyError(f"unknown algorithm {name!r}.{hint} Known: {', '.join(known)}")


def algorithm_target(name: str) -> Any:
    """The class of algorithm `name`, or `"module:Class"` of one that isn't loaded yet.

    Raises:
        UnknownKeyError: offering the nearest name.
    """
    return _find(name)[1]


def load_target(target: Any) -> Any:
    """What `"module:Class"` stands for; anything else is returned as it is."""
    if isinstance(target, str):
        module, _, attribute = target.partition(":")
        return getattr(importlib.import_module(module), attribute)
    return target
