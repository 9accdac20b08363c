"""What a record must have to be learned from: its columns, and rows that fit the spaces."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from polylib.errors import ConfigError, ConfigTypeError
from polylib.offline.errors import TraceFormatError
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import Batch, place
from polylib.offline.normalized import to_units
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

# Columns of one number a row.
_SINGLE = (c.REWARDS, c.TERMINATEDS, c.TRUNCATEDS, c.EPS_ID, c.T, c.UNROLL_ID, c.ACTION_LOGP)


@dataclass(frozen=True)
class Expected:
    """What records are made to fit, and what they must have.

    Attributes:
        observation_space: Of `obs` and `new_obs`; None: any.
        action_space: Of `actions`; None: any.
        required: Columns that every record must have.
        columns: Names in the files to names of columns.
        normalized: Box actions are in [-1, 1] and are to be scaled to the space.
    """

    observation_space: gym.Space[Any] | None = None
    action_space: gym.Space[Any] | None = None
    required: Collection[str] = ()
    columns: Mapping[str, str] | None = None
    normalized: bool = False

    @classmethod
    def of(
        cls,
        ioctx: IOContext,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
        required: Collection[str] = (),
        columns: Mapping[str, str] | None = None,
        normalized: bool | None = None,
    ) -> Expected:
        """What is given, and for what isn't, what the run's config says.

        Raises:
            ConfigError: `columns` isn't a dict of names, or normalized actions have no space.
        """
        config = ioctx.config
        columns = ioctx.input_config.get("columns") if columns is None else columns
        if columns is not None and not (
            isinstance(columns, Mapping) and all(isinstance(x, str) for pair in columns.items() for x in pair)
        ):
            raise ConfigTypeError(f"columns={columns!r}: expected names in the files to names of columns, as a dict")
        if normalized is None:
            normalized = bool(config.get("actions_in_input_normalized"))
        action_space = config.get("action_space") if action_space is None else action_space
        if normalized and action_space is None:
            raise ConfigError("actions_in_input_normalized=True: scaling them needs an action_space")
        observation_space = config.get("observation_space") if observation_space is None else observation_space
        return cls(observation_space, action_space, tuple(required), columns or None, normalized)

    def prepare(self, batch: Batch, where: str) -> Batch:
        """A batch that fits.

        Args:
            batch: As it was read; it is changed.
            where: The file and line, for messages.

        Raises:
            TraceFormatError: It can't be made to fit; the message names the column.
        """
        if self.normalized and self.action_space is not None:
            to_units(batch, self.action_space, where)
        return self.check(batch, where)

    def check(self, batch: Batch, where: str) -> Batch:
        """As `prepare`, for a batch that has polylib's units already."""
        if self.required:
            check_required(batch, self.required, where)
        if self.observation_space is None and self.action_space is None:
            return batch
        return fit_to_spaces(batch, self.observation_space, self.action_space, where)


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
    check_single(name, column)
    if name == c.EPS_ID and _is_text(column):
        return numbers_of(column)
    known = c.COLUMNS.get(name)
    if known is None or known.dtype is None or known.dtype == np.object_ or not isinstance(column, np.ndarray):
        return column
    return cast(column, known.dtype)


def _is_text(column: np.ndarray) -> bool:
    return column.dtype.kind == "U" or (column.dtype.kind == "O" and all(isinstance(x, str) for x in column))


def numbers_of(texts: np.ndarray) -> np.ndarray:
    """Ids that are text as numbers, `[B] int64`: the same in every file, pass and worker, since they are checksums.

    They are below 2 ** 53, so that whoever takes them for floats loses nothing. That two of a million episodes get the
    same one has a chance of 1 in 18,000.
    """
    names, which = np.unique(texts.astype(str), return_inverse=True)
    numbers = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 11 for name in names.tolist()]
    return np.array(numbers, np.int64)[which]


def check_single(name: str, column: Any) -> None:
    """Checks that rewards, ends and ids have one number a row.

    Raises:
        ValueError: They don't.
    """
    if name not in _SINGLE:
        return
    if not isinstance(column, np.ndarray):
        raise ValueError("its rows have parts: expected a single value each")
    if column.ndim != 1 and len(column):
        raise ValueError(f"its rows have shape {list(column.shape[1:])}: expected a single value each")


def _fit_space(column: Any, space: gym.Space[Any], is_action: bool) -> Any:
    """The column [B, ...] in the space's dtype."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _fit_parts(column, space, is_action)
    if not isinstance(column, np.ndarray):
        raise ValueError(f"it is nested, but the space is {space}")
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return column
    shape = space.shape or ()
    if not len(column):  # a list without rows doesn't say how long they would be
        column = column.reshape(0, *shape)
    row = column.shape[1:]
    if isinstance(space, spaces.Discrete) and not is_action and row == (space.n,):
        return cast(column, np.dtype(np.float32))  # one-hot, as preprocessors make of a number
    if row != shape and len(shape) > 1 and row == (math.prod(shape),):
        column = column.reshape(len(column), *shape)
    elif row != shape:
        raise ValueError(f"its rows have shape {list(row)}, those of {space} have {list(shape)}")
    resolved = c.resolve(c.ACTIONS if is_action else c.OBS, space, space, 0)[1]
    column = cast(column, resolved)
    _check_range(column, space)
    return column


def _fit_parts(column: Any, space: spaces.Dict | spaces.Tuple, is_action: bool) -> Any:
    if isinstance(column, np.ndarray):  # flattened, as preprocessors do
        size = spaces.flatdim(space)
        if not len(column):
            return column.reshape(0, size)
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


def cast(column: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The column in another dtype.

    Raises:
        ValueError: It holds no numbers, or some that integers or bools can't be; the message names the row.
    """
    if column.dtype == dtype:
        return column
    if column.dtype.kind not in "biuf":
        raise ValueError(f"it holds {column.dtype}: expected {dtype}")
    if dtype.kind == "f":
        try:
            with np.errstate(over="raise"):
                return column.astype(dtype)
        except FloatingPointError:
            raise ValueError(f"it holds values too large for {dtype}") from None
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
