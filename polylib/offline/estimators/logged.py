"""Logged rows as episodes: what every estimator starts from."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tree

from polylib.errors import BatchError, ConfigError
from polylib.offline.episodes import episodes_of
from polylib.policy import columns as c
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

logger = logging.getLogger(__name__)

#: What can be done about episodes that aren't whole.
UNFINISHED = ("drop", "keep", "error")
_ENDS = (c.TERMINATEDS, c.TRUNCATEDS, c.DONES)
# What tells episodes apart.
_TELLING = (c.EPS_ID, c.T, c.AGENT_INDEX, *_ENDS, c.OBS, c.ACTIONS, c.REWARDS)
_ROW = "row"


def _distinct(batch: SampleBatch) -> np.ndarray:
    """Ids `[B]` that are different for episodes of several runs, each of which counted from 0.

    Where steps of an id are there more than once, a new episode begins after an end, or where steps start over.
    """
    t, ids = np.asarray(batch[c.T]), np.unique(batch[c.EPS_ID], return_inverse=True)[1]
    groups = ids
    if c.AGENT_INDEX in batch:
        agents = np.unique(batch[c.AGENT_INDEX], return_inverse=True)[1]
        groups = ids * (int(agents.max()) + 1) + agents
    by_step = np.lexsort((t, groups))
    again = (np.diff(groups[by_step]) == 0) & (np.diff(t[by_step]) == 0)
    repeated = np.isin(groups, groups[by_step[1:][again]])
    if not repeated.any():
        return ids
    order = np.argsort(groups, kind="stable")
    ended = np.zeros(batch.count, np.bool_)
    for name in _ENDS:
        if name in batch:
            ended |= np.asarray(batch[name], np.bool_)
    ended, steps, group = ended[order], t[order], groups[order]
    starts_over = repeated[order][1:] & (ended[:-1] | (steps[1:] <= steps[:-1]))
    found = np.empty(batch.count, np.int64)
    found[order] = np.cumsum(np.append(True, (group[1:] != group[:-1]) | starts_over))
    return found


@dataclass(frozen=True)
class Logged:
    """The rows of a batch in the order of episodes and steps.

    Attributes:
        rows: the columns `[B, ...]`, each episode's rows together.
        lengths: of each episode `[n]`.
        whole: `[n] bool`, False for episodes that were cut, or of which steps are missing.
        left_out: how many episodes were left out because they weren't whole.
    """

    rows: SampleBatch
    lengths: np.ndarray
    whole: np.ndarray
    left_out: int = 0

    @property
    def episodes(self) -> int:
        """How many there are."""
        return len(self.lengths)

    @cached_property
    def starts(self) -> np.ndarray:
        """The first row of each episode `[n]`."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)

    @cached_property
    def steps(self) -> np.ndarray:
        """The step of each row inside its episode `[B]`, from 0."""
        return np.arange(self.rows.count) - np.repeat(self.starts, self.lengths)

    @cached_property
    def rewards(self) -> np.ndarray:
        """`[B] float64`.

        Raises:
            BatchError: naming the row of one that isn't finite.
        """
        return numbers(self.rows, c.REWARDS)

    @cached_property
    def terminateds(self) -> np.ndarray:
        """`[B] bool`, where nothing comes after the step; the last step of episodes whose end wasn't recorded."""
        names = [name for name in (c.TERMINATEDS, c.DONES) if name in self.rows]
        if names:
            return np.asarray(self.rows[names[0]], np.bool_)
        ends = np.zeros(self.rows.count, np.bool_)
        ends[self.starts + self.lengths - 1] = True
        if c.TRUNCATEDS in self.rows:
            ends &= ~np.asarray(self.rows[c.TRUNCATEDS], np.bool_)
        return ends

    def sums(self, x: np.ndarray) -> np.ndarray:
        """The sum of `x: [B]` over each episode `[n]`."""
        return np.add.reduceat(x, self.starts)

    def cumulated(self, x: np.ndarray) -> np.ndarray:
        """The sum of `x: [B]` from each episode's start up to each row `[B]`."""
        # Episode by episode: differences of one long sum would turn an infinity into NaN for all that follow.
        ends = self.starts + self.lengths
        return np.concatenate([np.cumsum(x[a:b]) for a, b in zip(self.starts, ends, strict=True)])

    def discounts(self, gamma: float) -> np.ndarray:
        """`gamma ** t` of each row `[B]`."""
        return np.power(gamma, self.steps)

    def following(self) -> tuple[np.ndarray, Any]:
        """Rows whose next observation is known or doesn't matter, and these observations, `[K]` and `[K, ...]`."""
        rows = self.rows
        if c.NEXT_OBS in rows:
            return np.arange(rows.count), rows[c.NEXT_OBS]
        last = np.zeros(rows.count, np.bool_)
        last[self.starts + self.lengths - 1] = True
        known = np.flatnonzero(~last | self.terminateds)
        after = np.where(last[known], known, known + 1)
        return known, take(rows[c.OBS], after)


def take(column: Any, rows: np.ndarray) -> Any:
    """Some rows of a column, which may be nested."""
    return tree.map_structure(lambda x: x[rows], column)


def numbers(batch: Mapping[str, Any], name: str) -> np.ndarray:
    """A column of finite numbers as `[B] float64`.

    Raises:
        BatchError: naming the column, and the row of a number that isn't finite.
    """
    column = np.asarray(batch[name])
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]  # d3rlpy and its like
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise BatchError(
            f"column {name!r} is {column.dtype} of shape {list(column.shape)}, expected one number a row: [B]"
        )
    column = column.astype(np.float64)
    bad = ~np.isfinite(column)
    if bad.any():
        row = int(np.argmax(bad))
        raise BatchError(f"column {name!r}: row {row} holds {column[row]}, expected a finite number")
    return column


def one_policy(batch: Any, policy_id: str | None) -> SampleBatch:
    """The rows of the policy that is meant.

    Raises:
        BatchError: if there are several and none is named, if there is no such policy, or if there are no rows.
    """
    if isinstance(batch, MultiAgentBatch):
        found = batch.policy_batches
        names = ", ".join(map(repr, found)) or "none"
        if policy_id is None and len(found) > 1:
            raise BatchError(f"the batch has rows of several policies, {names}: say which one is meant with policy_id=")
        if policy_id is not None and policy_id not in found:
            raise BatchError(f"the batch has no rows of policy_id={policy_id!r}; it has those of {names}")
        batch = found[policy_id] if policy_id is not None else next(iter(found.values()), SampleBatch())
    elif not isinstance(batch, SampleBatch):
        if not isinstance(batch, Mapping):
            raise BatchError(f"expected a SampleBatch or a MultiAgentBatch, got {type(batch).__name__}")
        batch = SampleBatch(batch)
    if not batch.count:
        raise BatchError("the batch has no rows, so there is nothing to estimate from")
    return batch


def require(batch: SampleBatch, names: tuple[str, ...], who: str) -> None:
    """Checks that columns are there.

    Raises:
        BatchError: naming the one that isn't.
    """
    for name in names:
        if name not in batch:
            raise BatchError(f"the batch has no column {name!r}, which {who} needs; it has {', '.join(batch)}")


def episodes(batch: SampleBatch, split: bool, unfinished: str) -> Logged:
    """Puts the rows of episodes together, wherever they stand in the batch.

    Args:
        batch: with `eps_id`, or `terminateds` or `truncateds`, where it is to be split; `t` besides, if steps may be
            out of order.
        split: by episode; otherwise each row is an episode of one step, as in a bandit's log.
        unfinished: `"drop"`, `"keep"` or `"error"`: what becomes of episodes that don't begin at their first step,
            have gaps, or have no recorded end.

    Raises:
        BatchError: if episodes can't be told apart, or none is left.
        ConfigError: if `unfinished` is none of these.
    """
    if unfinished not in UNFINISHED:
        raise ConfigError(f"unfinished={unfinished!r}, expected one of {', '.join(map(repr, UNFINISHED))}")
    if not split:
        return Logged(batch, np.ones(batch.count, np.int64), np.ones(batch.count, np.bool_))
    known_ends = any(name in batch for name in _ENDS)
    if c.EPS_ID not in batch and not known_ends:
        raise BatchError(
            f"the batch has no column {c.EPS_ID!r}, and none of {', '.join(map(repr, _ENDS))}: nothing tells where "
            "episodes end. If every row is an episode of its own, use split_batch_by_episode=False"
        )
    telling = SampleBatch({name: batch[name] for name in _TELLING if name in batch})
    telling[_ROW] = np.arange(batch.count)
    if c.EPS_ID in batch and c.T in batch:
        telling[c.EPS_ID] = _distinct(telling)
    found = list(episodes_of([telling]))
    whole = np.array([not e.gaps and (e.end is not None or not known_ends) for e in found])
    partial = int((~whole).sum())
    if partial:
        what = f"{partial} of {len(found)} episodes are not whole (no recorded end, or steps are missing)"
        if unfinished == "error":
            raise BatchError(f"{what}; unfinished='drop' leaves them out, 'keep' counts what is there of them")
        if unfinished == "drop":
            if partial == len(found):
                raise BatchError(
                    f"{what}, so none is left; record whole ones (batch_mode='complete_episodes', or more steps), or "
                    "count what is there with unfinished='keep'"
                )
            found = [episode for episode, good in zip(found, whole, strict=True) if good]
            whole = whole[whole]
        logger.info("%s: %s", what, "left out" if unfinished == "drop" else "counted as far as they go")
    order = np.concatenate([episode.columns[_ROW] for episode in found])
    rows = batch if np.array_equal(order, np.arange(batch.count)) else batch.take(order)
    lengths = np.array([len(episode) for episode in found])
    return Logged(rows, lengths, whole, partial if unfinished == "drop" else 0)
