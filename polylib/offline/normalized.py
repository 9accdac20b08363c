"""Actions in [-1, 1] to the units of the environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from polylib.models.spaces import leaves
from polylib.offline.errors import TraceFormatError
from polylib.offline.json_format import Batch, place
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch


def to_units(batch: Batch, space: gym.Space[Any], where: str) -> None:
    """Scales Box actions from [-1, 1] to their space, in the batch itself; densities follow.

    What lies outside is clipped, as it was when the environment got it. Parts of a Box without bounds stay as they
    are, and so does whatever isn't a Box of floats.

    Args:
        batch: With `actions` [B, ...], or some of `prev_actions`, `action_logp`, `action_prob`.
        space: Of the actions.
        where: The file and line, for messages.

    Raises:
        TraceFormatError: The actions don't fit the space; the message names the column.
    """
    log_width = _log_width(space)
    for policy_id, columns in batch.as_multi_agent().policy_batches.items():
        for name in (c.ACTIONS, c.PREV_ACTIONS, c.ACTION_LOGP, c.ACTION_PROB):
            if name not in columns:
                continue
            try:
                if name in (c.ACTIONS, c.PREV_ACTIONS):
                    columns[name] = _scale(columns[name], space)
                else:
                    # A density over a range that is k times as wide is 1 / k of it.
                    density = _floats(columns[name])
                    columns[name] = density - log_width if name == c.ACTION_LOGP else density / math.exp(log_width)
            except ValueError as e:
                raise TraceFormatError(f"{place(where, policy_id, name)}: {e}") from None


class NormalizedWatch:
    """Looks whether actions that are taken to be in the environment's units may be in [-1, 1] instead.

    They may if all are in that range, and fill it in a dimension whose bounds are others: those of a space that goes
    further, or not as far as they do. RLlib writes such files.

    Args:
        space: Of the actions.
        rows: How many are looked at, where there are so many.
    """

    def __init__(self, space: gym.Space[Any], rows: int = 1000) -> None:
        boxes = {name: leaf for name, leaf in leaves(space, c.ACTIONS).items() if isinstance(leaf, spaces.Box)}
        self._other = {
            name: _bounded(box) & ((box.low != -1) | (box.high != 1))
            for name, box in boxes.items()
            if box.dtype.kind == "f"
        }
        self._left = rows if any(other.any() for other in self._other.values()) else 0
        self._inside, self._low, self._high = True, dict[str, Any](), dict[str, Any]()

    @property
    def looking(self) -> bool:
        """Whether nothing is known yet."""
        return self._left > 0

    def add(self, rows: SampleBatch, last: bool = False) -> bool:
        """Looks at more rows, with flat columns.

        Args:
            rows: Of which `actions` are looked at.
            last: There are no others.

        Returns:
            Whether they were the last that are looked at, and all look like normalized ones.
        """
        self._left = 0 if last else self._left - rows.count
        for name in self._other if rows.count else ():
            low, high = rows[name].min(0), rows[name].max(0)
            self._low[name] = np.fmin(self._low.get(name, low), low)
            self._high[name] = np.fmax(self._high.get(name, high), high)
            self._inside &= bool((low >= -1).all() and (high <= 1).all())
        filled = (((self._low[n] < -0.5) & (self._high[n] > 0.5))[self._other[n]].any() for n in self._low)
        return self._left <= 0 and self._inside and any(filled)


def _floats(column: Any) -> np.ndarray:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf":
        raise ValueError("expected numbers")
    return column if column.dtype.kind == "f" else column.astype(np.float64)


def _bounded(space: spaces.Box) -> np.ndarray:
    return space.bounded_below & space.bounded_above


def _log_width(space: gym.Space[Any]) -> float:
    """The sum of the logs of half the widths of all bounded dimensions."""
    if isinstance(space, spaces.Dict):
        return sum(map(_log_width, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(_log_width, space.spaces))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return 0.0
    bounded = _bounded(space)
    width = (space.high[bounded].astype(np.float64) - space.low[bounded]) / 2
    return float(np.log(width[width > 0]).sum())


def _scale(column: Any, space: gym.Space[Any]) -> Any:
    if isinstance(space, spaces.Dict) and isinstance(column, dict) and column.keys() == space.spaces.keys():
        return {key: _scale(column[key], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and isinstance(column, tuple) and len(column) == len(space.spaces):
        return tuple(_scale(part, s) for part, s in zip(column, space.spaces, strict=True))
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not isinstance(column, np.ndarray):
            raise ValueError(f"its parts aren't those of {space}")
        return _scale_flat(column, space)
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        return column
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "iuf":
        raise ValueError("expected numbers in [-1, 1]")
    if column.shape[1:] != space.shape:
        if column[:1].size != np.prod(space.shape, dtype=int):
            raise ValueError(f"its rows have shape {list(column.shape[1:])}, those of {space} have {list(space.shape)}")
        column = column.reshape(len(column), *space.shape)
    # In float64: rounding must not lead out of the range.
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.clip(low + (column.astype(np.float64) + 1) * ((high - low) / 2), low, high)
    return np.where(_bounded(space), scaled, column).astype(space.dtype)


def _scale_flat(column: np.ndarray, space: spaces.Dict | spaces.Tuple) -> np.ndarray:
    """Flattened actions [B, n], part by part."""
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else list(space.spaces)
    if column.ndim != 2 or column.dtype.kind not in "iuf":
        raise ValueError(f"its rows have shape {list(column.shape[1:])}, expected flattened actions of {space}")
    sizes = [_flat_size(part) for part in parts]
    if column.shape[1] != sum(sizes):
        raise ValueError(f"its rows have {column.shape[1]} numbers, flattened actions of {space} have {sum(sizes)}")
    out = np.array(column, np.float32)
    for part, start, size in zip(parts, np.cumsum([0, *sizes]), sizes, strict=False):
        scaled = _scale(column[:, start : start + size], part)
        out[:, start : start + size] = scaled.reshape(len(column), -1)
    return out


def _flat_size(space: gym.Space[Any]) -> int:
    """How many numbers an action of RLlib's flattened ones has: a discrete choice is one."""
    if isinstance(space, spaces.Dict):
        return sum(map(_flat_size, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(_flat_size, space.spaces))
    return int(np.prod(space.shape or (), dtype=int))
