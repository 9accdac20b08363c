"""Evaluation during training: when, how much, of what, and that it changes nothing."""

from __future__ import annotations

import math
import time

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from fakes import BrokenEnv, MatchEnv, small_ppo
from modes import FAST_MODE_PARAMS, MODE_PARAMS

from polylib.algorithms.evaluation import check_evaluation
from polylib.algorithms.ppo import PPOConfig
from polylib.callbacks import DefaultCallbacks
from polylib.errors import ConfigError, EnvError

TORCH = ("torch", False)
GREEDY = {"explore": False}


@pytest.fixture
def build():
    """Algorithms that are stopped when the test ends."""
    made = []

    def make(env=MatchEnv, mode=TORCH, **keys):
        made.append(small_ppo(env, mode, **{"train_batch_size": 40, "sgd_minibatch_size": 20, **keys}).build())
        return made[-1]

    yield make
    for algo in made:
        algo.stop()


def weights_of(algo):
    return algo.get_weights()["default_policy"]


class Lottery(gym.Env):
    """Short episodes pay nothing, long ones much: taking those that end first would say the policy is bad."""

    def __init__(self, config=()):
        self.observation_space, self.action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.choice([1, 20])), 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        return np.zeros(1, np.float32), 100.0 if over and self.length == 20 else 0.0, over, False, {}


def returns_by_hand(algo, env, count, seed=0):
    """What a loop over `compute_single_action` gets, greedily."""
    returns = []
    for episode in range(count):
        obs, _ = env.reset(seed=seed + episode)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(algo.compute_single_action(obs, explore=False))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


# --- the same returns on every path


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_seeded_returns_are_those_of_a_loop_by_hand(build, framework, traced):
    algo = build("CartPole-v1", (framework, traced), evaluation_duration=7, evaluation_config=GREEDY)
    algo.train()
    expected = returns_by_hand(algo, gym.make("CartPole-v1"), 7)
    assert len(set(expected)) > 2
    results = algo.evaluate()
    assert results["hist_stats"]["episode_reward"] == expected
    assert results["hist_stats"]["episode_lengths"] == [int(x) for x in expected]
    assert results["episode_reward_mean"] == pytest.approx(np.mean(expected))
    assert (results["episode_reward_min"], results["episode_reward_max"]) == (min(expected), max(expected))
    assert results["episodes_this_iter"] == 7 and results["timesteps_this_iter"] == sum(expected)
    assert results["num_healthy_workers"] == 0
    assert algo.evaluate() == results, "the same episodes again"


@pytest.mark.parametrize("num_envs", [1, 3, 20])
@pytest.mark.parametrize("env", ["CartPole-v1", Lottery], ids=["CartPole", "Lottery"])
def test_however_many_environments(build, env, num_envs):
    """Exactly as many episodes as asked for, and not those that end first."""
    changes = {**GREEDY, "num_envs_per_worker": num_envs, "seed": 100}
    algo = build(env, evaluation_duration=10, evaluation_config=changes)
    algo.train()
    made = gym.make(env) if isinstance(env, str) else env()
    expected = returns_by_hand(algo, made, 10, seed=100)
    assert algo.evaluate()["hist_stats"]["episode_reward"] == expected
    assert len(set(expected)) > 1


def test_two_remote_workers(ray_session, build):
    algo = build(
        "CartPole-v1",
        evaluation_num_workers=2,
        evaluation_duration=7,
        evaluation_interval=1,
        evaluation_config={**GREEDY, "num_envs_per_worker": 3},
        num_cpus_per_worker=0.1,
    )
    result = algo.train()
    expected = returns_by_hand(algo, gym.make("CartPole-v1"), 7)
    assert result["evaluation"]["hist_stats"]["episode_reward"] == expected
    assert result["evaluation"]["num_healthy_workers"] == 2 and result["num_healthy_workers"] == 0
    assert algo.evaluate()["hist_stats"]["episode_reward"] == expected


@pytest.mark.parametrize("duration", [1, 2, 3, 4, 10])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_number_of_episodes_is_exact(build, duration, num_envs):
    algo = build(Lottery, evaluation_duration=duration, evaluation_config={"num_envs_per_worker": num_envs})
    results = algo.evaluate()
    assert len(results["hist_stats"]["episode_reward"]) == results["episodes_this_iter"] == duration
    assert results["timesteps_this_iter"] == sum(results["hist_stats"]["episode_lengths"])


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_duration_in_timesteps(build, num_envs):
    keys = {"evaluation_duration_unit": "timesteps", "evaluation_config": {"num_envs_per_worker": num_envs}}
    for duration, episodes in ((1, num_envs), (10, max(1, num_envs)), (11, max(2, num_envs)), (45, None)):
        results = build(evaluation_duration=duration, **keys).evaluate()
        assert results["timesteps_this_iter"] >= duration
        assert set(results["hist_stats"]["episode_lengths"]) == {10}, "begun episodes are finished"
        if episodes is not None:
            assert results["episodes_this_iter"] == episodes, duration
        assert results["timesteps_this_iter"] < duration + 10 * num_envs


def test_without_a_seed(build):
    algo = build(Lottery, seed=None, evaluation_duration=40)
    rewards = [tuple(algo.evaluate()["hist_stats"]["episode_reward"]) for _ in range(3)]
    assert len(set(rewards)) > 1, "other episodes each time"


# --- when


def test_the_interval(build):
    algo = build(evaluation_interval=2, evaluation_duration=3)
    for iteration in range(1, 6):
        result = algo.train()
        assert ("evaluation" in result) == (iteration % 2 == 0)
        assert ("evaluation_time_ms" in result["timers"]) == (iteration % 2 == 0)
    assert "evaluation" not in build().train()


def test_results_are_repeated_if_asked_to(build):
    algo = build(evaluation_interval=2, evaluation_duration=3, always_attach_evaluation_results=True)
    assert "evaluation" not in algo.train(), "there is none yet"
    second, third, fourth = (algo.train()["evaluation"] for _ in range(3))
    assert third is second and fourth is not second


def test_evaluate_by_hand_without_an_interval(build):
    algo = build(evaluation_duration=3, always_attach_evaluation_results=True)
    assert algo.evaluate()["episodes_this_iter"] == 3
    assert "evaluation" not in algo.train(), "what was asked for by hand is nobody else's"


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
@pytest.mark.parametrize("changes", [{}, {"num_envs_per_worker": 3, "explore": False, "seed": 5}], ids=["a", "b"])
def test_training_is_not_disturbed(build, framework, traced, changes):
    keys = {"num_envs_per_worker": 2, "train_batch_size": 33}
    plain = build("CartPole-v1", (framework, traced), **keys)
    evaluated = build(
        "CartPole-v1",
        (framework, traced),
        evaluation_interval=1,
        evaluation_duration=3,
        evaluation_config=changes,
        **keys,
    )
    for _ in range(3):
        one, other = plain.train(), evaluated.train()
        evaluated.evaluate()
        assert one["hist_stats"] == other["hist_stats"] and one["timesteps_total"] == other["timesteps_total"]
        assert one["counters"] == other["counters"] and one["episodes_total"] == other["episodes_total"]
    for key, value in weights_of(plain).items():
        np.testing.assert_array_equal(value, weights_of(evaluated)[key], err_msg=key)


def test_the_newest_weights_are_evaluated(build):
    algo = build("CartPole-v1", evaluation_interval=1, evaluation_duration=3, evaluation_config=GREEDY, lr=0.05)
    seen = set()
    for _ in range(4):
        rewards = algo.train()["evaluation"]["hist_stats"]["episode_reward"]
        assert rewards == returns_by_hand(algo, gym.make("CartPole-v1"), 3)
        seen.add(tuple(rewards))
    assert len(seen) > 1


# --- beside training


class Slow(MatchEnv):
    """Takes its time."""

    def step(self, action):
        time.sleep(0.02)
        return super().step(action)


def test_parallel_to_training(ray_session, build):
    """Training and evaluation sleep a second each; together they take little more than one."""
    algo = build(
        Slow,
        train_batch_size=50,
        evaluation_interval=1,
        evaluation_num_workers=1,
        evaluation_parallel_to_training=True,
        evaluation_duration=5,
        evaluation_config={**GREEDY, "env_config": {"length": 10}},
        num_cpus_per_worker=0.1,
        lr=0.05,
    )
    waits = []
    for _ in range(3):
        before = {"default_policy": weights_of(algo)}
        result = algo.train()
        after = {"default_policy": weights_of(algo)}
        assert result["evaluation"]["episodes_this_iter"] == 5
        waits.append(result["timers"]["evaluation_time_ms"])
        algo.set_weights(before)  # it was these that were evaluated
        assert result["evaluation"]["hist_stats"]["episode_reward"] == returns_by_hand(algo, MatchEnv(), 5)
        algo.set_weights(after)
    assert min(waits) < 800


def test_as_long_as_training_takes(ray_session, build):
    algo = build(
        Slow,
        train_batch_size=50,
        evaluation_interval=1,
        evaluation_num_workers=2,
        evaluation_parallel_to_training=True,
        evaluation_duration="auto",
        num_cpus_per_worker=0.1,
    )
    first, *later = [algo.train() for _ in range(3)]
    assert first["evaluation"]["episodes_this_iter"] >= 2, "nothing is known yet: one each"
    for result in later:
        assert result["evaluation"]["episodes_this_iter"] >= 2 * 2
        assert set(result["evaluation"]["hist_stats"]["episode_lengths"]) == {10}


# --- of what


class Place(MatchEnv):
    """Notes who made it."""

    made: list = []

    def __init__(self, config=()):
        Place.made.append(dict(config))
        super().__init__(config)


def test_keys_changed_for_evaluation(build):
    Place.made.clear()
    algo = build(
        Place,
        evaluation_interval=1,
        evaluation_duration=6,
        evaluation_config={
            "explore": False,
            "env_config": {"length": 4},
            "num_envs_per_worker": 2,
            "keep_per_episode_custom_metrics": True,
            "callbacks": Measuring,
        },
    )
    assert Place.made == [{}, {"length": 4}, {"length": 4}]
    result = algo.train()
    assert result["episode_len_mean"] == 10 and result["custom_metrics"] == {}
    evaluation = result["evaluation"]
    assert evaluation["episode_len_mean"] == 4 and evaluation["custom_metrics"] == {"one": [1.0] * 6}
    assert algo.config["explore"] is True and algo.config["env_config"] == {}
    # greedy: the same action for the same observation
    assert algo._evaluation.workers.local_worker()._runner.explore is False


class Measuring(DefaultCallbacks):
    """Measures one thing."""

    def on_episode_end(self, *, episode, **kwargs):
        episode.custom_metrics["one"] = 1.0


def test_a_config_object_as_changes(build):
    changes = PPOConfig().exploration(explore=False).environment(env_config={"length": 3})
    config = PPOConfig().evaluation(evaluation_config=changes)
    assert config["evaluation_config"] == {"explore": False, "env_config": {"length": 3}}
    assert build(evaluation_config=changes, evaluation_duration=2).evaluate()["episode_len_mean"] == 3


def test_a_function_of_ones_own(build):
    calls = []

    def own(algorithm, workers):
        calls.append((algorithm, workers))
        weights = workers.local_worker().get_weights()["default_policy"]
        assert all(np.array_equal(weights[key], value) for key, value in weights_of(algorithm).items())
        episodes = workers.local_worker().evaluate(2, seed=1)
        return {"score": sum(e.episode_length for e in episodes)}

    algo = build(custom_evaluation_function=own, evaluation_interval=1)
    assert algo.train()["evaluation"] == {"score": 20} and algo.evaluate() == {"score": 20}
    assert len(calls) == 2 and calls[0][0] is algo and calls[0][1] is not algo.workers
    with pytest.raises(ConfigError, match="'custom_evaluation_function': it returned 3, expected a dict of metrics"):
        build(custom_evaluation_function=lambda algorithm, workers: 3).evaluate()


# --- mistakes


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"evaluation_parallel_to_training": True}, "'evaluation_parallel_to_training': .* evaluation_num_workers >="),
        ({"evaluation_duration": "auto"}, "'evaluation_duration': 'auto' .* evaluation_parallel_to_training=True"),
        ({"evaluation_duration": "auto", "evaluation_num_workers": 1}, "'evaluation_duration': 'auto'"),
        ({"evaluation_config": {"explor": False}}, "'evaluation_config': unknown config key 'explor'.*'explore'"),
        ({"evaluation_config": {"lr": -1}}, "'evaluation_config': config key 'lr': got -1"),
        ({"evaluation_config": [1]}, r"'evaluation_config': got \[1\].*expected a dict of config keys"),
        ({"evaluation_duration": 0}, "'evaluation_duration': got 0"),
        ({"evaluation_interval": 0}, "'evaluation_interval': got 0"),
        ({"evaluation_duration_unit": "minutes"}, "'evaluation_duration_unit': got 'minutes'"),
        ({"custom_evaluation_function": 3}, "'custom_evaluation_function': got 3"),
    ],
    ids=repr,
)
def test_keys_that_contradict_each_other(build, keys, said):
    with pytest.raises(ConfigError, match=said) as caught:
        build(**keys)
    assert "\n" not in str(caught.value)


class Fragile(BrokenEnv):
    """Breaks where it is evaluated, until it is mended."""

    mended = False

    def step(self, action):
        if Fragile.mended:
            self.fault = None
        return super().step(action)


def test_an_environment_that_breaks_while_it_is_evaluated(build):
    changes = {"env_config": {"fault": "step"}, "disable_env_checking": True}
    algo = build(Fragile, evaluation_interval=2, evaluation_duration=2, evaluation_config=changes)
    algo.train()
    with pytest.raises(EnvError, match="environment 'Fragile' raised in step.*the motor is on fire"):
        algo.train()
    Fragile.mended = True
    result = algo.train()
    assert math.isfinite(result["episode_reward_mean"]) and result["evaluation"]["episodes_this_iter"] == 2


@needs_torch
def test_an_environment_that_the_policy_cannot_act_in(build):
    message = r"'evaluation_config.env': Pendulum-v1 has the observation space .*and the policy learns for Box"
    with pytest.raises(ConfigError, match=message):
        build("CartPole-v1", evaluation_interval=1, evaluation_config={"env": "Pendulum-v1"})


@pytest.mark.parametrize("key", ["input", "input_"])
def test_an_evaluation_input_that_nobody_reads(key):
    config = PPOConfig().environment("CartPole-v1").evaluation(evaluation_config={key: "/no/such"})
    with pytest.raises(ConfigError, match="'evaluation_config.input': nobody would read '/no/such'"):
        check_evaluation(config)
    check_evaluation(config.copy().evaluation(evaluation_config={key: "sampler"}))


def test_a_misspelt_key_of_an_estimators_network():
    methods = {"a": {"type": "dm", "q_model_config": {"model": {"fcnet_hidden": [2]}}}}
    config = PPOConfig().environment("CartPole-v1").evaluation(
        off_policy_estimation_methods=methods, evaluation_config={"input": "traces"}
    )
    with pytest.raises(ConfigError, match=r"methods.a.q_model_config': .*'model.fcnet_hidden'. Did you mean 'fcnet_h"):
        check_evaluation(config)
