"""Algorithms in checkpoints: going on as if never stopped, elsewhere, in another framework, with other settings."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from fakes import BrokenEnv, MatchEnv, RandomEpisodes, ScriptEnv, UsersVectorEnv, small_ppo
from golden import FOLDER, described, expected_of, frozen_config, golden_batch, observations
from gymnasium.vector import AutoresetMode
from modes import FAST_MODES, MODE_PARAMS, MODES, has, mode_id

import polylib
from polylib.algorithms import registry
from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo import PPO, PPOConfig
from polylib.callbacks import DefaultCallbacks
from polylib.checkpoints import HEADER, CheckpointError, find, read_document, read_header
from polylib.errors import ConfigError, EnvError, FrameworkError, WorkerError
from polylib.policy.backends import policy_class
from polylib.policy.policy import Policy
from polylib.registry import register_env

ROOT = Path(__file__).parents[2]
TORCH = ("torch", False)
FRAMEWORKS = [name for name in ("tf", "tf2", "torch") if has(name)]


@pytest.fixture
def build():
    """Algorithms that are stopped when the test ends."""
    made = []

    def make(env="CartPole-v1", mode=TORCH, **keys):
        made.append(tiny(env, mode, **keys).build())
        return made[-1]

    def add(algo):
        made.append(algo)
        return algo

    make.add = add
    yield make
    for algo in made:
        algo.stop()


def tiny(env="CartPole-v1", mode=TORCH, **keys):
    """Every adaptive and scheduled thing moves, in a blink."""
    busy = {
        "train_batch_size": 33,
        "sgd_minibatch_size": 10,
        "lr": [[0, 0.02], [200, 0.001]],
        "entropy_coeff": [[0, 0.1], [90, 0.0]],
        "kl_target": 1e-6,
        "grad_clip": 3.0,
    }
    return small_ppo(env, mode, **{**busy, **keys})


def weights_of(algo):
    return algo.get_weights()["default_policy"]


def assert_same(one, other, tolerance=0.0):
    assert set(one) == set(other)
    for key in one:
        if tolerance:
            np.testing.assert_allclose(one[key], other[key], atol=tolerance, rtol=tolerance, err_msg=key)
        else:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


def without_times(result):
    """What a result says, but for times, ids and the config's (code isn't equal to its name)."""
    skipped = {"config", "timers", "date", "timestamp", "pid", "trial_id", "timesteps_since_restore"}
    return {
        key: value
        for key, value in result.items()
        if key not in skipped and "time_" not in key and "since_restore" not in key
    }


def same_state(algo, other, episodes=True):
    """Everything that training changes."""
    mine, theirs = algo.get_policy().get_state(), other.get_policy().get_state()
    for part in ("weights", "optimizer"):
        assert_same(mine.pop(part), theirs.pop(part))
    assert mine == theirs
    mine, theirs = algo.progress(), other.progress()
    for key in ("time_total_s", *([] if episodes else ["episodes"])):
        mine.pop(key), theirs.pop(key)
    assert repr(mine) == repr(theirs)


# --- as if never stopped

SPLITS = [
    pytest.param(mode, *rest, id=f"{mode_id(*mode)}-{'-'.join(map(str, rest))}")
    for mode, *rest in [
        *[(mode, "truncate_episodes", 3) for mode in MODES],
        *[(mode, "complete_episodes", 2) for mode in FAST_MODES],
        (TORCH, "truncate_episodes", 1),
        (TORCH, "complete_episodes", 1),
    ]
    if has(mode[0])
]


@pytest.mark.parametrize(("mode", "batch_mode", "num_envs"), SPLITS)
def test_a_run_split_at_any_iteration(build, tmp_path, mode, batch_mode, num_envs):
    keys = {"batch_mode": batch_mode, "num_envs_per_worker": num_envs}
    iterations, results, unbroken = 4, [], build(mode=mode, **keys)
    for iteration in range(iterations):
        unbroken.save(tmp_path / str(iteration))  # which changes nothing, as the others show
        results.append(without_times(unbroken.train()))
    if mode == TORCH:
        plain = build(mode=mode, **keys)
        for _ in range(iterations):
            plain.train()
        same_state(plain, unbroken)
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "2"))
    # Then the same one again and again, forward and back: what it had been doing is forgotten.
    for start in (2, 0, 3, 1):
        if start != 2:
            restored.restore(tmp_path / str(start))
        assert restored.iteration == start
        for iteration in range(start, iterations):
            assert repr(without_times(restored.train())) == repr(results[iteration]), (start, iteration)
        same_state(restored, unbroken)
    changed = results[-1]["info"]["learner"]["default_policy"]["learner_stats"]
    assert changed["cur_kl_coeff"] != 0.2 and 0.001 < changed["cur_lr"] < 0.02 and changed["entropy_coeff"] == 0.0


@pytest.mark.parametrize(
    ("env", "keys"),
    [
        ("Pendulum-v1", {}),
        (MatchEnv, {"env_config": {"actions": "multidiscrete", "obs": "discrete"}}),
        (MatchEnv, {"batch_mode": "complete_episodes", "env_config": {"actions": "box"}}),
        ("CartPole-v1", {"rollout_fragment_length": 4, "train_batch_size": 30}),
        ("CartPole-v1", {"rollout_fragment_length": 100, "train_batch_size": 100}),  # over several episodes
        ("CartPole-v1", {"train_batch_size": 3, "sgd_minibatch_size": 2, "num_envs_per_worker": 4}),
    ],
)
def test_other_spaces_and_fragments(build, tmp_path, env, keys):
    keys = {"num_envs_per_worker": 3, **keys}
    unbroken = build(env, **keys)
    for iteration in range(5):
        unbroken.save(tmp_path / str(iteration))
        unbroken.train()
    for start in (0, 1, 3, 4):
        restored = build.add(Algorithm.from_checkpoint(tmp_path / str(start), env=env))
        for _ in range(start, 5):
            restored.train()
        same_state(restored, unbroken)
        restored.stop()


def test_two_remote_workers(ray_session, build, tmp_path):
    keys = {"num_workers": 2, "num_envs_per_worker": 2, "train_batch_size": 40, "num_cpus_per_worker": 0.1}
    unbroken = build(**keys)
    for iteration in range(4):
        unbroken.save(tmp_path / str(iteration))
        unbroken.train()
    unbroken.workers.stop()
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "1"))
    assert restored.workers.num_remote_workers() == 2
    for start in (1, 3, 0, 2):
        restored.restore(tmp_path / str(start))
        for _ in range(start, 4):
            restored.train()
        same_state(restored, unbroken)
    # Into another number of workers, and back: episodes start anew, all else goes on.
    alone = build.add(Algorithm.from_checkpoint(tmp_path / "2", {"num_workers": 0}))
    assert_same(weights_of(alone), weights_of(build.add(Algorithm.from_checkpoint(tmp_path / "2", {"num_workers": 0}))))
    result = alone.train()
    assert result["training_iteration"] == 3 and result["timesteps_total"] == 120
    alone.save(tmp_path / "alone")
    restored.restore(tmp_path / "alone")
    assert_same(weights_of(restored), weights_of(alone))
    for weights in restored.workers.foreach_worker(lambda worker: worker.get_weights()["default_policy"]):
        assert_same(weights, weights_of(alone))
    assert restored.train()["timesteps_total"] == 160


def test_everything_that_training_changes_is_restored(build, tmp_path):
    algo = build(num_envs_per_worker=2)
    for _ in range(3):
        result = algo.train()
    algo.save(tmp_path / "c")
    restored = build.add(PPO.from_checkpoint(tmp_path / "c"))
    assert isinstance(restored, PPO) and restored is not algo
    same_state(algo, restored)
    policy = restored.get_policy()
    assert policy.num_updates == 3 * 2 * 3 and policy.global_timestep == 102
    assert policy.coefficients["kl_coeff"] == np.float32(0.2 * 1.5**3)
    assert policy.coefficients["lr"] == pytest.approx(0.02 - 0.019 * 102 / 200)
    assert restored.iteration == 3 and restored._time_total == pytest.approx(result["time_total_s"])
    next_one = restored.train()
    assert next_one["training_iteration"] == 4 and next_one["time_total_s"] > result["time_total_s"]
    assert next_one["episodes_total"] == result["episodes_total"] + next_one["episodes_this_iter"]
    assert next_one["hist_stats"]["episode_reward"][: len(result["hist_stats"]["episode_reward"])] == (
        result["hist_stats"]["episode_reward"]
    )
    assert (next_one["iterations_since_restore"], next_one["time_since_restore"]) == (1, next_one["time_this_iter_s"])
    assert sum(np.abs(value).sum() for key, value in policy.get_state()["optimizer"].items() if key[-1] == "m") > 0


def test_before_any_training(build, tmp_path):
    algo = build()
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c"))
    algo.train(), restored.train()
    same_state(algo, restored)
    # restored into one that has trained: it starts anew
    algo.restore(tmp_path / "c")
    algo.train()
    same_state(algo, restored)


def test_without_a_seed(build, tmp_path):
    algo = build(seed=None, num_envs_per_worker=2)
    algo.train()
    algo.save(tmp_path / "c")
    ids = algo.workers.local_worker()._sampler._next_id
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c"))
    assert_same(weights_of(restored), weights_of(algo))
    batch = restored.workers.local_worker().sample()
    assert batch["eps_id"].min() >= ids and (batch["t"][:1] == 0).all(), "new episodes, under new ids"
    assert restored.train()["timesteps_total"] == 68


def test_after_an_interruption_in_the_middle_of_sampling(build, tmp_path):
    """Ctrl-C, then a checkpoint: the rows under way are lost, no more."""
    algo = build(MatchEnv, num_envs_per_worker=2)
    algo.train()
    sampler = algo.workers.local_worker()._sampler
    steps = iter([False] * 7 + [True])

    def step(*args):
        if next(steps):
            raise KeyboardInterrupt
        return type(sampler)._step(sampler)

    sampler._step = step
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    del sampler._step
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", env=MatchEnv))
    algo.train(), restored.train()
    same_state(algo, restored, episodes=False)  # those that ended among the lost rows were counted


class Trapped(MatchEnv):
    """Raises when it is stepped, if its config says so."""

    def step(self, action):
        if self.trap:
            raise RuntimeError("changed since")
        return super().step(action)

    def __init__(self, config=()):
        self.trap = dict(config).pop("trap", False)
        super().__init__({key: value for key, value in dict(config).items() if key != "trap"})


@pytest.mark.parametrize("change", [{"length": 3}, {"trap": True}, {"length": 11}], ids=repr)
def test_an_environment_that_behaves_differently_now(build, tmp_path, change):
    algo = build(Trapped, num_envs_per_worker=2)
    for _ in range(2):
        algo.train()
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", {"env_config": change}, Trapped))
    assert_same(weights_of(restored), weights_of(algo))
    if "trap" in change:
        with pytest.raises(EnvError, match="changed since"):
            restored.train()
    else:
        assert restored.train()["training_iteration"] == 3


def users_vector_env(config):
    return UsersVectorEnv([RandomEpisodes(place=i) for i in range(2)], AutoresetMode.NEXT_STEP)


def test_a_users_vector_env_starts_its_episodes_anew(build, tmp_path):
    algo = build(users_vector_env)
    algo.train()
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", env=users_vector_env))
    for one in (restored, algo):
        one.restore(tmp_path / "c")
        assert one.train()["training_iteration"] == 2
    assert restored.workers.local_worker()._sampler._next_id > 4


# --- across frameworks

PAIR = """
import sys
import conftest
import numpy as np
from polylib.algorithms.algorithm import Algorithm
from golden import described, golden_batch

framework, folder = sys.argv[1:]
for source in ("tf", "tf2", "torch"):
    algo = Algorithm.from_checkpoint(f"{folder}/{source}", {"framework": framework})
    policy = algo.get_policy()
    assert policy.framework == framework
    arrays, before = described(policy), policy.get_weights()
    policy.learn_on_minibatches(golden_batch(policy), np.arange(16).reshape(4, 4))
    arrays.update({f"learned/{key}": value for key, value in policy.get_weights().items()})
    reward = algo.train()["episode_reward_mean"]
    arrays.update({f"trained/{key}": value for key, value in policy.get_weights().items()})
    assert all((value != before[key]).any() for key, value in policy.get_weights().items())
    np.savez(f"{folder}/{source}-{framework}.npz", reward=reward, **arrays)
    algo.stop()
others = {"torch": {"tensorflow"}, "tf": {"torch"}, "tf2": {"torch"}}[framework]
assert not others & set(sys.modules)
"""


def run_all(*commands):
    """Runs Python code in fresh processes, side by side."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    running = [
        subprocess.Popen([sys.executable, "-c", *command], env=env, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    for process in running:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors[-3000:]


@pytest.mark.skipif(len(FRAMEWORKS) < 3, reason="TensorFlow or torch isn't installed")
def test_nine_of_nine_pairs_of_frameworks_restored_in_fresh_processes(build, tmp_path):
    described_by = {}
    for source in FRAMEWORKS:
        algo = build.add(frozen_config("CartPole-v1", source).build())
        for _ in range(2):
            algo.train()
        algo.save(tmp_path / source)
        described_by[source] = described(algo.get_policy())
    run_all(*[(PAIR, framework, str(tmp_path)) for framework in FRAMEWORKS])
    for source, saved in described_by.items():
        pairs = {name: dict(np.load(tmp_path / f"{source}-{name}.npz")) for name in FRAMEWORKS}
        for name, restored in pairs.items():
            for key, value in saved.items():
                tolerance = 1e-5 if key in ("logits", "values") else 0
                np.testing.assert_allclose(
                    restored[key], value, atol=tolerance, rtol=tolerance, err_msg=f"{source} {name} {key}"
                )
            for key in restored:  # they go on learning, all in the same way
                np.testing.assert_allclose(
                    restored[key], pairs[source][key], atol=2e-5, rtol=1e-4, err_msg=f"{source} {name} {key}"
                )


def test_restoring_under_another_framework_in_one_process(build, tmp_path):
    algos = {}
    for mode in MODES:
        if has(mode[0]):
            algos[mode] = build("CartPole-v1", mode)
    first = next(iter(algos.values()))
    first.train()
    first.save(tmp_path / "c")
    for mode, algo in algos.items():
        algo.restore(tmp_path / "c")
        assert_same(weights_of(algo), weights_of(first))
        assert_same(algo.get_policy().get_state()["optimizer"], first.get_policy().get_state()["optimizer"])
        before = dict(weights_of(algo))
        algo.save(tmp_path / "again")
        assert read_header(tmp_path / "again")["framework"] == mode[0]
        first.restore(tmp_path / "again")
        assert_same(weights_of(first), before)


# --- golden checkpoints: those of older versions must open for ever


@pytest.mark.parametrize("source", ["tf", "tf2", "torch"])
@pytest.mark.parametrize(("framework", "traced"), [*MODE_PARAMS, pytest.param("numpy", False, id="numpy")])
def test_golden_checkpoints(source, framework, traced):
    expected = expected_of(source)
    if framework == "numpy":
        policy = polylib.load_policy(FOLDER / source / "checkpoint")
    else:
        keys = {"framework": framework, "eager_tracing": traced}
        algo = Algorithm.from_checkpoint(FOLDER / source / "checkpoint", keys, MatchEnv)
        policy = algo.get_policy()
    out = policy.compute_actions(observations(MatchEnv()), explore=False)
    np.testing.assert_allclose(out.extras["action_dist_inputs"], expected["logits"], atol=1e-5)
    np.testing.assert_allclose(policy.compute_values(observations(MatchEnv())), expected["values"], atol=1e-5)
    sampled = policy.compute_actions(observations(MatchEnv()), explore=True)
    np.testing.assert_array_equal(sampled.actions, expected["sampled"])
    if framework != "numpy":
        algo.restore(FOLDER / source / "checkpoint")
        result = algo.train()
        assert result["training_iteration"] == 3 and result["episode_reward_mean"] == expected["reward"]
        for key, value in weights_of(algo).items():
            np.testing.assert_allclose(value, expected[f"next/{key}"], atol=1e-5, err_msg=key)
        algo.stop()


def test_golden_checkpoints_are_of_a_version_that_is_read():
    for source in ("tf", "tf2", "torch"):
        header = read_header(FOLDER / source / "checkpoint", "Algorithm")
        assert header["framework"] == source and header["algorithm"] == "PPO"
        assert sum(path.stat().st_size for path in (FOLDER / source).rglob("*") if path.is_file()) < 40_000


# --- on another machine

D5 = """
import os, sys
os.cpu_count = lambda: 1
import numpy as np
import logging
from polylib.algorithms.algorithm import Algorithm
from polylib.policy.policy import Policy
from polylib.checkpoints import read_document, find
logging.basicConfig(level="WARNING")

folder = sys.argv[1]
assert read_document(find(folder), "config")["num_workers"] == 8
algo = Algorithm.from_checkpoint(folder)
import ray
assert not ray.is_initialized() and algo.config["env"] is None and "fakes" not in sys.modules
obs = np.eye(3, dtype=np.float32)[1]
action = algo.compute_single_action(obs, explore=False)
assert algo.get_policy().action_space.contains(action)
assert Policy.from_checkpoint(folder)["default_policy"].compute_single_action(obs, explore=False) == action
try:
    algo.train()
except Exception as error:
    print(type(error).__name__, error)
algo.stop()
sys.path.insert(0, sys.argv[2])
from fakes import MatchEnv
algo = Algorithm.from_checkpoint(folder, {"num_workers": 0}, env=MatchEnv)
assert algo.compute_single_action(obs, explore=False) == action
print(algo.train()["training_iteration"], ray.is_initialized())
"""


def edit(folder, name, **values):
    """Changes values of a checkpoint's JSON file."""
    file = Path(folder) / f"{name}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_trained_with_8_workers_and_restored_on_one_core_without_the_environment(build, tmp_path):
    algo = build(MatchEnv)
    algo.train()
    algo.save(tmp_path / "c")
    edit(tmp_path / "c", "config", num_workers=8)
    edit(tmp_path / "c", HEADER.removesuffix(".json"), workers=9)
    done = subprocess.run(
        [sys.executable, "-c", D5, str(tmp_path / "c"), str(ROOT / "tests")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("WorkerError ") and "give the algorithm an env" in lines[0]
    assert lines[1] == "2 False"
    assert "config key 'env' was fakes:MatchEnv, and code isn't stored: give it again if it is needed" in done.stderr


def test_a_name_that_is_not_registered_here(build, tmp_path, caplog, monkeypatch):
    register_env("only-here", MatchEnv)
    algo = build("only-here")
    algo.train()
    algo.save(tmp_path / "c")
    monkeypatch.setattr("polylib.registry._envs", {})
    monkeypatch.setattr("polylib.registry._stores", [])
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c"))
    assert "unknown environment 'only-here'" in caplog.text
    assert "the algorithm acts, but can't sample" in caplog.text
    assert_same(weights_of(restored), weights_of(algo))
    assert restored.compute_single_action(np.eye(3, dtype=np.float32)[0], explore=False) in range(5, 8)
    with pytest.raises(WorkerError, match="give the algorithm an env"):
        restored.train()
    register_env("only-here", MatchEnv)
    algo.train(), build.add(Algorithm.from_checkpoint(tmp_path / "c")).train()


# --- another config


def test_a_changed_value_wins_and_is_reported(build, tmp_path, caplog):
    algo = build(lr=0.01, entropy_coeff=0.5)
    for _ in range(2):
        algo.train()
    kl_coeff = algo.get_policy().coefficients["kl_coeff"]
    assert kl_coeff == pytest.approx(0.45)
    algo.save(tmp_path / "c")
    changes = {"lr": 0.003, "num_sgd_iter": 3, "model": {"fcnet_hiddens": [8]}, "env_config": {"x": (1, 2)}}
    with pytest.raises(EnvError):
        Algorithm.from_checkpoint(tmp_path / "c", changes)
    changes.pop("env_config")
    caplog.clear()
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", {**changes, "num_envs_per_env_runner": 2}))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        f"checkpoint {tmp_path / 'c'}: this config differs from the one stored, and wins: "
        "lr 0.003 (was 0.01), num_envs_per_worker 2 (was 1), num_sgd_iter 3 (was 2)"
    )
    coefficients = restored.get_policy().coefficients
    assert coefficients["lr"] == np.float32(0.003), "changed"
    assert (coefficients["kl_coeff"], coefficients["entropy_coeff"]) == (kl_coeff, 0.5), "not changed"
    stats = restored.train()["info"]["learner"]["default_policy"]
    assert stats["learner_stats"]["cur_lr"] == pytest.approx(0.003)
    assert stats["num_grad_updates_lifetime"] == 2 * 2 * 3 + 3 * 3
    # the same through restore(), where an algorithm has its own config
    caplog.clear()
    other = build(lr=0.004, entropy_coeff=0.5, kl_coeff=0.7)
    other.restore(tmp_path / "c")
    assert "wins: kl_coeff 0.7 (was 0.2), lr 0.004 (was 0.01)" in caplog.text
    assert other.get_policy().coefficients["kl_coeff"] == np.float32(0.7)
    caplog.clear()
    build.add(Algorithm.from_checkpoint(tmp_path / "c"))
    algo.restore(tmp_path / "c")
    assert not caplog.records, "nothing changed, nothing said"


def test_a_schedule_goes_on_and_a_changed_one_from_where_it_is(build, tmp_path):
    algo = build(lr_schedule=[[0, 0.02], [100, 0.0]], lr=0.5)
    for _ in range(2):
        algo.train()
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c"))
    assert restored.get_policy().coefficients["lr"] == pytest.approx(0.02 * (1 - 0.66))
    changed = build.add(Algorithm.from_checkpoint(tmp_path / "c", {"lr_schedule": [[0, 0.02], [100, 0.01]]}))
    assert changed.get_policy().coefficients["lr"] == pytest.approx(0.02 - 0.66 * 0.01)
    fixed = build.add(Algorithm.from_checkpoint(tmp_path / "c", {"lr_schedule": None}))
    assert fixed.get_policy().coefficients["lr"] == 0.5


def test_another_framework_is_reported(build, tmp_path, caplog):
    if len(FRAMEWORKS) < 3:
        pytest.skip("one framework only")
    build(framework=None).save(tmp_path / "c")
    assert read_header(tmp_path / "c")["framework"] == "tf2"
    build.add(Algorithm.from_checkpoint(tmp_path / "c", {"framework": "torch"}))
    assert "wins: framework 'torch' (was 'tf2')" in caplog.text


def test_mistakes_in_the_given_config(build, tmp_path):
    build().save(tmp_path / "c")
    with pytest.raises(ConfigError, match="'lrr'.*'lr'"):
        Algorithm.from_checkpoint(tmp_path / "c", {"lrr": 1})
    said = r"variable 'policy/000/kernel' has shape \[4, 8\], this policy's \[4, 9\]"
    with pytest.raises(CheckpointError, match=said):
        Algorithm.from_checkpoint(tmp_path / "c", {"model": {"fcnet_hiddens": [9]}})
    with pytest.raises(ConfigError, match="a checkpoint must be a folder"):
        Algorithm.from_checkpoint(3)


# --- what doesn't fit is refused, and nothing is lost


def test_another_space(build, tmp_path):
    for env, keys in (("CartPole-v1", {}), (MatchEnv, {}), (MatchEnv, {"env_config": {"actions": "box"}})):
        build(env, **keys).save(tmp_path / f"{env}{keys}")
    cart = build("CartPole-v1")
    cart.train()
    before = cart.get_policy().get_state()
    for path in tmp_path.iterdir():
        if path.name != "CartPole-v1{}":
            with pytest.raises(CheckpointError, match="was trained on observation space Box.*, this algorithm has Box"):
                cart.restore(path)
    with pytest.raises(CheckpointError, match="trained on action space Box.*, this algorithm has Discrete"):
        build(MatchEnv).restore(tmp_path / f"{MatchEnv}{{'env_config': {{'actions': 'box'}}}}")
    with pytest.raises(CheckpointError, match="was trained on observation space"):
        Algorithm.from_checkpoint(tmp_path / "CartPole-v1{}", env=MatchEnv)
    after = cart.get_policy().get_state()
    assert_same(before["weights"], after["weights"])
    assert cart.train()["training_iteration"] == 2


class OtherConfig(PPOConfig):
    algo_name = "Other"


class Other(PPO):
    config_class = OtherConfig


class MyPPO(PPO):
    """Somebody's own, with PPO's config and registered nowhere."""


def test_another_algorithm(build, tmp_path, monkeypatch):
    build().save(tmp_path / "ppo")
    other = build.add(Other(OtherConfig().update_from_dict(tiny().to_dict())))
    other.save(tmp_path / "other")
    with pytest.raises(CheckpointError, match="is a checkpoint of PPO, not of Other"):
        other.restore(tmp_path / "ppo")
    with pytest.raises(CheckpointError, match="is a checkpoint of PPO, not of Other"):
        Other.from_checkpoint(tmp_path / "ppo")
    with pytest.raises(CheckpointError, match="is a checkpoint of Other, not of PPO"):
        build().restore(tmp_path / "other")
    with pytest.raises(CheckpointError, match="unknown here: unknown algorithm 'Other'"):
        Algorithm.from_checkpoint(tmp_path / "other")
    monkeypatch.setattr(registry, "_registered", {"Other": (OtherConfig, Other)})
    assert type(build.add(Algorithm.from_checkpoint(tmp_path / "other"))) is Other
    assert type(build.add(MyPPO.from_checkpoint(tmp_path / "ppo"))) is MyPPO


def test_every_file_damaged_in_turn(build, tmp_path):
    algo = build(num_envs_per_worker=2)
    algo.train()
    algo.save(tmp_path / "c")
    folder = tmp_path / "c"
    victim = build(num_envs_per_worker=2)
    victim.train()
    state = victim.get_policy().get_state()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 8
    for file in files:
        whole = file.read_bytes()
        for data in (None, b"", b"garbage", whole[: len(whole) // 2], whole[:-2], b"[]", b"null"):
            file.write_bytes(data) if data is not None else file.unlink()
            with pytest.raises(CheckpointError) as caught:
                victim.restore(folder)
            message = str(caught.value)
            assert "\n" not in message and str(folder) in message
            assert file.stem in message, (file.name, data, message)
            file.write_bytes(whole)
    for name, key, value in (
        ("algorithm_state", "rng", {}),
        ("algorithm_state", "counters", 3),
        ("algorithm_state", "iteration", None),
        ("algorithm_state", "episodes", {"total": 1, "recent": [[1, 2]]}),
        ("algorithm_state", "episodes", {"total": "x", "recent": []}),
        (HEADER.removesuffix(".json"), "policies", {}),
        (HEADER.removesuffix(".json"), "policies", {"other": {}}),
        (HEADER.removesuffix(".json"), "policies", [1]),
        ("policies/default_policy/policy_state", "rng", {}),
        ("policies/default_policy/policy_state", "coefficients", {"x": 1}),
        ("config", "lr", "fast"),
    ):
        file = folder / f"{name}.json"
        whole = file.read_bytes()
        edit(folder, name, **{key: value})
        with pytest.raises(CheckpointError, match=str(folder)):
            victim.restore(folder)
        file.write_bytes(whole)
    after = victim.get_policy().get_state()
    assert_same(state.pop("weights"), after.pop("weights"))
    assert_same(state.pop("optimizer"), after.pop("optimizer"))
    assert state == after and victim.iteration == 1, "untouched by all of that"
    for key, value in (("rng", {"default_policy": {}}), ("sampler", {"num_envs": 2}), ("sampler", 3)):
        edit(folder, "workers/000", **{key: value})
        with pytest.raises(CheckpointError, match="workers/"):
            victim.restore(folder)
        algo.save(folder)
    victim.restore(folder)
    same_state(victim, algo)


def test_a_folder_that_cannot_be_written_to(build, tmp_path):
    algo = build()
    (tmp_path / "file").write_text("text")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo").write_text("text")
    for path, said in (
        (tmp_path / "file" / "c", f"can't write checkpoint {tmp_path / 'file' / 'c'}: "),
        (tmp_path / "file", f"can't write checkpoint {tmp_path / 'file'}: File exists"),
        (tmp_path / "full", f"{tmp_path / 'full'} exists and is no polylib checkpoint"),
    ):
        with pytest.raises(CheckpointError) as caught:
            algo.save(path)
        assert said in str(caught.value) and "\n" not in str(caught.value)
    assert algo.train()["training_iteration"] == 1


# --- code


class Quiet(DefaultCallbacks):
    """Counts itself."""

    loaded = 0

    def on_checkpoint_loaded(self, *, algorithm, **kwargs):
        type(self).loaded += 1


class Silent(DefaultCallbacks):
    """Does nothing."""


def a_function(algorithm, workers):
    """A custom evaluation function."""
    return {"x": 1}


def test_code_is_stored_by_name_only(build, tmp_path, caplog):
    keys = {
        "callbacks": [Quiet, Silent],
        "custom_evaluation_function": a_function,
        "env_config": {"length": 4, "hook": a_function, "nested": {"classes": [Quiet], "x": (1, 2)}},
        "evaluation_config": {"explore": False, "callbacks": Silent, "env": MatchEnv},
    }
    algo = build(Forgiving, **keys)
    algo.train()
    algo.save(tmp_path / "c")
    stored = read_document(tmp_path / "c", "config")
    assert stored["env"] == {"__callable__": f"{__name__}:Forgiving"}
    assert stored["callbacks"] == [{"__callable__": f"{__name__}:Quiet"}, {"__callable__": f"{__name__}:Silent"}]
    assert stored["env_config"]["nested"]["x"] == (1, 2)
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", env=Forgiving))
    said = caplog.text
    for key, name in (
        ("callbacks", f"{__name__}:Quiet, {__name__}:Silent"),
        ("custom_evaluation_function", f"{__name__}:a_function"),
        ("env_config.hook", f"{__name__}:a_function"),
        ("env_config.nested.classes", f"{__name__}:Quiet"),
        ("evaluation_config.callbacks", f"{__name__}:Silent"),
        ("evaluation_config.env", "fakes:MatchEnv"),
    ):
        assert f"config key '{key}' was {name}, and code isn't stored" in said, key
    assert "'env' was" not in said and "wins" not in said
    assert restored.config["callbacks"] is None and restored.config["custom_evaluation_function"] is None
    assert restored.config["env_config"] == {"length": 4, "nested": {"x": (1, 2)}}
    assert restored.config["evaluation_config"] == {"explore": False}
    caplog.clear()
    given = {key: value for key, value in keys.items() if key != "env_config"}
    again = build.add(
        Algorithm.from_checkpoint(tmp_path / "c", {**given, "env_config": keys["env_config"]}, env=Forgiving)
    )
    assert not caplog.records and again.config["callbacks"] == [Quiet, Silent]
    assert Quiet.loaded == 1
    algo.restore(tmp_path / "c")
    assert Quiet.loaded == 2 and not caplog.records


class Forgiving(MatchEnv):
    """Takes any config."""

    def __init__(self, config=()):
        super().__init__({key: value for key, value in dict(config).items() if key == "length"})


def bomb(path):
    """A pickle that makes a folder when it is read."""

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(path),)

    return pickle.dumps(Bomb())


def test_no_code_of_a_checkpoint_runs(build, tmp_path, monkeypatch):
    """A planted pickle of Ray's, a pickle in place of each file, and names of modules and classes in the JSON."""
    algo = build()
    algo.train()
    algo.save(tmp_path / "c")
    folder, boom = tmp_path / "c", tmp_path / "boom"
    for name in ("_dict_checkpoint.pkl", "algorithm_state.pkl", "checkpoint.pkl", ".tune_metadata", "params.pkl"):
        (folder / name).write_bytes(bomb(boom))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "planted.py").write_text(f"import os\nos.mkdir({str(boom)!r})\nclass Env: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    code = ["planted:Env", "subprocess:Popen", "os:system"]
    victim = build()
    for config in (
        {},
        *({"env": name, "env_config": {"args": ["mkdir", str(boom)]}} for name in code),
        *({"callbacks": name} for name in code),
        {"callbacks": ["planted:Env", "planted:Env"]},
        {"evaluation_config": {"env": "planted:Env", "callbacks": "planted:Env"}},
        {"custom_evaluation_function": "planted:Env"},
        {"env": {"__callable__": "planted:Env"}},
        {"callbacks": {"__object__": "planted:Env"}},
    ):
        edit(folder, "config", **config)
        try:
            victim.restore(folder)
            restored = Algorithm.from_checkpoint(folder)
            restored.compute_single_action(np.zeros(4, np.float32))
            restored.stop()
        except CheckpointError:
            assert "custom_evaluation_function" in config
        if "custom_evaluation_function" not in config:
            Policy.from_checkpoint(folder)
            polylib.load_policy(folder)
        algo.save(tmp_path / "clean")
        shutil.copy(tmp_path / "clean" / "config.json", folder / "config.json")
        assert not boom.exists() and "planted" not in sys.modules, config
    entry = read_header(folder)["policies"]["default_policy"]
    policies = {"default_policy": {**entry, "algorithm": "planted:Env"}}
    edit(folder, "polylib_checkpoint", algorithm="planted:Env", policies=policies)
    for read in (Algorithm.from_checkpoint, Policy.from_checkpoint, polylib.load_policy, victim.restore):
        with pytest.raises(CheckpointError):
            read(folder)
    assert not boom.exists() and "planted" not in sys.modules


def test_rays_own_way_of_restoring_is_never_taken(build, tmp_path):
    """Ray's `Trainable.restore` unpickles what lies there; the trap works, and ours doesn't fall into it."""
    from ray.tune import Checkpoint, Trainable

    algo = build()
    algo.save(tmp_path / "c")
    (tmp_path / "c" / "_dict_checkpoint.pkl").write_bytes(bomb(tmp_path / "boom"))
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "_dict_checkpoint.pkl").write_bytes(bomb(tmp_path / "boom"))
    algo.restore(str(tmp_path / "c"))
    algo.restore(Checkpoint(str(tmp_path / "c")))
    for bare in (tmp_path / "bare", Checkpoint(str(tmp_path / "bare"))):
        with pytest.raises(CheckpointError):
            algo.restore(bare)
    assert not (tmp_path / "boom").exists()
    with pytest.raises(Exception, match=".*"):
        Trainable.restore(algo, str(tmp_path / "bare"))
    assert (tmp_path / "boom").exists()


# --- the interface


def test_what_save_returns_can_be_restored(build, tmp_path, monkeypatch):
    monkeypatch.setattr("polylib.algorithms.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    algo = build()
    algo.train()
    saved = algo.save()
    path = Path(saved.checkpoint.path)
    assert path.name == "checkpoint_000001" and path.parent.parent == tmp_path and path.parent.name.startswith("PPO_")
    assert saved.metrics["training_iteration"] == 1
    algo.train()
    second = algo.save()
    assert Path(second.checkpoint.path) == path.with_name("checkpoint_000002")
    for checkpoint in (saved, saved.checkpoint, path, str(path)):
        algo.restore(checkpoint)
        assert algo.iteration == 1
        assert build.add(PPO.from_checkpoint(checkpoint)).iteration == 1
        assert polylib.load_policy(checkpoint).num_updates == algo.get_policy().num_updates
        assert list(Policy.from_checkpoint(checkpoint)) == ["default_policy"]


def test_policy_from_checkpoint(build, tmp_path):
    algo = build("Pendulum-v1")
    algo.train()
    algo.save(tmp_path / "algo")
    assert algo.export_policy_checkpoint(str(tmp_path / "policy")) == str(tmp_path / "policy")
    assert read_header(tmp_path / "policy", "Policy")["framework"] == "torch"
    obs = algo.get_policy().observation_space.sample()
    action = algo.compute_single_action(obs, explore=False)

    policies = Policy.from_checkpoint(tmp_path / "algo")
    assert list(policies) == ["default_policy"] and type(policies["default_policy"]) is policy_class("torch")
    assert list(Policy.from_checkpoint(tmp_path / "algo", ["default_policy"])) == ["default_policy"]
    assert list(Policy.from_checkpoint(tmp_path / "algo", "default_policy")) == ["default_policy"]
    assert Policy.from_checkpoint(tmp_path / "algo", []) == {}
    alone = Policy.from_checkpoint(tmp_path / "policy")
    for policy in (policies["default_policy"], alone):
        state, original = policy.get_state(), algo.get_policy().get_state()
        assert_same(state.pop("weights"), original.pop("weights"))
        assert_same(state.pop("optimizer"), original.pop("optimizer"))
        assert state == original
        np.testing.assert_array_equal(policy.compute_single_action(obs, explore=False), action)
    # it goes on learning
    batch = algo.workers.local_worker().sample()
    for policy in (alone, algo.get_policy()):
        policy.learn_on_batch(batch)
    assert_same(alone.get_weights(), weights_of(algo))

    numpy_class = policy_class("numpy")
    # a backend's class means its framework
    assert type(numpy_class.from_checkpoint(tmp_path / "policy")) is numpy_class
    assert type(Policy.from_checkpoint(tmp_path / "policy", framework="numpy")) is numpy_class
    with pytest.raises(CheckpointError, match="has policies default_policy: got 'other'"):
        Policy.from_checkpoint(tmp_path / "algo", ["other"])
    with pytest.raises(FrameworkError, match="unknown framework 'torhc'. Did you mean 'torch'"):
        Policy.from_checkpoint(tmp_path / "policy", framework="torhc")
    with pytest.raises(ConfigError, match="there is no policy 'other'"):
        algo.export_policy_checkpoint(tmp_path / "x", "other")


@pytest.mark.skipif(not has("tf"), reason="TensorFlow isn't installed")
def test_policy_from_checkpoint_keeps_tracing(build, tmp_path):
    build(mode=("tf2", False)).save(tmp_path / "eager")
    build(mode=("tf2", True)).save(tmp_path / "traced")
    for name, traced in (("eager", False), ("traced", True)):
        assert type(Policy.from_checkpoint(tmp_path / name)["default_policy"]) is policy_class("tf2", traced)
        other = Policy.from_checkpoint(tmp_path / name, eager_tracing=not traced)["default_policy"]
        assert type(other) is policy_class("tf2", not traced)


def test_a_framework_that_is_not_installed_here(build, tmp_path, block_import):
    build().export_policy_checkpoint(tmp_path / "c")
    block_import("torch")
    with pytest.raises(FrameworkError, match="'torch' needs torch, not installed here.*choose another with framework="):
        Policy.from_checkpoint(tmp_path / "c")
    assert polylib.load_policy(tmp_path / "c").framework == "numpy"


def test_the_last_evaluation_is_repeated_after_restoring(build, tmp_path):
    keys = {"evaluation_interval": 2, "evaluation_duration": 2, "always_attach_evaluation_results": True}
    algo = build(MatchEnv, **keys)
    for _ in range(2):
        result = algo.train()
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c", env=MatchEnv))
    repeated = restored.train()["evaluation"]
    assert repeated == result["evaluation"] and repeated["episode_len_mean"] == 10


def test_a_failed_from_checkpoint_leaves_no_environment_open(build, tmp_path):
    closed = []

    class Counting(ScriptEnv):
        def close(self):
            closed.append(self)

    build(Counting, model={"fcnet_hiddens": [4]}).save(tmp_path / "c")
    with pytest.raises(CheckpointError):
        Algorithm.from_checkpoint(tmp_path / "c", {"model": {"fcnet_hiddens": [5]}}, Counting)
    assert len(closed) == 1
    assert find(tmp_path / "c") == tmp_path / "c"


def test_fields_of_the_header(build, tmp_path):
    build(num_workers=0).save(tmp_path / "c")
    header = json.loads((tmp_path / "c" / HEADER).read_text())
    assert header.pop("checksums").keys() == {
        "policies/default_policy/weights", "policies/default_policy/optimizer", "workers/000",
    }
    policies = header.pop("policies")
    assert header == {
        "checkpoint_version": "1.0",
        "type": "Algorithm",
        "algorithm": "PPO",
        "framework": "torch",
        "polylib_version": polylib.__version__,
        "workers": 1,
    }
    assert set(policies) == {"default_policy"}
    assert set(policies["default_policy"]) == {"framework", "algorithm", "observation_space", "action_space"}
    for path in (tmp_path / "c").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)


def test_helpers_of_these_tests():
    assert math.isfinite(golden_batch(polylib.load_policy(FOLDER / "torch" / "checkpoint"))["advantages"].sum())
    assert frozen_config(MatchEnv, "torch")["seed"] == 7 and isinstance(MatchEnv().observation_space, gym.spaces.Box)
    assert BrokenEnv
