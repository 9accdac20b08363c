"""The spaces of recorded experience, for a run that has no environment."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from polylib.errors import PolylibError
from polylib.offline.errors import CorruptLineError, TraceFileError, TraceFormatError
from polylib.offline.formats.open import detect_format, open_dataset
from polylib.offline.json_format import Batch, decode_record, spaces_in
from polylib.offline.make_input import DATASET, SAMPLER, dataset_of, is_of_files
from polylib.offline.sources import Lines, find_files
from polylib.policy import columns as c
from polylib.spaces_json import space_from_json

logger = logging.getLogger(__name__)

# How many rows are looked at for the largest discrete action.
MAX_ROWS = 10_000
# Of what a file may note as spaces: values of an observation and an action together.
_MAX_SIZE = 1 << 24
# Values of a guessed Discrete space: a network has an output, or an input, for each.
_MAX_DISCRETE = 1 << 20

Space = gym.Space[Any]


def spaces_of(
    inputs: Any, input_config: Mapping[str, Any] | None = None, *, normalized: bool = False
) -> tuple[Space | None, Space | None]:
    """The observation and action space of traces.

    polylib's files note them. For others they are guessed from the first records, and a warning says what was guessed.

    Args:
        inputs: The value of the config key `input`.
        input_config: The config key of that name.
        normalized: The config key `actions_in_input_normalized`.

    Returns:
        Both spaces; None for what can't be told, as for users' own readers.

    Raises:
        TraceFileError: There are no such files.
        TraceFormatError: Their first records are damaged.
    """
    parts = list(inputs) if isinstance(inputs, Mapping) else [inputs]
    observation_space: Space | None = None
    action_space: Space | None = None
    for part in parts:
        kind: str | None = None
        if part == DATASET:
            part, kind = dataset_of(input_config or {})
        elif part == SAMPLER or not is_of_files(part):
            continue
        kind = detect_format(part) if kind is None else kind
        columns = (input_config or {}).get("columns")
        if kind == "json":
            found = _spaces_of_files(part, columns, normalized)
        else:
            found = _spaces_of_dataset(part, kind, columns, normalized)
        observation_space, action_space = observation_space or found[0], action_space or found[1]
        if observation_space is not None and action_space is not None:
            break
    return observation_space, action_space


def noted_spaces(inputs: Any) -> tuple[Space | None, Space | None]:
    """The observation and action space that polylib's files note in their first line; None where they don't.

    Raises:
        TraceFileError: There are no such files.
    """
    lines = Lines(files := find_files(inputs))
    try:
        for index, number, line in lines:
            return _noted(line, f"{files[index]}, line {number}")
    except CorruptLineError:
        pass
    finally:
        lines.close()
    return None, None


def _spaces_of_files(
    inputs: Any, renamed: Mapping[str, str] | None, normalized: bool
) -> tuple[Space | None, Space | None]:
    lines = Lines(files := find_files(inputs))
    seen = _Seen()
    try:
        for index, number, line in lines:
            where = f"{files[index]}, line {number}"
            try:
                seen.note(*_noted(line, where))
                if seen.is_enough():
                    break
                seen.add(decode_record(line, where, renamed))
            except CorruptLineError:
                continue
    finally:
        lines.close()
    if seen.is_empty():
        raise TraceFileError(f"no record in {', '.join(map(str, files[:3]))}")
    return seen.spaces(str(files[0]), normalized)


def _spaces_of_dataset(
    source: Any, kind: str, renamed: Mapping[str, str] | None, normalized: bool
) -> tuple[Space | None, Space | None]:
    reader = open_dataset(source, kind, loop=False, columns=renamed)
    seen = _Seen()
    try:
        expected = getattr(reader, "expected", None)
        if expected is not None:  # formats that hold their spaces
            seen.note(expected.observation_space, expected.action_space)
        if not seen.is_enough():
            for batch in reader:
                seen.add(batch)
                if seen.is_enough():
                    break
    finally:
        reader.close()
    return seen.spaces(str(source), normalized)


class _Seen:
    """What is known of the spaces: what was noted, and what rows looked like."""

    def __init__(self) -> None:
        self._noted: tuple[Space | None, Space | None] = (None, None)
        self._observations: Any = None
        self._actions: Any = None
        self._rows = 0

    def note(self, observation_space: Space | None, action_space: Space | None) -> None:
        self._noted = (self._noted[0] or observation_space, self._noted[1] or action_space)

    def add(self, batch: Batch) -> None:
        for columns in batch.as_multi_agent().policy_batches.values():
            self._observations = _widen(self._observations, columns.get(c.OBS))
            self._actions = _widen(self._actions, columns.get(c.ACTIONS))
            self._rows += columns.count

    def is_empty(self) -> bool:
        return self._noted == (None, None) and not self._rows

    def is_enough(self) -> bool:
        return None not in self._noted or self._rows >= MAX_ROWS

    def spaces(self, name: str, normalized: bool) -> tuple[Space | None, Space | None]:
        """Both spaces, with a warning if one had to be guessed."""
        observation_space, action_space = self._noted
        guesses = []
        if observation_space is None:
            observation_space = _guess(self._observations, is_action=False)
            guesses.append(f"observation_space={observation_space}")
        if action_space is None:
            action_space = _guess(self._actions, is_action=True, low=-1.0 if normalized else -np.inf)
            guesses.append(f"action_space={action_space}")
        if guesses and (observation_space is not None or action_space is not None):
            logger.warning(
                "%s doesn't note its spaces, so they were guessed from its first %d rows: %s; give them in the config "
                "if they are others",
                name,
                self._rows,
                ", ".join(guesses),
            )
        return observation_space, action_space


def _noted(line: bytes, where: str) -> tuple[Space | None, Space | None]:
    noted = spaces_in(line, where)
    found: list[Space | None] = []
    for name in ("observation_space", "action_space"):
        try:
            found.append(space_from_json(noted[name]) if _size(noted[name]) <= _MAX_SIZE else None)
        except (PolylibError, LookupError, TypeError, RecursionError):
            found.append(None)
    return found[0], found[1]


def _size(note: Any) -> int:
    """How many numbers the bounds of a noted space's parts have together: a few bytes can ask for any amount."""
    total, rest = 0, [note]
    while rest:
        part = rest.pop()
        if isinstance(part, dict):
            shape = part.get("shape")
            if isinstance(shape, list) and all(isinstance(size, int) for size in shape):
                total += math.prod(shape)
            rest.extend(part.values())
        elif isinstance(part, list):
            rest.extend(part)
    return total


class _Range:
    """What the rows of one array looked like: their shape, dtype, smallest and largest values."""

    def __init__(self, column: np.ndarray) -> None:
        self.shape, self.dtype = column.shape[1:], column.dtype
        self.low, self.high = column.min(axis=0), column.max(axis=0)

    def widened(self, other: _Range) -> _Range:
        if self.shape == other.shape:
            self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
            self.dtype = np.promote_types(self.dtype, other.dtype)
        return self


def _widen(known: Any, column: Any) -> Any:
    """The ranges of `known`, a nest of `_Range`, and of a column; None where there is nothing to say."""
    if isinstance(column, dict):
        old = known if isinstance(known, dict) else {}
        return {key: _widen(old.get(key), part) for key, part in column.items()}
    if isinstance(column, tuple):
        olds = known if isinstance(known, tuple) else (None,) * len(column)
        return tuple(_widen(old, part) for old, part in zip(olds, column, strict=False))
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biuf" or not len(column):
        return known
    found = _Range(column)
    return known.widened(found) if isinstance(known, _Range) else found


def _guess(known: Any, is_action: bool, low: float = -np.inf) -> Space | None:
    if isinstance(known, dict):
        parts = {key: _guess(part, is_action, low) for key, part in known.items()}
        return None if None in parts.values() else spaces.Dict({k: v for k, v in parts.items() if v is not None})
    if isinstance(known, tuple):
        items = [_guess(part, is_action, low) for part in known]
        return None if None in items else spaces.Tuple([item for item in items if item is not None])
    if not isinstance(known, _Range):
        return None
    if known.dtype.kind == "f":
        return spaces.Box(low, -low, known.shape, np.float32)
    if known.dtype.kind == "b" and len(known.shape) == 1:
        return spaces.MultiBinary(known.shape[0])
    if not known.shape:
        start = min(int(known.low), 0)
        size = int(known.high) - start + 1
        if size > _MAX_DISCRETE:
            what = "action_space" if is_action else "observation_space"
            raise TraceFormatError(
                f"the traces don't note their spaces, and {int(known.low)} to {int(known.high)} are too many values to "
                f"guess a Discrete space: give {what} in the config"
            )
        return spaces.Discrete(size, start=start)
    if is_action:
        start = np.minimum(known.low.astype(np.int64), 0)
        return spaces.MultiDiscrete(known.high.astype(np.int64) - start + 1, start=start)
    # Lists don't say whether numbers were bytes, but pictures are.
    picture = len(known.shape) == 3 and known.low.min() >= 0 and known.high.max() <= 255
    if known.dtype == np.uint8 or picture:
        return spaces.Box(0, 255, known.shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, known.shape, np.float32)
