"""What goes into a policy: people's nested values and batches as flat columns, cast and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, EnvError
from polylib.models.networks import SEQ_MASK, batch_dtype
from polylib.models.spaces import flatten, is_nested, leaves, mask_column
from polylib.policy import columns as col
from polylib.policy import sequences
from polylib.policy.objective import Objective, PolicySpec

Layout = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]


class Prepared(NamedTuple):
    """A batch ready to learn from.

    Attributes:
        columns: flat columns `[size, ...]`; `[size, steps, ...]` and `seq_mask`, `state_i` for sequences.
        size: rows, or sequences of a recurrent policy.
        steps: per sequence, padding included; 1 for rows.
        mask: `[size, steps]`, which steps are real; None for rows.
    """

    columns: dict[str, np.ndarray]
    size: int
    steps: int
    mask: np.ndarray | None


class Inputs:
    """The columns that one policy acts on and learns from.

    Args:
        spec: of the policy.
        objective: says which columns learning takes.
        previous: of `prev_actions` and `prev_rewards` those that networks see.

    Attributes:
        previous: as given.
        masked: whether observations hold an action mask.
        state_shapes: of the recurrent state; known once networks are built.
        spaces: of each array of an observation, by column.
        layouts: shape and dtype of the parts of `obs`, `actions` and what is `previous`.
    """

    def __init__(self, spec: PolicySpec, objective: Objective, previous: tuple[str, ...]) -> None:
        self._objective, self._config = objective, spec.config
        self._observation_space, self._action_space = spec.observation_space, spec.action_space
        self.previous = previous
        self.state_shapes: list[tuple[int, ...]] = []
        self.spaces: dict[str, gym.Space[Any]] = leaves(spec.observation_space)
        self.nested_obs, self.nested_actions = is_nested(spec.observation_space), is_nested(spec.action_space)
        self.layouts = {name: self.layout(name) for name in ("obs", "actions", *previous)}
        self._obs_shape, self._obs_dtype = next(iter(self.layouts["obs"].values()))
        self._mask_column = self._find_mask()
        self.masked = self._mask_column is not None
        self._required = {name: self.layout(name) for name in (*objective.columns, *previous)}
        self._optional = {name: self.layout(name) for name in objective.optional_columns}
        self._known = self._required | self._optional

    def layout(self, name: str) -> Layout:
        """Shape and dtype of a column, or of each of its parts."""
        if name in ("obs", "new_obs"):
            spaces = leaves(self._observation_space, name)
        elif name in ("actions", "prev_actions"):
            spaces = leaves(self._action_space, name)
        else:
            dist = self._objective.dist
            shape, dtype = col.resolve(
                name, self._observation_space, self._action_space, dist.inputs_size, dist.raw_size
            )
            return {name: (shape, np.dtype(np.float32) if dtype == np.float64 else dtype)}
        return {part: (tuple(space.shape or ()), batch_dtype(space)) for part, space in spaces.items()}

    def _find_mask(self) -> str | None:
        """The column of a Dict observation that holds the action mask."""
        name = mask_column(self._observation_space)
        if name is not None:
            shape, size = self.layouts["obs"][name][0], self._objective.dist.inputs_size
            if math.prod(shape) != size:
                raise EnvError(
                    f"observation space: its 'action_mask' has shape {list(shape)}, expected [{size}]: one flag for "
                    f"each input of the action distribution of {self._action_space}"
                )
        return name

    def cast_all(self, name: str, value: Any, layout: Layout) -> dict[str, np.ndarray]:
        """A column's parts, cast and checked."""
        if name in layout:
            return {name: cast(name, value, *layout[name])}
        space = self._observation_space if name in ("obs", "new_obs") else self._action_space
        flat = flatten(space, value, name)
        return {part: cast(part, flat[part], *fits) for part, fits in layout.items()}

    def quiet(self, rows: int) -> dict[str, np.ndarray]:
        """Zeros for the inputs of networks that nobody passes (the noise of noisy layers), `[rows, ...]` each."""
        return {name: np.zeros((rows, *shape), np.float32) for name, shape in self._objective.quiet_inputs.items()}

    def acting(
        self,
        obs: Any,
        state: Sequence[np.ndarray] | None,
        action_mask: np.ndarray | None,
        prev_actions: Any,
        prev_rewards: Any,
        choosing: bool = True,
    ) -> dict[str, np.ndarray]:
        """Flat columns `[B, ...]` for acting, from what `Policy.compute_actions` takes.

        Raises:
            BatchError: if a shape doesn't fit the spaces, or with `choosing` a mask allows no action.
        """
        if self.nested_obs:
            inputs = self.cast_all("obs", obs, self.layouts["obs"])
        else:
            inputs = {"obs": cast("obs", obs, self._obs_shape, self._obs_dtype)}
        if state is not None and len(state) != len(self.state_shapes):
            raise BatchError(f"got {len(state)} state arrays, this policy has {len(self.state_shapes)}")
        if self._objective.quiet_inputs:
            inputs |= self.quiet(len(next(iter(inputs.values()))))
        if self.state_shapes or self.previous:
            self._add_memory(inputs, state, prev_actions, prev_rewards)
        if action_mask is not None:
            inputs["action_mask"] = cast("action_mask", action_mask, *self.layout("action_mask")["action_mask"])
            count_rows(inputs)  # a single row would count for all
        if choosing and (self.masked or action_mask is not None):
            self.take_mask(inputs)
        if len(inputs) > 1:
            count_rows(inputs)
        return inputs

    def _add_memory(
        self,
        inputs: dict[str, np.ndarray],
        state: Sequence[np.ndarray] | None,
        prev_actions: Any,
        prev_rewards: Any,
    ) -> None:
        size = len(next(iter(inputs.values())))
        for i, shape in enumerate(self.state_shapes):
            value = np.zeros((size, *shape), np.float32) if state is None else state[i]
            inputs[f"state_{i}"] = cast(f"state_{i}", value, shape, np.dtype(np.float32))
        for name, value in (("prev_actions", prev_actions), ("prev_rewards", prev_rewards)):
            if name in self.previous and value is None:
                inputs |= self.first_previous(name, size)
            elif name in self.previous:
                inputs |= self.cast_all(name, value, self.layouts[name])

    def first_previous(self, name: str, size: int) -> dict[str, np.ndarray]:
        """`prev_actions` or `prev_rewards` of first steps: zeros (of discrete parts the first class); flat columns."""
        spaces = leaves(self._action_space, name) if name == "prev_actions" else {}
        return {
            part: np.zeros((size, *shape), dtype) + np.asarray(getattr(spaces.get(part), "start", 0), dtype)
            for part, (shape, dtype) in self.layouts[name].items()
        }

    def take_mask(self, inputs: dict[str, np.ndarray], idle: np.ndarray | None = None) -> None:
        """Adds `action_mask` to flat columns where it stands in the observations, and checks it.

        Args:
            inputs: flat columns `[B, ...]`.
            idle: `[B] bool`, rows whose action nobody takes: everything is allowed there.

        Raises:
            BatchError: if a row allows no action.
        """
        if self._mask_column is not None:
            flags = inputs[self._mask_column]
            flags = flags.reshape(len(flags), math.prod(flags.shape[1:]))
            mask = flags != 0
            if flags.dtype != np.bool_ and (flags[mask] != 1).any():
                value = flags[mask][flags[mask] != 1][0]
                raise BatchError(
                    f"the observation's 'action_mask' holds {value}: expected 1 for actions that are allowed and 0 for "
                    "those that aren't"
                )
            given = inputs.get("action_mask")
            inputs["action_mask"] = mask if given is None else mask & given
            if idle is not None:
                inputs["action_mask"] |= idle[:, None]
        if "action_mask" in inputs:
            self._objective.dist.check_mask(inputs["action_mask"])

    def prepare(self, batch: Mapping[str, Any] | Prepared) -> Prepared:
        """The columns that the losses use, cast and checked; for a recurrent policy as padded sequences.

        Args:
            batch: the objective's columns, `[B, ...]`; of a recurrent policy also `state_in_0`, ... (the state before
                each row, zeros if there is none) and `unroll_id`, `eps_id` or `seq_lens` to tell sequences apart.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        if isinstance(batch, Prepared):
            return batch
        prepared: dict[str, np.ndarray] = {}
        for name, layout in self._known.items():
            if name in batch:
                if name in layout:
                    prepared[name] = cast(name, batch[name], *layout[name])
                else:
                    prepared |= self.cast_all(name, batch[name], layout)
            elif name in self.previous:
                prepared |= self.first_previous(name, count_rows(prepared))
            elif name in self._required:
                raise BatchError(
                    f"the batch has no column {name!r}, which {type(self._objective).__name__} learns from; "
                    f"it has {', '.join(sorted(batch)) or 'none'}. Was it postprocessed?"
                )
        prepared |= self._objective.other_columns(batch)
        self.take_mask(prepared)
        size = count_rows(prepared)
        if size == 0:
            raise BatchError("the batch has no rows")
        if "actions" in self._required:
            self._objective.dist.check_actions(self._objective.taken(prepared))
        if not self.state_shapes:
            return Prepared(prepared, size, 1, None)
        return self._sequences(batch, prepared, size)

    def _sequences(self, batch: Mapping[str, Any], prepared: dict[str, np.ndarray], size: int) -> Prepared:
        time = int(self._config["model"]["max_seq_len"])
        firsts, lengths = sequences.cut(batch, size, time)
        padded = sequences.pad(prepared, firsts, lengths, time)
        for i, shape in enumerate(self.state_shapes):
            name = f"state_in_{i}"
            states = np.zeros((size, *shape), np.float32)
            if name in batch:
                states = cast(name, batch[name], shape, np.dtype(np.float32))
                if len(states) not in (size, len(firsts)):
                    raise BatchError(
                        f"column {name!r} has {len(states)} rows, expected one for each of {size} rows or of "
                        f"{len(firsts)} sequences"
                    )
            padded[f"state_{i}"] = states[firsts] if len(states) == size else states
        return Prepared(padded, len(firsts), time, padded[SEQ_MASK])


def cast(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """A column `[B, *shape]` in its dtype.

    Raises:
        BatchError: if its shape or dtype doesn't fit.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise BatchError(f"column {name!r} can't be made an array: {error}") from None
    if array.ndim == 0 or array.shape[1:] != shape:
        expected = ", ".join(map(str, ("B", *shape)))
        raise BatchError(f"column {name!r} has shape {list(array.shape)}, expected [{expected}]")
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind") and not (
        np.issubdtype(dtype, np.floating) and array.dtype.kind in "iub"
    ):
        raise BatchError(f"column {name!r} has dtype {array.dtype}, expected {dtype}")
    return array.astype(dtype)


def count_rows(arrays: Mapping[str, np.ndarray]) -> int:
    """The number of rows that all columns have: backends would silently repeat a single row."""
    first = next(iter(arrays))
    size = len(arrays[first])
    for name, x in arrays.items():
        if len(x) != size:
            raise BatchError(f"column {name!r} has {len(x)} rows, {first!r} has {size}")
    return size
