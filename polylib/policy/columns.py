"""Every column a batch can have: its name, its shape, its dtype and what it means.

Shapes leave out the leading batch axis. Their items are sizes, or one of four symbols that only a policy's spaces can
resolve: ``"obs"`` (the observation's shape), ``"action"`` (the action's shape), ``"dist"`` (how many inputs the action
distribution has) and ``"raw"`` (how many numbers a flattened Box action has).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, nearest

OBS = "obs"
NEXT_OBS = "new_obs"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATEDS = "terminateds"
TRUNCATEDS = "truncateds"
DONES = "dones"
INFOS = "infos"
EPS_ID = "eps_id"
ENV_ID = "env_id"
UNROLL_ID = "unroll_id"
AGENT_INDEX = "agent_index"
T = "t"
PREV_ACTIONS = "prev_actions"
PREV_REWARDS = "prev_rewards"
ACTION_DIST_INPUTS = "action_dist_inputs"
ACTION_PROB = "action_prob"
ACTION_LOGP = "action_logp"
ACTION_MASK = "action_mask"
ACTION_RAW = "action_raw"
VF_PREDS = "vf_preds"
VALUES_BOOTSTRAPPED = "values_bootstrapped"
ADVANTAGES = "advantages"
VALUE_TARGETS = "value_targets"
RETURNS_TO_GO = "returns_to_go"
DISCOUNTS = "discounts"
PRIO_WEIGHTS = "weights"
SEQ_LENS = "seq_lens"
BURN_IN = "burn_in"


@dataclass(frozen=True)
class Column:
    """What one column holds.

    Attributes:
        name: The column's key in a batch.
        shape: The shape of one row: ints or the symbols "obs", "action", "dist", "raw".
        dtype: The dtype, or None for that of the space which the shape names.
        meaning: One sentence for the documentation.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: np.dtype[Any] | None
    meaning: str


def _column(name: str, shape: tuple[int | str, ...], dtype: Any, meaning: str) -> tuple[str, Column]:
    return name, Column(name, shape, None if dtype is None else np.dtype(dtype), meaning)


COLUMNS: dict[str, Column] = dict(
    [
        _column(OBS, ("obs",), None, "The observation on which the action was chosen."),
        _column(NEXT_OBS, ("obs",), None, "The true observation after the step, also where the episode was truncated."),
        _column(ACTIONS, ("action",), None, "The action, in the units of the environment, as the environment got it."),
        _column(REWARDS, (), np.float32, "The reward of the step."),
        _column(TERMINATEDS, (), np.bool_, "The step reached a terminal state: no value beyond it."),
        _column(TRUNCATEDS, (), np.bool_, "The episode was ended from outside: the state after it has a value."),
        _column(DONES, (), np.bool_, "Terminated or truncated. Only in old recordings."),
        _column(INFOS, (), np.object_, "The environment's info dict of the step."),
        _column(EPS_ID, (), np.int64, "The episode that the row belongs to."),
        _column(ENV_ID, (), np.int64, "The sub-environment that the row comes from."),
        _column(UNROLL_ID, (), np.int64, "The uninterrupted stretch of one episode that was sampled together."),
        _column(AGENT_INDEX, (), np.int64, "The agent that the row belongs to, in the order in which agents appeared."),
        _column(T, (), np.int32, "The step inside the episode, from 0."),
        _column(
            PREV_ACTIONS,
            ("action",),
            None,
            "The action of the step before; at an episode's start zeros, of discrete parts the first choice (`start`).",
        ),
        _column(PREV_REWARDS, (), np.float32, "The reward of the step before; 0 at an episode's start."),
        _column(ACTION_DIST_INPUTS, ("dist",), np.float32, "The inputs of the distribution the action was drawn from."),
        _column(ACTION_PROB, (), np.float32, "The probability or density of the action: exp(action_logp)."),
        _column(
            ACTION_LOGP,
            (),
            np.float32,
            "The log of the action's probability or density, in environment units; NaN where it isn't known.",
        ),
        _column(ACTION_MASK, ("dist",), np.bool_, "Which discrete choices were allowed, one flag per logit."),
        _column(
            ACTION_RAW,
            ("raw",),
            np.float32,
            "The sample of a Box action before it was clipped or squashed, in normalised units; where it is present, "
            "likelihoods use it.",
        ),
        _column(VF_PREDS, (), np.float32, "The value of obs, as predicted when the batch was sampled."),
        _column(VALUES_BOOTSTRAPPED, (), np.float32, "The value that stands for all rewards after the row."),
        _column(ADVANTAGES, (), np.float32, "How much better the action was than the policy's average."),
        _column(VALUE_TARGETS, (), np.float32, "What the value of obs is fitted to."),
        _column(RETURNS_TO_GO, (), np.float32, "The sum of rewards from this row to the end of the episode."),
        _column(DISCOUNTS, (), np.float32, "gamma ** k, for a row whose rewards and new_obs span k steps."),
        _column(PRIO_WEIGHTS, (), np.float32, "The importance weight of a row from prioritized replay."),
        _column(SEQ_LENS, (), np.int32, "How many steps are real, where a row is a padded sequence of steps."),
        _column(BURN_IN, (), np.bool_, "The row only leads to a recurrent network's state: nothing is learnt from it."),
    ]
)

_RESOLVABLE = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)


def resolve(
    name: str,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    dist_size: int,
    raw_size: int | None = None,
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and dtype of one row of a column, for a policy with these spaces.

    Args:
        name: A key of `COLUMNS`.
        observation_space: The space of observations as batches hold them.
        action_space: The space of actions.
        dist_size: How many inputs the action distribution has.
        raw_size: How many numbers its raw samples have; None: as many as a flattened action.

    Raises:
        BatchError: The column is unknown, or its space is one whose values aren't single arrays (Dict, Tuple, ...).
    """
    column = COLUMNS.get(name)
    if column is None:
        near = nearest(name, list(COLUMNS))
        hint = f" Did you mean {near!r}?" if near else f" Known columns: {', '.join(sorted(COLUMNS))}."
        raise BatchError(f"No column is called {name!r}.{hint}")
    shape: list[int] = []
    dtype = column.dtype
    for item in column.shape:
        if item == "obs":
            space = _array_space(name, "observation", observation_space)
            shape.extend(space.shape or ())
            dtype = _observation_dtype(space) if dtype is None else dtype
        elif item == "action":
            space = _array_space(name, "action", action_space)
            shape.extend(space.shape or ())
            dtype = _action_dtype(space) if dtype is None else dtype
        elif item == "raw":
            if raw_size is None:
                raw_size = math.prod(_array_space(name, "action", action_space).shape or ())
            shape.append(raw_size)
        elif item == "dist":
            shape.append(int(dist_size))
        else:
            shape.append(int(item))
    if dtype is None:
        raise BatchError(
            f"Column {name!r} has neither a dtype nor a space to take it from: give it a dtype in COLUMNS."
        )
    return tuple(shape), dtype


def column_table() -> str:
    """All columns as a Markdown table, for the documentation."""
    lines = ["| column | shape | dtype | meaning |", "| --- | --- | --- | --- |"]
    for column in COLUMNS.values():
        shape = ", ".join(["B", *(f"*{s}" if s in ("obs", "action") else str(s) for s in column.shape)])
        dtype = "of the space" if column.dtype is None else column.dtype.name
        lines.append(f"| `{column.name}` | [{shape}] | {dtype} | {column.meaning} |")
    return "\n".join(lines) + "\n"


def _array_space(name: str, role: str, space: gym.Space[Any]) -> gym.Space[Any]:
    if not isinstance(space, _RESOLVABLE):
        raise BatchError(
            f"Column {name!r} has no single shape for the {role} space {space!r}: expected Box, Discrete, "
            "MultiDiscrete or MultiBinary. Flatten the space with a preprocessor, or resolve its parts one by one."
        )
    return space


def _observation_dtype(space: gym.Space[Any]) -> np.dtype[Any]:
    if isinstance(space, gym.spaces.Discrete):
        return np.dtype(np.int64)
    dtype = np.dtype(space.dtype)
    # No network computes in float64; casting once, where the rows are written, halves what is stored and sent.
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def _action_dtype(space: gym.Space[Any]) -> np.dtype[Any]:
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return np.dtype(np.int64)
    return np.dtype(space.dtype)
