"""EnvPool's environments, stepped together in C++, as vector environments.

EnvPool itself is never imported here: a pool is known by what it can do, and made by who has it.

A pool resets a finished environment in the step after the episode's end, which is Gymnasium's NEXT_STEP. Its seed is
fixed when it is made, and sub-environment i has the seed `seed + i`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from polylib.errors import EnvError
from polylib.registry import EnvPoolMaker

logger = logging.getLogger(__name__)

# What a pool has and other environments haven't.
_MARKS = ("all_env_ids", "async_reset", "send", "recv", "config")
# Arguments of EnvPool that a config has keys of its own for.
_CONFIG_KEYS = {"num_envs": "num_envs_per_worker", "seed": "seed"}
# The seed of a pool whose maker gives none.
_DEFAULT_SEED = 42


def is_envpool(env: Any) -> bool:
    """Whether `env` is what EnvPool's functions return."""
    return all(hasattr(env, mark) for mark in _MARKS)


class EnvPoolVectorEnv(VectorEnv[Any, Any, Any]):
    """A pool as a `gymnasium.vector.VectorEnv`.

    Args:
        pool: what `envpool.make_gymnasium` returned.
        name: of the environment, for messages.
        make: makes another such pool with a seed, for `reset(seed=...)`; without it seeds of resets have no effect.
        seed: that `pool` was made with by `make`.

    Raises:
        EnvError: if the pool hands out anything but one row of Gymnasium's kind for each environment.
    """

    def __init__(
        self, pool: Any, name: str, make: Callable[[int], Any] | None = None, seed: int | None = None
    ) -> None:
        config = pool.config
        self.pool, self._name, self._make, self._seed, self._fresh = pool, name, make, seed, True
        self.num_envs = int(config["num_envs"])
        batch = int(config.get("batch_size") or self.num_envs)
        if batch != self.num_envs:
            raise self._error(f"hands out {batch} of its {self.num_envs} environments at a time; leave out batch_size")
        players = int(config.get("max_num_players", 1))
        if players > 1:
            raise self._error(f"has up to {players} players in an environment, and polylib's policies play alone")
        obs_space, action_space = _spaces(pool)
        for space in (obs_space, action_space):
            if not isinstance(space, gym.Space):
                raise self._error(f"has {space!r} where Gymnasium has a space; make it with envpool.make_gymnasium")
        self.single_observation_space, self.single_action_space = obs_space, action_space
        self.observation_space = batch_space(obs_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self.metadata = {**(getattr(pool, "metadata", None) or {}), "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = getattr(pool, "render_mode", None)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes in all environments.

        Args:
            seed: makes the pool anew, where that is possible.
            options: no environment of EnvPool has any.
        """
        mask = (options or {}).get("reset_mask")
        if mask is not None and not np.all(mask):
            raise self._error("can't be reset in part: it resets each environment after its episode's end")
        if seed is not None and self._make is not None:
            first = _in_range(seed[0] if isinstance(seed, list) else seed)
            if not self._fresh or first != self._seed:
                self.pool.close()
                self.pool, self._seed = self._make(first), first
                _spaces(self.pool)
        self._fresh = False
        return self.pool.reset()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps all environments but those whose episode has just ended: these are reset."""
        self._fresh = False
        return self.pool.step(np.asarray(actions))

    def render(self) -> Any:
        """What the pool's `render()` gives."""
        return self.pool.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the pool."""
        self.pool.close()

    def _error(self, what: str) -> EnvError:
        return EnvError(f"environment {self._name!r}: its EnvPool {what}")


def adapt(pool: Any, name: str, worker_index: int) -> EnvPoolVectorEnv:
    """A user's own pool as a vector environment.

    Args:
        pool: what a creator returned.
        name: of the environment.
        worker_index: of the worker it is for.
    """
    env = EnvPoolVectorEnv(pool, name)
    if worker_index > 1 and pool.config.get("seed") == _DEFAULT_SEED:
        logger.warning(
            "environment %r: its EnvPool has the default seed, %d, so all workers begin with the same episodes; give "
            "each its own, like seed=10_000 * env_config.worker_index (sub-environment i has seed + i), or use the "
            "name 'envpool:ID', with which polylib does that",
            name,
            _DEFAULT_SEED,
        )
    return env


def make_pool(maker: EnvPoolMaker, config: Any, worker_index: int, seed: int | None) -> EnvPoolVectorEnv:
    """A worker's environments by their name in EnvPool.

    Args:
        maker: makes pools of it.
        config: with keys env_config (arguments of `envpool.make_gymnasium`), num_envs_per_worker, num_cpus_per_worker.
        worker_index: of the worker.
        seed: of its first environment; None: a random one, since EnvPool's own is always the same.

    Raises:
        EnvError: if `env_config` holds what the config has keys for, or the pool isn't of use.
    """
    options: dict[str, Any] = dict(config["env_config"])
    for argument, key in _CONFIG_KEYS.items():
        if argument in options:
            raise EnvError(f"environment {maker.name!r}: env_config has {argument!r}; set config key {key!r} instead")
    if worker_index > 0:
        # The local worker may take the machine; a remote one has the share that Ray was asked for.
        options.setdefault("num_threads", max(1, int(config["num_cpus_per_worker"])))

    def make(seed: int) -> Any:
        return maker({**options, "num_envs": config["num_envs_per_worker"], "seed": seed})

    first = _in_range(int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed)
    return EnvPoolVectorEnv(make(first), maker.name, make, first)


def _spaces(pool: Any) -> tuple[Any, Any]:
    """A pool's spaces, which it makes when it is first asked for them.

    They are those of one environment. Their bounds come in float64, and Gymnasium would warn in every worker that
    float32 is less precise.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered", category=UserWarning)
        return getattr(pool, "observation_space", None), getattr(pool, "action_space", None)


def _in_range(seed: int) -> int:
    """EnvPool's seeds are of 32 bits with a sign."""
    return seed % (1 << 31)
