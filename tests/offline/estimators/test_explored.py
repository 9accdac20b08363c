"""Logs of policies that explore: recorded likelihoods are those that estimators need, to the last digit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import tabular
from learners import OBS, TORQUE, build
from modes import MODE_PARAMS, mode_params
from scipy.stats import norm
from tabular import GAMMA, log

from polylib.algorithms.dqn.config import DQNConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.errors import BatchError
from polylib.offline.estimators import (
    DirectMethod,
    DoublyRobust,
    ImportanceSampling,
    PerDecisionImportanceSampling,
    TabularQ,
    WeightedImportanceSampling,
    WeightedPerDecisionImportanceSampling,
)
from polylib.policy import numpy_ops
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec
from polylib.policy.sample_batch import SampleBatch

TORCH = mode_params([("torch", False)])
ONES = TabularQ(np.ones((2, 2)))


def table_dqn(mode, table, **exploration):
    """A DQN policy whose network is a table `[S, A]`."""
    config = DQNConfig().training(hiddens=[], dueling=False, model={"fcnet_hiddens": []})
    config.exploration(exploration_config=exploration)
    policy = make_policy(PolicySpec(tabular.STATES, tabular.ACTIONS, DQNObjective, config.to_dict(), seed=0), *mode)
    weights = {key: np.zeros_like(w) for key, w in policy.get_weights().items()}
    kernel = next(key for key, w in weights.items() if w.shape == (2, 2) and not key.startswith("target"))
    policy.set_weights({**weights, kernel: np.asarray(table, np.float32)})
    return policy


def recorded(policy):
    """Likelihoods by state and action `[S, A]` as acting records them, from a thousand steps in each state."""
    states = np.repeat([0, 1], 1000)
    out = policy.compute_actions(states, explore=True)
    found = np.full((2, 2), np.nan)
    for state in (0, 1):
        for action in (0, 1):
            said = out.extras["action_logp"][(states == state) & (out.actions == action)]
            assert len(said) > 20 and np.ptp(said) == 0, "it happens, and each time it is as likely"
            found[state, action] = np.exp(said[0])
    return found


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_epsilon_greedy_logs_by_hand(framework, traced):
    """Both policies are tables of Q values in the decision process of tests/tabular.py.

    The behaviour takes action 0 in both states, with epsilon 0.2: 0.9 and 0.1. In its own proportions 100 episodes are
    90 A, 10 * 0.9 = 9 B and 1 C. The target would take action 1 in both; with epsilon 0.1 that is 0.05 and 0.95:

        V(1) = 0.05 * -2 + 0.95 * 4 = 3.7
        V(0) = 0.05 * 2 + 0.95 * (1 + 0.5 * 3.7) = 0.1 + 0.95 * 2.85 = 2.8075

    which every estimator finds, however wrong the model of the doubly robust one is. The weights are

        w_A = 0.05 / 0.9 = 1 / 18      w_B = 9.5 * 1 / 18 = 9.5 / 18      w_C = 9.5 * 9.5 = 90.25

    and their sum is 90 / 18 + 9 * 9.5 / 18 + 90.25 = 100.
    """
    mode = framework, traced
    behavior = recorded(table_dqn(mode, [[1, 0], [2, 1]], initial_epsilon=0.2, final_epsilon=0.2))
    np.testing.assert_allclose(behavior, [[0.9, 0.1], [0.9, 0.1]], rtol=1e-6)
    batch = log("A" * 90 + "B" * 9 + "C", behavior)
    target = table_dqn(mode, [[0, 3], [0, 1]], initial_epsilon=0.7)  # its own epsilon is nobody's concern
    for estimator, settings in [
        (ImportanceSampling, {}),
        (WeightedImportanceSampling, {}),
        (PerDecisionImportanceSampling, {}),
        (WeightedPerDecisionImportanceSampling, {}),
        (DoublyRobust, {"q_model": ONES}),
        (DoublyRobust, {"q_model": ONES, "normalize_weights": True}),
    ]:
        found = estimator(target, GAMMA, 0.1, resamples=0, **settings).estimate(batch)
        assert found["v_target"] == pytest.approx(2.8075, rel=1e-5), estimator
        # 0.9 * 2 + 0.09 * 0 + 0.01 * 3
        assert found["v_behavior"] == pytest.approx(1.83)
        weights = np.array([1 / 18] * 90 + [9.5 / 18] * 9 + [90.25])
        assert found["ess"] == pytest.approx(100**2 / (weights**2).sum(), rel=1e-4)
    # Without an epsilon the target never takes action 0: C alone counts, with the weight 1 / 0.01.
    found = ImportanceSampling(target, GAMMA, resamples=0).estimate(batch)
    assert found["v_target"] == pytest.approx(100 * 3 / 100, rel=1e-5)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_soft_q_logs_and_policies_by_hand(framework, traced):
    """Values over a temperature of 2: softmax [1, 3] / 4 in state 0, a coin in state 1."""
    table = [[0, 2 * np.log(3)], [1, 1]]
    policy = table_dqn((framework, traced), table, type="SoftQ", temperature=2.0)
    behavior = recorded(policy)
    np.testing.assert_allclose(behavior, [[0.25, 0.75], [0.5, 0.5]], rtol=1e-6)
    batch = log("ABBC", behavior)
    found = ImportanceSampling(policy, GAMMA, resamples=0).estimate(batch)
    assert found["v_target"] == pytest.approx(found["v_behavior"], rel=1e-5) and found["ess"] == pytest.approx(4)
    # A coin in its place: 0.5 / 0.25 = 2 and 0.5 / 0.75. (2 * 2 + 2 / 3 * (0 + 0 + 3)) / 4
    coin = tabular.TablePolicy(np.full((2, 2), 0.5))
    assert ImportanceSampling(coin, GAMMA, resamples=0).estimate(batch)["v_target"] == pytest.approx(1.5, rel=1e-5)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
@pytest.mark.parametrize("exploration", [{"type": "ParameterNoise"}, {"type": "Random"}, {"type": "EpsilonGreedy"}])
def test_a_policy_of_values_is_judged_greedily_whatever_explores(exploration, framework, traced):
    """Only C is possible: 1 / (0.5 * 0.5) * 3 of four."""
    policy = table_dqn((framework, traced), [[0, 3], [0, 1]], **exploration)
    found = ImportanceSampling(policy, GAMMA, resamples=0).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx(3.0)


def td3_log(policy, rows=400):
    """A bandit's: the reward is the first action."""
    obs = np.random.default_rng(0).uniform(-1, 1, (rows, 3)).astype(np.float32)
    out = policy.compute_actions(obs, explore=True)
    names = ("action_logp", "action_raw")
    columns = {"obs": obs, "actions": out.actions, **{name: out.extras[name] for name in names}}
    rewards, ends = out.actions[:, 0].astype(np.float64), np.ones(rows, bool)
    return SampleBatch({**columns, "rewards": rewards, "terminateds": ends}), obs


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_noisy_box_actions_are_compared_at_what_was_drawn(framework, traced):
    """TD3's noise has the deviations 0.5 * (2, 0.5); ratios are those of two densities at the sum that was clipped."""
    noise = {"type": "GaussianNoise", "random_timesteps": 0, "stddev": 0.5}
    policy = build((framework, traced), "TD3", OBS, TORQUE, exploration_config=noise)
    batch, obs = td3_log(policy)
    best = policy.compute_actions(obs, explore=False).actions
    drawn = [0.0, 0.5] + np.array([2.0, 0.5]) * batch["action_raw"]
    said = norm.logpdf(drawn, best, [1.0, 0.25]).sum(1)
    np.testing.assert_allclose(batch["action_logp"], said, rtol=1e-4, atol=1e-4)
    clipped = (np.abs(batch["action_raw"]) > 1).any(1)
    assert 10 < clipped.sum() < 200
    target = build((framework, traced), "PPO", OBS, TORQUE)
    inputs = target.compute_actions(obs, explore=False).extras["action_dist_inputs"]
    ratios = np.exp(target.objective.dist.logp(numpy_ops, inputs, None, batch["action_raw"]) - said)
    found = ImportanceSampling(target, 1.0, resamples=0).estimate(batch, split_batch_by_episode=False)
    assert found["v_target"] == pytest.approx(float((ratios * batch["rewards"]).mean()), rel=1e-3)
    # A squashed policy never draws what lies outside of the bounds.
    squashed = build((framework, traced), "SAC", OBS, TORQUE)
    estimator = ImportanceSampling(squashed, 1.0, resamples=0)
    logp = squashed.compute_log_likelihoods(batch["actions"], obs)
    ratios = np.where(clipped, 0.0, np.exp(logp - said))
    found = estimator.estimate(batch, split_batch_by_episode=False)
    assert found["v_target"] == pytest.approx(float((ratios * batch["rewards"]).mean()), rel=1e-3)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_sacs_own_logs_are_compared_at_what_was_drawn(framework, traced):
    """Uniform first steps and samples, in its own files: against itself a policy's weights are 1."""
    policy = build((framework, traced), "SAC", OBS, TORQUE)
    batch, _ = td3_log(policy)
    assert np.abs(batch["action_raw"]).max() > 1, "before tanh"
    found = WeightedImportanceSampling(policy, 1.0, resamples=0).estimate(batch, split_batch_by_episode=False)
    assert found["ess"] == pytest.approx(400, rel=1e-4)
    first = build((framework, traced), "SAC", OBS, TORQUE, exploration_config={"random_timesteps": 10})
    uniform, obs = td3_log(first)
    np.testing.assert_allclose(uniform["action_logp"], -np.log(4), rtol=1e-6)
    ratios = 4 * np.exp(policy.compute_log_likelihoods(uniform["actions"], obs).astype(float))
    found = ImportanceSampling(policy, 1.0, resamples=0).estimate(uniform, split_batch_by_episode=False)
    assert found["v_target"] == pytest.approx(float((ratios * uniform["rewards"]).mean()), rel=1e-2, abs=1e-3)


class Seven:
    def q_values(self, obs, actions):
        return np.full(len(obs), 7.0)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_unknown_likelihoods_are_one_clear_line(framework, traced):
    """Noisy layers: NaN is what they record, which estimators name; the direct method doesn't need them."""
    space = gym.spaces.Discrete(2)
    quiet = {"initial_epsilon": 0.0, "final_epsilon": 0.0}
    policy = build((framework, traced), "DQN", OBS, space, noisy=True, exploration_config=quiet)
    obs = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    out = policy.compute_actions(obs, explore=True)
    columns = {"obs": obs, "actions": out.actions, "action_logp": out.extras["action_logp"], "new_obs": obs}
    batch = SampleBatch({**columns, "rewards": np.ones(6, np.float32), "terminateds": np.ones(6, bool)})
    for estimator in (ImportanceSampling, DoublyRobust):
        with pytest.raises(BatchError, match=r"'action_logp': row 0 holds nan, one of 6 .*noisy=True.*'dm'") as caught:
            estimator(policy, 1.0).estimate(batch, split_batch_by_episode=False)
        assert "\n" not in str(caught.value)
    direct = DirectMethod(policy, 1.0, q_model=Seven())
    assert direct.estimate(batch, split_batch_by_episode=False)["v_target"] == pytest.approx(7.0)
