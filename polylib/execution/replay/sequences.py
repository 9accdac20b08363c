"""SequenceReplayBuffer: stretches of episodes, for recurrent policies (R2D2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polylib.errors import BatchError, ConfigError
from polylib.execution.replay.base import Priorities, Replay
from polylib.execution.replay.storage import INDEXES, SHARE_ABOVE, WEIGHTS, Columns, Storage
from polylib.execution.replay.tree import SumTree
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch

#: Leading steps of a sequence that only bring the state up to date.
BURN_IN = "burn_in"
_STATE = "state_in_"


class SequenceReplayBuffer(Replay):
    """Sequences of steps of one episode, in a ring of transitions.

    An episode is cut every `sequence_length` steps, and each sequence begins with copies of the `burn_in` steps before
    it (fewer at the start of an episode): a network runs through them to come to a state, and learns from the others.
    No sequence crosses an episode's end, or a gap in time. Steps are held back until their sequence is complete; `len`
    and `num` count sequences, `capacity` transitions, burn-in included.

    Args:
        capacity: transitions at most.
        sequence_length: steps learned from in a sequence; None: whole episodes, which are stored when they end.
        burn_in: steps before them.
        zero_init_states: sequences begin with a state of zeros; otherwise with the one that was sampled (`state_in_0`,
            ... of the first step, burn-in included).
        alpha: draws sequences by priority, with this exponent; None: all alike.
        beta: the exponent of importance weights, a number or a schedule.
        eps: is added to priorities.
        seed: of what is drawn.
        share_above: bytes of one observation above which `new_obs` isn't stored twice.
    """

    def __init__(
        self,
        capacity: int = 50_000,
        sequence_length: int | None = 20,
        burn_in: int = 0,
        zero_init_states: bool = True,
        alpha: float | None = None,
        beta: Any = 0.4,
        eps: float = 1e-6,
        seed: int | None = None,
        share_above: int | None = SHARE_ABOVE,
    ) -> None:
        super().__init__(capacity, seed)
        if sequence_length is not None and sequence_length < 1:
            raise ConfigError(f"replay_sequence_length={sequence_length}: expected steps, at least 1")
        if burn_in < 0 or (burn_in and sequence_length is None):
            raise ConfigError(f"replay_burn_in={burn_in}: expected steps, at least 0, and 0 for whole episodes")
        if sequence_length is not None and sequence_length + burn_in > self.capacity:
            raise ConfigError(
                f"capacity={capacity} holds no sequence of {sequence_length} + {burn_in} steps "
                "(replay_sequence_length + replay_burn_in)"
            )
        self.sequence_length, self.burn_in, self.zero_init_states = sequence_length, burn_in, bool(zero_init_states)
        self.prioritized = alpha is not None
        self._priorities = Priorities(0.0 if alpha is None else alpha, beta, eps)
        self.storage = Storage(self.capacity, share_above)
        # Sequences are numbered; those from _oldest up to _added are there, sequence i in slot i % the table's length.
        self._oldest = self._added = 0
        self._table = np.zeros((64, 3), np.int64)  # number of the first row, steps, steps of burn-in
        self._states: Columns | None = None  # by name [slots, ...]; None until the first batch
        self._tree = SumTree(64)
        self._open: dict[tuple[int, int], _Open] = {}

    def __len__(self) -> int:
        return self._added - self._oldest

    def add(self, batch: SampleBatch) -> np.ndarray:
        """Stores the sequences that these rows complete, and holds back the others.

        Args:
            batch: rows with `eps_id` and `t`, those of an episode in time order.

        Returns:
            The indices of the new sequences.

        Raises:
            BatchError: naming the column that is missing or doesn't fit those of the first batch.
        """
        self._check_batch(batch)
        first = self._added
        if not batch.count:
            return np.zeros(0, np.int64)
        for name in (c.EPS_ID, c.T):
            if name not in batch:
                raise BatchError(f"the batch has no column {name!r}, by which a replay buffer finds sequences")
        states = {name: batch[name] for name in batch if name.startswith(_STATE)}
        self._check_states(states)
        flat = self.storage.flattened(SampleBatch({name: batch[name] for name in batch if name not in states}))
        flat |= {} if self.zero_init_states else states
        times, episodes = (np.asarray(batch[name], np.int64) for name in (c.T, c.EPS_ID))
        agents = np.asarray(batch.get(c.AGENT_INDEX, np.zeros(batch.count)), np.int64)
        done = np.zeros(batch.count, np.bool_)
        for name in (c.TERMINATEDS, c.TRUNCATEDS):
            done |= np.asarray(batch.get(name, False), np.bool_)
        cut = (episodes[1:] != episodes[:-1]) | (agents[1:] != agents[:-1]) | (times[1:] != times[:-1] + 1)
        bounds = [0, *(np.flatnonzero(cut | done[:-1]) + 1).tolist(), batch.count]
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            key = (int(episodes[start]), int(agents[start]))
            rows = {name: x[start:stop].copy() for name, x in flat.items()}
            self._extend(key, rows, int(times[start]), stop - start, bool(done[stop - 1]))
        held = sum(x.count for x in self._open.values())
        while held > self.capacity and len(self._open) > 1:
            # Episodes that nobody goes on with (of a worker that was lost) would be held for ever.
            held -= self._open.pop(next(iter(self._open))).count
        return np.arange(first, self._added)

    def sample(
        self, num: int, beta: float | None = None, timestep: int = 0, rng: np.random.Generator | None = None
    ) -> SampleBatch:
        """Draws sequences, each of which is one row of the batch; see `Replay.sample`.

        Returns:
            The columns that were added `[num, T, ...]`, T being `replay_burn_in + replay_sequence_length` (for whole
            episodes the longest drawn), padded with copies of a sequence's last step; `seq_lens: [num]` with the real
            steps, burn-in included; `burn_in: [num]` with those that only lead to a state; `state_in_0: [num, ...]`,
            ... before the first step; `batch_indexes` and `weights` `[num]`.
        """
        ids, weights = self._draw(num, beta, timestep, rng)
        firsts, lengths, burn_in = self._table[ids % len(self._table)].T
        time = int(lengths.max()) if self.sequence_length is None else self.burn_in + self.sequence_length
        numbers = firsts[:, None] + np.minimum(np.arange(time), lengths[:, None] - 1)
        columns = self.storage.nested(self.storage.rows(numbers % self.capacity))
        return SampleBatch(
            {
                **columns,
                **self._states_of(ids),
                c.SEQ_LENS: lengths.astype(np.int32),
                BURN_IN: burn_in.astype(np.int32),
                INDEXES: ids,
                WEIGHTS: weights,
            }
        )

    def sample_rows(
        self, num: int, beta: float | None = None, timestep: int = 0, rng: np.random.Generator | None = None
    ) -> dict[str, Any]:
        """Draws sequences as `sample` does, and gives them as `Policy.prepare` takes them: as rows, without padding.

        Returns:
            The columns that were added `[B, ...]`, the rows of one sequence after another; `weights: [B]`;
            `burn_in: [B] bool`, the rows that are not to be learned from; and for each sequence `seq_lens: [num]`,
            `state_in_0: [num, ...]`, ..., and `batch_indexes: [num]`.
        """
        ids, weights = self._draw(num, beta, timestep, rng)
        firsts, lengths, burn_in = self._table[ids % len(self._table)].T
        step = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        numbers = np.repeat(firsts, lengths) + step
        return {
            **self.storage.nested(self.storage.rows(numbers % self.capacity)),
            **self._states_of(ids),
            c.SEQ_LENS: lengths.astype(np.int32),
            BURN_IN: step < np.repeat(burn_in, lengths),
            INDEXES: ids,
            WEIGHTS: np.repeat(weights, lengths),
        }

    def update_priorities(self, indices: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities of sequences; see `Replay.update_priorities` and `sequence_priorities`."""
        if not self.prioritized:
            return
        indices = np.asarray(indices, np.int64)
        if len(indices) and (indices.max() >= self._added or indices.min() < 0):
            raise BatchError(f"update_priorities: index {indices.max()} is of no sequence that was ever added")
        values = self._priorities.of(priorities, len(indices))
        there = indices >= self._oldest
        if there.any():
            self._tree.set(indices[there] % len(self._table), values[there])

    def size_bytes(self) -> int:
        """The bytes that the sequences take, and the steps that are held back."""
        held = sum(x.nbytes for open_ in self._open.values() for rows in open_.pieces for x in rows.values())
        states = sum(x[:1].nbytes for x in (self._states or {}).values()) if not self.zero_init_states else 0
        return self.storage.size_bytes() + held + len(self) * (states + 3 * 8 + 8 * self.prioritized)

    def _check_states(self, states: Mapping[str, np.ndarray]) -> None:
        if self._states is None:
            if not states and not self.zero_init_states:
                raise BatchError(
                    "replay_zero_init_states=False: the batch has no column 'state_in_0' with the states to begin with"
                )
            self._states = {name: np.zeros((len(self._table), *x.shape[1:]), x.dtype) for name, x in states.items()}
        for name in states.keys() ^ self._states.keys():
            where = "the first batch in this replay buffer " + ("hadn't" if name in states else "had")
            raise BatchError(f"the batch has {'a' if name in states else 'no'} column {name!r}, which {where}")
        for name, x in states.items():
            if x.shape[1:] != self._states[name].shape[1:]:
                first = list(self._states[name].shape[1:])
                raise BatchError(f"column {name!r} is {list(x.shape[1:])} a row, in the first batch it was {first}")

    def _extend(self, key: tuple[int, int], rows: Columns, time: int, count: int, done: bool) -> None:
        """Adds steps to an episode, and stores what is complete."""
        held = self._open.get(key)
        if held is not None and held.next_time != time:
            self._open.pop(key)
            if self.sequence_length is not None:
                self._finish(held)
            held = None
        # At the end of the dict: the first one is that which has waited longest.
        self._open.pop(key, None)
        held = self._open[key] = held or _Open(time)
        held.pieces.append(rows)
        held.count += count
        held.next_time = time + count
        length = self.sequence_length
        while length is not None and held.count - held.burn_in >= length:
            whole = held.joined()
            stop = held.burn_in + length
            self._store(whole, stop, held.burn_in)
            begin = max(0, stop - self.burn_in)
            held.pieces = [{name: x[begin:].copy() for name, x in whole.items()}]
            held.count -= begin
            held.burn_in = stop - begin
        if done:
            self._finish(self._open.pop(key))

    def _finish(self, held: _Open) -> None:
        """Stores the steps that are left when an episode ends; of whole episodes only those from their start."""
        if held.count > held.burn_in and (self.sequence_length is not None or held.first_time == 0):
            self._store(held.joined(), held.count, held.burn_in)

    def _store(self, rows: Columns, count: int, burn_in: int) -> None:
        if count > self.capacity:
            raise BatchError(
                f"an episode of {count} steps doesn't fit into a replay buffer of {self.capacity}: "
                "raise replay_buffer_config['capacity'], or store sequences"
            )
        flat = {name: x[:count] for name, x in rows.items() if not name.startswith(_STATE)}
        first = int(self.storage.append_flat(flat, count)[0])
        # What the ring has overwritten, if only a step of it, is gone.
        oldest = self._oldest
        while self._oldest < self._added and self._table[self._oldest % len(self._table), 0] < self.storage.oldest:
            self._oldest += 1
        if self.prioritized and self._oldest > oldest:
            self._tree.set(np.arange(oldest, self._oldest) % len(self._table), 0.0)
        if len(self) == len(self._table):
            self._grow()
        slot = self._added % len(self._table)
        self._table[slot] = first, count, burn_in
        if not self.zero_init_states:
            for name, x in (self._states or {}).items():
                x[slot] = rows[name][0]
        if self.prioritized:
            self._tree.set_range(slot, slot + 1, self._priorities.of_new())
        self._added += 1

    def _grow(self) -> None:
        size = len(self._table)
        ids = np.arange(self._oldest, self._added)

        def moved(x: np.ndarray) -> np.ndarray:
            larger = np.zeros((2 * size, *x.shape[1:]), x.dtype)
            larger[ids % (2 * size)] = x[ids % size]
            return larger

        self._table = moved(self._table)
        self._states = {name: moved(x) for name, x in (self._states or {}).items()}
        values = moved(self._tree.values)
        self._tree = SumTree(2 * size)
        self._tree.set_range(0, 2 * size, values)

    def _draw(
        self, num: int, beta: float | None, timestep: int, rng: np.random.Generator | None
    ) -> tuple[np.ndarray, np.ndarray]:
        self._check_num(num, "sequences")
        rng = rng or self.rng
        if not self.prioritized:
            return rng.integers(self._oldest, self._added, num), np.ones(num, np.float32)
        beta = self._priorities.beta(beta, timestep)
        slots = self._tree.find((np.arange(num) + rng.random(num)) / num)
        weights = self._priorities.weights(self._tree.values[slots], self._tree.smallest(), beta)
        newest = self._added - 1
        return newest - (newest - slots) % len(self._table), weights

    def _states_of(self, ids: np.ndarray) -> Columns:
        found = {name: x[ids % len(self._table)] for name, x in (self._states or {}).items()}
        return {name: np.zeros_like(x) for name, x in found.items()} if self.zero_init_states else found

    def _state(self, copy: bool) -> dict[str, Any]:
        state = self.storage.get_state(copy)
        arrays, values = state["arrays"], state["values"]
        slots = np.arange(self._oldest, self._added) % len(self._table)
        arrays |= {"table": self._table[slots], "priorities": self._tree.values[slots]}
        arrays |= {f"states/{name}": x[slots] for name, x in (self._states or {}).items()}
        held = list(self._open.items())
        for i, (_, open_) in enumerate(held):
            arrays |= {f"open/{i}/{name}": x for name, x in open_.joined().items()}
        values |= {
            "sequences": [self._oldest, self._added, len(self._table)],
            "max_priority": self._priorities.largest,
            "has_states": self._states is not None,
            "open": [[*key, x.first_time, x.next_time, x.count, x.burn_in] for key, x in held],
        }
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        arrays, values = state["arrays"], state["values"]
        self.storage.set_state(state)
        self._oldest, self._added, size = (int(x) for x in values["sequences"])
        slots = np.arange(self._oldest, self._added) % size

        def spread(x: np.ndarray) -> np.ndarray:
            table = np.zeros((size, *x.shape[1:]), x.dtype)
            table[slots] = x
            return table

        self._table = spread(arrays["table"])
        self._tree = SumTree(size)
        self._tree.set_range(0, size, spread(arrays["priorities"]))
        prefix = "states/"
        stored = {name.removeprefix(prefix): spread(x) for name, x in arrays.items() if name.startswith(prefix)}
        self._states = stored if values["has_states"] else None
        self._priorities.largest = float(values["max_priority"])
        self._open = {}
        for i, (episode, agent, first_time, next_time, count, burn_in) in enumerate(values["open"]):
            prefix = f"open/{i}/"
            rows = {name.removeprefix(prefix): x.copy() for name, x in arrays.items() if name.startswith(prefix)}
            self._open[episode, agent] = _Open(first_time, next_time, count, burn_in, [rows])


@dataclass
class _Open:
    """The steps of an unfinished episode that aren't stored yet.

    Attributes:
        first_time: `t` of the episode's first step that was added.
        next_time: `t` of the step that would continue it.
        count: steps.
        burn_in: how many of them, the first ones, are stored in the sequence before, too.
        pieces: their flat columns, one after another.
    """

    first_time: int
    next_time: int = 0
    count: int = 0
    burn_in: int = 0
    pieces: list[Columns] = field(default_factory=list)

    def joined(self) -> Columns:
        if len(self.pieces) > 1:
            self.pieces = [{name: np.concatenate([x[name] for x in self.pieces]) for name in self.pieces[0]}]
        return self.pieces[0]


def sequence_priorities(
    errors: np.ndarray, seq_lens: np.ndarray, burn_in: np.ndarray | None = None, eta: float = 0.9
) -> np.ndarray:
    """A priority for each sequence: eta times its largest TD error plus 1 - eta times their mean (R2D2).

    Args:
        errors: TD errors of the rows of all sequences `[B]`.
        seq_lens: how many rows each has `[S]`.
        burn_in: rows that don't count `[B] bool`.
        eta: the weight of the largest one.

    Returns:
        `[S] float64`.
    """
    errors, lengths = np.abs(np.asarray(errors, np.float64)), np.asarray(seq_lens, np.int64)
    if errors.shape != (lengths.sum(),):
        raise BatchError(f"errors have shape {errors.shape}, but seq_lens add up to {lengths.sum()} rows")
    counts = np.ones(len(errors), np.bool_) if burn_in is None else ~np.asarray(burn_in, np.bool_)
    starts = np.cumsum(lengths) - lengths
    errors = np.where(counts, errors, 0.0)
    mean = np.add.reduceat(errors, starts) / np.maximum(np.add.reduceat(counts.astype(np.int64), starts), 1)
    return eta * np.maximum.reduceat(errors, starts) + (1.0 - eta) * mean
