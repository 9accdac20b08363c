"""The keys of replay algorithms: what doesn't go together is one clear line, before anything is built."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from learners import small_config

from polylib.algorithms.evaluation import evaluation_config
from polylib.algorithms.registry import algorithm_names, get_algorithm_class, get_config_class
from polylib.errors import ConfigError, ConfigTypeError, NotBuiltError, UnknownKeyError
from polylib.execution.replay import check_replay_config

REPLAY = ["DQN", "SimpleQ", "SAC", "DDPG", "TD3"]


class MultiDiscreteEnv(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 2])

    def __init__(self, config=None):
        pass

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


def one_line(config, error, message):
    with pytest.raises(error, match=message) as caught:
        config()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("algo", REPLAY)
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (
            {"replay_buffer_config": {"capacity": 10}, "train_batch_size": 32},
            ConfigError,
            "'replay_buffer_config.capacity': 10 rows are fewer than train_batch_size=32; raise the one or lower",
        ),
        ({"replay_buffer_config": {"capacity": "many"}}, ConfigTypeError, r"replay_buffer_config\['capacity'\]='many'"),
        ({"replay_buffer_config": {"capacty": 1000}}, UnknownKeyError, "has no key 'capacty'. Did you mean 'capacity'"),
        ({"replay_buffer_config": {"type": "Replay"}}, ConfigError, r"\['type'\]='Replay': expected one of"),
        (
            {"n_step": 5, "rollout_fragment_length": 4},
            ConfigError,
            "'n_step': rewards are summed inside a fragment, and rollout_fragment_length=4 holds no 5 steps",
        ),
    ],
)
def test_keys_that_dont_go_together(algo, keys, error, message):
    one_line(lambda: small_config(algo, **keys).validate(), error, message)


@pytest.mark.parametrize("algo", ["SAC", "DDPG", "TD3"])
@pytest.mark.parametrize("memory", ["use_lstm", "use_gru", "use_attention"])
def test_networks_with_state_that_arent_there(algo, memory):
    message = f"'model.{memory}': {algo} has no networks with state in this version; DQN, PPO, A2C and PG have"
    one_line(lambda: small_config(algo, model={memory: True}).validate(), NotBuiltError, message)


@pytest.mark.parametrize(
    ("algo", "keys", "error", "message"),
    [
        ("DQN", {"num_atoms": 0}, ConfigError, "'num_atoms': got 0, expected an integer >= 1"),
        (
            "DQN",
            {"num_atoms": 5, "v_min": 3, "v_max": 1},
            ConfigError,
            "'v_min' and 'v_max': the returns from 3 to 1 are no",
        ),
        (
            "DQN",
            {"td_error_loss_fn": "l1"},
            ConfigError,
            "'td_error_loss_fn': got 'l1', expected one of 'huber', 'mse'",
        ),
        ("DQN", {"n_step": 0}, ConfigError, "'n_step': got 0, expected an integer >= 1"),
        ("DQN", {"tau": 1.5}, ConfigError, r"'tau': got 1.5, expected a number in \[0, 1\]"),
        ("DQN", {"training_intensity": 0}, ConfigError, "'training_intensity': got 0, expected a number > 0 or None"),
        ("DQN", {"buffer_size": 1000}, UnknownKeyError, "'buffer_size' for DQN. Did you mean 'replay_buffer_config"),
        ("DQN", {"timesteps_per_iteration": 9}, UnknownKeyError, "for DQN. Did you mean 'min_sample_timestep"),
        ("DQN", {"adam_epsilon": 0}, ConfigError, "'adam_epsilon': got 0, expected a number > 0"),
        ("DQN", {"before_learn_on_batch": print}, NotBuiltError, "'before_learn_on_batch'"),
        ("SAC", {"optimization": {"actor_lr": 1e-3}}, UnknownKeyError, "'optimization': there is no 'actor_lr'"),
        (
            "SAC",
            {"optimization": {"actor_learning_rate": -1}},
            ConfigError,
            "'optimization.actor_learning_rate': got -1",
        ),
        (
            "SAC",
            {"q_model_config": {"hiddens": [4]}},
            UnknownKeyError,
            "'q_model_config': unknown config key 'model.hid",
        ),
        ("SAC", {"policy_model_config": {"use_lstm": True}}, NotBuiltError, "'policy_model_config.use_lstm'"),
        ("SAC", {"policy_model_config": {"fcnet_hiddens": "a"}}, ConfigError, "'policy_model_config': .*fcnet_hiddens"),
        ("SAC", {"target_entropy": "low"}, ConfigError, "'target_entropy': got 'low' .*expected a number or 'auto'"),
        (
            "SAC",
            {"target_entropy": float("nan")},
            ConfigError,
            "'target_entropy': got nan .*expected a number or 'auto'",
        ),
        ("SAC", {"lr": 1e-4}, ConfigError, "'lr': got 0.0001, but the networks of SAC have .* set optimization"),
        ("TD3", {"lr": 1e-4}, ConfigError, "'lr': .* networks of TD3 have .* set actor_lr and critic_lr"),
        ("SAC", {"initial_alpha": 0}, ConfigError, "'initial_alpha': got 0, expected a number > 0"),
        ("TD3", {"policy_delay": 0}, ConfigError, "'policy_delay': got 0, expected an integer >= 1"),
        ("DDPG", {"l2_reg": 1e-6}, NotBuiltError, "'l2_reg'"),
        (
            "DDPG",
            {"actor_hidden_activation": "tan"},
            ConfigError,
            "'actor_hidden_activation': got 'tan', expected one of",
        ),
        ("A2C", {"microbatch_size": 0}, ConfigError, "'microbatch_size': got 0, expected an integer >= 1 or None"),
    ],
)
def test_values_that_are_wrong(algo, keys, error, message):
    one_line(lambda: small_config(algo, **keys).validate(), error, message)


@pytest.mark.parametrize(
    ("algo", "env", "message"),
    [
        ("DQN", "Pendulum-v1", "DQN chooses among discrete actions: it needs a Discrete action space, not Box"),
        ("SAC", MultiDiscreteEnv, "SAC needs a Box or Discrete action space, not MultiDiscrete"),
        ("DDPG", "CartPole-v1", "DDPG and TD3 need a Box action space with finite bounds, not Discrete"),
        ("TD3", MultiDiscreteEnv, "DDPG and TD3 need a Box action space with finite bounds, not MultiDiscrete"),
        ("PPO", "CartPole-v1", None),
    ],
)
def test_spaces_that_dont_fit(algo, env, message):
    config = small_config(algo, env=env).framework("torch")
    if message is None:
        config.build().stop()
        return
    one_line(config.build, ConfigError, message)


@pytest.mark.parametrize("algo", ["SAC", "DDPG", "TD3"])
def test_networks_of_ones_own_where_there_are_default_ones_only(algo):
    message = f"'model.custom_model': {algo} has the default networks only in this version; DQN, PPO, A2C and PG take"
    one_line(lambda: small_config(algo, model={"custom_model": print}).validate(), NotBuiltError, message)


def test_exploration_that_doesnt_fit_is_said_at_build():
    config = small_config("A2C", env="CartPole-v1", exploration_config={"type": "EpsilonGreedy"}).framework("torch")
    one_line(config.build, ConfigError, "A2C learns from the actions of its own distribution")
    config = small_config("DQN", env="CartPole-v1", exploration_config={"type": "GaussianNoise"}).framework("torch")
    one_line(config.build, ConfigError, "GaussianNoise needs a Box action space")


def test_fragments_are_as_long_as_a_target_spans():
    assert small_config("DQN", rollout_fragment_length="auto", n_step=3).get_rollout_fragment_length(2) == 3
    assert small_config("DQN", n_step=3).get_rollout_fragment_length() == 4


def test_the_buffers_keys_go_over_the_algorithms():
    settings = small_config("DQN", replay_buffer_config={"capacity": 99}).replay_settings()
    assert settings["capacity"] == 99 and settings["prioritized_replay_alpha"] == 0.6
    short = small_config("DQN", replay_buffer_config={"alpha": 0.5, "prioritized_replay_beta": 1.0})
    assert check_replay_config(short.replay_settings()).prioritized_replay_alpha == 0.5
    assert check_replay_config(short.replay_settings()).prioritized_replay_beta == 1.0
    assert small_config("SAC").replay_settings() == {"type": "MultiAgentReplayBuffer", "capacity": 1_000_000}


@pytest.mark.parametrize("name", ["PPO", "PG", "A2C", "DQN", "SimpleQ", "SAC", "DDPG", "TD3", "BC", "MARWIL"])
def test_all_are_known_by_name_and_to_tune(name):
    pytest.importorskip("ray")
    from ray.tune.registry import TRAINABLE_CLASS, _global_registry

    import polylib.algorithms.trainable  # noqa: F401

    assert name in algorithm_names()
    assert get_config_class(name).algo_name == name and get_algorithm_class(name).__name__ == name
    assert _global_registry.contains(TRAINABLE_CLASS, name)
    module = __import__(f"polylib.algorithms.{ {'SimpleQ': 'simple_q'}.get(name, name.lower()) }", fromlist=["x"])
    assert getattr(module, name) is get_algorithm_class(name)
    assert getattr(module, f"{name}Config") is get_config_class(name)
    with pytest.raises(AttributeError):
        module.Nothing  # noqa: B018


@pytest.mark.parametrize("name", ["DQN", "SimpleQ", "DDPG", "TD3"])
def test_evaluates_greedily_unless_told_otherwise(name):
    """RLlib's default for these, kept when evaluation_config changes other keys."""
    env = "CartPole-v1" if name in ("DQN", "SimpleQ") else "Pendulum-v1"
    config = get_config_class(name)().environment(env)
    assert evaluation_config(config)["explore"] is False
    assert evaluation_config(config.copy().evaluation(evaluation_config={"env_config": {}}))["explore"] is False
    assert evaluation_config(config.copy().evaluation(evaluation_config={"explore": True}))["explore"] is True
    assert config["explore"] is True
