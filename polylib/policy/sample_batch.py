"""Batches of experience: columns of equal length, for one policy or for several."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import tree

from polylib.errors import BatchError
from polylib.policy import columns as c

DEFAULT_POLICY_ID = "default_policy"

# Inside the class, `slice` is the method.
_Slice: TypeAlias = slice


class MissingColumnError(BatchError, KeyError):
    """A batch lacks a column that was asked for."""


class SampleBatch(MutableMapping[str, Any]):
    """A mapping from column names to arrays [B, ...] of equal length.

    A column may be nested (dicts and tuples of arrays, as observations of Dict and Tuple spaces are); all its leaves
    have the same number of rows. Lists are turned into arrays. `len(batch)` is the number of rows; iterating yields
    column names. Batches compare by identity.

    Args:
        columns: A mapping (or pairs) of column names to arrays, nested arrays or lists.
        **kwargs: More columns.

    Raises:
        BatchError: Two columns have different lengths, or one has no rows to count.
    """

    OBS = c.OBS
    CUR_OBS = c.OBS
    NEXT_OBS = c.NEXT_OBS
    ACTIONS = c.ACTIONS
    REWARDS = c.REWARDS
    TERMINATEDS = c.TERMINATEDS
    TRUNCATEDS = c.TRUNCATEDS
    DONES = c.DONES
    INFOS = c.INFOS
    EPS_ID = c.EPS_ID
    ENV_ID = c.ENV_ID
    UNROLL_ID = c.UNROLL_ID
    AGENT_INDEX = c.AGENT_INDEX
    T = c.T
    PREV_ACTIONS = c.PREV_ACTIONS
    PREV_REWARDS = c.PREV_REWARDS
    ACTION_DIST_INPUTS = c.ACTION_DIST_INPUTS
    ACTION_PROB = c.ACTION_PROB
    ACTION_LOGP = c.ACTION_LOGP
    ACTION_MASK = c.ACTION_MASK
    ACTION_RAW = c.ACTION_RAW
    VF_PREDS = c.VF_PREDS
    VALUES_BOOTSTRAPPED = c.VALUES_BOOTSTRAPPED
    ADVANTAGES = c.ADVANTAGES
    VALUE_TARGETS = c.VALUE_TARGETS
    RETURNS_TO_GO = c.RETURNS_TO_GO
    DISCOUNTS = c.DISCOUNTS
    PRIO_WEIGHTS = c.PRIO_WEIGHTS
    SEQ_LENS = c.SEQ_LENS
    BURN_IN = c.BURN_IN

    def __init__(self, columns: Mapping[str, Any] | Iterable[tuple[str, Any]] = (), /, **kwargs: Any) -> None:
        self._columns: dict[str, Any] = {}
        self._count = 0
        for name, value in dict(columns, **kwargs).items():
            self[name] = value

    @classmethod
    def of_columns(cls, columns: dict[str, Any], count: int) -> SampleBatch:
        """A batch around columns that are known to be arrays of `count` rows: no conversion, no check, no copy."""
        batch = cls.__new__(cls)
        batch._columns = columns
        batch._count = count
        return batch

    # -- mapping -----------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, key: str) -> Any: ...
    @overload
    def __getitem__(self, key: _Slice) -> SampleBatch: ...
    def __getitem__(self, key: str | _Slice) -> Any:
        """A column by name, or a batch of views of some rows by slice."""
        if isinstance(key, slice):
            rows = len(range(*key.indices(self._count)))
            return self._apply(lambda x: x[key], rows)
        try:
            return self._columns[key]
        except (KeyError, TypeError):
            raise MissingColumnError(
                f"The batch has no column {key!r}; it has {', '.join(self._columns) or 'no columns'}."
            ) from None

    def __setitem__(self, key: str, value: Any) -> None:
        if not isinstance(key, str):
            raise BatchError(f"Columns are named by strings; got {key!r} ({type(key).__name__}).")
        value, rows = _as_column(key, value)
        others = len(self._columns) - (key in self._columns)
        if others and rows != self._count:
            other = next(name for name in self._columns if name != key)
            raise BatchError(
                f"Column {key!r} has {rows} rows, but the batch has {self._count} (column {other!r}): "
                "all columns of a batch need the same length."
            )
        self._columns[key] = value
        self._count = rows

    def __delitem__(self, key: str) -> None:
        self[key]  # Raises the error that names the column.
        del self._columns[key]
        if not self._columns:
            self._count = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, key: object) -> bool:
        return key in self._columns

    def __len__(self) -> int:
        return self._count

    # The inherited views would take their length from `__len__`, which counts rows.
    def keys(self) -> Any:
        """The names of the columns."""
        return self._columns.keys()

    def values(self) -> Any:
        """The columns."""
        return self._columns.values()

    def items(self) -> Any:
        """Pairs of name and column."""
        return self._columns.items()

    def get(self, key: str, default: Any = None) -> Any:
        """A column, or the default where there is none."""
        return self._columns.get(key, default)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"SampleBatch({self._count}: {', '.join(f'{k}={_describe(v)}' for k, v in self._columns.items())})"

    # -- counting ----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._count

    def env_steps(self) -> int:
        """How many environment steps the batch holds: one per row."""
        return self._count

    def agent_steps(self) -> int:
        """How many steps of single agents the batch holds: one per row."""
        return self._count

    def size_bytes(self) -> int:
        """The bytes of all arrays together (of object columns only the references)."""
        return sum(leaf.nbytes for value in self._columns.values() for leaf in _leaves(value))

    # -- rows --------------------------------------------------------------------------------------------------------

    def slice(self, start: int, end: int) -> SampleBatch:
        """The rows from start up to, not including, end, as views."""
        return self[start:end]

    def take(self, indices: np.ndarray) -> SampleBatch:
        """The rows at these indices [N], copied, in their order; or those where a bool mask [B] is true."""
        indices = np.asarray(indices)
        if indices.dtype == np.bool_:
            if indices.shape != (self._count,):
                raise BatchError(f"A mask of rows needs shape [{self._count}], one flag a row; got {indices.shape}.")
            indices = np.flatnonzero(indices)
        elif not indices.size:
            indices = indices.astype(np.int64)
        return self._apply(lambda x: x[indices], len(indices))

    def copy(self, shallow: bool = False) -> SampleBatch:
        """A copy of the batch; with `shallow` it shares the arrays."""
        if shallow:
            return SampleBatch.of_columns(dict(self._columns), self._count)
        return self._apply(np.ndarray.copy, self._count)

    def shuffle(self, rng: np.random.Generator | None = None) -> SampleBatch:
        """Puts the rows into random order, all columns alike, and returns the batch itself.

        The columns are replaced, not written to: batches that share arrays with this one keep their order.
        """
        order = (rng or np.random.default_rng()).permutation(self._count)
        self._columns = self.take(order)._columns
        return self

    def minibatches(
        self, size: int, rng: np.random.Generator | None = None, drop_last: bool = True
    ) -> Iterator[SampleBatch]:
        """One pass over the rows in batches of `size`.

        Args:
            size: Rows of a minibatch.
            rng: Draws the order of the rows. None: in their order, as views.
            drop_last: Leave out the last minibatch if it is smaller than `size`.

        Raises:
            BatchError: The size isn't positive, or is above the number of rows while smaller batches are dropped.
        """
        if size < 1:
            raise BatchError(f"A minibatch of {size} rows: the size needs to be at least 1.")
        if drop_last and size > self._count:
            # Yielding nothing would look like training and change no weight.
            raise BatchError(
                f"Minibatches of {size} rows were asked of a batch with {self._count}: "
                "use a smaller size, or drop_last=False."
            )
        return self._minibatches(size, rng, drop_last)

    def _minibatches(self, size: int, rng: np.random.Generator | None, drop_last: bool) -> Iterator[SampleBatch]:
        order = None if rng is None else rng.permutation(self._count)
        stop = self._count - self._count % size if drop_last else self._count
        for start in range(0, stop, size):
            yield self[start : start + size] if order is None else self.take(order[start : start + size])

    def split_by_episode(self, key: str | None = None) -> list[SampleBatch]:
        """The episodes of the batch as views: contiguous rows that belong together.

        Args:
            key: The column [B] whose changes separate episodes. None: `eps_id`; in a batch without it, an episode
                ends where `terminateds` or `truncateds` is true.
        """
        if not self._count:
            return []
        if key is None and c.EPS_ID not in self:
            if c.TERMINATEDS not in self and c.TRUNCATEDS not in self:
                raise MissingColumnError(
                    f"Splitting by episode needs the column {c.EPS_ID!r}, or {c.TERMINATEDS!r} or {c.TRUNCATEDS!r}; "
                    f"the batch has {', '.join(self._columns) or 'no columns'}."
                )
            no = np.zeros(self._count, np.bool_)
            cut = (np.asarray(self.get(c.TERMINATEDS, no), bool) | np.asarray(self.get(c.TRUNCATEDS, no), bool))[:-1]
        else:
            ids = self[key or c.EPS_ID]
            cut = ids[1:] != ids[:-1]
        bounds = [0, *(np.flatnonzero(cut) + 1).tolist(), self._count]
        return [self[a:b] for a, b in zip(bounds[:-1], bounds[1:], strict=True)]

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows one by one as dicts: for looking at them, too slow for computing."""
        for i in range(self._count):
            yield {name: _map(operator.itemgetter(i), value) for name, value in self._columns.items()}

    def columns(self, keys: Sequence[str]) -> list[Any]:
        """The columns with these names, in this order."""
        return [self[key] for key in keys]

    # -- several batches ---------------------------------------------------------------------------------------------

    def concat(self, other: SampleBatch) -> SampleBatch:
        """This batch's rows followed by the other's, as a new batch."""
        return _concat_single([self, other])

    def as_multi_agent(self) -> MultiAgentBatch:
        """The batch as that of the default policy."""
        return MultiAgentBatch({DEFAULT_POLICY_ID: self}, self._count)

    def _apply(self, f: Callable[[np.ndarray], np.ndarray], count: int) -> SampleBatch:
        # Without `_map`, as by far the most columns are plain arrays: a batch is cut and copied all the time.
        applied = {
            name: f(value) if isinstance(value, np.ndarray) else tree.map_structure(f, value)
            for name, value in self._columns.items()
        }
        return SampleBatch.of_columns(applied, count)


class MultiAgentBatch:
    """Batches of several policies that come from the same environment steps.

    Args:
        policy_batches: The batch of each policy, by policy id. Their lengths may differ.
        env_steps: How many environment steps they come from.
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        for policy_id, batch in policy_batches.items():
            if not isinstance(batch, SampleBatch):
                raise BatchError(f"Policy {policy_id!r}: expected a SampleBatch, got {type(batch).__name__}.")
        if env_steps < 0:
            raise BatchError(f"env_steps={env_steps}: expected the number of environment steps, at least 0.")
        self.policy_batches: dict[str, SampleBatch] = dict(policy_batches)
        self.count = int(env_steps)

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.policy_batches!r}, env_steps={self.count})"

    def env_steps(self) -> int:
        """How many environment steps the batches come from."""
        return self.count

    def agent_steps(self) -> int:
        """How many steps of single agents the batches hold: their rows together."""
        return sum(batch.count for batch in self.policy_batches.values())

    def size_bytes(self) -> int:
        """The bytes of all arrays together."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """A copy; with `shallow` it shares the arrays."""
        return MultiAgentBatch({k: b.copy(shallow) for k, b in self.policy_batches.items()}, self.count)

    def as_multi_agent(self) -> MultiAgentBatch:
        """The batch itself."""
        return self

    def concat(self, other: MultiAgentBatch) -> MultiAgentBatch:
        """The batches of both, policy by policy, as a new batch."""
        return _concat_multi([self, other])

    @staticmethod
    def wrap_as_needed(policy_batches: Mapping[str, SampleBatch], env_steps: int) -> SampleBatch | MultiAgentBatch:
        """The plain batch if the default policy's is the only one, otherwise a MultiAgentBatch."""
        if list(policy_batches) == [DEFAULT_POLICY_ID] and policy_batches[DEFAULT_POLICY_ID].count == env_steps:
            return policy_batches[DEFAULT_POLICY_ID]
        return MultiAgentBatch(policy_batches, env_steps)


@overload
def concat_samples(samples: Sequence[SampleBatch]) -> SampleBatch: ...
@overload
def concat_samples(samples: Sequence[MultiAgentBatch]) -> MultiAgentBatch: ...
@overload
def concat_samples(samples: Sequence[SampleBatch | MultiAgentBatch]) -> SampleBatch | MultiAgentBatch: ...
def concat_samples(samples: Sequence[SampleBatch | MultiAgentBatch]) -> SampleBatch | MultiAgentBatch:
    """All rows of the batches, in order, as one new batch.

    Batches without any column are left out. If one of the batches is a MultiAgentBatch, so is the result.

    Raises:
        BatchError: The batches have different columns, or a column's shapes don't fit; the message names it.
    """
    for sample in samples:
        if not isinstance(sample, SampleBatch | MultiAgentBatch):
            raise BatchError(f"Expected SampleBatch or MultiAgentBatch, got {type(sample).__name__}.")
    singles = [sample for sample in samples if isinstance(sample, SampleBatch)]
    if len(singles) == len(samples):
        return _concat_single(singles)
    return _concat_multi([sample.as_multi_agent() for sample in samples if sample.count or sample.agent_steps()])


def _map(f: Callable[..., Any], *values: Any) -> Any:
    """Applies f to the leaves; plain arrays, by far the most columns, skip the walk through a structure."""
    for value in values:
        if not isinstance(value, np.ndarray):
            return tree.map_structure(f, *values)
    return f(*values)


def _leaves(value: Any) -> list[np.ndarray]:
    return [value] if isinstance(value, np.ndarray) else tree.flatten(value)


def _as_column(name: str, value: Any) -> tuple[Any, int]:
    """The value with arrays for leaves, and how many rows it has."""
    value = _as_arrays(name, value)
    leaves = _leaves(value)
    if not leaves:
        raise BatchError(f"Column {name!r} is an empty {type(value).__name__}: expected at least one array.")
    for leaf in leaves:
        if leaf.ndim == 0:
            raise BatchError(
                f"Column {name!r} holds a single value ({leaf!r}): expected an array with one row per step."
            )
        if len(leaf) != len(leaves[0]):
            raise BatchError(f"Column {name!r} is nested, with parts of {len(leaves[0])} and {len(leaf)} rows.")
    return value, len(leaves[0])


def _as_arrays(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, Mapping):
        return {key: _as_arrays(name, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_as_arrays(name, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    try:
        return np.asarray(value)
    except ValueError as e:
        raise BatchError(f"Column {name!r} can't be made an array: its rows have different shapes ({e}).") from e


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_describe(part)}" for key, part in value.items()) + "}"
    return "(" + ", ".join(_describe(part) for part in value) + ")"


def _concat_single(batches: Sequence[SampleBatch]) -> SampleBatch:
    batches = [batch for batch in batches if batch.keys()]
    if not batches:
        return SampleBatch()
    first = batches[0]
    for i, batch in enumerate(batches):
        if batch.keys() != first.keys():
            different = sorted(first.keys() ^ batch.keys())
            have, lack = (0, i) if different[0] in first else (i, 0)
            raise MissingColumnError(
                f"Column {different[0]!r} is in batch {have} but missing in batch {lack} of those to concatenate: "
                "all need the same columns."
            )
    joined: dict[str, Any] = {}
    for name in first:
        try:
            parts = [batch._columns[name] for batch in batches]
            plain = isinstance(parts[0], np.ndarray)
            joined[name] = np.concatenate(parts) if plain else _map(lambda *arrays: np.concatenate(arrays), *parts)
        except (TypeError, ValueError) as e:
            kinds = ", ".join(dict.fromkeys(_describe(batch[name]) for batch in batches))
            raise BatchError(f"Column {name!r} can't be concatenated: {kinds} don't fit together.") from e
    return SampleBatch.of_columns(joined, sum(batch.count for batch in batches))


def _concat_multi(batches: Sequence[MultiAgentBatch]) -> MultiAgentBatch:
    policy_ids = dict.fromkeys(policy_id for batch in batches for policy_id in batch.policy_batches)
    joined = {
        policy_id: _concat_single([b.policy_batches[policy_id] for b in batches if policy_id in b.policy_batches])
        for policy_id in policy_ids
    }
    return MultiAgentBatch(joined, sum(batch.count for batch in batches))
