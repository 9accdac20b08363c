"""What traces hold besides the rows that are learnt from: what the environment said, values and advantages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.evaluation.episode import info_of
from polylib.policy import columns as c
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

#: Before the names of columns that hold observations and rewards as the environment gave them.
UNFILTERED = "unfiltered_"
# Made by postprocessing; they stand beside the rows they belong to.
_LEARNT = (c.VF_PREDS, c.ADVANTAGES, c.VALUE_TARGETS)
_MAX_DEPTH = 8


def infos_of(infos: Mapping[str, Any], done: np.ndarray) -> np.ndarray:
    """What the environments told after a step, a dict each, `[N] object`; what isn't plain data is left out.

    Args:
        infos: Gymnasium's, of a vector environment.
        done: whose episode ended, `[N] bool`; environments that reset by themselves keep its info apart.
    """
    final = infos.get("final_info")
    found = np.empty(len(done), np.object_)
    for env in range(len(done)):
        info = info_of(final, env) if final is not None and done[env] else info_of(infos, env)
        found[env] = {key: x for key, x in info.items() if not str(key).startswith("final_") and _is_plain(key, x)}
    return found


def _is_plain(key: Any, value: Any, depth: int = 0) -> bool:
    if not isinstance(key, str) or depth > _MAX_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_plain(name, part, depth + 1) for name, part in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(key, part, depth + 1) for part in value)
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufSU"
    if isinstance(value, int) and not isinstance(value, bool):
        return -(1 << 63) <= value < 1 << 63
    return value is None or isinstance(value, bool | float | str)


def take_record(fragment: Fragment) -> SampleBatch:
    """The rows as the environment gave them, with `new_obs`, and takes out of `fragment` what only they need."""
    batch = fragment.batch
    infos = _taken(batch, c.INFOS)
    raw, last = _taken(batch, UNFILTERED + c.OBS), fragment.last_inputs.pop(UNFILTERED + c.OBS, None)
    rewards = _taken(batch, UNFILTERED + c.REWARDS)
    record = batch.copy(shallow=True)
    if rewards is not None:
        record[c.REWARDS] = rewards.astype(np.float32)
    if raw is not None:
        record[c.OBS] = raw
        record[c.NEXT_OBS] = Fragment(record, fragment.starts, fragment.ends, last).new_obs()
    else:
        record[c.NEXT_OBS] = fragment.new_obs()
    if infos is not None:
        # Before the first info there was nothing to put there.
        column = np.empty(len(infos), np.object_)
        column[:] = [info if isinstance(info, dict) else {} for info in infos]
        record[c.INFOS] = column
    return record


def _taken(batch: SampleBatch, name: str) -> Any:
    column = batch.get(name)
    if column is not None:
        del batch[name]
    return column


def add_learnt(record: SampleBatch, batch: SampleBatch) -> None:
    """Adds what postprocessing made of the same rows: values, advantages and their targets."""
    if batch.count == record.count:
        for name in _LEARNT:
            if name in batch:
                record[name] = batch[name]
