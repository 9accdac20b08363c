"""Vector environments: what a rollout worker steps. Anything that speaks `gymnasium.vector.VectorEnv` plugs in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode, VectorEnv

from polylib.env.atari import check_native, is_native_atari, preprocess
from polylib.env.check import check_env, one_line
from polylib.env.envpool import adapt, is_envpool, make_pool
from polylib.env.in_turn import InTurn
from polylib.errors import EnvError
from polylib.registry import EnvPoolMaker, env_creator, env_name, registered_creator

# From here on a worker's environments are Gymnasium's own vectorised ones, where it has them.
_MANY_ENVS = 16


class EnvContext(dict[str, Any]):
    """The `env_config` that an environment's creator gets; knows where the environment will live.

    Attributes:
        worker_index: 0 for the local worker, from 1 for remote ones.
        num_workers: remote workers of the algorithm.
        vector_index: place among the worker's environments.
    """

    def __init__(self, env_config: dict[str, Any], worker_index: int = 0, num_workers: int = 0, vector_index: int = 0):
        super().__init__(env_config)
        self.worker_index, self.num_workers, self.vector_index = worker_index, num_workers, vector_index


def make_vector_env(config: Any, worker_index: int = 0, seed: int | None = None) -> VectorEnv[Any, Any, Any]:
    """Makes a worker's environments.

    Args:
        config: with keys env, env_config, num_envs_per_worker, num_workers, disable_env_checking, vectorization_mode,
            and those that `polylib.env.atari.preprocess` takes.
        worker_index: of the worker.
        seed: of the check's reset, and of an EnvPool.

    Returns:
        What the creator returns if it is a vector environment or an EnvPool; else `num_envs_per_worker` environments
        that are stepped one after another and never reset by themselves, so that no step is lost to a reset.

    Raises:
        EnvError: if there is no such environment, or it can't be made, or its first observation doesn't fit.
    """
    creator, name = env_creator(config["env"]), env_name(config["env"])

    def attempt(create: Callable[[], Any]) -> Any:
        try:
            return create()
        except EnvError:
            raise
        except Exception as error:
            raise EnvError(f"environment {name!r} can't be made: {type(error).__name__}: {one_line(error)}") from error

    def make(index: int) -> Any:
        context = EnvContext(config["env_config"], worker_index, config["num_workers"], index)
        made = attempt(lambda: creator(context))
        if is_envpool(made):
            return adapt(made, name, worker_index)
        if not isinstance(made, gym.Env | VectorEnv):
            raise EnvError(
                f"environment {name!r}: its creator returned {type(made).__name__}, expected a gymnasium.Env or a "
                "gymnasium.vector.VectorEnv"
            )
        return made if isinstance(made, VectorEnv) else preprocess(made, config, name)

    if isinstance(creator, EnvPoolMaker):
        pool_of = creator
        return attempt(lambda: make_pool(pool_of, config, worker_index, seed))
    if _wants_native(config):
        return _native_vector_env(config)
    first, count = make(0), config["num_envs_per_worker"]
    if isinstance(first, VectorEnv):
        if count not in (1, first.num_envs):
            raise EnvError(
                f"environment {name!r} is a vector of {first.num_envs} environments, but num_envs_per_worker is "
                f"{count}: leave it at 1"
            )
        return first
    if not config["disable_env_checking"]:
        check_env(first, name, seed, worker_index)
    made = [first, *(make(i) for i in range(1, count))]
    if len({id(env) for env in made}) < count:
        raise EnvError(
            f"environment {name!r}: its creator returned the same object twice; with num_envs_per_worker={count} it "
            "has to make a new environment in each call"
        )
    try:
        makers = [functools.partial(_itself, env) for env in made]
        return InTurn(makers)
    except Exception as error:
        raise EnvError(
            f"environment {name!r}: {count} of it can't be stepped together: {type(error).__name__}: {one_line(error)}"
        ) from error


def _wants_native(config: Any) -> bool:
    """Whether Gymnasium's own vectorised implementation of the environment is to be used.

    "auto" takes it for many environments, where it is several times faster. For few it would only lose what
    environments of polylib's own making have: episodes with seeds of their own, which a checkpoint can go on from.
    """
    mode, env = config["vectorization_mode"], config["env"]
    if mode == "sync" or not isinstance(env, str) or registered_creator(env) is not None:
        native = False
    else:
        spec = gym.registry.get(env)
        native = spec is not None and spec.vector_entry_point is not None
    if mode == "vector_entry_point" and not native:
        raise EnvError(
            f"config key 'vectorization_mode': environment {env_name(env)!r} has no vectorised implementation of its "
            "own; use 'auto' or 'sync'"
        )
    if native and is_native_atari(env):
        # Its observations and rewards differ from those of the same name one by one, so that it is never swapped in.
        if mode == "vector_entry_point":
            check_native(config, env_name(env))
        return mode == "vector_entry_point"
    return native and (mode == "vector_entry_point" or config["num_envs_per_worker"] >= _MANY_ENVS)


def _native_vector_env(config: Any) -> VectorEnv[Any, Any, Any]:
    env, count = config["env"], config["num_envs_per_worker"]
    try:
        return gym.make_vec(env, count, vectorization_mode="vector_entry_point", **config["env_config"])
    except Exception as error:
        raise EnvError(
            f"environment {env!r}: {count} of it can't be made in one vector: {type(error).__name__}: {one_line(error)}"
        ) from error


def _itself(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    return env


def autoreset_mode(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """How `env` resets its sub-environments; Gymnasium's default where it doesn't say."""
    mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(known.value) for known in AutoresetMode)
        raise EnvError(
            f"environment {type(env).__name__}: metadata['autoreset_mode'] is {mode!r}, expected a "
            f"gymnasium.vector.AutoresetMode or one of {known}"
        ) from None
