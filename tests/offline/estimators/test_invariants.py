"""What holds for any log: unbiasedness, the target that is the behaviour, long episodes, intervals that cover."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
from tabular import TablePolicy, log

from polylib.offline.estimators import (
    DirectMethod,
    DoublyRobust,
    ImportanceSampling,
    PerDecisionImportanceSampling,
    TabularQ,
    WeightedImportanceSampling,
    WeightedPerDecisionImportanceSampling,
)
from polylib.policy.sample_batch import SampleBatch

WEIGHTED = [WeightedImportanceSampling, WeightedPerDecisionImportanceSampling]
PLAIN = [ImportanceSampling, PerDecisionImportanceSampling]
GAMMA = 0.9
# A process with chance: transitions [s, a, s'], rewards [s, a], from state 0, three steps.
MOVES = np.array([[[0.8, 0.2], [0.3, 0.7]], [[0.5, 0.5], [0.1, 0.9]]])
REWARDS = np.array([[1.0, -0.5], [0.3, 2.0]])
BEHAVIOR = np.array([[0.6, 0.4], [0.2, 0.8]])
TARGET = np.array([[0.1, 0.9], [0.7, 0.3]])
STEPS = 3


def value(policy: np.ndarray) -> float:
    """The mean discounted return, by going backwards."""
    v = np.zeros(2)
    for _ in range(STEPS):
        v = (policy * (REWARDS + GAMMA * MOVES @ v)).sum(1)
    return float(v[0])


def trajectory(states, actions, eps_id=0) -> SampleBatch:
    states, actions = np.array(states), np.array(actions)
    return SampleBatch(
        obs=states[:-1],
        new_obs=states[1:],
        actions=actions,
        rewards=REWARDS[states[:-1], actions],
        terminateds=np.arange(STEPS) == STEPS - 1,
        action_logp=np.log(BEHAVIOR[states[:-1], actions]),
        eps_id=np.full(STEPS, eps_id),
        t=np.arange(STEPS),
    )


def enumerated():
    """All trajectories, and how likely the behaviour makes each."""
    for actions in itertools.product((0, 1), repeat=STEPS):
        for later in itertools.product((0, 1), repeat=STEPS):
            states = (0, *later)
            steps = zip(states[:-1], actions, states[1:], strict=True)
            yield trajectory(states, actions), np.prod([BEHAVIOR[s, a] * MOVES[s, a, n] for s, a, n in steps])


@pytest.mark.parametrize("make", [*PLAIN, DoublyRobust], ids=lambda cls: cls.__name__)
def test_unbiased_over_all_trajectories(make):
    settings = {"q_model": TabularQ([[3.0, -1.0], [0.5, 7.0]])} if make is DoublyRobust else {}  # a wrong model
    estimator = make(TablePolicy(TARGET), GAMMA, resamples=0, **settings)
    found = [(p, estimator.estimate(batch)["v_target"]) for batch, p in enumerated()]
    assert sum(p for p, _ in found) == pytest.approx(1.0)
    assert sum(p * v for p, v in found) == pytest.approx(value(TARGET), rel=1e-9)
    # The single numbers are far from it, or nothing would be shown.
    assert np.std([v for _, v in found]) > 1.0


def sampled(episodes: int, seed: int) -> SampleBatch:
    """Rows of many episodes, in order."""
    rng = np.random.default_rng(seed)
    states, actions = np.zeros((episodes, STEPS + 1), np.int64), np.zeros((episodes, STEPS), np.int64)
    for t in range(STEPS):
        actions[:, t] = rng.random(episodes) < BEHAVIOR[states[:, t], 1]
        states[:, t + 1] = rng.random(episodes) < MOVES[states[:, t], actions[:, t], 1]
    obs = states[:, :-1].ravel()
    return SampleBatch(
        obs=obs,
        actions=actions.ravel(),
        rewards=REWARDS[obs, actions.ravel()],
        terminateds=np.tile(np.arange(STEPS) == STEPS - 1, episodes),
        action_logp=np.log(BEHAVIOR[obs, actions.ravel()]),
        eps_id=np.repeat(np.arange(episodes), STEPS),
    )


@pytest.mark.parametrize("make", [*PLAIN, *WEIGHTED], ids=lambda cls: cls.__name__)
def test_the_behavior_itself(make):
    """All weights are 1: the estimate is the mean return of the log, exactly."""
    found = make(TablePolicy(BEHAVIOR), GAMMA).estimate(sampled(50, 0))
    assert found["v_target"] == pytest.approx(found["v_behavior"], rel=1e-12)
    assert found["v_target_std"] == pytest.approx(found["v_behavior_std"], rel=1e-12)
    assert [found["v_delta_ci_low"], found["v_delta_ci_high"]] == pytest.approx([0, 0], abs=1e-12)
    assert found["ess"] == pytest.approx(50)


@pytest.mark.parametrize("make", WEIGHTED, ids=lambda cls: cls.__name__)
def test_weighted_ones_find_the_value_in_a_large_log(make):
    found = make(TablePolicy(TARGET), GAMMA, resamples=100).estimate(sampled(4000, 1))
    assert found["v_target"] == pytest.approx(value(TARGET), abs=0.1)
    assert abs(value(TARGET) - found["v_behavior"]) > 0.3


@pytest.mark.parametrize("normalize", [False, True])
def test_doubly_robust_is_right_if_the_model_is(normalize):
    """Probabilities that are wrong by far do no harm to it: rewards and moves are certain here."""
    batch = log("ABBC")
    batch["action_logp"] = np.log(np.random.default_rng(0).uniform(0.1, 1.0, batch.count))
    model = TabularQ([[2.0, 0.75], [-2.0, 4.0]])
    found = DoublyRobust(TablePolicy(), 0.5, q_model=model, normalize_weights=normalize).estimate(batch)
    assert found["v_target"] == pytest.approx(1.0625, abs=1e-6) and found["v_target_std"] == pytest.approx(0, abs=1e-6)
    assert ImportanceSampling(TablePolicy(), 0.5).estimate(batch)["v_target"] != pytest.approx(1.0625, abs=0.1)


class Halves:
    """Doubles the probability of one action and halves that of the other: a long walk of weights."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def compute_log_likelihoods(self, actions, obs):
        return np.where(actions == 0, np.log(2.0), -np.log(2.0)) + np.log(0.4)


def test_long_episodes():
    """20,000 steps: products of 2 and 1/2 that come to 2^10,000 on the way, and to 2 and 1/4 at the end."""
    steps = 20_000
    up = np.r_[np.zeros(steps // 2), np.ones(steps // 2 - 1), 0]  # 2^(10,000 - 9,999 + 1) = 2^2
    down = np.r_[np.ones(steps // 2), np.zeros(steps // 2 - 1), 1]  # 2^-2
    actions = np.concatenate([up, down]).astype(np.int64)
    last = np.tile(np.arange(steps) == steps - 1, 2)
    batch = SampleBatch(
        obs=np.zeros(2 * steps, np.int64),
        actions=actions,
        rewards=np.where(last, 3.0, 0.0) * np.repeat([1, 2], steps),
        terminateds=last,
        action_logp=np.full(2 * steps, np.log(0.4)),
        eps_id=np.repeat([0, 1], steps),
    )
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for make in (ImportanceSampling, PerDecisionImportanceSampling):
            found = make(Halves(), 1.0).estimate(batch)
            assert found["v_target"] == pytest.approx((4 * 3 + 0.25 * 6) / 2)
        for make in WEIGHTED:
            found = make(Halves(), 1.0).estimate(batch)
            assert found["v_target"] == pytest.approx((4 * 3 + 0.25 * 6) / 4.25)
        assert found["ess"] == pytest.approx(4.25**2 / (16 + 0.0625))


def test_weights_beyond_any_number():
    """e^1386 and e^-1386: normalised sums don't notice, plain ones say that they can't."""
    steps = 2000
    batch = SampleBatch(
        obs=np.zeros(2 * steps, np.int64),
        actions=np.repeat([0, 1], steps),
        rewards=np.repeat([1.0, 5.0], steps) / steps,
        terminateds=np.tile(np.arange(steps) == steps - 1, 2),
        action_logp=np.full(2 * steps, np.log(0.4)),
        eps_id=np.repeat([0, 1], steps),
    )
    assert WeightedImportanceSampling(Halves(), 1.0).estimate(batch)["v_target"] == pytest.approx(1.0)
    found = WeightedPerDecisionImportanceSampling(Halves(), 1.0).estimate(batch)
    # Step t's weights are 4^(t + 1) to 1: the other episode has shares of it at first.
    shares = 1 / (1 + 4.0 ** np.arange(1, 100))
    assert found["v_target"] == pytest.approx(1.0 + 4.0 * shares.sum() / steps)
    assert ImportanceSampling(Halves(), 1.0).estimate(batch)["v_target"] == np.inf


def test_a_log_that_says_nothing(caplog):
    """The target would never have done any of it."""
    never = TablePolicy([[0.0, 1.0], [0.0, 1.0]])
    assert ImportanceSampling(never, 0.5).estimate(log("AA"))["v_target"] == 0.0
    found = WeightedImportanceSampling(never, 0.5).estimate(log("AA"))
    assert np.isnan(found["v_target"]) and np.isnan(found["ci_low"]) and found["ess"] == 0.0
    assert "never have done what was logged" in caplog.text


@pytest.mark.parametrize("make", [ImportanceSampling, WeightedImportanceSampling, DirectMethod])
def test_intervals_cover(make):
    """95 % intervals of 200 logs of 60 episodes hold the true value in 0.95 of the cases, within sampling error."""
    truth = value(BEHAVIOR * 0.8 + TARGET * 0.2)
    policy = TablePolicy(BEHAVIOR * 0.8 + TARGET * 0.2)
    hits = 0
    for seed in range(200):
        batch = sampled(60, seed)
        settings = {}
        if make is DirectMethod:  # a model whose values are right on average, with noise in the state
            batch["obs"] = np.random.default_rng(seed).integers(0, 2, batch.count)
            settings["q_model"] = TabularQ([[truth - 1] * 2, [truth + 1] * 2])
        found = make(policy, GAMMA, resamples=200, seed=seed, **settings).estimate(batch)
        hits += found["ci_low"] <= truth <= found["ci_high"]
    # Three standard errors are 0.046; the percentile bootstrap is a little narrow for 60 skewed numbers.
    assert 0.88 <= hits / 200 <= 0.99


def test_intervals_are_seeded():
    batch = sampled(40, 0)
    one, two, other = (
        PerDecisionImportanceSampling(TablePolicy(TARGET), GAMMA, seed=seed).estimate(batch) for seed in (3, 3, 4)
    )
    assert one == two
    assert one["ci_low"] != other["ci_low"] and one["v_target"] == other["v_target"]


def test_intervals_narrow_with_more_episodes_and_less_confidence():
    few, many = (
        PerDecisionImportanceSampling(TablePolicy(TARGET), GAMMA).estimate(sampled(n, 0)) for n in (50, 5000)
    )
    assert (many["ci_high"] - many["ci_low"]) < 0.3 * (few["ci_high"] - few["ci_low"])
    less = PerDecisionImportanceSampling(TablePolicy(TARGET), GAMMA, confidence=0.5).estimate(sampled(50, 0))
    assert (less["ci_high"] - less["ci_low"]) < 0.6 * (few["ci_high"] - few["ci_low"])


def test_one_episode_has_no_interval():
    found = ImportanceSampling(TablePolicy(), 0.5).estimate(log("C"))
    assert np.isnan(found["ci_low"]) and np.isnan(found["ci_high"])


def test_resampling_a_weighted_estimate_is_estimating_again():
    """Counts of the bootstrap mean what copies of episodes mean."""
    estimator = WeightedPerDecisionImportanceSampling(TablePolicy(), 0.5, resamples=0)
    logged = estimator._logged(log("ABC"), True, estimator.columns)
    again = estimator.estimate_episodes(logged).resampled(np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 0.0]]))
    # Three copies of A, B, C is their own estimate; A, B, B has episodes of its own.
    expected = [estimator.estimate(log(names))["v_target"] for names in ("ABC", "ABB")]
    np.testing.assert_allclose(again, expected, rtol=1e-9)
