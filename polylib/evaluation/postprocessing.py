"""Advantages, returns and n-step targets over flat rows, in plain NumPy.

Rows of several segments lie one after another (see `Fragment`); `starts` and `ends` [K] say where. Nothing crosses the
end of a segment: what comes after it enters through the segment's bootstrap value alone, which is 0 where the episode
was terminated, and the value of the true last observation where it was truncated or where sampling stopped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from polylib.errors import BatchError, ConfigError
from polylib.policy import columns as c
from polylib.policy.fragment import Fragment, check_segments
from polylib.policy.sample_batch import SampleBatch


class NStep(NamedTuple):
    """What `n_step` gives for each row.

    Attributes:
        rewards: The discounted sum of the rewards from the row to the step reached, float32 [B].
        reached: The row of the last step folded in, int64 [B]: `new_obs[reached]` is the observation reached.
        terminateds: Whether that step ended in a terminal state, bool [B].
        discounts: gamma ** k for the k steps folded in, float32 [B]: the weight of the value of the state reached.
    """

    rewards: np.ndarray
    reached: np.ndarray
    terminateds: np.ndarray
    discounts: np.ndarray


def reverse_discount(x: np.ndarray, coef: np.ndarray) -> np.ndarray:
    """The sums acc[t] = x[t] + coef[t] * acc[t + 1], from the last row to the first.

    Args:
        x: What is summed [B].
        coef: What the sum of the later rows is multiplied by [B]; a 0 cuts it off.

    Returns:
        The sums, float64 [B].
    """
    x = np.asarray(x, np.float64)
    coef = _vector("coef", coef, len(_vector("x", x, x.size)))
    # Python floats: a loop over NumPy scalars takes ten times as long, and SciPy's filter takes one coefficient only.
    acc = 0.0
    sums = []
    for value, factor in zip(reversed(x.tolist()), reversed(coef.tolist()), strict=True):
        acc = value + factor * acc if factor else value
        sums.append(acc)
    sums.reverse()
    return np.array(sums, np.float64)


def discount_cumsum(x: np.ndarray, gamma: float) -> np.ndarray:
    """The discounted sum of each value and all later ones: sum over i of gamma**i * x[t + i].

    Returns:
        The sums, float64 [B].
    """
    x = np.asarray(x, np.float64)
    return reverse_discount(x, np.full(x.shape, gamma, np.float64))


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    bootstrap: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    gamma: float,
    lambda_: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Generalized advantage estimation (arXiv:1506.02438), cut at the end of each segment.

    Args:
        rewards: [B].
        values: The predicted value of each row's observation [B].
        bootstrap: The value of the observation after each segment [K], 0 for terminated ones.
        starts: The first row of each segment [K].
        ends: One past the last row of each segment [K].
        gamma: The discount factor.
        lambda_: From 0 (one-step) to 1 (all the way to the segment's end).

    Returns:
        (advantages, value_targets), float32 [B] both; the targets are advantages + values.
    """
    starts, ends, rewards, bootstrap = _segments(starts, ends, rewards, bootstrap)
    values = _vector("values", values, len(rewards))
    next_values = np.empty_like(values)
    next_values[:-1] = values[1:]
    next_values[ends - 1] = bootstrap
    coef = np.full(values.shape, gamma * lambda_)
    coef[ends - 1] = 0.0
    advantages = reverse_discount(rewards + gamma * next_values - values, coef)
    return advantages.astype(np.float32), (advantages + values).astype(np.float32)


def discounted_returns(
    rewards: np.ndarray, bootstrap: np.ndarray, starts: np.ndarray, ends: np.ndarray, gamma: float
) -> np.ndarray:
    """The discounted rewards from each row to the end of its segment, plus the discounted bootstrap value.

    Args:
        rewards: [B].
        bootstrap: The value of the observation after each segment [K], 0 for terminated ones.
        starts: The first row of each segment [K].
        ends: One past the last row of each segment [K].
        gamma: The discount factor.

    Returns:
        The returns, float32 [B].
    """
    starts, ends, rewards, bootstrap = _segments(starts, ends, rewards, bootstrap)
    rewards = rewards.copy()
    rewards[ends - 1] += gamma * bootstrap
    coef = np.full(rewards.shape, gamma, np.float64)
    coef[ends - 1] = 0.0
    return reverse_discount(rewards, coef).astype(np.float32)


def n_step(
    rewards: np.ndarray, terminateds: np.ndarray, starts: np.ndarray, ends: np.ndarray, gamma: float, n: int
) -> NStep:
    """Folds the rewards of up to n steps into each row, without leaving its segment.

    The target of a row is then `rewards + discounts * ~terminateds * value(new_obs[reached])`. Rows with fewer than n
    steps left keep the power of gamma that belongs to the steps they have.

    Args:
        rewards: [B].
        terminateds: [B].
        starts: The first row of each segment [K].
        ends: One past the last row of each segment [K].
        gamma: The discount factor.
        n: How many steps at most, from 1.
    """
    if n < 1:
        raise ConfigError(f"n_step={n}: expected how many steps a target spans, at least 1.")
    terminateds = _vector("terminateds", terminateds, len(rewards), np.bool_)
    rows = np.arange(len(rewards))
    if n == 1:  # nothing to fold: every row as it is
        discounts = np.full(len(rows), gamma, np.float32)
        return NStep(_vector(c.REWARDS, rewards, len(rows), np.float32), rows, terminateds, discounts)
    starts, ends, rewards, _ = _segments(starts, ends, rewards, np.zeros(len(ends)))
    reached = np.minimum(rows + (n - 1), np.repeat(ends - 1, ends - starts))
    # Segments may all be shorter than n.
    longest = int(np.max(reached - rows, initial=-1)) + 1
    total = np.zeros(len(rewards))
    for i in range(longest):
        inside = rows + i <= reached
        total[inside] += gamma**i * rewards[rows[inside] + i]
    discounts = np.float64(gamma) ** (reached - rows + 1)
    return NStep(total.astype(np.float32), reached, terminateds[reached], discounts.astype(np.float32))


def compute_advantages(
    rollout: SampleBatch | Fragment,
    last_r: float | np.ndarray,
    gamma: float = 0.9,
    lambda_: float = 1.0,
    use_gae: bool = True,
    use_critic: bool = True,
) -> SampleBatch:
    """Adds `advantages` and `value_targets` to a batch that is one segment, or to a fragment's batch.

    Args:
        rollout: The rows of one uninterrupted stretch of one episode in time order, or a fragment.
        last_r: The value of the observation after the last row, 0 if the episode was terminated there; for a
            fragment one for each segment [K].
        gamma: The discount factor.
        lambda_: GAE's lambda.
        use_gae: Generalized advantage estimation; otherwise discounted returns.
        use_critic: Subtract the predicted values from the returns. GAE can't do without.

    Returns:
        The batch that was passed, with the two columns.
    """
    if isinstance(rollout, Fragment):
        batch, starts, ends = rollout.batch, rollout.starts, rollout.ends
    else:
        batch, rows = rollout, rollout.count
        starts, ends = (np.array([0]), np.array([rows])) if rows else (np.zeros(0, int), np.zeros(0, int))
    bootstrap = np.broadcast_to(np.asarray(last_r, np.float64), starts.shape)
    return _add_advantages(batch, bootstrap, starts, ends, gamma, lambda_, use_gae, use_critic)


def postprocess_fragment(
    fragment: Fragment, gamma: float, lambda_: float, use_gae: bool = True, use_critic: bool = True
) -> SampleBatch:
    """Adds `advantages` and `value_targets` to all segments of a fragment at once.

    Terminated segments are bootstrapped with 0, whatever `fragment.bootstrap` holds for them. Without GAE the value
    targets are the discounted returns, and the advantages the returns less the predicted values (the returns
    themselves without a critic).

    Args:
        fragment: The rows, with `vf_preds` if there is a critic, and `bootstrap`, which may be None only if every
            segment is terminated or nothing predicts values (`use_critic=False`: cut segments then end with 0).
        gamma: The discount factor.
        lambda_: GAE's lambda.
        use_gae: Generalized advantage estimation; otherwise discounted returns.
        use_critic: Subtract the predicted values from the returns. GAE can't do without.

    Returns:
        `fragment.batch`, with the two columns.
    """
    terminated = fragment.terminated
    bootstrap = fragment.bootstrap
    if bootstrap is None:
        if use_critic and not terminated.all():
            k = int(np.argmin(terminated))
            raise BatchError(
                f"Segment {k} (rows {fragment.starts[k]} to {fragment.ends[k] - 1}) isn't terminated, and the fragment "
                "has no bootstrap values: set fragment.bootstrap to the values of fragment.last_obs first."
            )
        bootstrap = np.zeros(len(terminated), np.float32)
    bootstrap = np.where(terminated, 0.0, _vector("bootstrap", bootstrap, len(terminated)))
    return _add_advantages(
        fragment.batch, bootstrap, fragment.starts, fragment.ends, gamma, lambda_, use_gae, use_critic
    )


def _add_advantages(
    batch: SampleBatch,
    bootstrap: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    gamma: float,
    lambda_: float,
    use_gae: bool,
    use_critic: bool,
) -> SampleBatch:
    if use_gae and not use_critic:
        raise ConfigError("use_gae=True needs use_critic=True: GAE is made of predicted values. Set use_gae=False too.")
    rewards = batch[c.REWARDS]
    if use_gae:
        advantages, targets = gae(rewards, batch[c.VF_PREDS], bootstrap, starts, ends, gamma, lambda_)
    else:
        targets = discounted_returns(rewards, bootstrap, starts, ends, gamma)
        advantages = targets.copy()
        if use_critic:
            advantages -= _vector(c.VF_PREDS, batch[c.VF_PREDS], len(targets), np.float32)
    batch[c.ADVANTAGES] = advantages
    batch[c.VALUE_TARGETS] = targets
    return batch


def _segments(
    starts: np.ndarray, ends: np.ndarray, rewards: np.ndarray, bootstrap: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    starts, ends = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
    rewards = np.asarray(rewards, np.float64)
    check_segments(starts, ends, len(_vector(c.REWARDS, rewards, rewards.size)))
    return starts, ends, rewards, _vector("bootstrap", bootstrap, len(starts))


def _vector(name: str, x: Any, length: int, dtype: Any = np.float64) -> np.ndarray:
    """Returns x as a vector of this length: a [B, 1] that met a [B] would silently become a [B, B]."""
    x = np.asarray(x, dtype)
    if x.shape != (length,):
        raise BatchError(f"{name} has shape {list(x.shape)}: expected [{length}].")
    return x
