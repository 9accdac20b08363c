"""`replay_buffer_config`: the names and keys that RLlib's users know, and the buffer that they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polylib.errors import ConfigError, ConfigTypeError, NotBuiltError, UnknownKeyError, did_you_mean
from polylib.execution.replay.base import Priorities, Replay
from polylib.execution.replay.prioritized import PrioritizedReplayBuffer
from polylib.execution.replay.reservoir import ReservoirReplayBuffer
from polylib.execution.replay.sequences import SequenceReplayBuffer
from polylib.execution.replay.uniform import ReplayBuffer

_WHERE = "replay_buffer_config"
_UNIFORM, _PRIORITIZED, _RESERVOIR = "uniform", "prioritized", "reservoir"
#: What the types of RLlib stand for. A policy has a buffer of its own, so "MultiAgent" makes no difference.
TYPES = {
    "ReplayBuffer": _UNIFORM,
    "MultiAgentReplayBuffer": _UNIFORM,
    "EpisodeReplayBuffer": _UNIFORM,
    "PrioritizedReplayBuffer": _PRIORITIZED,
    "MultiAgentPrioritizedReplayBuffer": _PRIORITIZED,
    "PrioritizedEpisodeReplayBuffer": _PRIORITIZED,
    "ReservoirReplayBuffer": _RESERVOIR,
}
_NOT_BUILT_TYPES = ("MultiAgentMixInReplayBuffer", "FifoReplayBuffer", "MultiAgentEpisodeReplayBuffer")
_UNITS = ("timesteps", "sequences", "episodes")
# Shorter names that RLlib's single-agent buffers have.
_ALIASES = {
    "alpha": "prioritized_replay_alpha",
    "beta": "prioritized_replay_beta",
    "eps": "prioritized_replay_eps",
}
# Keys without their feature, and what they may be set to.
_NOT_BUILT: dict[str, tuple[Any, ...]] = {
    "worker_side_prioritization": (False,),
    "replay_mode": ("independent",),
    "replay_sequence_override": (True,),
    "underlying_buffer_config": (None,),
    "num_shards": (1,),
    "_enable_replay_buffer_api": (True,),
}
# Where keys of older versions have gone.
_MOVED = {
    "learning_starts": "set num_steps_sampled_before_learning_starts beside replay_buffer_config",
    "replay_batch_size": "set train_batch_size beside replay_buffer_config",
    "buffer_size": "call it capacity",
    "no_local_replay_buffer": "leave it out",
    "replay_buffer_shards_colocated_with_driver": "leave it out",
}


@dataclass(frozen=True)
class ReplayOptions:
    """A `replay_buffer_config` that was checked; attributes are called as its keys are.

    Attributes:
        type: one of `TYPES`.
        kind: "uniform", "prioritized" or "reservoir".
        capacity: transitions at most.
        storage_unit: "timesteps", "sequences" (of `replay_sequence_length`) or "episodes".
        prioritized_replay_alpha: the exponent of priorities.
        prioritized_replay_beta: that of importance weights, a number or a schedule.
        prioritized_replay_eps: is added to priorities.
        replay_sequence_length: steps of a sequence; 1: single transitions.
        replay_burn_in: steps before them.
        replay_zero_init_states: whether sequences begin with zeros.
    """

    type: str = "MultiAgentPrioritizedReplayBuffer"
    kind: str = _PRIORITIZED
    capacity: int = 50_000
    storage_unit: str = "timesteps"
    prioritized_replay_alpha: float = 0.6
    prioritized_replay_beta: Any = 0.4
    prioritized_replay_eps: float = 1e-6
    replay_sequence_length: int = 1
    replay_burn_in: int = 0
    replay_zero_init_states: bool = True

    @property
    def sequences(self) -> bool:
        """Whether sequences are stored rather than transitions."""
        return self.storage_unit != "timesteps"


def check_replay_config(config: Mapping[str, Any] | None) -> ReplayOptions:
    """Checks a `replay_buffer_config`.

    Args:
        config: its keys; those that are missing have the defaults of `ReplayOptions`.

    Raises:
        ConfigError: naming the key, what was passed and what was expected.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigTypeError(f"{_WHERE}={config!r}: expected a dict")
    given: dict[str, Any] = {}
    for key, value in (config or {}).items():
        name = _ALIASES.get(key, key)
        if name in given:
            short = next(alias for alias, long in _ALIASES.items() if long == name)
            raise ConfigError(f"{_WHERE}: {short!r} and {name!r} are the same key, set one")
        given[name] = value
    known = [*(name for name in ReplayOptions.__dataclass_fields__ if name != "kind"), "prioritized_replay"]
    for key, value in given.items():
        if key in _MOVED:
            raise UnknownKeyError(f"{_WHERE}[{key!r}] is none of its keys any more: {_MOVED[key]}")
        if key in _NOT_BUILT:
            if not any(type(value) is type(x) and value == x for x in _NOT_BUILT[key]):
                only = " or ".join(map(repr, _NOT_BUILT[key]))
                raise NotBuiltError(f"{_WHERE}[{key!r}]={value!r}: this version has only {only}")
        elif key not in known:
            hint = did_you_mean(key, [*known, *_NOT_BUILT, *_ALIASES]) or f" Its keys are {', '.join(known)}."
            raise UnknownKeyError(f"{_WHERE} has no key {key!r}.{hint}")
    checked = {name: value for name, value in given.items() if name in ReplayOptions.__dataclass_fields__}
    kind = _kind(given)
    for name, low in (("capacity", 1), ("replay_sequence_length", 1), ("replay_burn_in", 0)):
        if name in checked:
            checked[name] = _integer(name, checked[name], low)
    zero = checked.get("replay_zero_init_states", True)
    if not isinstance(zero, bool):
        raise ConfigTypeError(f"{_WHERE}['replay_zero_init_states']={zero!r}: expected True or False")
    unit = checked.get("storage_unit", "timesteps")
    if unit not in _UNITS:
        if unit == "fragments":
            raise NotBuiltError(f"{_WHERE}['storage_unit']='fragments': this version has {', '.join(_UNITS)}")
        raise ConfigError(f"{_WHERE}['storage_unit']={unit!r}: expected one of {', '.join(_UNITS)}")
    options = ReplayOptions(**{**checked, "kind": kind})
    if options.storage_unit == "timesteps" and options.replay_sequence_length > 1:
        options = ReplayOptions(**{**checked, "kind": kind, "storage_unit": "sequences"})
    if options.sequences and kind == _RESERVOIR:
        raise NotBuiltError(f"{_WHERE}: a ReservoirReplayBuffer holds transitions, no {options.storage_unit}")
    if options.replay_burn_in and options.storage_unit != "sequences":
        raise ConfigError(
            f"{_WHERE}['replay_burn_in']={options.replay_burn_in}: only sequences have a burn-in; set "
            "replay_sequence_length above 1"
        )
    if options.storage_unit == "sequences" and options.replay_sequence_length + options.replay_burn_in > (
        options.capacity
    ):
        raise ConfigError(
            f"{_WHERE}['capacity']={options.capacity} holds no sequence of {options.replay_sequence_length} + "
            f"{options.replay_burn_in} steps (replay_sequence_length + replay_burn_in)"
        )
    try:
        Priorities(options.prioritized_replay_alpha, options.prioritized_replay_beta, options.prioritized_replay_eps)
    except ConfigError as error:
        raise type(error)(f"{_WHERE}: {error}") from None
    return options


def make_replay_buffer(config: Mapping[str, Any] | None = None, seed: int | None = None) -> Replay:
    """The replay buffer that a `replay_buffer_config` describes.

    Args:
        config: its keys; see `ReplayOptions` for the defaults.
        seed: of what is drawn.

    Raises:
        ConfigError: naming the key, what was passed and what was expected.
    """
    options = check_replay_config(config)
    priorities = {
        "beta": options.prioritized_replay_beta,
        "eps": options.prioritized_replay_eps,
    }
    if options.sequences:
        return SequenceReplayBuffer(
            options.capacity,
            None if options.storage_unit == "episodes" else options.replay_sequence_length,
            options.replay_burn_in,
            options.replay_zero_init_states,
            options.prioritized_replay_alpha if options.kind == _PRIORITIZED else None,
            seed=seed,
            **priorities,
        )
    if options.kind == _PRIORITIZED:
        return PrioritizedReplayBuffer(options.capacity, options.prioritized_replay_alpha, seed=seed, **priorities)
    if options.kind == _RESERVOIR:
        return ReservoirReplayBuffer(options.capacity, seed)
    return ReplayBuffer(options.capacity, seed)


def _kind(given: Mapping[str, Any]) -> str:
    name = given.get("type", ReplayOptions.type)
    if name in _NOT_BUILT_TYPES:
        raise NotBuiltError(f"{_WHERE}['type']={name!r}: this version has {', '.join(TYPES)}")
    if not isinstance(name, str) or name not in TYPES:
        hint = did_you_mean(name, TYPES) if isinstance(name, str) else ""
        raise ConfigError(f"{_WHERE}['type']={name!r}: expected one of {', '.join(TYPES)}.{hint}")
    kind = TYPES[name]
    wanted = given.get("prioritized_replay", -1)
    if isinstance(wanted, bool):
        if wanted and kind == _RESERVOIR:
            raise ConfigError(f"{_WHERE}['prioritized_replay']=True: a ReservoirReplayBuffer has no priorities")
        return kind if kind == _RESERVOIR else _PRIORITIZED if wanted else _UNIFORM
    # RLlib's own default for "not set".
    if wanted not in (-1, None):
        raise ConfigTypeError(f"{_WHERE}['prioritized_replay']={wanted!r}: expected True, False or -1 (as type says)")
    return kind


def _integer(name: str, value: Any, low: int) -> int:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value != int(value):
        raise ConfigTypeError(f"{_WHERE}[{name!r}]={value!r}: expected an integer >= {low}")
    if value < low:
        raise ConfigError(f"{_WHERE}[{name!r}]={value!r}: expected an integer >= {low}")
    return int(value)
