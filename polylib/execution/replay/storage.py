"""Storage: a ring of transitions in preallocated columns, where consecutive observations are kept once.

A batch has every observation twice, as `obs` of one row and as `new_obs` of the row before. For observations above
`SHARE_ABOVE` bytes, `new_obs` is a reference to the row that has it as its `obs`; what no row has, the true last
observation of an episode and that of a fragment until its next one comes, lies in a side slot. Smaller observations
are stored twice: following a reference would cost more than it saves.

Rows are found by time (`eps_id`, `t`) and taken only if their content is the same, byte by byte. A reference always
leads to a row that was added later, so that the ring overwrites whoever refers before what is referred to.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, ConfigError
from polylib.models.spaces import leaves, unflatten
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

logger = logging.getLogger(__name__)

#: The bytes of one observation above which `new_obs` is stored as a reference.
SHARE_ABOVE = 1024
#: What a sampled batch has in addition to the columns that were added.
INDEXES, WEIGHTS = "batch_indexes", c.PRIO_WEIGHTS
#: How many steps later the observation that a row leads to may be (n of n-step) for a reference to be found.
LOOKAHEAD = 16
# Rows that are compared at a time, and with how many of them a distance in time is tried out.
_CHUNK, _PROBES = 64, 8

Columns = dict[str, np.ndarray]


class Storage:
    """Rows in a ring: when it is full, new rows overwrite the oldest.

    Every row has a number, counting up from 0 with every row that was ever added; it lies in slot `number % capacity`.

    Attributes:
        capacity: rows at most.
        added: rows ever added; the number of the next one.
        columns: the stored columns `[capacity, ...]` by flat name (`obs`, or `obs/camera` for a part); empty until the
            first batch.

    Args:
        capacity: rows to allocate.
        share_above: bytes of one observation above which `new_obs` is a reference; None: it is always stored.
    """

    def __init__(self, capacity: int, share_above: int | None = SHARE_ABOVE) -> None:
        self.capacity, self.added = capacity, 0
        self.columns: Columns = {}
        self._share_above = share_above
        # Column -> its flat names, nested as the column is.
        self._layout: dict[str, Any] = {}
        self._links: _Links | None = None

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    @property
    def oldest(self) -> int:
        """The number of the oldest row that is still there."""
        return max(0, self.added - self.capacity)

    def allocate(self, batch: SampleBatch) -> None:
        """Makes the columns as those of a batch are, without its rows.

        Raises:
            BatchError: naming a column that can't be stored.
            ConfigError: if there isn't so much memory.
        """
        layout, flat = _flattened(batch)
        for name in (INDEXES, WEIGHTS):
            if name in layout:
                raise BatchError(f"column {name!r} can't be stored: that is what sampled rows are given; take it out")
        for name, x in flat.items():
            if x.dtype.kind not in "biuf":
                raise BatchError(
                    f"column {name!r} has dtype {x.dtype}: a replay buffer stores numbers only; leave it out"
                )
        self._layout = layout
        shared = self._shares(layout, flat)
        kept = {name: x for name, x in flat.items() if not (shared and _root(name) == c.NEXT_OBS)}
        size = self.capacity * sum(math.prod(x.shape[1:]) * x.itemsize for x in kept.values())
        _warn_of_size(size, self.capacity)
        try:
            self.columns = {name: np.zeros((self.capacity, *x.shape[1:]), x.dtype) for name, x in kept.items()}
        except MemoryError:  # pages count when they are written to, but there is a limit to what may be asked for
            raise ConfigError(
                f"replay_buffer_config['capacity']={self.capacity}: its rows would take {size / 2**30:.1f} GB, which "
                "this machine doesn't have; lower it"
            ) from None
        if shared:
            self._links = _Links(self, [name for name in flat if _root(name) == c.OBS])

    def append(self, batch: SampleBatch) -> np.ndarray:
        """Adds rows; of a batch larger than the ring the last ones.

        Returns:
            The numbers of the rows that were written `[B] int64`.

        Raises:
            BatchError: naming the column that doesn't fit those of the first batch.
        """
        if not batch.keys():
            return np.zeros(0, np.int64)
        batch = batch[-self.capacity :] if batch.count > self.capacity else batch
        return self.append_flat(self.flattened(batch), batch.count)

    def append_flat(self, flat: Columns, count: int) -> np.ndarray:
        """Adds up to `capacity` rows of what `flattened` gave; returns their numbers."""
        first = self.added
        stop = first + count
        if self._links is not None:
            self._links.release(first, stop)
        begin = first % self.capacity
        split = min(count, self.capacity - begin)
        end = begin + split
        if split == count:
            for name, column in self.columns.items():
                column[begin:end] = flat[name]
        else:
            for name, column in self.columns.items():
                x = flat[name]
                column[begin:end], column[: count - split] = x[:split], x[split:]
        self.added = stop
        if self._links is not None:
            self._links.connect(flat, first)
        return np.arange(first, stop)

    def put(self, flat: Columns, slots: np.ndarray) -> None:
        """Writes flat columns `[B, ...]` into any slots `[B]`; for a storage without references."""
        for name, column in self.columns.items():
            column[slots] = flat[name]

    def flattened(self, batch: SampleBatch) -> Columns:
        """A batch's columns by flat name; the first batch determines them.

        Raises:
            BatchError: naming the column that doesn't fit those of the first batch.
        """
        if not self.columns:
            self.allocate(batch)
        layout, flat = _flattened(batch)
        if layout != self._layout:
            raise BatchError(_difference(layout, self._layout))
        for name, x in flat.items():
            column = self.columns.get(name)
            if column is None:  # new_obs, as a reference
                column = self.columns[c.OBS + name.removeprefix(c.NEXT_OBS)]
            if x.dtype == column.dtype and x.shape[1:] == column.shape[1:]:
                continue
            if x.shape[1:] != column.shape[1:] or not np.can_cast(x.dtype, column.dtype, "same_kind"):
                raise BatchError(
                    f"column {name!r} is {x.dtype}{list(x.shape[1:])} a row, but the first batch in this replay buffer "
                    f"had {column.dtype}{list(column.shape[1:])}: rows of different kinds need buffers of their own"
                )
        return flat

    def rows(self, slots: np.ndarray) -> Columns:
        """Copies of the rows in slots `[...]`, `[..., *shape]` by flat name."""
        flat = {name: column.take(slots, 0) for name, column in self.columns.items()}
        if self._links is not None:
            flat |= self._links.follow(slots)
        return flat

    def nested(self, flat: Columns) -> dict[str, Any]:
        """Flat columns as the batches that were added have them."""
        return {name: flat[part] if type(part) is str else _nest(flat, part) for name, part in self._layout.items()}

    def size_bytes(self) -> int:
        """The bytes that the rows which are there take."""
        row = sum(x.nbytes for x in self.columns.values()) // self.capacity
        return len(self) * row + (0 if self._links is None else self._links.size_bytes())

    @property
    def side_slots(self) -> int:
        """How many observations are kept besides those of the rows."""
        return 0 if self._links is None else len(self._links.users)

    def get_state(self, copy: bool = True) -> dict[str, Any]:
        """`arrays` by name and `values` for JSON; what is in slots never written is left out."""
        # A full ring as it is: its slots are where set_state puts them.
        arrays = {f"columns/{name}": x[: len(self)] for name, x in self.columns.items()}
        if copy:
            arrays = {name: x.copy() for name, x in arrays.items()}
        values = {"capacity": self.capacity, "added": self.added, "layout": self._layout}
        if self._links is not None:
            state = self._links.get_state()
            arrays |= state["arrays"]
            values |= state["values"]
        return {"arrays": arrays, "values": values}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` gave.

        Raises:
            ConfigError: if it is that of a storage with another capacity.
        """
        arrays, values = state["arrays"], state["values"]
        if values["capacity"] != self.capacity:
            raise ConfigError(
                f"the stored replay buffer has capacity {values['capacity']}, this one {self.capacity}: "
                "restore it with the same replay_buffer_config['capacity']"
            )
        self.added, self._layout, self.columns, self._links = int(values["added"]), values["layout"], {}, None
        for key, x in arrays.items():
            if key.startswith("columns/"):
                column = np.zeros((self.capacity, *x.shape[1:]), x.dtype)
                column[: len(x)] = x
                self.columns[key.removeprefix("columns/")] = column
        if "links/after" in arrays:
            self._links = _Links(self, [name for name in self.columns if _root(name) == c.OBS])
            self._links.set_state(arrays, values)

    def _shares(self, layout: Mapping[str, Any], flat: Columns) -> bool:
        if self._share_above is None or not {c.OBS, c.NEXT_OBS, c.EPS_ID, c.T} <= layout.keys():
            return False
        obs = {name: x for name, x in flat.items() if _root(name) == c.OBS}
        new = {c.OBS + name.removeprefix(c.NEXT_OBS): x for name, x in flat.items() if _root(name) == c.NEXT_OBS}
        if obs.keys() != new.keys():
            return False
        if any(obs[k].dtype != new[k].dtype or obs[k].shape != new[k].shape for k in obs):
            return False
        size = sum(x.dtype.itemsize * int(np.prod(x.shape[1:], dtype=np.int64)) for x in obs.values())
        return size > self._share_above


class _Links:
    """References from rows to the observations they lead to.

    Args:
        storage: whose.
        names: the flat names of the observation's parts.
    """

    def __init__(self, storage: Storage, names: Sequence[str]) -> None:
        self._storage, self._names = storage, list(names)
        # By slot: the number of the row whose obs is this row's new_obs, or -1 - its side slot.
        self._after = np.zeros(storage.capacity, np.int64)
        self._side: Columns = {name: storage.columns[name][:0].copy() for name in names}
        self._free: list[int] = []
        # By side slot, the rows that refer to it in their order; it is free when there are none.
        self.users: dict[int, list[int]] = {}
        # Episode (and agent) -> side slots whose step isn't there yet; and by side slot, the episode and the time of
        # the last row that refers to it.
        self._open: dict[tuple[int, int], list[int]] = {}
        self._awaited: dict[int, tuple[tuple[int, int], int]] = {}
        # The distance in time at which the last reference was found.
        self._distance = 1

    def follow(self, slots: np.ndarray) -> Columns:
        """`new_obs` of the rows in these slots, by flat name."""
        after = self._after[slots]
        outside = after < 0
        targets = np.where(outside, 0, after % self._storage.capacity)
        some = bool(outside.any())
        found = {}
        for name in self._names:
            x = self._storage.columns[name][targets]
            if some:
                x[outside] = self._side[name][-1 - after[outside]]
            found[c.NEXT_OBS + name.removeprefix(c.OBS)] = x
        return found

    def size_bytes(self) -> int:
        side = sum(x[:1].nbytes for x in self._side.values()) * len(self.users)
        return side + len(self._storage) * self._after.itemsize

    def release(self, first: int, stop: int) -> None:
        """Forgets what the rows refer to that the rows with these new numbers overwrite."""
        capacity = self._storage.capacity
        numbers = np.arange(max(0, first - capacity), max(0, stop - capacity))
        after = self._after[numbers % capacity]
        for number, slot in zip(numbers[after < 0].tolist(), (-1 - after[after < 0]).tolist(), strict=True):
            self.users[slot].remove(number)  # the first one
            if not self.users[slot]:
                self._drop(slot)

    def connect(self, flat: Columns, first: int) -> None:
        """Finds what the rows that were just written lead to, and which earlier ones lead to them.

        Args:
            flat: their columns `[B, ...]`.
            first: the number of the first one.
        """
        times = np.asarray(flat[c.T], np.int64)
        rows = len(times)
        if not rows:
            return
        agents = np.asarray(flat.get(c.AGENT_INDEX, np.zeros(rows)), np.int64)
        episodes = np.asarray(flat[c.EPS_ID], np.int64)
        follows = (episodes[1:] == episodes[:-1]) & (agents[1:] == agents[:-1]) & (times[1:] == times[:-1] + 1)
        starts = np.flatnonzero(np.append(True, ~follows))
        stops = np.append(starts[1:], rows)
        dtypes = {name: self._storage.columns[name].dtype for name in self._names}
        obs = {name: _words(flat[name].astype(dtypes[name], copy=False)) for name in self._names}
        nexts = {n: flat[c.NEXT_OBS + n.removeprefix(c.OBS)].astype(dtypes[n], copy=False) for n in self._names}
        new = {name: _words(x) for name, x in nexts.items()}
        keys = list(zip(episodes[starts].tolist(), agents[starts].tolist(), strict=True))
        if self._open:
            for key, start, stop in zip(keys, starts.tolist(), stops.tolist(), strict=True):
                if key in self._open:
                    self._stitch(key, obs, start, stop, int(times[start]), first)
        after = self._inside(obs, new, np.repeat(stops, stops - starts), first)
        self._after[np.arange(first, first + rows) % self._storage.capacity] = after
        self._outside(np.flatnonzero(after < 0), starts, keys, flat, nexts, new, times, first)

    def _distances(self) -> list[int]:
        return [self._distance, *(k for k in range(1, LOOKAHEAD + 1) if k != self._distance)]

    def _inside(self, obs: Columns, new: Columns, stops: np.ndarray, first: int) -> np.ndarray:
        """The numbers of the rows among these whose obs is a row's new_obs; -1 where there is none."""
        rows = np.arange(len(stops))
        after = np.full(len(stops), -1, np.int64)
        longest = int((stops - rows).max())
        for k in self._distances():
            if k >= longest:
                continue
            candidates = np.flatnonzero((after < 0) & (rows + k < stops))
            if len(candidates) > _PROBES:
                probes = candidates[np.linspace(0, len(candidates) - 1, _PROBES).astype(int)]
                if not _same(new, probes, obs, probes + k).any():
                    continue
            found = candidates[_same(new, candidates, obs, candidates + k)]
            after[found] = first + found + k
            if len(found):
                self._distance = k
        return after

    def _outside(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        keys: list[tuple[int, int]],
        flat: Columns,
        nexts: Columns,
        new: Columns,
        times: np.ndarray,
        first: int,
    ) -> None:
        """Puts what no row has into side slots; neighbours that lead to the same (n-step) share one."""
        if not len(rows):
            return
        run = np.searchsorted(starts, rows, "right") - 1
        shares = np.zeros(len(rows), np.bool_)
        near = np.flatnonzero(run[1:] == run[:-1]) + 1
        shares[near] = _same(new, rows[near], new, rows[near - 1])
        done = np.zeros(len(times), np.bool_)
        for name in (c.TERMINATEDS, c.TRUNCATEDS):
            if name in flat:
                done |= flat[name].astype(np.bool_)
        slot = -1
        for row, r, same in zip(rows.tolist(), run.tolist(), shares.tolist(), strict=True):
            if not same:
                slot = self._take()
                for name in self._names:
                    self._side[name][slot] = nexts[name][row]
                self.users[slot] = []
            self.users[slot].append(first + row)
            self._after[(first + row) % self._storage.capacity] = -1 - slot
            if done[row]:
                self._found(slot)
            else:
                self._await(slot, keys[r], int(times[row]))

    def _stitch(self, key: tuple[int, int], obs: Columns, start: int, stop: int, time: int, first: int) -> None:
        """Lets rows of an episode refer to these rows [start, stop) of it, whose first one is of this time."""
        for slot in list(self._open[key]):
            before = self._awaited[slot][1]
            side = {name: _words(self._side[name][slot : slot + 1]) for name in self._names}
            for k in self._distances():
                row = start + before + k - time
                if start <= row < stop and _same(side, np.array([0]), obs, np.array([row])).all():
                    for number in self.users[slot]:
                        self._after[number % self._storage.capacity] = first + row
                    self._distance = k
                    self._drop(slot)
                    break
            else:
                if before + LOOKAHEAD < time + stop - start:  # it would have come by now
                    self._found(slot)

    def _await(self, slot: int, key: tuple[int, int], time: int) -> None:
        if slot not in self._awaited:
            self._open.setdefault(key, []).append(slot)
        self._awaited[slot] = (key, time)

    def _found(self, slot: int) -> None:
        """No longer waits for the step after it."""
        if slot in self._awaited:
            key, _ = self._awaited.pop(slot)
            self._open[key].remove(slot)
            if not self._open[key]:
                del self._open[key]

    def _take(self) -> int:
        if not self._free:
            size = len(next(iter(self._side.values())))
            more = max(8, size)
            for name, x in self._side.items():
                self._side[name] = np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)])
            self._free = list(range(size + more - 1, size - 1, -1))
        return self._free.pop()

    def _drop(self, slot: int) -> None:
        self._found(slot)
        del self.users[slot]
        self._free.append(slot)

    def get_state(self) -> dict[str, Any]:
        slots = sorted(self.users, key=lambda slot: self.users[slot][0])
        place = {slot: i for i, slot in enumerate(slots)}
        after = self._after[: len(self._storage)].copy()
        for slot, users in self.users.items():
            after[np.asarray(users) % self._storage.capacity] = -1 - place[slot]
        waiting = [
            (place[slot], *self._awaited[slot][0], self._awaited[slot][1]) for slot in slots if slot in self._awaited
        ]
        arrays = {f"links/side/{name}": x[slots] for name, x in self._side.items()}
        arrays["links/after"] = after
        arrays["links/awaited"] = np.array(waiting, np.int64).reshape(-1, 4)
        return {"arrays": arrays, "values": {"distance": self._distance}}

    def set_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        self._distance = int(values["distance"])
        self._after[: len(self._storage)] = arrays["links/after"]
        self._side = {name: arrays[f"links/side/{name}"].copy() for name in self._names}
        oldest, stop = self._storage.oldest, self._storage.added
        numbers = np.arange(oldest, stop)
        after = self._after[numbers % self._storage.capacity]
        for number, slot in zip(numbers[after < 0].tolist(), (-1 - after[after < 0]).tolist(), strict=True):
            self.users.setdefault(slot, []).append(number)
        for slot, episode, agent, time in arrays["links/awaited"].tolist():
            self._await(slot, (episode, agent), time)


def from_spaces(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], names: Sequence[str] = ()
) -> SampleBatch:
    """A batch without rows, with the columns of transitions: what `allocate` takes.

    Args:
        observation_space: of `obs` and `new_obs`, nested or not.
        action_space: of `actions`, nested or not.
        names: more columns of `polylib.policy.columns`, whose shapes don't depend on the policy.
    """
    basic = (c.OBS, c.NEXT_OBS, c.ACTIONS, c.REWARDS, c.TERMINATEDS, c.TRUNCATEDS, c.EPS_ID, c.T)
    made: dict[str, Any] = {}
    for name in dict.fromkeys((*basic, *names)):
        space = action_space if name == c.ACTIONS else observation_space
        if name in (c.OBS, c.NEXT_OBS, c.ACTIONS):
            flat = {}
            for leaf, part in leaves(space, name).items():
                shape, dtype = c.resolve(name, part, part, 0)
                flat[leaf] = np.zeros((0, *shape), dtype)
            made[name] = unflatten(space, flat, name)
        else:
            shape, dtype = c.resolve(name, observation_space, action_space, 0)
            made[name] = np.zeros((0, *shape), dtype)
    return SampleBatch(made)


def _root(name: str) -> str:
    return name.split("/", 1)[0]


def _flattened(batch: SampleBatch) -> tuple[dict[str, Any], Columns]:
    """The names of a batch's arrays, nested as its columns are, and the arrays by name; infos are left out."""
    flat: Columns = {}
    layout: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, np.ndarray) and name not in flat and name != c.INFOS:  # nearly always
            flat[name], layout[name] = value, name
        elif name != c.INFOS:
            layout[name] = _flatten(name, value, flat)
    return layout, flat


def _flatten(name: str, value: Any, flat: Columns) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _flatten(f"{name}/{key}", part, flat) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_flatten(f"{name}/{i}", part, flat) for i, part in enumerate(value))
    if name in flat:
        raise BatchError(f"the batch has two columns {name!r}: one by that name, one as part of a nested column")
    flat[name] = value
    return name


def _nest(flat: Columns, part: Any) -> Any:
    if isinstance(part, str):
        return flat[part]
    if isinstance(part, Mapping):
        return {key: _nest(flat, item) for key, item in part.items()}
    return tuple(_nest(flat, item) for item in part)


def _difference(layout: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    fix = "all batches of a replay buffer need the same columns"
    for name in first:
        if name not in layout:
            return f"the batch has no column {name!r}, which the first batch in this replay buffer had: {fix}"
    for name in layout:
        if name not in first:
            return f"the batch has a column {name!r}, which the first batch in this replay buffer hadn't: {fix}"
    name = next(name for name in first if layout[name] != first[name])
    return f"column {name!r} has the parts {layout[name]}, but in the first batch of this replay buffer {first[name]}"


def _words(x: np.ndarray) -> np.ndarray:
    """Rows `[B, ...]` as words `[B, W]`, which are equal if all bytes are."""
    x = np.ascontiguousarray(x)
    size = x.nbytes // len(x) if len(x) else 0
    x = x.reshape(len(x), -1)
    return x.view(np.uint64 if size % 8 == 0 else np.uint8) if size else x.view(np.uint8)


def _same(a: Columns, i: np.ndarray, b: Columns, j: np.ndarray) -> np.ndarray:
    """Whether rows i `[K]` of a are rows j `[K]` of b, in all parts."""
    same = np.ones(len(i), np.bool_)
    for name in a:
        for start in range(0, len(i), _CHUNK):
            part = slice(start, start + _CHUNK)
            same[part] &= (a[name][i[part]] == b[name][j[part]]).all(1)
    return same


def _warn_of_size(size: int, capacity: int) -> None:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # not on every system
        return
    if size > 0.8 * memory:
        logger.warning(
            "The replay buffer will take %.1f GB when its %d rows are full, this machine has %.1f GB: "
            "lower replay_buffer_config['capacity']",
            size / 2**30,
            capacity,
            memory / 2**30,
        )
