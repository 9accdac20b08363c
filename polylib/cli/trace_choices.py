"""What a discrete policy thought of each choice, from recorded `action_dist_inputs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polylib.offline.episodes import Columns
from polylib.policy import columns as c

_MAX_CHOICES = 512


class Choices(NamedTuple):
    """What a policy thought of each choice at each step.

    Attributes:
        values: `[B, k]`: probabilities, or scores such as Q-values where the action wasn't drawn from their softmax.
        taken: which one was taken `[B]`, from 0.
        first: the action that choice 0 stands for.
        scores: whether these are scores.
    """

    values: np.ndarray
    taken: np.ndarray
    first: int
    scores: bool


def choices_of(columns: Columns) -> Choices | None:
    """The choices of an episode; None where actions aren't single choices or nothing of the others was recorded."""
    actions, inputs = columns.get(c.ACTIONS), columns.get(c.ACTION_DIST_INPUTS)
    if actions is None or inputs is None:
        return None
    return choices(actions, inputs, columns.get(c.ACTION_LOGP))


def choices(actions: np.ndarray, inputs: np.ndarray, logp: np.ndarray | None) -> Choices | None:
    """The same from the columns themselves.

    Args:
        actions: `[B]`.
        inputs: of the action distribution `[B, k]`.
        logp: of the actions `[B]`, which tells probabilities from scores; None: they are probabilities.
    """
    rows = len(actions)
    if actions.dtype.kind not in "biu" or actions.size != rows or not rows or inputs.dtype.kind not in "iuf":
        return None
    if inputs.ndim != 2 or not 2 <= inputs.shape[1] <= _MAX_CHOICES:
        return None
    actions, k = actions.reshape(rows).astype(np.int64), inputs.shape[1]
    first = 0 if 0 <= actions.min() and actions.max() < k else int(actions.min())
    taken = actions - first
    if taken.max() >= k:
        return None
    shifted = np.maximum(np.nan_to_num(inputs.astype(np.float64), nan=-1e9, posinf=1e9, neginf=-1e9), -1e9)
    weights = np.exp(shifted - shifted.max(1, keepdims=True))
    probabilities = weights / weights.sum(1, keepdims=True)
    if logp is not None and logp.size == rows:
        with np.errstate(over="ignore", invalid="ignore"):
            apart = np.abs(probabilities[np.arange(rows), taken] - np.exp(logp.reshape(rows).astype(np.float64)))
        # Q-values stand in the same column; their softmax isn't what the action was drawn from.
        if float(np.mean(apart < 2e-3)) < 0.9:
            return Choices(inputs.astype(np.float64), taken, first, True)
    return Choices(probabilities, taken, first, False)


def probability_taken(columns: Columns) -> np.ndarray | None:
    """The probability, or density, of each action that was taken `[B]`; None where it wasn't recorded."""
    found = choices_of(columns)
    if found is not None and not found.scores:
        return found.values[np.arange(len(found.taken)), found.taken]
    logp = columns.get(c.ACTION_LOGP)
    if logp is not None and logp.dtype.kind == "f" and not np.isnan(logp).all():
        with np.errstate(over="ignore"):
            return np.exp(logp.astype(np.float64)).reshape(len(logp), -1)[:, 0]
    known = columns.get(c.ACTION_PROB)
    if known is None or known.dtype.kind not in "iuf":
        return None
    return known.astype(np.float64).reshape(len(known), -1)[:, 0]
