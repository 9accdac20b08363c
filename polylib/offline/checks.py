"""What a record must have to be learned from: its columns, and rows that fit the spaces."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from polylib.offline.errors import TraceFormatError
from polylib.offline.json_format import Batch, place
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch


def check_required(batch: Batch, required: Collection[str], where: str) -> None:
    """Checks that every policy's batch has these columns.

    Raises:
        TraceFormatError: One lacks a column; the message names file, line and column.
    """
    if not required:
        return
    for policy_id, columns in batch.as_multi_agent().policy_batches.items():
        for name in required:
            if name not in columns:
                old = f" (nor {c.DONES!r})" if name in (c.TERMINATEDS, c.TRUNCATEDS) else ""
                raise TraceFormatError(
                    f"{place(where, policy_id, name)}: missing{old}, but needed here; the record has "
                    f"{', '.join(columns) or 'no columns'}"
                )


def fit_to_spaces(
    batch: Batch, observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None, where: str
) -> Batch:
    """Checks observations and actions against the spaces, and gives all columns the dtypes that batches have.

    Args:
        batch: As it was read. Without any space it is returned as it is.
        observation_space: Of `obs` and `new_obs`; None: not checked.
        action_space: Of `actions` and `prev_actions`; None: not checked.
        where: The file and line, for messages.

    Raises:
        TraceFormatError: A row doesn't fit; the message names file, line and column.
    """
    if observation_space is None and action_space is None:
        return batch
    used = {
        c.OBS: observation_space,
        c.NEXT_OBS: observation_space,
        c.ACTIONS: action_space,
        c.PREV_ACTIONS: action_space,
    }
    for policy_id, columns in batch.as_multi_agent().policy_batches.items():
        for name in list(columns):
            try:
                columns[name] = _fit(name, columns, used.get(name))
            except ValueError as e:
                raise TraceFormatError(f"{place(where, policy_id, name)}: {e}") from None
    return batch


def _fit(name: str, columns: SampleBatch, space: gym.Space[Any] | None) -> Any:
    column = columns[name]
    if space is not None:
        return _fit_space(column, space, is_action=name in (c.ACTIONS, c.PREV_ACTIONS))
    known = c.COLUMNS.get(name)
    if known is None or known.dtype is None or known.dtype == np.object_ or not isinstance(column, np.ndarray):
        return column
    return _cast(column, known.dtype)


def _fit_space(column: Any, space: gym.Space[Any], is_action: bool) -> Any:
    """The column [B, ...] in the space's dtype."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _fit_parts(column, space, is_action)
    if not isinstance(column, np.ndarray):
        raise ValueError(f"it is nested, but the space is {space}")
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return column
    shape = space.shape or ()
    row = column.shape[1:]
    if isinstance(space, spaces.Discrete) and not is_action and row == (space.n,):
        return _cast(column, np.dtype(np.float32))  # one-hot, as preprocessors make of a number
    if row != shape and len(shape) > 1 and row == (math.prod(shape),):
        column = column.reshape(len(column), *shape)
    elif row != shape:
        raise ValueError(f"its rows have shape {list(row)}, those of {space} have {list(shape)}")
    resolved = c.resolve(c.ACTIONS if is_action else c.OBS, space, space, 0)[1]
    column = _cast(column, resolved)
    _check_range(column, space)
    return column


def _fit_parts(column: Any, space: spaces.Dict | spaces.Tuple, is_action: bool) -> Any:
    if isinstance(column, np.ndarray):  # flattened, as preprocessors do
        size = spaces.flatdim(space)
        if not is_action and column.shape[1:] != (size,):
            raise ValueError(f"its rows have shape {list(column.shape[1:])}, flattened ones of {space} have [{size}]")
        return column
    if isinstance(space, spaces.Dict):
        if not isinstance(column, dict) or column.keys() != space.spaces.keys():
            raise ValueError(f"its parts aren't those of {space}")
        return {key: _fit_space(column[key], part, is_action) for key, part in space.spaces.items()}
    if not isinstance(column, tuple) or len(column) != len(space.spaces):
        raise ValueError(f"its parts aren't those of {space}")
    return tuple(_fit_space(v, part, is_action) for v, part in zip(column, space.spaces, strict=True))


def _cast(column: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if column.dtype == dtype:
        return column
    if column.dtype.kind not in "biuf":
        raise ValueError(f"it holds {column.dtype}: expected {dtype}")
    if dtype.kind == "f":
        return column.astype(dtype)
    with np.errstate(invalid="ignore"):
        out = column.astype(dtype)
    if not np.array_equal(out, column):
        row = int(np.argwhere(out != column)[0][0])
        raise ValueError(f"row {row} is {column[row]}: expected values of {dtype}")
    return out


def _check_range(column: np.ndarray, space: gym.Space[Any]) -> None:
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        low = np.asarray(space.start)
        high = low + np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
        bad = (column < low) | (column >= high)
    elif isinstance(space, spaces.MultiBinary):
        bad = (column != 0) & (column != 1)
    else:
        return
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(f"row {row} is {column[row]}, which isn't in {space}")
