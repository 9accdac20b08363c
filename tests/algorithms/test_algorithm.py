"""PPO as people use it: results, acting, weights, seeds, every kind of space in every mode."""

from __future__ import annotations

import math
import pickle
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
from fakes import BrokenEnv, MatchEnv, RandomEpisodes, ScriptEnv, small_ppo
from modes import FAST_MODE_PARAMS, MODE_PARAMS, has

import polylib
from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo import PPO, PPOConfig
from polylib.algorithms.registry import algorithm_names, get_algorithm_class, get_config_class, register_algorithm
from polylib.algorithms.trainable import original_error
from polylib.errors import (
    BatchError,
    ConfigError,
    ConfigTypeError,
    EnvError,
    UnknownKeyError,
    WeightsError,
    WorkerError,
)

TORCH = ("torch", False)


@pytest.fixture
def build():
    """Algorithms that are stopped when the test ends."""
    made = []

    def make(env=ScriptEnv, mode=TORCH, **keys):
        made.append(small_ppo(env, mode, **keys).build())
        return made[-1]

    yield make
    for algo in made:
        algo.stop()


def weights_of(algo):
    return algo.get_weights()["default_policy"]


def same(one, other):
    return all(np.array_equal(one[key], other[key]) for key in one)


# --- results


FLOATS = ["episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean", "time_total_s"]
INTS = [
    "episodes_this_iter",
    "episodes_total",
    "timesteps_total",
    "num_env_steps_sampled",
    "num_env_steps_trained",
    "num_agent_steps_sampled",
    "num_agent_steps_trained",
    "training_iteration",
]
STATS = [
    "total_loss",
    "policy_loss",
    "vf_loss",
    "kl",
    "entropy",
    "cur_lr",
    "cur_kl_coeff",
    "vf_explained_var",
    "grad_gnorm",
]


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_result_keys(build, framework, traced):
    algo = build(MatchEnv, (framework, traced), train_batch_size=40, sgd_minibatch_size=20)
    for iteration in (1, 2):
        result = algo.train()
        for key in FLOATS:
            assert isinstance(result[key], float) and math.isfinite(result[key]), key
        for key in INTS:
            assert isinstance(result[key], int), key
        for key in STATS:
            value = result["info"]["learner"]["default_policy"]["learner_stats"][key]
            assert isinstance(value, float) and math.isfinite(value), key
        for key in ("sample_time_ms", "learn_time_ms", "synch_weights_time_ms", "training_iteration_time_ms"):
            assert isinstance(result["timers"][key], float) and result["timers"][key] > 0, key
        assert result["timers"]["training_iteration_time_ms"] >= result["timers"]["sample_time_ms"]
        assert result["timers"]["sample_throughput"] > 0 and result["timers"]["learn_throughput"] > 0
        assert result["training_iteration"] == algo.iteration == iteration
        assert result["timesteps_total"] == result["num_env_steps_sampled"] == 40 * iteration
        assert result["num_env_steps_trained"] == result["num_agent_steps_trained"] == 40 * iteration
        assert result["num_env_steps_sampled_this_iter"] == result["num_env_steps_trained_this_iter"] == 40
        assert result["episodes_this_iter"] == 4 and result["episodes_total"] == 4 * iteration
        assert result["episode_len_mean"] == 10
        assert result["hist_stats"]["episode_lengths"] == [10] * 4 * iteration
        rewards = result["hist_stats"]["episode_reward"]
        assert result["episode_reward_mean"] == pytest.approx(np.mean(rewards))
        assert (result["episode_reward_min"], result["episode_reward_max"]) == (min(rewards), max(rewards))
        assert result["counters"] == {
            key: 40 * iteration
            for key in ("num_env_steps_sampled", "num_env_steps_trained", "num_agent_steps_sampled")
        } | {"num_agent_steps_trained": 40 * iteration}
        assert result["info"]["num_env_steps_sampled"] == 40 * iteration
        assert result["info"]["learner"]["default_policy"]["num_grad_updates_lifetime"] == 4 * iteration
        assert result["config"]["train_batch_size"] == 40 and result["config"]["env"] is MatchEnv
        assert result["num_healthy_workers"] == 0
        assert algo.get_policy().num_updates == 4 * iteration
        assert algo.get_policy().global_timestep == 40 * iteration


def test_means_are_nan_without_a_finished_episode(build):
    result = build(env_config={"episodes": [list(range(100))]}).train()
    for key in ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_len_mean"):
        assert math.isnan(result[key]), key
    assert result["episodes_this_iter"] == result["episodes_total"] == 0
    assert result["hist_stats"]["episode_reward"] == result["hist_stats"]["episode_lengths"] == []


def test_means_cover_the_last_hundred_episodes(build):
    # episodes of one step: 64 per iteration
    rewards = [[float(i)] for i in range(1000)]
    algo = build(env_config={"episodes": [[0, 1]] * 1000, "rewards": rewards, "ends": ["terminated"] * 1000})
    result = algo.train()
    assert result["hist_stats"]["episode_reward"] == [float(i) for i in range(64)]
    result = algo.train()
    assert result["hist_stats"]["episode_reward"] == [float(i) for i in range(28, 128)]
    assert (result["episodes_this_iter"], result["episodes_total"]) == (64, 128)
    assert result["episode_reward_mean"] == pytest.approx(np.mean(range(28, 128)))


def test_an_iteration_with_more_episodes_than_that(build):
    rewards = [[float(i)] for i in range(100)]
    config = {"episodes": [[0, 1]] * 100, "rewards": rewards, "ends": ["terminated"] * 100}
    result = build(env_config=config, metrics_num_episodes_for_smoothing=10).train()
    assert result["hist_stats"]["episode_reward"] == [float(i) for i in range(64)]


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, 64),
        ({"min_sample_timesteps_per_iteration": 65}, 128),
        ({"min_train_timesteps_per_iteration": 200}, 256),
    ],
)
def test_shortest_iterations(build, keys, steps):
    algo = build(**keys)
    for iteration in (1, 2):
        result = algo.train()
        assert result["num_env_steps_sampled_this_iter"] == steps
        assert result["num_env_steps_sampled"] == steps * iteration


def test_shortest_iterations_in_seconds(build):
    algo = build(min_time_s_per_iteration=0.3)
    start = time.perf_counter()
    result = algo.train()
    assert time.perf_counter() - start >= 0.3
    assert result["training_iteration"] == 1 and result["timesteps_total"] > 64
    assert result["timers"]["training_iteration_time_ms"] >= 300


# --- making one


def test_from_a_dict_and_from_a_config():
    values = small_ppo("CartPole-v1").to_dict()
    for config, env in ((values, None), ({**values, "env": None}, "CartPole-v1"), (small_ppo(None), "CartPole-v1")):
        with PPO(config=config, env=env) as algo:
            assert algo.config["env"] == "CartPole-v1" and isinstance(algo.config, PPOConfig)
            assert algo.config.model["fcnet_hiddens"] == [8]
            first = algo.train()["info"]["learner"]["default_policy"]["learner_stats"]["total_loss"]
        if env is None:
            expected = first
        assert first == expected
    assert polylib.PPO is PPO and polylib.PPOConfig is PPOConfig


def test_the_env_argument_goes_first(build):
    config = small_ppo("CartPole-v1")
    with config.build(env=MatchEnv) as algo:
        assert algo.config.env is MatchEnv
    assert config.env == "CartPole-v1"
    with PPO({**config.to_dict()}, env=MatchEnv) as algo:
        assert algo.config.env is MatchEnv


@pytest.mark.parametrize(
    ("config", "env", "error", "says"),
    [
        ({}, None, ConfigError, "config key 'env': no environment given"),
        ({"lrr": 1}, "CartPole-v1", UnknownKeyError, "Did you mean 'lr'"),
        ({"lr": -1}, "CartPole-v1", ConfigError, "'lr'"),
        ({"lr": {"grid_search": [1]}}, "CartPole-v1", ConfigError, "search space"),
        (5, "CartPole-v1", ConfigTypeError, "config must be an AlgorithmConfig or a dict, got int"),
        ({}, "CartPol-v1", EnvError, "Did you mean 'CartPole-v1'"),
        ({"framework": "torch"}, 7, EnvError, "got 7"),
        ({"sgd_minibatch_size": 9000}, "CartPole-v1", ConfigError, "'sgd_minibatch_size'"),
    ],
)
def test_mistakes_are_one_line(config, env, error, says):
    with pytest.raises(error) as caught:
        PPO(config, env=env)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_config_of_another_algorithm():
    class Other(polylib.AlgorithmConfig):
        algo_name = "Other"

    with pytest.raises(ConfigTypeError, match="PPO takes a PPOConfig, got Other"):
        PPO(Other())


def test_the_config_is_frozen_and_a_copy(build):
    config = small_ppo("CartPole-v1")
    algo = config.build()
    config.training(lr=0.5)
    assert algo.config.lr != 0.5
    with pytest.raises(ConfigError, match="already built"):
        algo.config.training(lr=0.5)
    algo.stop()


def test_a_context_manager_stops(tmp_path):
    closed = []

    class Closing(ScriptEnv):
        def close(self):
            closed.append(1)

    with small_ppo(Closing, num_envs_per_worker=2).build() as algo:
        algo.train()
        assert "PPO(env=" in repr(algo) and "iteration=1" in repr(algo)
    assert len(closed) == 2
    algo.stop()
    with pytest.raises(WorkerError, match="this PPO was stopped"):
        algo.train()


def test_a_constructor_that_fails_closes_what_it_made(monkeypatch):
    closed = []
    monkeypatch.setattr(ScriptEnv, "close", lambda self: closed.append(1))

    def broken(self, *args, **kwargs):
        raise RuntimeError("no room")

    setup = Algorithm.setup
    monkeypatch.setattr(Algorithm, "setup", lambda self, config: (setup(self, config), broken(self)))
    with pytest.raises(RuntimeError, match="no room"):
        small_ppo(ScriptEnv).build()
    assert closed == [1]


def test_without_workers_ray_is_not_started(build, monkeypatch):
    import ray

    def refuse(*args, **kwargs):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    assert build().train()["training_iteration"] == 1
    with pytest.raises(AssertionError, match="Ray was started"):
        build(num_workers=1)


def test_algorithms_by_name():
    assert algorithm_names() == sorted(algorithm_names()) and "PPO" in algorithm_names()
    assert get_algorithm_class("PPO") is PPO and get_config_class("PPO") is PPOConfig
    for typo in ("ppo", "PP0", "Ppo"):
        with pytest.raises(UnknownKeyError, match=f"unknown algorithm '{typo}'. Did you mean 'PPO'?"):
            get_algorithm_class(typo)


def test_a_users_algorithm(monkeypatch):
    from polylib.algorithms import registry

    monkeypatch.setattr(registry, "_registered", {})

    class MineConfig(PPOConfig):
        algo_name = "Mine"

    class Mine(PPO):
        config_class = MineConfig

    with pytest.raises(ConfigTypeError, match=r"register_algorithm\('Other'\): MineConfig.algo_name is 'Mine'"):
        register_algorithm("Other", MineConfig, Mine)
    register_algorithm("Mine", MineConfig, Mine)
    assert "Mine" in algorithm_names() and get_config_class("Mine") is MineConfig
    with MineConfig().update_from_dict(small_ppo(ScriptEnv).to_dict()).build() as algo:
        assert type(algo) is Mine and algo.train()["training_iteration"] == 1


# --- acting


def test_acting_on_one_observation(build):
    algo = build(MatchEnv)
    obs = np.eye(3, dtype=np.float32)[1]
    action = algo.compute_single_action(obs)
    assert algo.get_policy().action_space.contains(action)
    best = {int(algo.compute_single_action(obs, explore=False)) for _ in range(5)}
    assert len(best) == 1
    assert len({int(algo.compute_single_action(obs)) for _ in range(50)}) == 3
    action, state, extras = algo.compute_single_action(obs, full_fetch=True)
    assert state == [] and extras["action_logp"].shape == () and extras["action_dist_inputs"].shape == (3,)
    with pytest.raises(BatchError, match=r"'obs' has shape \[1, 4\], expected \[B, 3\]"):
        algo.compute_single_action(np.zeros(4))


def test_acting_on_several(build):
    algo = build(MatchEnv)
    batch = np.eye(3, dtype=np.float32)
    actions = algo.compute_actions(batch, explore=False)
    assert actions.shape == (3,) and actions.dtype == np.int64
    by_name = algo.compute_actions({"a": batch[2], "b": batch[0]}, explore=False)
    assert by_name == {"a": actions[2], "b": actions[0]}
    out, state, extras = algo.compute_actions(list(batch), explore=False, full_fetch=True)
    assert np.array_equal(out, actions) and state == [] and extras["action_dist_inputs"].shape == (3, 3)
    with pytest.raises(ConfigError, match="there is no policy 'other'; there are 'default_policy'"):
        algo.compute_actions(batch, policy_id="other")


def test_explore_false_holds_for_sampling(build):
    algo = build(MatchEnv, explore=False)
    (batch,), _ = algo.workers.sample()
    np.testing.assert_array_equal(batch["actions"], algo.compute_actions(batch["obs"], explore=False))


# --- weights


def test_weights_in_and_out(build):
    algo = build(MatchEnv)
    weights = algo.get_weights()
    assert list(weights) == ["default_policy"] and all(w.dtype == np.float32 for w in weights_of(algo).values())
    algo.set_weights({"default_policy": {key: w * 0 for key, w in weights_of(algo).items()}})
    assert not any(w.any() for w in weights_of(algo).values())
    with pytest.raises(WeightsError, match="variable 'nonsense'|no variable 'nonsense'"):
        algo.set_weights({"default_policy": {**weights["default_policy"], "nonsense": np.zeros(1)}})
    with pytest.raises(ConfigError, match="there is no policy 'other'"):
        algo.set_weights({"other": {}})


def test_weights_reach_remote_workers(ray_session, build):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        algo = build(MatchEnv, num_workers=1, num_cpus_per_worker=0.5, rollout_fragment_length=64)

        def remote():
            return algo.workers.foreach_worker(lambda w: w.get_weights()["default_policy"], local_worker=False)[0]

        assert same(remote(), weights_of(algo)), "from the start"
        result = algo.train()
        assert same(remote(), weights_of(algo)), "after an iteration"
        assert result["num_healthy_workers"] == 1 and result["num_env_steps_sampled"] == 64
        algo.set_weights({"default_policy": {key: w * 0 + 3 for key, w in weights_of(algo).items()}})
        assert all((w == 3).all() for w in remote().values()), "when set"
        timesteps = algo.workers.foreach_worker(lambda w: w.get_policy().global_timestep)
        assert timesteps == [64, 64]
    assert not [str(w.message) for w in caught if "not writable" in str(w.message)]


# --- seeds


def trained(mode, iterations=2, **keys):
    with small_ppo(MatchEnv, mode, num_envs_per_worker=2, **keys).build() as algo:
        for _ in range(iterations):
            algo.train()
        return weights_of(algo)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_the_same_seed_gives_the_same_weights_bit_for_bit(framework, traced):
    mode = (framework, traced)
    one = trained(mode, seed=7)
    assert same(one, trained(mode, seed=7))
    other = trained(mode, seed=8)
    assert not any(np.array_equal(one[key], other[key]) for key in one if key.endswith("kernel"))


@pytest.mark.parametrize("framework", [f for f in ("torch", "tf") if has(f)])
def test_the_same_seed_gives_the_same_weights_with_two_workers(ray_session, framework):
    keys = {"num_workers": 2, "num_cpus_per_worker": 0.5, "seed": 7}
    one = trained((framework, False), **keys)
    assert same(one, trained((framework, False), **keys))
    if framework == "torch":
        assert not same(one, trained((framework, False), seed=7)), "two workers see other episodes than one"


def test_without_a_seed_runs_differ():
    assert not same(trained(TORCH, seed=None), trained(TORCH, seed=None))


# --- what changes while training


@pytest.mark.parametrize("framework", [f for f in ("tf", "torch") if has(f)])
def test_schedules_follow_sampled_timesteps(build, framework):
    algo = build(
        ScriptEnv,
        (framework, False),
        lr=[[0, 1.0], [128, 0.5], [256, 0.0]],
        entropy_coeff_schedule=[[0, 0.25], [640, 0.0]],
    )
    stats = [algo.train()["info"]["learner"]["default_policy"]["learner_stats"] for _ in range(5)]
    np.testing.assert_allclose([s["cur_lr"] for s in stats], [0.75, 0.5, 0.25, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose([s["entropy_coeff"] for s in stats], [0.225, 0.2, 0.175, 0.15, 0.125], atol=1e-6)


def test_the_learning_rate_of_the_schedule_is_used(build):
    algo = build(lr=[[0, 0.0], [64, 0.0], [65, 0.1], [1000, 0.1]])
    start = weights_of(algo)
    algo.train()
    assert same(weights_of(algo), start)
    algo.train()
    assert not same(weights_of(algo), start)


@pytest.mark.parametrize(("target", "factor"), [(1e-9, 1.5), (1e3, 0.5)])
def test_the_kl_coefficient_adapts(build, target, factor):
    algo = build(MatchEnv, kl_target=target, kl_coeff=0.2, lr=0.01)
    seen = [algo.train()["info"]["learner"]["default_policy"]["learner_stats"]["cur_kl_coeff"] for _ in range(3)]
    np.testing.assert_allclose(seen, [0.2, 0.2 * factor, 0.2 * factor**2], rtol=1e-5)


# --- spaces


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
@pytest.mark.parametrize(
    ("obs", "actions"), [("box", "box"), ("discrete", "multidiscrete"), ("discrete", "discrete")]
)
def test_spaces(build, framework, traced, obs, actions):
    """MatchEnv refuses actions that aren't in its space."""
    keys = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_envs_per_worker": 2}
    algo = build(MatchEnv, (framework, traced), env_config={"obs": obs, "actions": actions}, **keys)
    for _ in range(2):
        result = algo.train()
    assert result["episode_len_mean"] == 10 and result["timesteps_total"] == 80
    stats = result["info"]["learner"]["default_policy"]["learner_stats"]
    assert all(math.isfinite(stats[key]) for key in STATS)
    policy = algo.get_policy()
    action = algo.compute_single_action(policy.observation_space.sample())
    assert policy.action_space.contains(action)


def test_spaces_that_are_not_supported_are_named():
    """In one line that names the part, before anything is stepped."""
    text = gym.spaces.Text(3)

    class TextObs(ScriptEnv):
        def __init__(self, config):
            super().__init__()
            self.observation_space = gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Tuple([text])})

        def reset(self, **kwargs):
            return {"a": 0, "b": ("x",)}, {}

    for env, space in (
        (TextObs, f"observation space {text} of 'obs/b/0'"),
        (lambda config: ScriptEnv({"actions": gym.spaces.Dict({"a": text})}), f"action space Dict('a': {text})"),
        (lambda config: ScriptEnv({"actions": gym.spaces.Box(0, 9, (1,), np.int64)}), "action space Box(0, 9"),
    ):
        with pytest.raises(polylib.errors.PolylibError) as caught:
            small_ppo(env).build()
        assert space in str(caught.value) and "\n" not in str(caught.value)


# --- learning


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
@pytest.mark.parametrize("num_envs", [4])
def test_a_simple_task_is_learned(build, framework, traced, num_envs):
    algo = build(
        MatchEnv,
        (framework, traced),
        train_batch_size=400,
        sgd_minibatch_size=100,
        num_sgd_iter=10,
        lr=0.01,
        gamma=0.5,
        num_envs_per_worker=num_envs,
        model={"fcnet_hiddens": [16]},
    )
    first = algo.train()["episode_reward_mean"]
    assert first < 6, "by chance it is 10 / 3"
    rewards = [algo.train()["hist_stats"]["episode_reward"][-40:] for _ in range(7)]
    assert np.mean(rewards[-1]) > 9
    for choice in range(3):
        assert algo.compute_single_action(np.eye(3, dtype=np.float32)[choice], explore=False) == 5 + choice


def test_complete_episodes_and_uneven_lengths(build):
    algo = build(RandomEpisodes, batch_mode="complete_episodes", num_envs_per_worker=3)
    result = algo.train()
    assert result["timesteps_total"] >= 64 and result["episodes_total"] > 3


# --- errors while training


@pytest.mark.parametrize("fault", ["nan obs", "nan reward", "step"])
def test_an_environment_that_breaks_while_training(build, fault):
    algo = build(BrokenEnv, env_config={"fault": fault})
    before = weights_of(algo)
    with pytest.raises(EnvError, match="'BrokenEnv'.*worker 0.*step 3") as caught:
        algo.train()
    assert "\n" not in str(caught.value)
    assert same(weights_of(algo), before)


def test_a_lost_worker_ends_training(ray_session, build):
    import ray

    algo = build(num_workers=1, num_cpus_per_worker=0.5)
    ray.kill(algo.workers.remote_workers()[0])
    start = time.monotonic()
    with pytest.raises(WorkerError, match="a rollout worker died"):
        algo.train()
    assert time.monotonic() - start < 60


def test_the_error_behind_wrappers():
    inner = EnvError("the cause")
    try:
        try:
            raise inner
        except EnvError as error:
            raise RuntimeError("wrapped") from error
    except RuntimeError as error:
        assert original_error(error) is inner
    loop = RuntimeError("a")
    loop.cause = loop
    assert original_error(loop) is loop


# --- nothing is unpickled


class Planted:
    """Runs code when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["_dict_checkpoint.pkl", ".tune_metadata", "checkpoint.pkl", "algorithm_state.pkl"])
def test_a_planted_pickle_is_not_executed(build, tmp_path, name):
    folder, mark = tmp_path / "checkpoint", tmp_path / "it-ran"
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps(Planted(mark)))
    algo = build()
    before = weights_of(algo)
    for path in (folder, str(folder)):
        with pytest.raises(polylib.errors.PolylibError) as caught:
            algo.restore(path)
        assert "\n" not in str(caught.value)
    from ray.tune import Checkpoint

    with pytest.raises(polylib.errors.PolylibError):
        algo.restore(Checkpoint(str(folder)))
    with pytest.raises(polylib.errors.PolylibError):
        PPO.from_checkpoint(str(folder))
    assert not mark.exists()
    assert same(weights_of(algo), before)
    # The pickle does run where somebody unpickles it.
    pickle.loads((folder / name).read_bytes()).close()
    assert mark.exists()


def test_a_pickle_beside_a_good_checkpoint_is_not_executed(build, tmp_path):
    algo = build()
    algo.train()
    algo.save(str(tmp_path / "checkpoint"))
    mark = tmp_path / "it-ran"
    (tmp_path / "checkpoint" / "_dict_checkpoint.pkl").write_bytes(pickle.dumps(Planted(mark)))
    other = build(seed=3)
    other.restore(str(tmp_path / "checkpoint"))
    assert same(weights_of(other), weights_of(algo)) and not mark.exists()
