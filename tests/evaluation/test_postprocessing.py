"""Returns and advantages against hand-made answers and against slow, independent definitions."""

import numpy as np
import pytest

from polylib.errors import BatchError, ConfigError
from polylib.evaluation.postprocessing import (
    compute_advantages,
    discount_cumsum,
    discounted_returns,
    gae,
    n_step,
    postprocess_fragment,
    reverse_discount,
)
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch


def random_segments(seed):
    """Rows of several segments, some of one row, about a third of them terminated."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 9, 7)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    rows = int(ends[-1])
    terminated = rng.random(7) < 0.35
    terminateds = np.zeros(rows, bool)
    terminateds[ends - 1] = terminated
    bootstrap = np.where(terminated, 0, rng.normal(size=7))
    return rng.normal(size=rows), rng.normal(size=rows), terminateds, bootstrap, starts, ends


def slow_gae(rewards, values, bootstrap, starts, ends, gamma, lam):
    """The definition, as a double sum: A[t] = sum over i of (gamma * lambda)**i * delta[t + i]."""
    out = np.zeros(len(rewards))
    for k, (a, b) in enumerate(zip(starts, ends, strict=True)):
        v = [*values[a:b], bootstrap[k]]
        for t in range(b - a):
            for i in range(b - a - t):
                delta = rewards[a + t + i] + gamma * v[t + i + 1] - v[t + i]
                out[a + t] += (gamma * lam) ** i * delta
    return out


def two_steps(terminated, bootstrap):
    batch = SampleBatch(
        rewards=np.ones(2, np.float32),
        vf_preds=np.zeros(2, np.float32),
        terminateds=[False, terminated],
        truncateds=[False, False],
    )
    return Fragment(batch, [0], [2], np.zeros(1), bootstrap)


# gamma 0.9, lambda 1, rewards [1, 1], values 0, the value of the true last observation 10.
# Terminated: the second target is 1, the first 1 + 0.9 * 1 = 1.9.
# Truncated or cut: the second is 1 + 0.9 * 10 = 10, the first 1 + 0.9 * 10 = 10.
@pytest.mark.parametrize("use_gae", [True, False])
@pytest.mark.parametrize(("terminated", "targets"), [(True, [1.9, 1.0]), (False, [10.0, 10.0])])
def test_terminated_ends_are_worth_nothing_and_truncated_ones_their_value(use_gae, terminated, targets):
    # The bootstrap of 10 is there in both: it may not count where the episode was terminated.
    out = postprocess_fragment(two_steps(terminated, [10.0]), 0.9, 1.0, use_gae=use_gae)
    np.testing.assert_allclose(out["value_targets"], targets, rtol=1e-6)
    np.testing.assert_allclose(out["advantages"], targets, rtol=1e-6)
    assert out["value_targets"].dtype == out["advantages"].dtype == np.float32


def test_several_segments_at_once():
    batch = SampleBatch(rewards=np.ones(4), vf_preds=np.zeros(4), terminateds=[False, True, False, False])
    out = postprocess_fragment(Fragment(batch, [0, 2], [2, 4], np.zeros(2), [10.0, 10.0]), 0.9, 1.0)
    assert out is batch
    np.testing.assert_allclose(out["value_targets"], [1.9, 1.0, 10.0, 10.0], rtol=1e-6)


# n = 3, gamma 0.5, rewards 1, truncated after the fourth step, the value of every next observation 8.
# Row 0: 1 + 0.5 + 0.25 + 0.125 * 8 = 2.75 (three steps, to row 2).     Row 1: the same, to row 3.
# Row 2: 1 + 0.5 + 0.25 * 8 = 3.5 (two steps are left).                 Row 3: 1 + 0.5 * 8 = 5 (one step).
def test_n_step_rows_near_a_truncated_end_keep_their_own_discount():
    out = n_step(np.ones(4), np.zeros(4, bool), [0], [4], gamma=0.5, n=3)
    np.testing.assert_allclose(out.rewards + out.discounts * ~out.terminateds * 8, [2.75, 2.75, 3.5, 5.0])
    assert out.reached.tolist() == [2, 3, 3, 3]
    assert out.discounts.tolist() == [0.125, 0.125, 0.25, 0.5]
    # One discount of gamma**n for all rows is the fault to watch for: it gives other targets.
    assert not np.allclose(out.rewards + 0.5**3 * 8, [2.75, 2.75, 3.5, 5.0])


def test_n_step_terminated():
    out = n_step(np.ones(4), np.array([False, False, False, True]), [0], [4], gamma=0.5, n=3)
    assert out.terminateds.tolist() == [False, True, True, True]
    np.testing.assert_allclose(out.rewards + out.discounts * ~out.terminateds * 8, [2.75, 1.75, 1.5, 1.0])


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("n", [1, 2, 5, 100])
def test_n_step_equals_its_definition(seed, n):
    rewards, _, terminateds, _, starts, ends = random_segments(seed)
    out = n_step(rewards, terminateds, starts, ends, 0.9, n)
    for a, b in zip(starts, ends, strict=True):
        for t in range(a, b):
            k = min(n, b - t)
            assert out.reached[t] == t + k - 1
            assert out.terminateds[t] == terminateds[t + k - 1]
            assert out.discounts[t] == pytest.approx(0.9**k, rel=1e-6)
            assert out.rewards[t] == pytest.approx(sum(0.9**i * rewards[t + i] for i in range(k)), rel=1e-4, abs=1e-6)
    assert out.rewards.dtype == out.discounts.dtype == np.float32 and out.reached.dtype == np.int64


def test_n_step_of_one_changes_nothing():
    rewards, _, terminateds, _, starts, ends = random_segments(0)
    out = n_step(rewards, terminateds, starts, ends, 0.9, 1)
    np.testing.assert_array_equal(out.rewards, rewards.astype(np.float32))
    np.testing.assert_array_equal(out.reached, np.arange(len(rewards)))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("gamma", "lam"), [(0.99, 0.95), (0.9, 1.0), (0.9, 0.0), (1.0, 1.0), (0.0, 0.5)])
def test_gae_equals_its_definition(seed, gamma, lam):
    rewards, values, _, bootstrap, starts, ends = random_segments(seed)
    advantages, targets = gae(rewards, values, bootstrap, starts, ends, gamma, lam)
    slow = slow_gae(rewards, values, bootstrap, starts, ends, gamma, lam)
    np.testing.assert_allclose(advantages, slow, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(targets, slow + values, rtol=1e-5, atol=1e-6)


def test_truncation_taken_for_termination_gives_another_answer():
    rewards, values, terminateds, bootstrap, starts, ends = random_segments(0)
    cut = ~terminateds[ends - 1]
    assert cut.any()
    right, _ = gae(rewards, values, bootstrap, starts, ends, 0.99, 0.95)
    wrong, _ = gae(rewards, values, np.zeros_like(bootstrap), starts, ends, 0.99, 0.95)
    assert np.all(np.abs(right - wrong)[ends[cut] - 1] > 1e-3)
    slow = slow_gae(rewards, values, bootstrap, starts, ends, 0.99, 0.95)
    assert not np.allclose(wrong, slow, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_leaks_over_the_end_of_a_segment(seed):
    rewards, values, _, bootstrap, starts, ends = random_segments(seed)
    together, _ = gae(rewards, values, bootstrap, starts, ends, 0.99, 0.95)
    returns = discounted_returns(rewards, bootstrap, starts, ends, 0.99)
    for k, (a, b) in enumerate(zip(starts, ends, strict=True)):
        alone, _ = gae(rewards[a:b], values[a:b], bootstrap[[k]], [0], [b - a], 0.99, 0.95)
        np.testing.assert_array_equal(together[a:b], alone)
        np.testing.assert_array_equal(
            returns[a:b], discounted_returns(rewards[a:b], bootstrap[[k]], [0], [b - a], 0.99)
        )
    # Not even what can't be multiplied away.
    values[starts[1] :] = np.nan
    np.testing.assert_array_equal(
        gae(rewards, values, bootstrap, starts, ends, 0.99, 0.95)[0][: ends[0]], together[: ends[0]]
    )


@pytest.mark.parametrize("seed", range(5))
def test_gae_with_lambda_one_is_returns_less_values(seed):
    rewards, values, _, bootstrap, starts, ends = random_segments(seed)
    advantages, targets = gae(rewards, values, bootstrap, starts, ends, 0.97, 1.0)
    returns = discounted_returns(rewards, bootstrap, starts, ends, 0.97)
    np.testing.assert_allclose(targets, returns, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(advantages, returns - values, rtol=1e-5, atol=1e-6)


def test_reverse_discount():
    # From the end: 4; 3 + 0 * 4 = 3; 2 + 0.5 * 3 = 3.5; 1 + 2 * 3.5 = 8.
    assert reverse_discount([1, 2, 3, 4], [2, 0.5, 0, 9]).tolist() == [8.0, 3.5, 3.0, 4.0]
    assert reverse_discount([], []).tolist() == []
    with pytest.raises(BatchError, match=r"coef has shape \[1\]: expected \[2\]"):
        reverse_discount([1, 2], [1])


def test_discount_cumsum():
    np.testing.assert_allclose(discount_cumsum([1.0, 2.0, 3.0], 0.5), [1 + 1 + 0.75, 2 + 1.5, 3])


def test_compute_advantages_of_one_segment():
    batch = SampleBatch(rewards=[1.0, 1.0], vf_preds=[0.5, 0.25])
    out = compute_advantages(batch, last_r=10.0, gamma=0.9, lambda_=1.0)
    assert out is batch
    np.testing.assert_allclose(out["value_targets"], [10.0, 10.0], rtol=1e-6)
    np.testing.assert_allclose(out["advantages"], [9.5, 9.75], rtol=1e-6)
    out = compute_advantages(batch, last_r=0.0, gamma=0.9, use_gae=False)
    np.testing.assert_allclose(out["advantages"], [1.4, 0.75], rtol=1e-6)
    out = compute_advantages(SampleBatch(rewards=[1.0, 1.0]), 0.0, 0.9, use_gae=False, use_critic=False)
    np.testing.assert_allclose(out["advantages"], [1.9, 1.0], rtol=1e-6)
    np.testing.assert_allclose(out["value_targets"], [1.9, 1.0], rtol=1e-6)


def test_compute_advantages_of_a_fragment():
    batch = SampleBatch(rewards=np.ones(4), vf_preds=np.zeros(4))
    out = compute_advantages(Fragment(batch, [0, 2], [2, 4], np.zeros(2)), np.array([0.0, 10.0]), 0.9, 1.0)
    np.testing.assert_allclose(out["value_targets"], [1.9, 1.0, 10.0, 10.0], rtol=1e-6)


def test_empty():
    batch = SampleBatch(rewards=np.zeros(0), vf_preds=np.zeros(0), terminateds=np.zeros(0, bool))
    assert compute_advantages(batch, 0.0)["advantages"].shape == (0,)
    assert postprocess_fragment(Fragment(batch, [], [], np.zeros(0)), 0.9, 1.0)["advantages"].shape == (0,)
    assert n_step([], [], [], [], 0.9, 3).rewards.shape == (0,)


def test_errors():
    with pytest.raises(ConfigError, match="use_gae=True needs use_critic=True"):
        postprocess_fragment(two_steps(True, [0.0]), 0.9, 1.0, use_gae=True, use_critic=False)
    with pytest.raises(BatchError, match="Segment 0 .* isn't terminated.*fragment.bootstrap"):
        postprocess_fragment(two_steps(False, None), 0.9, 1.0)
    with pytest.raises(BatchError, match="no column 'vf_preds'"):
        compute_advantages(SampleBatch(rewards=[1.0]), 0.0)
    with pytest.raises(ConfigError, match="n_step=0"):
        n_step(np.ones(1), np.zeros(1), [0], [1], 0.9, 0)
    with pytest.raises(BatchError, match="don't cover"):
        gae(np.ones(3), np.ones(3), np.ones(1), [0], [2], 0.9, 1.0)
    with pytest.raises(BatchError, match=r"values has shape \[2, 1\]: expected \[2\]"):
        gae(np.ones(2), np.ones((2, 1)), np.ones(1), [0], [2], 0.9, 1.0)


def test_bootstrap_may_be_missing_where_nothing_needs_it():
    np.testing.assert_allclose(
        postprocess_fragment(two_steps(True, None), 0.9, 1.0)["value_targets"], [1.9, 1.0], rtol=1e-6
    )
    out = postprocess_fragment(two_steps(False, None), 0.9, 1.0, use_gae=False, use_critic=False)
    np.testing.assert_allclose(out["advantages"], [1.9, 1.0], rtol=1e-6)
