"""Messages for people: what was given, what was expected, which column."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import tabular
from tabular import GAMMA, TablePolicy, log

from polylib.errors import BatchError, ConfigError
from polylib.offline.estimators import (
    DirectMethod,
    DoublyRobust,
    Estimate,
    ImportanceSampling,
    LinearQ,
    OffPolicyEstimator,
    PerDecisionImportanceSampling,
    TabularQ,
    WeightedImportanceSampling,
)
from polylib.offline.estimators.registry import estimator_class, parse_methods
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

POLICY = TablePolicy()
RIGHT = TabularQ(tabular.Q)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_logp": None}, r"no column 'action_logp' .*nor 'action_prob', which Importance.* needs; it has obs"),
        ({"rewards": None}, r"no column 'rewards', which ImportanceSampling needs"),
        ({"obs": None}, r"no column 'obs'"),
        ({"actions": None}, r"no column 'actions'"),
        ({"action_logp": np.array([0.5, -1, -1])}, r"log-probability in row 0 is 0.5, above 0"),
        ({"action_logp": np.array([-1, np.nan, -1])}, r"column 'action_logp': row 1 holds nan"),
        ({"action_logp": np.zeros((3, 2))}, r"column 'action_logp' is float64 of shape \[3, 2\], expected one number"),
        ({"action_logp": None, "action_prob": np.array([0.5, 0.0, 1])}, r"'action_prob': row 1 holds 0.0"),
        ({"rewards": np.array([1.0, 2.0, np.inf])}, r"column 'rewards': row 2 holds inf"),
        (
            {"eps_id": None, "terminateds": None, "truncateds": None},
            r"no column 'eps_id', and none of 'terminateds', .*split_batch_by_episode=False",
        ),
    ],
)
def test_columns(change, message):
    with pytest.raises(BatchError, match=message):
        ImportanceSampling(POLICY, GAMMA).estimate(log("AB", **change))


def test_no_rows():
    for batch in (SampleBatch(), log("A")[:0], MultiAgentBatch({}, 0), {}):
        with pytest.raises(BatchError, match="no rows"):
            ImportanceSampling(POLICY, GAMMA).estimate(batch)
    with pytest.raises(BatchError, match="expected a SampleBatch or a MultiAgentBatch, got list"):
        ImportanceSampling(POLICY, GAMMA).estimate([1])


def test_no_whole_episode():
    batch = log("B")[:1]
    with pytest.raises(BatchError, match="1 of 1 episodes are not whole .*so none is left; .*unfinished='keep'"):
        ImportanceSampling(POLICY, GAMMA).estimate(batch)


def test_steps_that_are_missing():
    found = ImportanceSampling(POLICY, GAMMA).estimate(log("ABC").take(np.array([0, 2, 3, 4])))  # B lacks its first
    assert (found["episodes"], found["episodes_left_out"]) == (2, 1)


def test_several_policies():
    batch = MultiAgentBatch({"one": log("A"), "two": log("ABC")}, 4)
    with pytest.raises(BatchError, match=r"several policies, 'one', 'two': .*policy_id="):
        ImportanceSampling(POLICY, GAMMA).estimate(batch)
    with pytest.raises(BatchError, match=r"no rows of policy_id='three'; it has those of 'one', 'two'"):
        ImportanceSampling(POLICY, GAMMA, policy_id="three").estimate(batch)
    assert ImportanceSampling(POLICY, GAMMA, policy_id="two").estimate(batch)["episodes"] == 3
    assert ImportanceSampling(POLICY, GAMMA).estimate(MultiAgentBatch({"one": log("A")}, 1))["episodes"] == 1


def test_several_agents_of_one_policy_share_episodes_ids():
    """Two agents in one episode are two trajectories."""
    both = {name: np.concatenate([log("B")[name], log("C")[name]]) for name in log("B")}
    batch = SampleBatch({**both, "agent_index": np.array([0, 0, 1, 1])})
    assert ImportanceSampling(POLICY, GAMMA).estimate(batch)["v_target"] == pytest.approx((0 + 0.75 * 3) / 2, abs=1e-6)


def test_two_runs_that_count_episodes_alike():
    """eps_id 0 twice, one after the other, as two runs into one folder write it."""
    batch = SampleBatch({name: np.concatenate([log("B")[name], log("C")[name]]) for name in log("B")})
    found = ImportanceSampling(POLICY, GAMMA).estimate(batch)
    assert found["episodes"] == 2 and found["v_target"] == pytest.approx(0.75 * 3 / 2, abs=1e-6)


def test_gain_of_returns_that_are_not_positive():
    found = ImportanceSampling(POLICY, GAMMA).estimate(log("B", rewards=np.array([-1.0, -2.0])))
    assert np.isnan(found["v_gain"]) and found["v_delta"] == pytest.approx(-2.25 * 2 + 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.5}, "gamma=1.5, expected a number from 0 to 1"),
        ({"gamma": "0.9"}, "gamma='0.9' "),
        ({"epsilon_greedy": -0.1}, "epsilon_greedy=-0.1, expected a probability"),
        ({"confidence": 1}, "confidence=1"),
        ({"resamples": -1}, "resamples=-1"),
        ({"greedy": "x"}, "greedy='x', expected True or False"),
        ({"filter_observations": 1}, "filter_observations=1, expected True or False"),
        ({"unfinished": "maybe"}, "unfinished='maybe', expected one of 'drop', 'keep', 'error'"),
    ],
)
def test_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        ImportanceSampling(POLICY, **{"gamma": GAMMA, **settings}).estimate(log("A"))


def test_q_models():
    for model, message in [
        (object(), r"q_model=.*expected an object with q_values"),
        (TabularQ(np.zeros((1, 2))), r"column 'obs': row 1 holds 1, TabularQ has 0 to 0"),
        (LinearQ(np.zeros(5)), r"features have shape \[2, 3\], expected \[N, 5\]"),
    ]:
        with pytest.raises((ConfigError, BatchError), match=message):
            DoublyRobust(POLICY, GAMMA, q_model=model).estimate(log("B"))
    with pytest.raises(ConfigError, match=r"table has shape \[2\], expected \[states, actions\]"):
        TabularQ([1.0, 2.0])
    with pytest.raises(ConfigError, match="no key 'n_iter'.*Did you mean 'n_iters'"):
        DirectMethod(POLICY, GAMMA, q_model_config={"n_iter": 3})
    for config in (3, {"model": 3}):
        with pytest.raises(ConfigError, match="q_model_config.*=?3, expected a dict"):
            DirectMethod(POLICY, GAMMA, q_model_config=config)
    with pytest.raises(ConfigError, match="normalize_weights='x', expected True or False"):
        DoublyRobust(POLICY, GAMMA, q_model=RIGHT, normalize_weights="x")
    with pytest.raises(ConfigError, match="leave it out where q_model is given"):
        DirectMethod(POLICY, GAMMA, q_model=RIGHT, q_model_config={"n_iters": 3})


def test_epsilon_needs_discrete_actions():
    class Box(TablePolicy):
        action_space = gym.spaces.Box(-1, 1, (1,))

    with pytest.raises(ConfigError, match="epsilon_greedy=0.1: random actions are mixed in for Discrete"):
        ImportanceSampling(Box(), GAMMA, epsilon_greedy=0.1)


def test_linear_values():
    """Observation, action, 1: 2 o + 3 a - 1."""
    model = LinearQ([2.0, 3.0, -1.0])
    np.testing.assert_allclose(model.q_values(np.array([[0.0], [1.0]]), np.array([1, 1])), [2.0, 4.0])
    found = DirectMethod(POLICY, GAMMA, q_model=model).estimate(log("A"))
    assert found["v_target"] == pytest.approx(0.75 * 3 - 1)


def test_a_models_own_state_values_count():
    class Own(TabularQ):
        def v_values(self, obs):
            return np.full(len(obs), 7.0)

        def train(self, batch):
            return {"rows": batch.count}

    estimator = DirectMethod(POLICY, GAMMA, q_model=Own(tabular.Q))
    assert estimator.train(log("AB")) == {"rows": 3}
    assert estimator.estimate(log("AB"))["v_target"] == 7.0
    assert PerDecisionImportanceSampling(POLICY, GAMMA).train(log("AB")) == {}


class Mine(OffPolicyEstimator):
    """Half of what was logged, whoever acted."""

    def estimate_episodes(self, logged):
        return Estimate(0.5 * logged.sums(logged.rewards), float(logged.episodes))


def test_estimators_of_ones_own():
    found = Mine(POLICY, GAMMA).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx((1 - 0.5 - 0.5 + 2.5) / 4)
    assert parse_methods({"mine": {"type": Mine, "resamples": 3}})["mine"] == (Mine, {"resamples": 3})


def test_estimators_by_name():
    assert estimator_class("IS") is ImportanceSampling is estimator_class("ImportanceSampling")
    assert estimator_class("polylib.offline.estimators:DirectMethod") is DirectMethod
    assert estimator_class("polylib.offline.estimators.importance_sampling.ImportanceSampling") is ImportanceSampling
    assert estimator_class(Mine) is Mine
    for value, message in [
        ("ips", "no estimator 'ips'.*Known: is, wis"),
        ("no.such.Class", "type 'no.such.Class' can't be loaded"),
        ("json:JSONDecoder", "expected a subclass of OffPolicyEstimator"),
        (3, "type is 3, expected a subclass"),
    ]:
        with pytest.raises(ConfigError, match=f"off_policy_estimation_methods.*{message}"):
            estimator_class(value)


def test_methods():
    found = parse_methods({"a": {"type": "wis", "epsilon_greedy": 0.1}, "b": "dm", "c": ImportanceSampling})
    assert [cls for cls, _ in found.values()] == [WeightedImportanceSampling, DirectMethod, ImportanceSampling]
    assert found["a"][1] == {"epsilon_greedy": 0.1}
    assert list(parse_methods(["is", "dr"])) == ["is", "dr"]
    for value, message in [
        ({"a": {"epsilon": 1}}, "'a' has no 'type'"),
        ({"a": {"type": "is", "epsilon": 1}}, r"ImportanceSampling \('a'\) has no setting 'epsilon'.*'epsilon_greedy'"),
        ({"a": {"type": "is", "q_model": 1}}, "no setting 'q_model'"),
        ("is", "expected {name"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse_methods(value)
    parse_methods({"a": {"type": "dr", "normalize_weights": True, "q_model_config": {}, "resamples": 3}})


def test_logs_of_a_deterministic_policy_are_told(caplog):
    ImportanceSampling(POLICY, GAMMA).estimate(log("AB", action_logp=np.zeros(3)))
    assert "every logged action has the probability 1" in caplog.text
