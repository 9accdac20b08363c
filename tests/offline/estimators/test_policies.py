"""Estimators on real policies: every mode, discrete and Box actions, memory, values in place of logits; fitted Q."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import tabular
from modes import MODE_PARAMS, has, mode_params
from policies import make
from tabular import GAMMA, log

from polylib.algorithms.ddpg.config import TD3Config
from polylib.algorithms.ddpg.loss import DDPGObjective
from polylib.algorithms.dqn.config import DQNConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.offline.estimators import (
    DirectMethod,
    DoublyRobust,
    ImportanceSampling,
    PerDecisionImportanceSampling,
    WeightedImportanceSampling,
)
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec
from polylib.policy.sample_batch import SampleBatch

TORCH = mode_params([("torch", False)])
REAL = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


def set_logits(policy, kernel, bias) -> None:
    """Of a policy without hidden layers."""
    weights = policy.get_weights()
    for key, value in weights.items():
        if value.shape == np.shape(kernel):
            weights[key] = np.asarray(kernel, np.float32)
        elif value.shape == np.shape(bias):
            weights[key] = np.asarray(bias, np.float32)
    policy.set_weights(weights)


def table_policy(mode, table=tabular.TARGET):
    """A policy whose network is a table."""
    policy = make(mode, tabular.STATES, tabular.ACTIONS, hiddens=())
    set_logits(policy, np.log(table), np.zeros(2))
    return policy


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_by_hand_in_every_mode(framework, traced):
    """The numbers of test_by_hand.py, and fitted Q evaluation finding Q from 200 steps."""
    policy = table_policy((framework, traced))
    assert ImportanceSampling(policy, GAMMA).estimate(log("ABBC"))["v_target"] == pytest.approx(0.8125, abs=1e-5)
    found = WeightedImportanceSampling(policy, GAMMA, epsilon_greedy=0.2).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx((0.6 * 2 + 0.84 * 3) / (0.6 + 2 * 1.96 + 0.84), abs=1e-5)

    # One output for each action and no hidden layer: a table, too.
    settings = {"model": {"fcnet_hiddens": []}, "n_iters": 5, "steps_per_iter": 40, "minibatch_size": 7, "lr": 0.1}
    direct = DirectMethod(policy, GAMMA, q_model_config=settings)
    stats = direct.train(log("ABBC"))
    assert stats["loss"] < 1e-3
    obs, actions = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    np.testing.assert_allclose(direct.model.q_values(obs, actions), tabular.Q.ravel(), atol=0.03)
    np.testing.assert_allclose(direct.model.v_values(np.array([0, 1])), tabular.V, atol=0.03)
    assert direct.estimate(log("ABBC"))["v_target"] == pytest.approx(1.0625, abs=0.03)
    assert direct.model.policy.framework == framework and type(direct.model.policy) is type(policy)

    # Without train, fitted to what is judged.
    robust = DoublyRobust(policy, GAMMA, q_model_config=settings).estimate(log("ABBC"))
    assert robust["v_target"] == pytest.approx(1.0625, abs=0.03) and robust["v_target_std"] < 0.05


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_fitted_q_goes_on_from_where_it_was(framework, traced):
    direct = DirectMethod(
        table_policy((framework, traced)),
        GAMMA,
        q_model_config={"model": {"fcnet_hiddens": []}, "n_iters": 1, "steps_per_iter": 60, "lr": 0.05},
    )
    first, *_, last = (direct.train(log("ABBC"))["loss"] for _ in range(6))
    assert last < 0.1 * first


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_fitted_q_without_next_observations(framework, traced):
    """They follow from the rows; where an episode was cut its last step is left out."""
    settings = {"model": {"fcnet_hiddens": []}, "n_iters": 6, "steps_per_iter": 100, "lr": 0.05}
    direct = DirectMethod(table_policy((framework, traced)), GAMMA, q_model_config=settings, unfinished="keep")
    direct.train(log("ABCC", new_obs=None)[:-1])
    assert direct.model.q_values(np.zeros(1, int), np.ones(1, int)) == pytest.approx(0.75, abs=0.03)


def gaussian(mode, mean, std, action_space=REAL, **config):
    """Of a policy that doesn't look; mean and std in units of the network."""
    policy = make(mode, REAL, action_space, hiddens=(), **config)
    set_logits(policy, [[0.0, 0.0]], [mean, np.log(std)])
    return policy


def gaussian_log(taken, mean=0.0, std=1.0, **columns):
    """A bandit's: the reward is the square of the action."""
    actions = np.asarray(taken, np.float32)
    logp = -0.5 * ((actions - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return SampleBatch(
        {
            "obs": np.zeros((len(actions), 1), np.float32),
            "new_obs": np.zeros((len(actions), 1), np.float32),
            "actions": actions[:, None],
            "rewards": actions**2,
            "terminateds": np.ones(len(actions), bool),
            "action_logp": logp,
            **columns,
        }
    )


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_gaussian_by_hand(framework, traced):
    """Behaviour N(0, 1), target N(1, 1/2), actions 1/2 and 1.

    Ratio at a: exp(-2 (a - 1)^2 + ln 2 + a^2 / 2). At 1/2: exp(-0.5 + 0.6931 + 0.125) = 1.3746; at 1: exp(1.1931) =
    3.2974. The target's density at 1 is 2 / sqrt(2 pi) = 0.798; of N(1, 0.1) it is 3.989, above 1, as densities may be.
    """
    policy = gaussian((framework, traced), 1.0, 0.5)
    batch = gaussian_log([0.5, 1.0])
    low, high = 2 * np.exp(-0.375), 2 * np.exp(0.5)
    found = ImportanceSampling(policy, 1.0).estimate(batch)
    assert found["v_target"] == pytest.approx((low * 0.25 + high * 1) / 2, rel=1e-5)
    found = WeightedImportanceSampling(policy, 1.0).estimate(batch)
    assert found["v_target"] == pytest.approx((low * 0.25 + high * 1) / (low + high), rel=1e-5)
    narrow = gaussian((framework, traced), 1.0, 0.1)
    assert narrow.compute_log_likelihoods(batch["actions"], batch["obs"])[1] > np.log(3.98)
    found = ImportanceSampling(narrow, 1.0).estimate(gaussian_log([1.0], 1.0, 0.05))
    assert found["v_target"] == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_clipped_actions_are_compared_at_what_was_drawn(framework, traced):
    """The environment got 1, the behaviour N(0, 1) drew 2: the target is judged at 2 as well, not at 1."""
    space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    policy = gaussian((framework, traced), 1.0, 0.5, space)
    drawn = gaussian_log([2.0])["action_logp"]
    batch = gaussian_log([1.0], action_logp=drawn, action_raw=np.array([[2.0]]))
    # exp(-2 (2 - 1)^2 + ln 2 + 2^2 / 2) = 2
    assert ImportanceSampling(policy, 1.0).estimate(batch)["v_target"] == pytest.approx(2.0, rel=1e-5)
    # What isn't the sample behind the action is left alone: exp(ln 2 + 2^2 / 2) at 1.
    batch["action_raw"] = np.array([[0.3]])
    assert ImportanceSampling(policy, 1.0).estimate(batch)["v_target"] == pytest.approx(2 * np.e**2, rel=1e-5)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_fitted_q_of_box_actions(framework, traced):
    """The reward is a^2; the target N(1/2, 1/4) earns 0.25 + 0.0625 = 0.3125, the behaviour N(0, 1) 1."""
    rng = np.random.default_rng(0)
    policy = gaussian((framework, traced), 0.5, 0.25)
    batch = gaussian_log(rng.standard_normal(400))
    settings = {"n_iters": 12 if (framework, traced) != ("tf2", False) else 4, "steps_per_iter": 50, "lr": 0.01}
    settings |= {"model": {"fcnet_hiddens": [32]}, "minibatch_size": 100}
    direct = DirectMethod(policy, 1.0, q_model_config=settings, action_samples=64)
    direct.train(batch)
    found = direct.estimate(batch)
    assert found["v_target"] == pytest.approx(0.3125, abs=0.08)
    assert found["v_behavior"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_fitted_q_looks_ahead_with_box_actions(framework, traced):
    """Two steps: the second one's reward is its action, whose mean is 1/2; gamma is 1/2."""
    rng = np.random.default_rng(0)
    n = 300
    obs = np.tile([[0.0], [1.0]], (n, 1)).astype(np.float32)
    actions = rng.standard_normal((2 * n, 1)).astype(np.float32)
    batch = SampleBatch(
        obs=obs,
        new_obs=1 - obs,
        actions=actions,
        rewards=np.where(obs[:, 0] == 0, 1.0, actions[:, 0]),
        terminateds=obs[:, 0] == 1,
        action_logp=-0.5 * actions[:, 0] ** 2 - 0.5 * np.log(2 * np.pi),
        eps_id=np.repeat(np.arange(n), 2),
    )
    settings = {"n_iters": 10, "steps_per_iter": 50, "lr": 0.01, "model": {"fcnet_hiddens": [32]}}
    policy = gaussian((framework, traced), 0.5, 0.25)
    found = DirectMethod(policy, 0.5, q_model_config=settings).estimate(batch)
    assert found["v_target"] == pytest.approx(1.25, abs=0.06)
    robust = DoublyRobust(policy, 0.5, q_model_config=settings).estimate(batch)
    assert robust["v_target"] == pytest.approx(1.25, abs=0.06)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_other_actions(framework, traced):
    """MultiDiscrete actions: ratios and a fitted model, without a word about them."""
    space = gym.spaces.MultiDiscrete([2, 3])
    policy = make((framework, traced), REAL, space, hiddens=(4,))
    rng = np.random.default_rng(0)
    actions = np.stack([rng.integers(0, 2, 200), rng.integers(0, 3, 200)], 1)
    columns = {"rewards": actions.sum(1) + 1.0, "action_logp": np.full(200, -np.log(6))}
    batch = gaussian_log(np.zeros(200), actions=actions, **columns)
    uniform = 1.0 + 0.5 + 1.0
    found = WeightedImportanceSampling(policy, 1.0).estimate(batch)
    assert found["v_target"] == pytest.approx(uniform, abs=0.3)
    settings = {"n_iters": 4, "steps_per_iter": 50, "lr": 0.01, "model": {"fcnet_hiddens": [32]}}
    found = DirectMethod(policy, 1.0, q_model_config=settings).estimate(batch)
    assert found["v_target"] == pytest.approx(uniform, abs=0.3)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_recurrent(framework, traced):
    """The network's memory is run along each episode, whatever the order of rows."""
    policy = make((framework, traced), model={"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True})
    rng = np.random.default_rng(0)
    lengths = [3, 6, 1]
    total = sum(lengths)
    batch = SampleBatch(
        obs=rng.uniform(-1, 1, (total, 3)).astype(np.float32),
        actions=rng.integers(5, 8, total),
        rewards=rng.standard_normal(total),
        terminateds=np.isin(np.arange(total), np.cumsum(lengths) - 1),
        eps_id=np.repeat([7, 8, 9], lengths),
        t=np.concatenate([np.arange(n) for n in lengths]),
        action_logp=np.full(total, -1.0),
    )
    expected = []
    for episode in batch.split_by_episode():
        state, before, weight, value = None, None, 1.0, 0.0
        for t in range(episode.count):
            row = episode[t : t + 1]
            logp = policy.compute_log_likelihoods(row["actions"], row["obs"], state, None, before)
            state = policy.compute_actions(row["obs"], state, False, prev_actions=before).state
            before = row["actions"]
            weight *= float(np.exp(logp[0] + 1.0))
            value += weight * float(row["rewards"][0])
        expected.append(value)
    estimator = PerDecisionImportanceSampling(policy, 1.0)
    assert estimator.estimate(batch)["v_target"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert estimator.estimate(batch.shuffle(rng))["v_target"] == pytest.approx(np.mean(expected), rel=1e-4)
    with pytest.raises(ValueError, match="DoublyRobust judges policies without memory only"):
        DoublyRobust(policy, 1.0)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_dqn_is_judged_as_it_acts(framework, traced):
    """Greedily, and not by a softmax of its values; SoftQ by one."""
    config = DQNConfig().to_dict()
    config["model"].update(fcnet_hiddens=[])
    config.update(hiddens=[], dueling=False)

    def policy(**exploration):
        spec = PolicySpec(tabular.STATES, tabular.ACTIONS, DQNObjective, {**config, **exploration}, seed=0)
        made = make_policy(spec, framework, traced)
        set_logits(made, [[1.0, 3.0], [0.5, 0.0]], [0.0, 0.0])
        made.update_target()
        return made

    greedy = np.array([[0.0, 1.0], [1.0, 0.0]])
    expected = ImportanceSampling(tabular.TablePolicy(greedy), GAMMA).estimate(log("ABBC"))
    assert ImportanceSampling(policy(), GAMMA).estimate(log("ABBC")) == pytest.approx(expected, abs=1e-6)
    q = np.array([[1.0, 3.0], [0.5, 0.0]]) / 2
    soft = np.exp(q) / np.exp(q).sum(1, keepdims=True)
    expected = ImportanceSampling(tabular.TablePolicy(soft), GAMMA).estimate(log("ABBC"))
    found = ImportanceSampling(policy(exploration_config={"type": "SoftQ", "temperature": 2.0}), GAMMA)
    assert found.estimate(log("ABBC")) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_deterministic_box_policies_need_the_direct_method(framework, traced):
    config = TD3Config().to_dict()
    config["model"].update(fcnet_hiddens=[4])
    space = gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    policy = make_policy(PolicySpec(REAL, space, DDPGObjective, config, seed=0), framework, traced)
    batch = gaussian_log(np.random.default_rng(0).uniform(-2, 2, 200))
    with pytest.raises(ValueError, match="logged actions have no density .*direct method"):
        ImportanceSampling(policy, 1.0).estimate(batch)
    settings = {"n_iters": 6, "steps_per_iter": 50, "lr": 0.01, "model": {"fcnet_hiddens": [32]}}
    action = float(policy.compute_single_action(np.zeros(1, np.float32), explore=False)[0])
    found = DirectMethod(policy, 1.0, q_model_config=settings).estimate(batch)
    assert found["v_target"] == pytest.approx(action**2, abs=0.3)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_wrong_spaces_are_named(framework, traced):
    policy = table_policy((framework, traced))
    with pytest.raises(ValueError, match=r"column 'actions'.*row 0 holds 5"):
        ImportanceSampling(policy, GAMMA).estimate(log("A", actions=np.array([5])))
    with pytest.raises(ValueError, match=r"column 'obs' has shape \[1, 3\]"):
        ImportanceSampling(policy, GAMMA).estimate(log("A", obs=np.zeros((1, 3))))
    with pytest.raises(ValueError, match=r"column 'actions' has shape \[1, 2\]"):
        ImportanceSampling(policy, GAMMA, epsilon_greedy=0.1).estimate(log("A", actions=np.zeros((1, 2), int)))


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_filters(framework, traced):
    """Logs hold what the network saw, unless they hold what the environment said."""
    policy = make((framework, traced), REAL, gym.spaces.Discrete(2), hiddens=(), observation_filter="MeanStdFilter")
    set_logits(policy, [[1.0, -1.0]], [0.0, 0.0])
    policy.filter({"obs": np.array([[0.0], [4.0], [8.0]], np.float32)}, update=True)
    raw = np.array([[1.0], [6.0]], np.float32)
    columns = {"actions": np.array([0, 1]), "action_logp": np.full(2, np.log(0.5)), "rewards": np.ones(2)}
    seen = policy.filter({"obs": raw}, update=False)["obs"]
    as_seen, as_said = gaussian_log([0, 0], obs=seen, **columns), gaussian_log([0, 0], obs=raw, **columns)
    estimator, filtering = (ImportanceSampling(policy, 1.0, filter_observations=f) for f in (False, True))
    assert estimator.estimate(as_seen) == pytest.approx(filtering.estimate(as_said), rel=1e-5)
    assert estimator.estimate(as_seen)["v_target"] != pytest.approx(estimator.estimate(as_said)["v_target"], rel=1e-2)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_masks_in_observations(framework, traced):
    """What a mask forbids has no share: in ratios, in random actions, in the values of a model."""
    n = 60
    space = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(3), "x": gym.spaces.Box(-1, 1, (2,))})
    policy = make((framework, traced), space, gym.spaces.Discrete(3), hiddens=(4,))
    rng = np.random.default_rng(0)
    mask = np.tile(np.array([1, 1, 0], np.int8), (n, 1))
    obs = {"action_mask": mask, "x": rng.uniform(-1, 1, (n, 2)).astype(np.float32)}
    actions = rng.integers(0, 2, n)
    batch = SampleBatch(
        obs=obs,
        # Where an episode has ended nothing may be allowed.
        new_obs={**obs, "action_mask": np.zeros_like(mask)},
        actions=actions,
        rewards=actions + 1.0,
        terminateds=np.ones(n, bool),
        action_logp=np.full(n, -np.log(2)),
    )
    estimator = WeightedImportanceSampling(policy, 1.0, epsilon_greedy=0.999)
    np.testing.assert_allclose(estimator.target.probabilities(obs), np.tile([0.5, 0.5, 0.0], (n, 1)), atol=1e-3)
    assert estimator.estimate(batch)["ess"] == pytest.approx(n, rel=1e-3)
    settings = {"n_iters": 10, "steps_per_iter": 50, "lr": 0.01, "model": {"fcnet_hiddens": [16]}}
    found = DirectMethod(policy, 1.0, 1.0, q_model_config=settings).estimate(batch)
    assert found["v_target"] == pytest.approx(1.5, abs=0.05)
    column = SampleBatch({**batch, "action_mask": mask != 0})
    with pytest.raises(ValueError, match="can't use the column 'action_mask'"):
        DirectMethod(policy, 1.0, q_model_config=settings).estimate(column)
    assert ImportanceSampling(policy, 1.0).estimate(column) == ImportanceSampling(policy, 1.0).estimate(batch)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_policies_that_only_act(framework, traced):
    """A NumPy policy is judged as the one it was copied from; its model is fitted in a framework that is there."""
    policy = table_policy((framework, traced))
    copy = make_policy(policy.spec, "numpy")
    copy.set_weights(policy.get_weights())
    for make_estimator in (ImportanceSampling, WeightedImportanceSampling):
        expected = make_estimator(policy, GAMMA).estimate(log("ABBC"))
        assert make_estimator(copy, GAMMA).estimate(log("ABBC")) == pytest.approx(expected, rel=1e-5)
    settings = {"model": {"fcnet_hiddens": []}, "n_iters": 5, "steps_per_iter": 40, "lr": 0.1}
    found = DirectMethod(copy, GAMMA, q_model_config=settings).estimate(log("ABBC"))
    assert found["v_target"] == pytest.approx(1.0625, abs=0.05)


@pytest.mark.parametrize(("framework", "traced"), TORCH)
def test_nested_actions(framework, traced):
    """A Tuple of a choice and a number: ratios, and a model that sees both."""
    space = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (1,))))
    policy = make((framework, traced), REAL, space, hiddens=(4,))
    rng = np.random.default_rng(0)
    out = policy.compute_actions(rng.standard_normal((50, 1)).astype(np.float32))
    batch = gaussian_log(np.zeros(50), actions=out.actions, rewards=out.actions[0] + 2.0)
    batch["action_logp"] = policy.compute_log_likelihoods(out.actions, batch["obs"])
    found = ImportanceSampling(policy, 1.0).estimate(batch)
    assert found["v_target"] == pytest.approx(found["v_behavior"], rel=1e-5)
    settings = {"n_iters": 10, "steps_per_iter": 50, "lr": 0.01, "model": {"fcnet_hiddens": [16]}}
    found = DoublyRobust(policy, 1.0, q_model_config=settings).estimate(batch)
    assert found["v_target"] == pytest.approx(2.5, abs=0.3)


def test_rllibs_names():
    from polylib.offline.estimators import FittedQEvaluation
    from polylib.offline.estimators.fqe_torch_model import FQETorchModel
    from polylib.offline.estimators.weighted_importance_sampling import WeightedImportanceSampling as Weighted

    assert FQETorchModel is FittedQEvaluation and Weighted is WeightedImportanceSampling
    settings = {"type": FQETorchModel, "polyak_coef": 0.5, "min_loss_threshold": 1e9, "n_iters": 1000}
    settings["model_config"] = {"fcnet_hiddens": [4]}
    if not has("torch"):
        pytest.skip("torch isn't installed")
    direct = DirectMethod(table_policy(("torch", False)), GAMMA, q_model_config=settings)
    assert direct.train(log("ABBC"))["loss"] < 100  # after a single iteration
    with pytest.raises(ValueError, match="q_model_config: type is <class 'dict'>, expected a subclass of FittedQ"):
        DirectMethod(table_policy(("torch", False)), GAMMA, q_model_config={"type": dict})
