"""RND and Curiosity around algorithms: their numbers by hand, the modes' agreement, and whole runs."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from learners import (
    CHOICE,
    LSTM,
    MASKED,
    OBS,
    TORQUE,
    build,
    check_learning,
    check_parity,
    losses_of,
    small_config,
    spec_of,
)
from modes import FAST_MODES, MODE_PARAMS, has

from polylib.algorithms.algorithm import Algorithm
from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

F32 = np.float32
LN = math.log
RND = {"type": "RND", "embed_dim": 3, "distill_net_config": {"fcnet_hiddens": [2], "fcnet_activation": "tanh"}}
ICM = {
    "type": "Curiosity",
    "feature_dim": 2,
    "feature_net_config": {"fcnet_hiddens": [2], "fcnet_activation": "tanh"},
    "inverse_net_hiddens": [3],
    "inverse_net_activation": "tanh",
    "forward_net_hiddens": [],
}
KINDS = {
    "dqn_rnd": ("DQN", MASKED, CHOICE, {"exploration_config": RND}),
    "dqn_curiosity": ("DQN", OBS, CHOICE, {"exploration_config": ICM, "hiddens": []}),
    "td3_curiosity": (
        "TD3",
        OBS,
        TORQUE,
        {"exploration_config": ICM, "actor_hidden_activation": "tanh", "critic_hidden_activation": "tanh"},
    ),
    "sac_rnd": ("SAC", OBS, TORQUE, {"exploration_config": RND}),
    "sac_curiosity": ("SAC", OBS, CHOICE, {"exploration_config": ICM}),
    "a2c_rnd": ("A2C", OBS, TORQUE, {"exploration_config": RND, "lr": 1e-2}),
    "a2c_curiosity_lstm": ("A2C", OBS, CHOICE, {"exploration_config": ICM, **LSTM, "lr": 1e-2}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_losses_and_gradients_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), *KINDS[kind])


def test_modes_agree_after_some_updates():
    check_learning(*KINDS["dqn_rnd"])


# --- by hand


def test_rnd_by_hand():
    """Predicted [1, 2, 3] of [1, 0, 5]: (0 + 4 + 4) / 3; the bonus is 0.3 of it: reward 1 + 0.8, Q = 2.

    TD error 2 - 1.8, terminated.
    """
    config = {**RND, "intrinsic_reward_coeff": 0.3, "distill_net_config": {"fcnet_hiddens": []}}
    spec = spec_of("DQN", exploration_config=config, dueling=False, hiddens=[])
    given = {
        "q": {"advantages": [2, 0, 0]},
        "rnd_predictor": {"features": [1, 2, 3]},
        "rnd_target": {"features": [1, 0, 5]},
    }
    losses, stats, rows = losses_of(spec, given, {"actions": [5], "rewards": [1.0], "terminateds": [True]})
    assert losses["intrinsic"] == pytest.approx(8 / 3) == stats["intrinsic_loss"]
    assert stats["intrinsic_reward"] == pytest.approx(0.8) and rows["td_error"] == pytest.approx([0.2])


def test_curiosity_by_hand():
    """Features [1, 2] in every state; forward says [4, 6]: (9 + 16) / 2 = 12.5; inverse [0, ln 2, 0]: -log 1/4 = ln 4.

    eta 0.1: a bonus of 1.25. Loss 0.2 * 12.5 + 0.8 * ln 4. TD error: 2 - (1 + 1.25).
    """
    config = {**ICM, "eta": 0.1, "feature_net_config": {"fcnet_hiddens": []}, "inverse_net_hiddens": []}
    spec = spec_of("DQN", exploration_config=config, dueling=False, hiddens=[])
    given = {
        "q": {"advantages": [2, 0, 0]},
        "icm_features": {"features": [1, 2]},
        "icm_inverse": {"out": [0, LN(2), 0]},
        "icm_forward": {"out": [4, 6]},
    }
    losses, stats, rows = losses_of(spec, given, {"actions": [5], "rewards": [1.0], "terminateds": [True]})
    assert losses["intrinsic"] == pytest.approx(0.2 * 12.5 + 0.8 * LN(4))
    assert stats["intrinsic_reward"] == pytest.approx(1.25) and rows["td_error"] == pytest.approx([-0.25])
    # Box actions, of which 1 and 0.5 are 0.5 and 0 in [-1, 1]: inferred [0.5, 1]: (0 + 1) / 2.
    spec = spec_of("TD3", OBS, TORQUE, exploration_config=config)
    given["icm_inverse"] = {"out": [0.5, 1.0]}
    batch = {"actions": np.array([[1.0, 0.5]]), "rewards": [1.0], "terminateds": [True]}
    noise = {"target": np.zeros((1, 2))}
    losses, _, _ = losses_of(spec, {k: x for k, x in given.items() if k != "q"}, batch, noise)
    assert losses["intrinsic"] == pytest.approx(0.2 * 12.5 + 0.8 * 0.5)


def fragment(rows=4):
    rng = np.random.default_rng(0)
    batch = SampleBatch(
        obs=rng.uniform(-1, 1, (rows, 3)).astype(F32),
        actions=rng.integers(5, 8, rows),
        rewards=np.ones(rows, F32),
        terminateds=np.zeros(rows, bool),
        truncateds=np.zeros(rows, bool),
        vf_preds=np.zeros(rows, F32),
    )
    return Fragment(batch, np.array([0]), np.array([rows]), rng.uniform(-1, 1, (1, 3)).astype(F32), np.zeros(1, F32))


@pytest.mark.parametrize("algo", ["A2C", "PPO"])
@pytest.mark.parametrize("config", [RND, ICM], ids=["RND", "Curiosity"])
def test_advantages_hold_the_bonus(algo, config):
    """gamma 0: each row's value target is its reward, 1, and the bonus of the state that it leads to."""
    keys = {"gamma": 0.0, "exploration_config": config}
    policies = [build((framework, traced), algo, **keys) for framework, traced in FAST_MODES if has(framework)]
    policies.append(build(("numpy", False), algo, **keys))
    found = []
    for policy in policies:
        rows = policy.objective.postprocess(fragment())
        bonus = policy.objective.bonus(fragment().with_new_obs())
        assert (bonus > 0).all() and rows["value_targets"] == pytest.approx(1 + bonus, rel=1e-5)
        assert rows["new_obs"].shape == (4, 3)
        found.append(bonus)
        policy.close()
    for bonus in found[1:]:
        np.testing.assert_allclose(bonus, found[0], rtol=1e-5)


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_what_was_seen_often_is_no_longer_new():
    policy = build(("torch", False), "DQN", exploration_config={**RND, "lr": 1e-2})
    rng = np.random.default_rng(0)
    known, new = rng.uniform(0, 1, (64, 3)).astype(F32), rng.uniform(-1, 0, (64, 3)).astype(F32)
    rows = {"actions": np.full(64, 5), "rewards": np.zeros(64, F32), "terminateds": np.ones(64, bool)}
    rows |= {"discounts": np.ones(64, F32), "obs": known, "new_obs": known}
    target = {key: w for key, w in policy.get_weights().items() if key.startswith("rnd_target")}
    before = policy.objective.bonus(rows).mean()
    for _ in range(300):
        policy.learn_on_batch(rows)
    after = policy.objective.bonus(rows).mean()
    assert after < 0.05 * before and policy.objective.bonus({**rows, "new_obs": new}).mean() > 5 * after
    assert all(np.array_equal(policy.get_weights()[key], w) for key, w in target.items()), "the target stays"


# --- whole runs

RUNS = {
    "DQN": (
        "DQN",
        "CartPole-v1",
        {"num_steps_sampled_before_learning_starts": 30, "store_buffer_in_checkpoints": True},
    ),
    "PPO": ("PPO", "CartPole-v1", {"sgd_minibatch_size": 8, "num_sgd_iter": 2}),
    "SAC": (
        "SAC",
        "Pendulum-v1",
        {"num_steps_sampled_before_learning_starts": 30, "store_buffer_in_checkpoints": True},
    ),
}


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
@pytest.mark.parametrize("config", [RND, ICM], ids=["RND", "Curiosity"])
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_goes_on(tmp_path, name, config):
    algo, env, keys = RUNS[name]
    quick = {"train_batch_size": 16, "min_sample_timesteps_per_iteration": 24, "min_time_s_per_iteration": 0, "seed": 1}
    built = small_config(algo, **{"env": env, **quick, **keys, "exploration_config": config}).framework("torch")
    with built.build() as unbroken:
        unbroken.train()
        unbroken.train()
        unbroken.save(tmp_path / "c")
        result = unbroken.train()
        stats = result["info"]["learner"]["default_policy"]["learner_stats"]
        assert stats["intrinsic_reward" if name != "PPO" else "intrinsic_loss"] > 0
        with Algorithm.from_checkpoint(tmp_path / "c") as restored:
            restored.train()
            one, other = restored.get_policy().get_state(), unbroken.get_policy().get_state()
            for key, value in other["weights"].items():
                np.testing.assert_array_equal(one["weights"][key], value, err_msg=key)
    if name == "DQN":
        from polylib import load_policy

        policy = load_policy(tmp_path / "c")
        assert policy.action_space.contains(policy.compute_single_action(np.zeros(4, F32)))


def test_remote_workers_know_it(ray_session):
    keys = {"env": "CartPole-v1", "num_workers": 1, "num_cpus_per_worker": 0.1, "train_batch_size": 30, "seed": 0}
    config = small_config("PPO", **keys, exploration_config=ICM, sgd_minibatch_size=8, num_sgd_iter=1)
    with config.framework("torch").build() as algo:
        algo.train()
        stats = algo.train()["info"]["learner"]["default_policy"]["learner_stats"]
        assert stats["intrinsic_reward"] > 0


# --- settings


def test_what_chooses_actions_below():
    kinds = {
        "DQN": "EpsilonGreedy",
        "A2C": None,
        "SAC": "StochasticSampling",
        "TD3": "OrnsteinUhlenbeckNoise",
    }
    for algo, kind in kinds.items():
        spec = spec_of(algo, OBS, CHOICE if algo in ("DQN", "A2C") else TORQUE, exploration_config=RND)
        exploration = spec.objective_class(spec).exploration
        assert (type(exploration).__name__ if exploration else None) == kind
    spec = spec_of("DQN", exploration_config={**RND, "sub_exploration": {"type": "SoftQ", "temperature": 3.0}})
    assert spec.objective_class(spec).exploration.temperature == 3.0
    assert spec.config["exploration_config"]["type"] == "RND"


def test_groups_and_networks():
    spec = spec_of("A2C", exploration_config=ICM)
    objective = spec.objective_class(spec)
    assert list(objective.networks()) == ["policy", "icm_features", "icm_inverse", "icm_forward"]
    assert {name: group.networks for name, group in objective.groups().items()} == {
        "default": ("policy",),
        "intrinsic": ("icm_features", "icm_inverse", "icm_forward"),
    }
    assert objective.acting == ("policy",) and "intrinsic_lr" in objective.coefficients()


@pytest.mark.parametrize(
    ("algo", "space", "config", "error", "message"),
    [
        (
            "DQN",
            CHOICE,
            {**RND, "embed_dims": 3},
            UnknownKeyError,
            "RND has no key 'embed_dims'. Did you mean 'embed_dim'",
        ),
        (
            "DQN",
            CHOICE,
            {**RND, "embed_dim": 0},
            ConfigError,
            "exploration_config.embed_dim': got 0, expected an integer",
        ),
        ("DQN", CHOICE, {**RND, "lr": "a"}, ConfigError, "exploration_config.lr': got 'a', expected a number >= 0"),
        ("DQN", CHOICE, {**RND, "distill_net_config": {"x": 1}}, ConfigError, "keys of 'model', which has no 'x'"),
        (
            "DQN",
            CHOICE,
            {**RND, "sub_exploration": "SoftQ"},
            ConfigTypeError,
            "sub_exploration': got 'SoftQ', expected a",
        ),
        (
            "DQN",
            CHOICE,
            {**RND, "sub_exploration": ICM},
            ConfigError,
            "'Curiosity' stands around another type, not inside",
        ),
        (
            "DQN",
            CHOICE,
            {**ICM, "beta": 1.5},
            ConfigError,
            "exploration_config.beta': got 1.5, expected a number from 0",
        ),
        (
            "A2C",
            CHOICE,
            {**RND, "sub_exploration": {"type": "SoftQ"}},
            ConfigError,
            "takes type 'StochasticSampling' only",
        ),
        (
            "A2C",
            gym.spaces.MultiDiscrete([2, 2]),
            ICM,
            ConfigError,
            "Curiosity needs Discrete or Box actions, not Multi",
        ),
        ("DQN", CHOICE, {"type": "RE3"}, ConfigError, "type 'RE3' isn't in this version"),
    ],
)
def test_bad_settings_are_one_clear_line(algo, space, config, error, message):
    with pytest.raises(error, match=message) as caught:
        build(("numpy", False), algo, OBS, space, exploration_config=config)
    assert "\n" not in str(caught.value)


def test_curiosity_predicts_one_step():
    with pytest.raises(ConfigError, match="'n_step': Curiosity predicts the next step; set n_step=1"):
        build(("numpy", False), "DQN", exploration_config=ICM, n_step=2)
