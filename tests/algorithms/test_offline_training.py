"""Algorithms that learn from recorded experience: without an environment, beside one, and from both."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from learners import LSTM, small_config
from modes import FAST_MODES, MODE_PARAMS, MODES, has, mode_id

from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.registry import get_config_class
from polylib.callbacks import DefaultCallbacks
from polylib.errors import ConfigError
from polylib.offline.errors import OfflineError
from polylib.offline.json_reader import JsonReader
from polylib.offline.json_writer import JsonWriter
from polylib.policy.sample_batch import SampleBatch, concat_samples

TORCH = ("torch", False)
FRAMEWORK = next(mode for mode in (TORCH, ("tf2", True)) if has(mode[0]))
#: For algorithms with a replay buffer.
REPLAY = {
    "num_steps_sampled_before_learning_starts": 20,
    "min_sample_timesteps_per_iteration": 24,
    "train_batch_size": 8,
    "store_buffer_in_checkpoints": True,
}


def balanced(episodes, seed=0):
    """Episodes of CartPole by a rule that balances the pole, one action in ten being random."""
    env, rng = gym.make("CartPole-v1", max_episode_steps=200), np.random.default_rng(seed)
    for k in range(episodes):
        obs, _ = env.reset(seed=seed + k)
        rows, done = [], False
        while not done:
            action = int(rng.random() < 0.5) if rng.random() < 0.1 else int(obs @ [0.1, 0.3, 1.0, 1.0] > 0)
            new_obs, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, new_obs, terminated, truncated, k, len(rows)))
            obs, done = new_obs, terminated or truncated
        names = ("obs", "actions", "rewards", "new_obs", "terminateds", "truncateds", "eps_id", "t")
        yield SampleBatch({name: np.array(x) for name, x in zip(names, zip(*rows, strict=True), strict=True)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Lines of 50 rows, so that episodes go on from line to line."""
    path = tmp_path_factory.mktemp("traces")
    spaces = gym.make("CartPole-v1").observation_space, gym.spaces.Discrete(2)
    rows = concat_samples(list(balanced(40)))
    with JsonWriter(path, compress_columns=[], spaces=spaces) as writer:
        for start in range(0, rows.count, 50):
            writer.write(rows[start : start + 50])
    return str(path)


@pytest.fixture
def build(folder):
    """Algorithms on the folder, which are stopped when the test ends."""
    made = []

    def make(algo, mode=FRAMEWORK, **keys):
        config = small_config(algo, **{"input": folder, "seed": 3, **keys})
        made.append(config.framework(mode[0], eager_tracing=mode[1]).build())
        return made[-1]

    def add(algo):
        made.append(algo)
        return algo

    make.add = add
    yield make
    for algo in made:
        algo.stop()


def stats_of(result):
    return result["info"]["learner"]["default_policy"].get("learner_stats"), result["hist_stats"]


# --- learning


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_cloning_a_policy_that_balances(build, framework, traced):
    """Some seconds at most; the rule itself gets some 190, and chance 20."""
    algo = build(
        "BC",
        (framework, traced),
        lr=3e-3,
        model={"fcnet_hiddens": [64]},
        train_batch_size=500,
        min_train_timesteps_per_iteration=40_000,
        evaluation_interval=1,
        evaluation_duration=5,
        evaluation_config={"env": "CartPole-v1", "explore": False},
    )
    result = algo.train()
    assert result["num_env_steps_trained"] == 40_000 and result["evaluation"]["episode_reward_mean"] > 150
    assert algo.workers.local_worker().env is None


@pytest.mark.parametrize("algo", ["MARWIL", "DQN", "SAC"])
def test_the_others_learn_something_of_it(build, algo):
    """Each knows more of the recorded actions, or values, than at the start."""
    keys = {
        "MARWIL": {"lr": 1e-3, "train_batch_size": 500},
        "DQN": {"lr": 1e-2},
        "SAC": {"optimization": {"critic_learning_rate": 1e-2}},
    }[algo]
    if algo != "MARWIL":
        keys |= {**REPLAY, "target_network_update_freq": 20, "min_time_s_per_iteration": 0}
    given = build(algo, **keys)
    policy, batch = given.get_policy(), given.workers.local_worker().sample()
    batch = concat_samples([batch] * max(1, 100 // batch.count))

    def loss():
        return policy.compute_gradients(batch)[1]["learner_stats"]

    before = loss()
    for _ in range(20):
        result = given.train()
    after = loss()
    assert result["num_env_steps_sampled"] >= 20 * 24 and np.isnan(result["episode_reward_mean"])
    if algo == "MARWIL":
        assert after["vf_loss"] < before["vf_loss"]
    else:
        assert after["mean_q"] > before["mean_q"] + 0.5


def test_several_policies_of_the_same_files_agree_in_all_modes(build):
    """The same rows in the same order: weights after some updates are the same in all modes."""
    ends = {}
    for mode in MODES:
        if has(mode[0]):
            algo = build("MARWIL", mode, train_batch_size=100, min_train_timesteps_per_iteration=500, lr=1e-2)
            algo.train()
            ends[mode] = algo.get_policy().get_state()
    first, *others = ends.values()
    assert first["num_updates"] == 5
    for other in others:
        assert other["coefficients"] == pytest.approx(first["coefficients"], rel=1e-5)
        for key, w in first["weights"].items():
            np.testing.assert_allclose(other["weights"][key], w, rtol=1e-3, atol=1e-5, err_msg=key)


def test_recorded_in_one_framework_learnt_in_another(tmp_path):
    """What PPO writes in each framework is read in the next one, whatever network wrote it."""
    modes = [mode for mode in FAST_MODES if has(mode[0])]
    for i, (framework, traced) in enumerate(modes):
        keys = {"env": "CartPole-v1", "output": str(tmp_path / str(i)), "train_batch_size": 100, "seed": 0}
        config = small_config("PPO", **keys, sgd_minibatch_size=50, num_sgd_iter=1, **LSTM)
        with config.framework(framework, eager_tracing=traced).build() as algo:
            algo.train()
    for i, (framework, traced) in enumerate(modes):
        source = str(tmp_path / str((i + 1) % len(modes)))
        config = small_config("BC", input=source, train_batch_size=100, seed=0)
        with config.framework(framework, eager_tracing=traced).build() as algo:
            assert algo.config["action_space"] == gym.spaces.Discrete(2)
            before, after = (stats_of(algo.train())[0]["total_loss"] for _ in range(2))
            assert after < before


RLLIB = Path(__file__).parents[1] / "data" / "rllib_json"


@pytest.mark.parametrize("algo", ["BC", "DQN"])
@pytest.mark.parametrize("name", sorted(path.name for path in RLLIB.iterdir() if path.is_dir()))
def test_files_of_rllib(name, algo):
    """Each of its layouts, packed or not; several policies, and Box actions with DQN, are refused in words."""
    config = small_config(algo, input=str(RLLIB / name), train_batch_size=16, seed=0, rollout_fragment_length=4)
    config.framework(FRAMEWORK[0], eager_tracing=FRAMEWORK[1])
    if algo == "DQN":
        config.update_from_dict({**REPLAY, "train_batch_size": 16})
    box = algo == "DQN" and name in ("dict_tuple", "pendulum_sac")
    if name.startswith("multi_agent") or box:
        error, message = (ConfigError, "needs a Discrete") if box else (OfflineError, "experience of 2 policies")
        with pytest.raises(error, match=message), config.build() as algo:
            algo.train()
        return
    with config.build() as algo:
        assert np.isfinite(stats_of(algo.train())[0]["total_loss"])


# --- going on

GOING_ON = {
    "BC": ("BC", {"train_batch_size": 70}),
    "BC_shuffled": ("BC", {"train_batch_size": 70, "shuffle_buffer_size": 300}),
    "BC_recurrent": ("BC", {"train_batch_size": 70, **LSTM}),
    "MARWIL": ("MARWIL", {"train_batch_size": 70, "moving_average_sqd_adv_norm_update_rate": 0.1}),
    "DQN": ("DQN", {**REPLAY, "n_step": 3}),
    "DQN_mixed": ("DQN", {**REPLAY, "env": "CartPole-v1"}),
}
SPLITS = [
    pytest.param(name, mode, id=f"{name}-{mode_id(*mode)}")
    for name, mode in [*((name, FRAMEWORK) for name in GOING_ON), *(("MARWIL", mode) for mode in MODES[:3])]
    if has(mode[0])
]


@pytest.mark.parametrize(("name", "mode"), SPLITS)
def test_a_run_split_at_any_iteration(build, folder, tmp_path, name, mode):
    algo, keys = GOING_ON[name]
    if name == "DQN_mixed":
        keys = {**keys, "input": {folder: 0.5, "sampler": 0.5}}
    iterations, results, unbroken = 4, [], build(algo, mode, **keys)
    for iteration in range(iterations):
        unbroken.save(tmp_path / str(iteration))
        results.append(stats_of(unbroken.train()))
    assert len({str(stats) for stats, _ in results}) >= 3
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "2"))
    # Then the same one again, back: what it had read is forgotten.
    for start in (2, 1):
        if start != 2:
            restored.restore(tmp_path / str(start))
        for iteration in range(start, iterations):
            assert stats_of(restored.train()) == results[iteration], (start, iteration)
    mine, others = unbroken.get_policy().get_state(), restored.get_policy().get_state()
    assert mine["coefficients"] == others["coefficients"]
    for key, w in mine["weights"].items():
        np.testing.assert_array_equal(others["weights"][key], w, err_msg=key)


def test_a_checkpoint_without_its_files(build, folder, tmp_path, caplog):
    """It can't train; told to read nothing it acts. With other files it starts at their beginning."""
    algo = build("BC")
    algo.train()
    algo.save(tmp_path / "c")
    action = algo.compute_single_action(np.zeros(4, np.float32), explore=False)
    with pytest.raises(OfflineError, match="there is no file or folder '/nowhere'"):
        Algorithm.from_checkpoint(tmp_path / "c", {"input": "/nowhere"})
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", {"input": "sampler"}))
    assert restored.compute_single_action(np.zeros(4, np.float32), explore=False) == action
    with JsonWriter(tmp_path / "others", compress_columns=[]) as writer:
        writer.write(next(balanced(1)))
        writer.close()
        writer.write(next(balanced(1)))
    changes = {"input": str(tmp_path / "others"), "log_level": "INFO"}
    other = build.add(Algorithm.from_checkpoint(tmp_path / "c", changes))
    assert "reading starts at the beginning" in caplog.text
    other.train()


# --- sources


def test_files_and_environment_together(build, folder):
    """Episodes of the sampled part are reported; both parts are learnt from."""
    algo = build("DQN", env="CartPole-v1", input={folder: 0.5, "sampler": 0.5}, **REPLAY)
    for _ in range(10):
        result = algo.train()
    assert result["num_env_steps_sampled"] == 240 and 3 <= result["episodes_total"] <= 12
    with pytest.raises(ConfigError, match=r"weights .* sum to 0.7"):
        build("DQN", env="CartPole-v1", input={folder: 0.5, "sampler": 0.2})


def test_writing_what_is_read(build, folder, tmp_path):
    """`output` gets the records as they were, before anything is computed of them."""
    algo = build("DQN", output=str(tmp_path), output_compress_columns=[], **REPLAY)
    algo.train()
    algo.stop()
    copied = JsonReader(str(tmp_path)).read_all()
    original = JsonReader(folder).read_all()[: copied.count]
    assert copied.count == 50 and set(copied) == set(original)
    np.testing.assert_array_equal(copied["obs"], original["obs"])
    np.testing.assert_array_equal(copied["rewards"], 1)


def test_remote_workers_share_the_files(ray_session, build, folder):
    """Each reads every second line; the local one only learns."""
    algo = build("MARWIL", num_workers=2, num_cpus_per_worker=0.1, train_batch_size=200)
    assert algo.workers.local_worker().env is None and algo.workers.num_remote_workers() == 2
    (one, other), _ = algo.workers.sample()
    assert one.count == other.count == 100
    seen = [set(zip(batch["eps_id"], batch["t"], strict=True)) for batch in (one, other)]
    assert len(seen[0]) == len(seen[1]) == 100 and not seen[0] & seen[1]
    result = algo.train()
    assert result["num_env_steps_trained"] == 200 and np.isfinite(stats_of(result)[0]["total_loss"])


class Noticed(DefaultCallbacks):
    seen: list = []

    def on_postprocess_trajectory(self, *, postprocessed_batch, original_batches, **kwargs):
        ((_, _, before),) = original_batches.values()
        self.seen.append(("postprocessed", set(postprocessed_batch) - set(before)))

    def on_sample_end(self, *, samples, **kwargs):
        self.seen.append(("sampled", samples.count))


def test_callbacks(build):
    Noticed.seen = []
    build("MARWIL", train_batch_size=30, callbacks=Noticed).train()
    kinds = dict(Noticed.seen)
    assert kinds == {"postprocessed": {"advantages", "value_targets"}, "sampled": 30}


# --- what can't be


@pytest.mark.parametrize("algo", ["PPO", "A2C", "PG"])
def test_algorithms_that_need_their_own_experience(algo, folder):
    with pytest.raises(ConfigError, match=rf"'input': {algo} learns from what its own .* these can: BC, .*DQN.*, TD3$"):
        get_config_class(algo)().environment("CartPole-v1").offline_data(input_=folder).validate()


def test_evaluation_needs_an_environment(build):
    with pytest.raises(ConfigError, match="'evaluation_interval': there is no environment to evaluate in; name one"):
        build("BC", evaluation_interval=1)
    found = build("BC", evaluation_interval=1, custom_evaluation_function=lambda algo, workers: {"mine": 1}).train()
    assert found["evaluation"] == {"mine": 1}
    # The environment of training is evaluation's too, and nobody steps it for training.
    algo = build("BC", env="CartPole-v1", evaluation_interval=1, evaluation_duration=1)
    assert algo.train()["evaluation"]["episode_reward_mean"] > 0 and algo.workers.local_worker().env is None


def test_keys_by_either_name(folder):
    config = get_config_class("BC")().offline_data(input_=folder)
    assert config["input"] == config.input_ == folder and config.postprocess_inputs is False
    assert get_config_class("MARWIL").from_dict({"input": folder}).postprocess_inputs is True
