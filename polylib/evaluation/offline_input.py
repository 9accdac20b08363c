"""OfflineInput: what a rollout worker hands out when its config's `input` isn't the environment alone."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.evaluation.remembered import KEEP_BYTES, Remembered
from polylib.models.filters import clip_rewards
from polylib.models.networks import batch_dtype
from polylib.models.preprocessors import restore
from polylib.models.spaces import flatten, is_nested, leaves, unflatten
from polylib.offline.errors import OfflineError
from polylib.offline.input_reader import InputReader
from polylib.offline.joined import Joiner
from polylib.offline.json_format import Batch
from polylib.offline.make_input import DATASET, is_of_files, make_input
from polylib.offline.normalized import NormalizedWatch
from polylib.offline.segments import EpisodeJoiner, numbered, parts_of, segment_ends, segments_of, with_next_obs
from polylib.offline.shuffled_input import in_random_order
from polylib.policy import columns as c
from polylib.policy.fragment import Fragment
from polylib.policy.policy import Policy, random_stream
from polylib.policy.sample_batch import SampleBatch

logger = logging.getLogger(__name__)

# What belongs to the networks that acted, not to those that learn, and what only means something where it was computed.
_OF_OTHERS = (
    c.INFOS,
    c.ACTION_RAW,
    c.ACTION_DIST_INPUTS,
    c.VF_PREDS,
    c.VALUES_BOOTSTRAPPED,
    c.ADVANTAGES,
    c.VALUE_TARGETS,
    c.PRIO_WEIGHTS,
    c.SEQ_LENS,
    c.BURN_IN,
    c.DISCOUNTS,
    "batch_indexes",
)
_STATES = ("state_in_", "state_out_")
# Records without a single row that can be used, one after another, after which it is no use to go on.
_PATIENCE = 1000


class OfflineInput(InputReader):
    """Reads the records of one source, makes of them what the policy's objective learns from, and hands out fragments.

    Args:
        config: the algorithm's.
        policy: that learns from the rows.
        source: what `input` may be, but for a mix.
        rows: of a batch.
        worker_index: 0 for the local worker.
        num_workers: remote workers that share the source; 0: this one reads all of it.
        sample: samples rows from the worker's environments, for readers that ask for it.
        logdir: the run's folder, for users' readers.
        worker: the rollout worker, likewise.
        on_read: called with every record, as it is read.
        on_postprocessed: called with postprocessed rows, and the rows before.

    Raises:
        ConfigError: if the source can't be one.
        OfflineError: if files can't be read.
    """

    def __init__(
        self,
        config: Any,
        policy: Policy,
        source: Any,
        rows: int,
        worker_index: int = 0,
        num_workers: int = 0,
        *,
        sample: Callable[[], SampleBatch] | None = None,
        logdir: str | None = None,
        worker: Any = None,
        on_read: Callable[[Batch], Any] | None = None,
        on_postprocessed: Callable[[SampleBatch, SampleBatch], Any] | None = None,
    ) -> None:
        self.config, self.policy, self.source, self.rows = config, policy, source, rows
        self._objective = policy.objective
        self._on_read, self._on_postprocessed = on_read, on_postprocessed
        self._spaces = {
            c.OBS: policy.observation_space,
            c.NEXT_OBS: policy.observation_space,
            c.ACTIONS: policy.action_space,
            c.PREV_ACTIONS: policy.action_space,
        }
        self._postprocesses = self._objective.postprocesses_inputs or config["postprocess_inputs"]
        wanted = self._objective.columns
        self._dropped = set(_OF_OTHERS) - (set() if self._postprocesses else set(wanted))
        self._whole = config["batch_mode"] == "complete_episodes"
        self._needs_next = self._postprocesses or c.NEXT_OBS in wanted
        # Rows that know nothing of each other need no stretches, and can be shuffled one by one.
        self._in_order = self._whole or policy.is_recurrent()
        self._needs_stretches = bool(self._needs_next or self._in_order or policy.inputs.previous)
        needed = [c.OBS, c.ACTIONS]
        if self._postprocesses:
            needed += [c.REWARDS, c.TERMINATEDS]
        needed += [name for name in wanted if name in (c.REWARDS, c.TERMINATEDS) and name not in needed]
        # Rows are shuffled here, when nobody asks any more which of them follow each other.
        own = config.copy().update_from_dict({"input": source, "shuffle_buffer_size": 0})

        def make_reader(loop: bool) -> InputReader:
            return make_input(
                own,
                worker_index,
                num_workers,
                observation_space=policy.observation_space,
                action_space=policy.action_space,
                required=needed,
                sampler=sample,
                loop=loop,
                logdir=logdir,
                worker=worker,
            )

        self._rng = random_stream(config["seed"], 5, worker_index)
        # What is written on, or filtered by statistics that change, has to be read each time.
        keeps = is_of_files(source) and on_read is None and policy.filter.identity
        self._records = Remembered(
            make_reader,
            self._rows_of,
            KEEP_BYTES if keeps else 0,
            int(self._rng.integers(1 << 31)),
            permute=not self._needs_stretches,
        )
        units = config["actions_in_input_normalized"] or not (is_of_files(source) or source == DATASET)
        self._watch = NormalizedWatch(policy.action_space, 0 if units or worker_index > 1 else 1000)
        self._episodes, self._joiner = EpisodeJoiner(), Joiner()
        self._pool: list[SampleBatch] = []  # what is to be shuffled
        self._pool_pass = 0  # in which it was read
        self._ready: deque[SampleBatch] = deque()
        self._ready_rows = 0
        self._next_unroll = 0

    # --- handing out

    def next(self) -> SampleBatch:
        """The next rows: exactly `rows`, or with `batch_mode="complete_episodes"` at least, in whole episodes.

        Raises:
            OfflineError: what is wrong with a record, or that the input ended or has no row to learn from.
        """
        while self._ready_rows < self.rows:
            self._read()
        parts: list[SampleBatch] = []
        missing = self.rows
        while missing > 0:
            part = self._ready.popleft()
            if part.count > missing and not self._whole:
                self._ready.appendleft(part[missing:])
                part = part[:missing]
            parts.append(part)
            missing -= part.count
            self._ready_rows -= part.count
        return self._nested(self._joiner.join(parts))

    def _read(self) -> None:
        """Reads records until there is something to hand out."""
        for _ in range(_PATIENCE):
            try:
                rows = self._records.next()
            except StopIteration:
                raise OfflineError(
                    f"the input {self.source!r} has ended, and training goes on: a reader of your own has to "
                    "start over in next(), or stop training before"
                ) from None
            if self._watch.looking and self._watch.add(rows, last=self._records.passes > 0):
                logger.warning(
                    "the input %r: its actions are all within [-1, 1], and those of %s aren't: if they were "
                    "normalized, as RLlib does, set actions_in_input_normalized=True",
                    self.source,
                    self.policy.action_space,
                )
            prepared = [part for part in self._prepared(rows) if part.count]
            for part in self._shuffled(prepared) if self.config["shuffle_buffer_size"] else prepared:
                self._ready.append(part)
                self._ready_rows += part.count
            if prepared:
                return
        raise OfflineError(
            f"{_PATIENCE} records of the input {self.source!r} in a row had no row to learn from: records of "
            "single rows need 'new_obs', or 'eps_id' and 't' by which they can be put together"
        )

    def _shuffled(self, parts: list[SampleBatch]) -> list[SampleBatch]:
        """Rows in random order, or where they have to stay together stretches, as soon as there are enough of them."""
        if self.policy.is_recurrent() and not self._whole:
            parts = [stretch for part in parts for stretch in segments_of(part)]
        self._pool += parts
        # Of fewer rows than that, all of a pass: they would never be enough.
        passes, self._pool_pass = self._pool_pass, self._records.passes
        too_few = sum(part.count for part in self._pool) < self.config["shuffle_buffer_size"]
        if not self._pool or (too_few and passes == self._pool_pass):
            return []
        pool, self._pool = self._pool, []
        return in_random_order(pool, self._rng, not self._in_order, self._joiner)

    def _prepared(self, rows: SampleBatch) -> Iterator[SampleBatch]:
        """What can be learnt from now that these rows are there."""
        if not rows.count:
            return
        if not self._needs_stretches:
            yield rows
            return
        if self._joins(rows):
            stretches = self._episodes.push(rows)
            if not stretches:
                return
            rows, ends = self._joiner.join(stretches), np.cumsum([part.count for part in stretches])
        else:
            ends = segment_ends(rows)
        if self._needs_next:
            rows, ends = with_next_obs(rows, ends)
        if not len(ends):
            return
        rows = numbered(rows, ends, self._next_unroll)
        self._next_unroll += len(ends)
        self._add_previous(rows, ends)
        if self._postprocesses:
            rows = self._postprocessed(rows, ends)
        if self._whole:
            for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                yield rows[start:end]
        else:
            yield rows

    def _joins(self, rows: SampleBatch) -> bool:
        """Whether stretches are put together: where it makes a difference."""
        lacks_next = self._needs_next and next(parts_of(rows, c.NEXT_OBS), None) is None
        return self._whole or lacks_next or (self._postprocesses and self._objective.looks_ahead)

    # --- records as rows

    def _rows_of(self, record: Batch) -> SampleBatch:
        """A record's rows as learning has them: with flat columns, in the environment's units, filtered."""
        if self._on_read is not None:
            self._on_read(record)
        rows = SampleBatch()
        for name, values in self._only_batch(record).items():
            if name in self._dropped or name.startswith(_STATES):
                continue
            space = self._spaces.get(name)
            if space is None:
                if isinstance(values, np.ndarray) and values.dtype != np.object_:
                    rows[name] = values
                continue
            if name in (c.OBS, c.NEXT_OBS):
                values = _unpreprocessed(values, space)
            rows.update(flatten(space, values, name))
        for name, space in self._spaces.items():
            for part, leaf in leaves(space, name).items():
                if part in rows:
                    rows[part] = np.asarray(rows[part], batch_dtype(leaf))
        if c.REWARDS in rows:
            rows[c.REWARDS] = clip_rewards(np.asarray(rows[c.REWARDS], np.float32), self.config["clip_rewards"])
        self._check_finite(rows)
        self._filter(rows)
        return rows

    def _only_batch(self, record: Batch) -> SampleBatch:
        batches = record.as_multi_agent().policy_batches
        if not batches:
            return SampleBatch()  # a record of nobody's steps is passed over, as one without rows is
        if len(batches) != 1:
            raise OfflineError(
                f"the input {self.source!r}: a record holds experience of {len(batches)} policies "
                f"({', '.join(sorted(batches))}), and {self.config.algo_name} trains one in this version: write files "
                "that hold one policy's"
            )
        return next(iter(batches.values()))

    def _check_finite(self, rows: SampleBatch) -> None:
        names = [c.REWARDS, *parts_of(rows, c.OBS), *parts_of(rows, c.NEXT_OBS), *parts_of(rows, c.ACTIONS)]
        for name in names:
            values = rows.get(name)
            if values is not None and values.dtype.kind == "f" and not np.isfinite(values).all():
                row = int(np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))[0])
                episode = f" of episode {rows[c.EPS_ID][row]}" if c.EPS_ID in rows else ""
                raise OfflineError(
                    f"{self._records.where or f'the input {self.source!r}'}, column {name!r}: row {row} of the "
                    f"record{episode} holds {values[row]}: nothing can be learnt from what isn't finite; leave the row "
                    "out"
                )

    def _filter(self, rows: SampleBatch) -> None:
        """Observations as the policy sees them when it acts; those that were acted on count in the statistics."""
        if self.policy.filter.identity:
            return
        for name, update in ((c.OBS, True), (c.NEXT_OBS, False)):
            found = {c.OBS + part.removeprefix(name): part for part in parts_of(rows, name)}
            if found:
                seen = self.policy.filter({own: rows[part] for own, part in found.items()}, update)
                rows.update({part: seen[own] for own, part in found.items()})

    def _add_previous(self, rows: SampleBatch, ends: np.ndarray) -> None:
        """Actions and rewards of the steps before, for networks that see them; a stretch's first row has none."""
        if not self.policy.inputs.previous:
            return
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        for name in self.policy.inputs.previous:
            for part, first in self.policy.inputs.first_previous(name, len(starts)).items():
                source = rows.get(part.removeprefix("prev_"))
                if source is None:
                    raise OfflineError(
                        f"the input {self.source!r} has no column {part.removeprefix('prev_')!r}, which the "
                        "network sees of the step before: set lstm_use_prev_reward=False"
                    )
                shifted = np.concatenate([source[:1], source[:-1]]).astype(first.dtype)
                shifted[starts] = first
                rows[part] = shifted

    # --- postprocessing

    def _postprocessed(self, rows: SampleBatch, ends: np.ndarray) -> SampleBatch:
        starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
        last = {name: rows[name][ends - 1] for name in parts_of(rows, c.NEXT_OBS)}
        batch = self._nested(rows)
        last_obs = unflatten(self.policy.observation_space, last, c.NEXT_OBS)
        fragment = Fragment(batch, starts, ends, last_obs)
        if self._objective.needs_values:
            self._add_values(fragment, last_obs)
        before = batch.copy(shallow=True)
        out = self._objective.postprocess(fragment)
        if self._on_postprocessed is not None:
            self._on_postprocessed(out, before)
        return self._flat(out)

    def _add_values(self, fragment: Fragment, last_obs: Any) -> None:
        """Values of what follows the stretches, and of all rows if need be; a network's memory is taken to be empty."""
        batch, previous = fragment.batch, self.policy.inputs.previous
        if self._objective.needs_row_values:
            batch[c.VF_PREDS] = self.policy.compute_values(batch[c.OBS], **{name: batch[name] for name in previous})
        last = self._flat(batch).take(fragment.ends - 1)
        after: dict[str, Any] = {}
        for name in previous:
            parts = {part: last[part.removeprefix("prev_")] for part in self.policy.inputs.layouts[name]}
            after[name] = unflatten(self.policy.action_space, parts, name) if name == c.PREV_ACTIONS else parts[name]
        values = self.policy.compute_values(last_obs, **after)
        fragment.bootstrap = np.where(fragment.terminated, np.float32(0), values)

    def _nested(self, rows: SampleBatch) -> SampleBatch:
        """The rows with observations and actions nested as their spaces are."""
        nested = {name: space for name, space in self._spaces.items() if is_nested(space)}
        if not nested:
            return rows
        columns: dict[str, Any] = {name: x for name, x in rows.items() if name.partition("/")[0] not in nested}
        for name, space in nested.items():
            if next(parts_of(rows, name), None) is not None:
                columns[name] = unflatten(space, rows, name)
        return SampleBatch(columns)

    def _flat(self, batch: SampleBatch) -> SampleBatch:
        """The inverse of `_nested`."""
        rows = SampleBatch()
        for name, values in batch.items():
            space = self._spaces.get(name)
            rows.update({name: values} if space is None else flatten(space, values, name))
        return rows

    # --- checkpoints

    def get_state(self) -> Any:
        """Where reading stands, with arrays of the rows that were read and not handed out; None: the reader can't say.

        Reading them again would count them twice in a filter's statistics, and give them values of other weights.
        """
        position = self._records.get_state()
        if position is None:
            return None
        kept = {"ready": self._ready, "pool": self._pool, "held": self._episodes.held}
        rows = {what: [dict(part) for part in parts] for what, parts in kept.items()}
        return {"reader": position, "rng": self._rng.bit_generator.state, "next_unroll": self._next_unroll, **rows}

    def set_state(self, state: Any) -> bool:
        """Goes on from `get_state()`; False if the reader can't."""
        if not isinstance(state, dict) or "pool" not in state:
            return False  # of another kind of input
        rng = np.random.default_rng()
        rng.bit_generator.state = state["rng"]
        ready, pool, held = ([SampleBatch(part) for part in state[what]] for what in ("ready", "pool", "held"))
        if not self._records.set_state(state["reader"]):
            return False
        self._rng, self._next_unroll = rng, int(state["next_unroll"])
        self._ready, self._pool, self._pool_pass = deque(ready), pool, self._records.passes
        self._ready_rows = sum(part.count for part in ready)
        self._episodes.hold(held)
        return True

    def close(self) -> None:
        """Closes the reader."""
        self._records.close()


def _unpreprocessed(values: Any, space: gym.Space[Any]) -> Any:
    """Observations as the space has them, of one-hot or flattened ones."""
    if not isinstance(values, np.ndarray):
        return values
    if is_nested(space) or values.shape[1:] != (space.shape or ()):
        return restore(space, values)
    return values
