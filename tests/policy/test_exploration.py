"""Exploration: the same actions in every mode, schedules, masks, and what strategies refuse."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from learners import CHOICE, MASKED, OBS, TORQUE, build, shared, spec_of
from modes import MODES, has

from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError
from polylib.json_values import dumps, loads
from polylib.models.distributions import make_distribution
from polylib.policy import numpy_ops
from polylib.policy.exploration import Exploration, RandomActions, make_exploration

F32 = np.float32
AVAILABLE = [mode for mode in MODES if has(mode[0])]
OBSERVATIONS = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(F32)
# name -> algorithm, action space, exploration_config
STRATEGIES = {
    "epsilon_greedy": ("DQN", CHOICE, {"type": "EpsilonGreedy", "initial_epsilon": 0.5}),
    "per_worker_epsilon_greedy": ("DQN", CHOICE, {"type": "PerWorkerEpsilonGreedy", "initial_epsilon": 0.5}),
    "soft_q": ("DQN", CHOICE, {"type": "SoftQ", "temperature": 0.5}),
    "soft_q_random_first": ("DQN", CHOICE, {"type": "SoftQ", "random_timesteps": 1000}),
    "random": ("DQN", CHOICE, {"type": "Random"}),
    "sampling": ("SAC", TORQUE, {"type": "StochasticSampling"}),
    "sampling_random_first": ("SAC", TORQUE, {"type": "StochasticSampling", "random_timesteps": 1000}),
    "sampling_discrete": ("SAC", CHOICE, {"type": "StochasticSampling"}),
    "random_box": ("SAC", TORQUE, {"type": "Random"}),
    "gaussian": ("DDPG", TORQUE, {"type": "GaussianNoise", "random_timesteps": 0, "stddev": 0.5}),
    "gaussian_random_first": ("DDPG", TORQUE, {"type": "GaussianNoise"}),
    "ornstein_uhlenbeck": ("DDPG", TORQUE, {"type": "OrnsteinUhlenbeckNoise", "random_timesteps": 0}),
    "gaussian_of_sac": ("SAC", TORQUE, {"type": "GaussianNoise", "random_timesteps": 0}),
    "epsilon_greedy_of_td3": ("TD3", TORQUE, {"type": "EpsilonGreedy", "initial_epsilon": 0.5}),
}


def strategy(config, space=CHOICE, worker=(0, 0)):
    return make_exploration(config, space, make_distribution(space), worker)


@pytest.mark.parametrize("name", STRATEGIES)
def test_modes_act_alike_and_greedily_without_exploration(name):
    algo, space, config = STRATEGIES[name]
    reference = None
    for mode in AVAILABLE:
        policy = shared(mode, algo, OBS, space, exploration_config=config)
        policy.rng = np.random.default_rng(4)
        out = [policy.compute_actions(OBSERVATIONS, explore=True).actions for _ in range(12)]
        out += [np.array([policy.compute_single_action(o) for o in OBSERVATIONS])]
        before = policy.rng.bit_generator.state
        greedy = policy.compute_actions(OBSERVATIONS, explore=False)
        assert policy.rng.bit_generator.state == before, "explore=False draws nothing"
        out.append(greedy.actions)
        if reference is None:
            reference = out
        for found, wanted in zip(out, reference, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=str(mode))
        inputs = greedy.extras["action_dist_inputs"]
        best, _ = policy.objective.dist.sample(numpy_ops, inputs, policy.objective.dist.zero_noise(len(inputs)))
        np.testing.assert_allclose(greedy.actions, best, atol=1e-6, err_msg="the best action")
        for actions in out:
            assert all(space.contains(np.asarray(a, space.dtype)[()] if a.ndim else a) for a in actions)
    assert any(not np.array_equal(x, reference[-1]) for x in reference[:12]), "exploring departs from it"


def test_numpy_workers_act_as_the_driver_does():
    driver = build(AVAILABLE[-1], "DDPG", OBS, TORQUE, exploration_config={"random_timesteps": 0})
    worker = build(("numpy", False), "DDPG", OBS, TORQUE, exploration_config={"random_timesteps": 0})
    worker.set_weights(driver.get_weights())
    for policy in (driver, worker):
        policy.rng = np.random.default_rng(1)
    for _ in range(3):
        np.testing.assert_allclose(
            driver.compute_actions(OBSERVATIONS).actions, worker.compute_actions(OBSERVATIONS).actions, atol=1e-6
        )


# --- schedules


def test_epsilon_follows_its_schedule():
    keys = {"initial_epsilon": 1.0, "final_epsilon": 0.1, "warmup_timesteps": 100, "epsilon_timesteps": 200}
    found = strategy({"type": "EpsilonGreedy", **keys})
    # Constant up to 100, then a line down to 300.
    values = [found.coefficients(t)["epsilon"] for t in (0, 100, 200, 300, 10_000)]
    assert values == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])
    given = strategy({"type": "EpsilonGreedy", "epsilon_schedule": [[0, 0.8], [10, 0.4]]})
    assert given.coefficients(5)["epsilon"] == pytest.approx(0.6)
    sudden = strategy({"type": "EpsilonGreedy", "epsilon_timesteps": 0, "final_epsilon": 0.0})
    assert [sudden.coefficients(t)["epsilon"] for t in (0, 1)] == [1.0, 0.0]


def test_epsilon_is_the_share_of_uniform_actions():
    """With epsilon 0.3 and three actions the best one comes in 0.7 + 0.1 of all rows."""
    found = strategy({"type": "EpsilonGreedy"})
    rows = 100_000
    values = np.tile(F32([0, 5, 1]), (rows, 1))
    noise = found.noise(np.random.default_rng(0), rows, True)
    actions, _ = found.actions(numpy_ops, values, noise, {"epsilon": 0.3})
    shares = np.bincount(actions - 5) / rows
    assert shares == pytest.approx([0.1, 0.8, 0.1], abs=0.005)
    for epsilon, expected in ((0.0, [0, 1, 0]), (1.0, [1 / 3] * 3)):
        actions, _ = found.actions(numpy_ops, values, noise, {"epsilon": epsilon})
        assert np.bincount(actions - 5, minlength=3) / rows == pytest.approx(expected, abs=0.006 * (epsilon > 0))


@pytest.mark.parametrize(
    ("index", "count", "expected"),
    [
        # 0.4 ** (1 + 7 i / (N - 1))
        (1, 4, 0.4),
        (2, 4, 0.4 ** (1 + 7 / 3)),
        (3, 4, 0.4 ** (1 + 14 / 3)),
        (4, 4, 0.4**8),
        (1, 1, 0.4),
        # The driver, and a run without workers, follow the schedule.
        (0, 4, 0.9),
        (0, 0, 0.9),
    ],
)
def test_workers_have_epsilons_of_their_own(index, count, expected):
    found = strategy({"type": "PerWorkerEpsilonGreedy", "initial_epsilon": 0.9}, worker=(index, count))
    assert found.coefficients(0)["epsilon"] == pytest.approx(expected)
    if index:
        assert found.coefficients(10**6)["epsilon"] == pytest.approx(expected), "constant"


def test_a_policys_worker_index_is_its_stream():
    from dataclasses import replace

    spec = spec_of("DQN", exploration_config={"type": "PerWorkerEpsilonGreedy"}, num_workers=2)
    for stream, expected in ((1, 0.4), (2, 0.4**8)):
        objective = spec.objective_class(replace(spec, stream=stream))
        assert objective.coefficients()["epsilon"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "space"),
    [
        ({"type": "StochasticSampling", "random_timesteps": 50}, TORQUE),
        ({"type": "SoftQ", "random_timesteps": 50}, CHOICE),
        ({"type": "GaussianNoise", "random_timesteps": 50}, TORQUE),
        ({"type": "OrnsteinUhlenbeckNoise", "random_timesteps": 50}, TORQUE),
    ],
)
def test_uniform_actions_for_the_first_steps(config, space):
    found = strategy(config, space)
    assert [found.coefficients(t)["random"] for t in (0, 49, 50, 1000)] == [1, 1, 0, 0]
    rows, size = 20_000, found.dist.inputs_size
    inputs = np.full((rows, size), 3.0, F32)
    inputs[:, 1:] = -3.0
    noise = found.noise(np.random.default_rng(0), rows, True)
    actions, _ = found.actions(numpy_ops, inputs, noise, {"scale": 1.0, **found.coefficients(0)})
    if isinstance(space, gym.spaces.Discrete):
        assert np.bincount(actions - 5) / rows == pytest.approx([1 / 3] * 3, abs=0.02)
    else:
        middle, half = (space.high + space.low) / 2, (space.high - space.low) / 2
        assert actions.mean(0) == pytest.approx(middle, abs=0.03) and actions.std(0) == pytest.approx(
            half / np.sqrt(3), rel=0.02
        )
    later, _ = found.actions(numpy_ops, inputs, noise, {"scale": 0.0, **found.coefficients(50)})
    assert not np.array_equal(later, actions)


def test_the_scale_of_noise_shrinks_after_the_random_steps():
    keys = {"random_timesteps": 100, "initial_scale": 1.0, "final_scale": 0.2, "scale_timesteps": 400}
    found = strategy({"type": "GaussianNoise", **keys}, TORQUE)
    assert [found.coefficients(t)["scale"] for t in (0, 100, 300, 500, 9999)] == pytest.approx([1, 1, 0.6, 0.2, 0.2])
    given = strategy({"type": "GaussianNoise", "scale_schedule": [[0, 2.0], [10, 1.0]]}, TORQUE)
    assert given.coefficients(5)["scale"] == pytest.approx(1.5)


# --- the noise


def test_gaussian_noise_is_in_units_of_half_the_range_and_clipped():
    """[-2, 2] and [0, 1]: half ranges 2 and 0.5. From the middle: stddev * scale * half * noise."""
    found = strategy({"type": "GaussianNoise", "random_timesteps": 0, "stddev": 0.5}, TORQUE)
    mean = np.zeros((2, found.dist.inputs_size), F32)
    noise = np.concatenate([np.zeros((2, 1)), 0.5 * np.array([[1.0, -1.0], [9.0, -9.0]])], 1).astype(F32)
    actions, raw = found.actions(numpy_ops, mean, noise, {"scale": 0.4})
    assert actions[0] == pytest.approx([0.5 * 0.4 * 2, 0.5 - 0.5 * 0.4 * 0.5])
    assert raw[1] == pytest.approx([1.8 * 2, 0.5 - 1.8 * 0.5]), "before it is clipped"
    assert actions[1] == pytest.approx([1.8 * 2, 0.0], abs=1e-6) or actions[1] == pytest.approx([2.0, 0.0])
    draws = found.noise(np.random.default_rng(0), 50_000, True)[:, 1:]
    assert draws.std(0) == pytest.approx([0.5, 0.5], rel=0.02) and draws.mean() == pytest.approx(0, abs=0.01)


def test_ornstein_uhlenbeck_by_hand():
    """x1 = 0.2 e1, x2 = x1 - 0.15 x1 + 0.2 e2, ...; the noise is 0.1 x."""
    found = strategy({"type": "OrnsteinUhlenbeckNoise", "random_timesteps": 0}, TORQUE)
    rng, same = np.random.default_rng(0), np.random.default_rng(0)
    x = np.zeros((3, 2))
    for _ in range(4):
        noise = found.noise(rng, 3, True)
        x = 0.85 * x + 0.2 * same.standard_normal((3, 2), dtype=F32)
        assert noise[:, 1:3] == pytest.approx(0.1 * x, rel=1e-5)
    quiet = found.noise(rng, 3, False)
    assert not quiet[:, 1:].any() and found.state == pytest.approx(x, rel=1e-5), "not exploring leaves it alone"
    state = loads(dumps(found.get_state()))
    other = strategy({"type": "OrnsteinUhlenbeckNoise", "random_timesteps": 0}, TORQUE)
    other.set_state(state)
    np.testing.assert_array_equal(other.state, found.state)
    other.set_state({})
    assert len(other.state) == 0, "without one it begins anew"
    assert found.noise(rng, 5, True).shape == (5, 5), "another number of rows begins anew"


def test_a_policys_state_holds_the_noise():
    policy = build(("numpy", False), "DDPG", OBS, TORQUE, exploration_config={"random_timesteps": 0})
    policy.compute_actions(OBSERVATIONS)
    state = policy.get_state()
    rest = {key: x for key, x in state.items() if key not in ("weights", "optimizer")}
    assert json.dumps(loads(dumps(rest))["exploration"]["state"].tolist())
    first = policy.compute_actions(OBSERVATIONS).actions
    second = policy.compute_actions(OBSERVATIONS).actions
    policy.set_state(state)
    np.testing.assert_array_equal(policy.compute_actions(OBSERVATIONS).actions, first)
    np.testing.assert_array_equal(policy.compute_actions(OBSERVATIONS).actions, second)
    assert not np.array_equal(first, second)


def test_temperature():
    """softmax([0, ln 2, 0] / 0.5) = [1, 4, 1] / 6; the noise shrinks instead of the values growing."""
    found = strategy({"type": "SoftQ", "temperature": 0.5})
    rows = 100_000
    noise = found.noise(np.random.default_rng(0), rows, True)
    values = np.tile(F32([0, np.log(2), 0]), (rows, 1))
    actions, _ = found.actions(numpy_ops, values, noise, {})
    assert np.bincount(actions - 5) / rows == pytest.approx([1 / 6, 4 / 6, 1 / 6], abs=0.006)


def test_dqn_samples_by_values_with_the_configs_temperature():
    spec = spec_of("DQN", exploration_config={"type": "StochasticSampling"}, categorical_distribution_temperature=0.3)
    assert spec.objective_class(spec).exploration.temperature == 0.3
    spec = spec_of("DQN", exploration_config={"type": "SoftQ", "temperature": 2.0})
    assert spec.objective_class(spec).exploration.temperature == 2.0


# --- masks


@pytest.mark.parametrize(
    "config", [{"type": "EpsilonGreedy"}, {"type": "SoftQ", "temperature": 5.0}, {"type": "Random"}]
)
def test_masked_actions_are_never_chosen(config):
    policy = build(("numpy", False), "DQN", MASKED, CHOICE, exploration_config=config)
    rows = 25_000
    rng = np.random.default_rng(0)
    mask = rng.random((rows, 3)) < 0.4
    mask[np.arange(rows), rng.integers(0, 3, rows)] = True
    obs = {"action_mask": mask.astype(np.int8), "seen": rng.uniform(-1, 1, (rows, 3)).astype(F32)}
    seen = np.zeros(3, int)
    for _ in range(4):
        actions = policy.compute_actions(obs).actions - 5
        assert mask[np.arange(rows), actions].all()
        seen += np.bincount(actions, minlength=3)
    assert (seen > 20_000).all() and seen.sum() == 100_000
    greedy = policy.compute_actions(obs, explore=False)
    assert mask[np.arange(rows), greedy.actions - 5].all()


def test_uniform_actions_of_unbounded_dimensions_are_normal():
    space = gym.spaces.Box(np.float32([0, -np.inf]), np.float32([2, np.inf]), dtype=np.float32)
    found = RandomActions(space, "Random")
    actions = found.sample(numpy_ops, found.noise(np.random.default_rng(0), 20_000))
    assert actions.mean(0) == pytest.approx([1, 0], abs=0.03) and actions.std(0) == pytest.approx(
        [1 / 3**0.5, 1], rel=0.03
    )


# --- what is refused


@pytest.mark.parametrize(
    ("config", "space", "error", "message"),
    [
        (
            {"type": "EpsilonGredy"},
            CHOICE,
            ConfigError,
            "no type 'EpsilonGredy'. Did you mean 'EpsilonGreedy'\\? Known: ",
        ),
        ({"type": "SlateEpsilonGreedy"}, CHOICE, ConfigError, "type 'SlateEpsilonGreedy' isn't in this version"),
        ({"type": "PerWorkerGaussianNoise"}, CHOICE, ConfigError, "'PerWorkerGaussianNoise' isn't in this version"),
        ({"type": 3}, CHOICE, ConfigTypeError, "type is 3, expected a name or a subclass of"),
        (
            {"type": "EpsilonGreedy", "final_epsiln": 0.1},
            CHOICE,
            UnknownKeyError,
            "EpsilonGreedy has no key 'final_epsiln'. Did you mean 'final_epsilon'\\?",
        ),
        ({"type": "Random", "x": 1}, CHOICE, UnknownKeyError, "Random has no key 'x'"),
        (
            {"type": "EpsilonGreedy", "initial_epsilon": 1.5},
            CHOICE,
            ConfigError,
            "got 1.5, expected a number from 0 to 1",
        ),
        (
            {"type": "EpsilonGreedy", "final_epsilon": "a"},
            CHOICE,
            ConfigTypeError,
            "'exploration_config.final_epsilon'",
        ),
        ({"type": "EpsilonGreedy", "epsilon_timesteps": -1}, CHOICE, ConfigError, "got -1, expected a number >= 0"),
        (
            {"type": "EpsilonGreedy", "epsilon_schedule": "x"},
            CHOICE,
            ConfigError,
            "exploration_config.epsilon_schedule",
        ),
        (
            {"type": "EpsilonGreedy"},
            gym.spaces.MultiDiscrete([2, 2]),
            ConfigError,
            "Discrete and Box action spaces, not",
        ),
        ({"type": "SoftQ"}, TORQUE, ConfigError, "SoftQ needs a Discrete action space, not Box"),
        ({"type": "SoftQ", "temperature": 0}, CHOICE, ConfigError, "temperature': got 0, expected a number > 0"),
        ({"type": "GaussianNoise"}, CHOICE, ConfigError, "GaussianNoise needs a Box action space, not Discrete"),
        ({"type": "OrnsteinUhlenbeckNoise"}, CHOICE, ConfigError, "OrnsteinUhlenbeckNoise needs a Box action space"),
        (
            {"type": "GaussianNoise", "stddev": float("nan")},
            TORQUE,
            ConfigError,
            "'exploration_config.stddev': got nan",
        ),
        ({"type": "OrnsteinUhlenbeckNoise", "stddev": 1}, TORQUE, UnknownKeyError, "has no key 'stddev'"),
    ],
)
def test_bad_configs_are_one_clear_line(config, space, error, message):
    with pytest.raises(error, match=message) as caught:
        strategy(config, space)
    assert "\n" not in str(caught.value) and "exploration_config" in str(caught.value)


@pytest.mark.parametrize("algo", ["PPO", "A2C", "PG"])
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"type": "EpsilonGreedy"},
            "learns from the actions of its own distribution and takes type 'StochasticSampling'",
        ),
        ({"type": "Random"}, "only, not 'Random'"),
        (
            {"type": "StochasticSampling", "random_timesteps": 9},
            "'exploration_config.random_timesteps': got 9; .* at 0",
        ),
        ({"type": "StochasticSampling", "random_timestep": 9}, "no key 'random_timestep'. Did you mean"),
    ],
)
def test_on_policy_algorithms_sample_their_own_distribution(algo, config, message):
    spec = spec_of(algo, exploration_config=config)
    with pytest.raises(ConfigError, match=message):
        spec.objective_class(spec)


def test_full_names_and_classes_are_types_too():
    found = strategy({"type": "ray.rllib.utils.exploration.epsilon_greedy.EpsilonGreedy"})
    assert type(found).__name__ == "EpsilonGreedy"

    class Lazy(Exploration):
        def _own_actions(self, ops, dist_inputs, noise, c):
            return self.dist.sample(ops, dist_inputs, noise * 0.0)

    assert isinstance(strategy({"type": Lazy}), Lazy)


def test_keys_go_over_the_algorithms_own_as_long_as_the_type_stays():
    from polylib.algorithms.dqn import DQNConfig

    config = DQNConfig().exploration(exploration_config={"final_epsilon": 0.3})
    assert config["exploration_config"] == {
        "type": "EpsilonGreedy",
        "initial_epsilon": 1.0,
        "final_epsilon": 0.3,
        "epsilon_timesteps": 10_000,
    }
    config.exploration(exploration_config={"type": "EpsilonGreedy", "initial_epsilon": 0.5})
    assert config["exploration_config"]["final_epsilon"] == 0.3
    config.exploration(exploration_config={"type": "SoftQ"})
    assert config["exploration_config"] == {"type": "SoftQ"}, "another type has other keys"


# --- noise on the weights

NOISY = {
    "type": "ParameterNoise",
    "initial_stddev": 0.3,
    "random_timesteps": 0,
    "sub_exploration": {"type": "EpsilonGreedy", "epsilon_schedule": [[0, 0.2], [10, 0.2]]},
}


@pytest.mark.parametrize(("algo", "space"), [("DQN", CHOICE), ("DDPG", TORQUE), ("SAC", TORQUE)])
def test_perturbed_weights_act_alike_in_every_mode(algo, space):
    config = NOISY if algo == "DQN" else {"type": "ParameterNoise", "initial_stddev": 0.3, "random_timesteps": 0}
    reference = None
    for mode in AVAILABLE:
        policy = shared(mode, algo, OBS, space, exploration_config=config)
        policy.rng = np.random.default_rng(4)
        weights = policy.get_weights()
        outs = []
        for _ in range(3):
            outs += [policy.compute_actions(OBSERVATIONS) for _ in range(2)]
            policy.new_episode()
        inputs = [out.extras["action_dist_inputs"] for out in outs]
        np.testing.assert_array_equal(inputs[0], inputs[1], err_msg="the same noise during an episode")
        assert not np.allclose(inputs[1], inputs[2]) and not np.allclose(inputs[3], inputs[4]), "then another"
        greedy = policy.compute_actions(OBSERVATIONS, explore=False).extras["action_dist_inputs"]
        assert not np.allclose(greedy, inputs[0]), "explore=False goes by the weights themselves"
        for key, w in policy.get_weights().items():
            np.testing.assert_array_equal(w, weights[key], err_msg="which nothing happens to")
        found = [*inputs, *(out.actions for out in outs), policy.objective.exploration.stddev]
        if reference is None:
            reference = found
        for x, y in zip(found, reference, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=str(mode))


def test_the_weights_noise_by_hand():
    found = strategy({"type": "ParameterNoise", "initial_stddev": 0.5})
    weights = {"a": np.zeros(50_000, F32), "b": np.ones(3, F32)}
    noisy = found.perturbed(weights, np.random.default_rng(0))
    assert noisy["a"].std() == pytest.approx(0.5, rel=0.02) and noisy["a"].mean() == pytest.approx(0, abs=0.02)
    again = found.perturbed(weights, np.random.default_rng(9))
    np.testing.assert_array_equal(noisy["a"], again["a"], err_msg="until another is drawn")
    other = strategy({"type": "ParameterNoise"})
    other.set_state(loads(dumps(found.get_state())))
    np.testing.assert_array_equal(other.perturbed(weights, np.random.default_rng(1))["b"], noisy["b"])


@pytest.mark.parametrize(
    ("noisy", "epsilon", "factor"),
    [
        # Divergence 0: the noise may grow.
        ([0, 0, 0], 0.1, 1.01),
        # [1/3, 1/3, 1/3] from [1/6, 4/6, 1/6]: 2/3 ln 2 - 1/3 ln 2 = 0.231, above -ln(1 - 0.1 + 0.1 / 3) = 0.069 ...
        ([0, np.log(4), 0], 0.1, 1 / 1.01),
        # ... and below -ln(1 - 0.5 + 0.5 / 3) = 0.405.
        ([0, np.log(4), 0], 0.5, 1.01),
    ],
)
def test_the_weights_noise_is_adapted_to_discrete_actions(noisy, epsilon, factor):
    found = strategy({"type": "ParameterNoise", "initial_stddev": 2.0})
    found.adapt(np.zeros((2, 3), F32), np.tile(F32(noisy), (2, 1)), {"epsilon": epsilon})
    assert found.stddev == pytest.approx(2.0 * factor)


def test_the_weights_noise_is_adapted_to_box_actions():
    """Actions 0.3 apart in units of 1: above 0.2, and below ou_sigma = 0.4."""
    space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    found = strategy({"type": "ParameterNoise", "initial_stddev": 2.0}, space)
    size = found.dist.inputs_size
    clean, moved = np.zeros((2, size), F32), np.zeros((2, size), F32)
    moved[:, 0] = 0.3
    found.adapt(clean, moved, {"scale": 1.0})
    assert found.stddev == pytest.approx(2.0 / 1.01)
    sub = {"type": "OrnsteinUhlenbeckNoise", "ou_sigma": 0.4}
    wide = strategy({"type": "ParameterNoise", "initial_stddev": 2.0, "sub_exploration": sub}, space)
    wide.adapt(clean, moved, {"scale": 1.0})
    assert wide.stddev == pytest.approx(2.0 * 1.01)


def test_what_explores_on_top_of_the_weights_noise():
    found = strategy({"type": "ParameterNoise", "random_timesteps": 100})
    assert [found.coefficients(t)["epsilon"] for t in (0, 101, 102, 999)] == pytest.approx([1, 1, 0.01, 0.01])
    box = strategy({"type": "ParameterNoise", "random_timesteps": 100}, TORQUE)
    assert [box.coefficients(t)["random"] for t in (0, 99, 100)] == [1, 1, 0]
    for wrong, message in (
        ({"sub_exploration": "SoftQ"}, "sub_exploration': got 'SoftQ', expected a dict"),
        ({"sub_exploration": {"type": "ParameterNoise"}}, "can't stand inside of itself"),
        ({"initial_stddev": -1}, "initial_stddev': got -1"),
        ({"stddev": 1}, "ParameterNoise has no key 'stddev'"),
    ):
        with pytest.raises(ConfigError, match=message):
            strategy({"type": "ParameterNoise", **wrong})
