"""Every estimator's number, worked out by hand: tests/tabular.py has the decision process and its values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tabular
from tabular import GAMMA, TablePolicy, log

from polylib.offline.estimators import (
    DirectMethod,
    DoublyRobust,
    ImportanceSampling,
    PerDecisionImportanceSampling,
    TabularQ,
    WeightedImportanceSampling,
    WeightedPerDecisionImportanceSampling,
)
from polylib.offline.estimators.bootstrap import Estimate, intervals

RIGHT = TabularQ(tabular.Q)
ONES = TabularQ(np.ones((2, 2)))

# Of the log A, B, B, C. Where a sum has one term for each episode they stand in that order.
BY_HAND = [
    # (0.5 * 2 + 2.25 * 0 + 2.25 * 0 + 0.75 * 3) / 4
    pytest.param(ImportanceSampling, {}, 0.8125, id="is"),
    # the same sum over 0.5 + 2.25 + 2.25 + 0.75 = 5.75
    pytest.param(WeightedImportanceSampling, {}, 3.25 / 5.75, id="wis"),
    # A: 0.5 * 2 = 1.  B: 1.5 * 1 + 2.25 * 0.5 * -2 = -0.75.  C: 1.5 * 1 + 0.75 * 0.5 * 4 = 3.  (1 - 1.5 + 3) / 4
    pytest.param(PerDecisionImportanceSampling, {}, 0.625, id="pdis"),
    # step 0: (0.5 * 2 + 3 * 1.5 * 1) / (0.5 + 3 * 1.5) = 1.1.  Step 1, where A, which is over, keeps its weight:
    # 0.5 * (2 * 2.25 * -2 + 0.75 * 4) / 5.75 = -3 / 5.75
    pytest.param(WeightedPerDecisionImportanceSampling, {}, 1.1 - 3 / 5.75, id="wpdis"),
    pytest.param(DirectMethod, {"q_model": RIGHT}, 1.0625, id="dm"),
    pytest.param(DirectMethod, {"q_model": ONES}, 1.0, id="dm-wrong"),
    # nothing is left to correct
    pytest.param(DoublyRobust, {"q_model": RIGHT}, 1.0625, id="dr"),
    # A: 1 + 0.5 * (2 - 1) = 1.5.  Step 0 of B and C: 1.5 * (1 + 0.5 * 1 - 1) = 0.75.
    # B: 1 + 0.75 + 2.25 * 0.5 * (-2 - 1) = -1.625.  C: 1 + 0.75 + 0.75 * 0.5 * (4 - 1) = 2.875.
    # (1.5 - 3.25 + 2.875) / 4
    pytest.param(DoublyRobust, {"q_model": ONES}, 0.28125, id="dr-wrong"),
    # with Q = 0 it is PDIS
    pytest.param(DoublyRobust, {"q_model": TabularQ(np.zeros((2, 2)))}, 0.625, id="dr-zero"),
    # 1 + (0.5 * 1 + 3 * 1.5 * 0.5) / 5 + 0.5 * (2 * 2.25 * -3 + 0.75 * 3) / 5.75 = 1 + 0.55 - 5.625 / 5.75
    pytest.param(DoublyRobust, {"q_model": ONES, "normalize_weights": True}, 1.55 - 5.625 / 5.75, id="wdr-wrong"),
    pytest.param(DoublyRobust, {"q_model": RIGHT, "normalize_weights": True}, 1.0625, id="wdr"),
]


@pytest.mark.parametrize(("estimator", "settings", "expected"), BY_HAND)
def test_values(estimator, settings, expected):
    found = estimator(TablePolicy(), GAMMA, **settings).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx(expected, abs=1e-6)
    # Returns 2, 0, 0, 3.
    assert found["v_behavior"] == pytest.approx(1.25)
    assert found["v_behavior_std"] == pytest.approx(math.sqrt(13 / 4 - 1.25**2))
    assert found["v_delta"] == pytest.approx(expected - 1.25, abs=1e-6)
    assert found["v_gain"] == pytest.approx(expected / 1.25, abs=1e-6)
    assert found["episodes"] == 4 and found["episodes_left_out"] == 0
    assert found["ci_low"] <= found["v_target"] <= found["ci_high"]


def test_the_standard_deviation_is_that_of_what_episodes_say():
    # 1, 0, 0 and 2.25
    found = ImportanceSampling(TablePolicy(), GAMMA).estimate(log("ABBC"))
    assert found["v_target_std"] == pytest.approx(math.sqrt((1 + 2.25**2) / 4 - 0.8125**2), abs=1e-6)


def test_effective_sample_size():
    # 5.75^2 / (0.5^2 + 2 * 2.25^2 + 0.75^2) = 33.0625 / 10.9375
    for estimator in (ImportanceSampling, WeightedImportanceSampling, WeightedPerDecisionImportanceSampling):
        found = estimator(TablePolicy(), GAMMA).estimate(log("ABBC"))
        assert found["ess"] == pytest.approx(33.0625 / 10.9375, rel=1e-5)


def test_a_log_in_the_behaviors_own_proportions_gives_the_targets_value():
    """A half, B and C a quarter each: all but the model's own mistakes average out."""
    for estimator, settings in [
        (ImportanceSampling, {}),
        (WeightedImportanceSampling, {}),
        (PerDecisionImportanceSampling, {}),
        (WeightedPerDecisionImportanceSampling, {}),
        (DoublyRobust, {"q_model": ONES}),
        (DoublyRobust, {"q_model": ONES, "normalize_weights": True}),
    ]:
        found = estimator(TablePolicy(), GAMMA, **settings).estimate(log("AABC"))
        assert found["v_target"] == pytest.approx(1.0625, abs=1e-6), estimator


def test_epsilon_greedy():
    # 0.2 of a coin: 0.8 * 0.75 + 0.1 = 0.7, and 0.3. w_A = 0.6, w_B = 1.4 * 1.4 = 1.96, w_C = 1.4 * 0.6 = 0.84
    found = ImportanceSampling(TablePolicy(), GAMMA, epsilon_greedy=0.2).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx((0.6 * 2 + 0.84 * 3) / 4, abs=1e-6)
    # V(1) = 0.7 * -2 + 0.3 * 4 = -0.2; V(0) = 0.3 * 2 + 0.7 * 0.75, with the given Q
    found = DirectMethod(TablePolicy(), GAMMA, 0.2, q_model=RIGHT).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx(1.125, abs=1e-6)


def test_greedy():
    """The likelier actions are 1 in state 0 and 0 in state 1: only B is possible, with the weight 1 / 0.25."""
    found = ImportanceSampling(TablePolicy(), 1.0, greedy=True).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx((2 * 4 * (1 - 2)) / 4)
    found = WeightedImportanceSampling(TablePolicy(), 1.0, greedy=True).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx(-1.0)
    # B's step 1 is taken for certain: 0.9 * 1 + 0.1 / 2 = 0.95, so w_B = (0.95 / 0.5)^2
    found = WeightedImportanceSampling(TablePolicy(), 1.0, greedy=True, epsilon_greedy=0.1).estimate(log("AB"))
    w_a, w_b = 0.05 / 0.5, (0.95 / 0.5) ** 2
    assert found["v_target"] == pytest.approx((w_a * 2 + w_b * -1) / (w_a + w_b), abs=1e-6)


def test_rows_as_episodes():
    """A bandit's log: ratios 0.5, 1.5, 1.5, 1.5, 1.5, 1.5, 0.5 and rewards 2, 1, -2, 1, -2, 1, 4."""
    total = 0.5 * 2 + 1.5 * (1 - 2 + 1 - 2 + 1) + 0.5 * 4
    found = ImportanceSampling(TablePolicy(), GAMMA).estimate(log("ABBC"), split_batch_by_episode=False)
    assert found["v_behavior"] == pytest.approx(5 / 7)
    assert found["v_target"] == pytest.approx(total / 7, abs=1e-6)
    found = WeightedImportanceSampling(TablePolicy(), GAMMA).estimate(log("ABBC"), split_batch_by_episode=False)
    assert found["v_target"] == pytest.approx(total / 8.5, abs=1e-6)
    # values are V(0) four times and V(1) three times
    found = DirectMethod(TablePolicy(), GAMMA, q_model=RIGHT).estimate(log("ABBC"), split_batch_by_episode=False)
    assert found["v_target"] == pytest.approx((4 * 1.0625 + 3 * -0.5) / 7)


def test_probabilities_in_place_of_their_logs():
    batch = log("ABBC", action_logp=None, action_prob=np.full(7, 0.5))
    assert ImportanceSampling(TablePolicy(), GAMMA).estimate(batch)["v_target"] == pytest.approx(0.8125, abs=1e-6)


def test_rows_in_any_order():
    batch = log("ABBC").take(np.array([6, 2, 0, 4, 1, 5, 3]))
    found = PerDecisionImportanceSampling(TablePolicy(), GAMMA).estimate(batch)
    assert found["v_target"] == pytest.approx(0.625, abs=1e-6)


def test_an_episode_that_was_cut():
    """B without its second step: left out, counted as far as it goes, or refused."""
    batch = log("ACB")[:4]
    assert not batch["terminateds"][3]
    found = ImportanceSampling(TablePolicy(), GAMMA).estimate(batch)
    assert (found["episodes"], found["episodes_left_out"]) == (2, 1)
    assert found["v_target"] == pytest.approx((0.5 * 2 + 0.75 * 3) / 2, abs=1e-6)
    found = ImportanceSampling(TablePolicy(), GAMMA, unfinished="keep").estimate(batch)
    assert (found["episodes"], found["episodes_left_out"]) == (3, 0)
    assert found["v_target"] == pytest.approx((0.5 * 2 + 0.75 * 3 + 1.5 * 1) / 3, abs=1e-6)
    with pytest.raises(ValueError, match=r"1 of 3 episodes are not whole .*unfinished='drop'"):
        ImportanceSampling(TablePolicy(), GAMMA, unfinished="error").estimate(batch)
    # DR goes on with the value of what came next: nothing is left to correct.
    found = DoublyRobust(TablePolicy(), GAMMA, q_model=RIGHT, unfinished="keep").estimate(batch)
    assert found["v_target"] == pytest.approx(1.0625, abs=1e-6) and found["v_target_std"] < 1e-6


def test_a_truncated_episode_ends_there():
    """C is truncated after its first step: its return is 1, and DR estimates what the others do."""
    batch = log("AC", truncateds=np.array([False, True, False]))[:2]
    found = ImportanceSampling(TablePolicy(), GAMMA).estimate(batch)
    assert found["episodes"] == 2 and found["v_target"] == pytest.approx((0.5 * 2 + 1.5 * 1) / 2, abs=1e-6)
    # A: 1.0625.  C: 1.0625 + 1.5 * (1 - 0.75)
    found = DoublyRobust(TablePolicy(), GAMMA, q_model=RIGHT).estimate(batch)
    assert found["v_target"] == pytest.approx(1.0625 + 1.5 * 0.25 / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("confidence", "interval", "above"), [(0.4, (0.5, 0.5), (0.0, 0.0)), (0.6, (0.0, 1.0), (-0.25, 0.25))]
)
def test_the_interval_leaves_out_as_much_on_either_side(confidence, interval, above):
    """Two episodes that say 0 and 1: of the pairs drawn a quarter have the mean 0, a half 1/2, a quarter 1.

    From 30 % to 70 % of them that is 1/2 to 1/2, from 20 % to 80 % it is 0 to 1. The returns 0.25 and 0.75 of the same
    pairs have the means 0.25, 1/2 and 0.75.
    """
    estimate = Estimate(np.array([0.0, 1.0]), 2.0)
    found, delta = intervals(estimate, np.array([0.25, 0.75]), 2000, confidence, 0)
    assert found == interval and delta == above
