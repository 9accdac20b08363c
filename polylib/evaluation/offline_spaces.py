"""The spaces of an algorithm that reads its experience."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from polylib.env.vector_env import make_vector_env
from polylib.errors import ConfigError, ConfigTypeError
from polylib.offline.make_input import check_input
from polylib.offline.spaces_of import spaces_of

Spaces = tuple[gym.Space[Any], gym.Space[Any]]


def offline_spaces(config: Any, evaluation: Any) -> Spaces:
    """The observation and action space: the config's, or the environment's, or those that the files say.

    Args:
        config: the algorithm's.
        evaluation: that of its evaluation workers, which may have an environment where training has none.

    Raises:
        ConfigError: if nobody knows them, or a key is wrong.
        EnvError: if the environment can't be made.
        OfflineError: if files can't be read.
    """
    check_input(config["input"])
    observation_space, action_space = config["observation_space"], config["action_space"]
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if space is not None and not isinstance(space, gym.Space):
            raise ConfigTypeError(f"config key {name!r}: got {space!r}, expected a space of Gymnasium, or None")
    if observation_space is not None and action_space is not None:
        return observation_space, action_space
    found: tuple[gym.Space[Any] | None, gym.Space[Any] | None]
    owner = next((keys for keys in (config, evaluation) if keys["env"] is not None), None)
    if owner is not None:
        env = make_vector_env(owner)
        found = env.single_observation_space, env.single_action_space
        env.close()
    else:
        found = spaces_of(
            config["input"], config["input_config"], normalized=config["actions_in_input_normalized"]
        )
    observation_space, action_space = observation_space or found[0], action_space or found[1]
    if observation_space is None or action_space is None:
        missing = "observation_space" if observation_space is None else "action_space"
        raise ConfigError(
            f"config key {missing!r}: the input {config['input']!r} doesn't say it: give observation_space and "
            "action_space, or an environment that has them (config key 'env', or --env)"
        )
    return observation_space, action_space
