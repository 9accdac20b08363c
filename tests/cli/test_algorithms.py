"""Every algorithm from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from learners import SMALL

from polylib.algorithms.registry import algorithm_names

QUICK = {"min_time_s_per_iteration": 0, "min_sample_timesteps_per_iteration": 40}


def result_of(results):
    (path,) = Path(results).glob("*/*/result.json")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_dqn_as_the_guide_has_it(call, results):
    """`--algo DQN --env CartPole-v1 --stop '{"training_iteration": 3}'`: nothing but defaults, in this process."""
    argv = ("--algo", "DQN", "--env", "CartPole-v1", "--stop", '{"training_iteration": 3}')
    outcome = call("train", *argv, "--local-dir", results, "--local-mode", "--framework", "torch")
    assert outcome.status == 0, outcome.err
    lines = result_of(results)
    assert [line["training_iteration"] for line in lines] == [1, 2, 3] and lines[-1]["num_env_steps_sampled"] == 3000
    # A batch of 32 after each 4 steps, from step 1000 on.
    assert lines[-1]["num_env_steps_trained"] == 32 * (1 + 2000 // 4)
    assert "done after 3 iterations" in outcome.out and " --algo DQN" in outcome.out


@pytest.mark.parametrize(
    ("algo", "env"),
    [("SAC", "Pendulum-v1"), ("TD3", "Pendulum-v1"), ("DDPG", "Pendulum-v1"), ("SimpleQ", "CartPole-v1")],
)
def test_the_others(call, results, algo, env):
    config = {**SMALL[algo], **QUICK, "num_steps_sampled_before_learning_starts": 30, "train_batch_size": 8}
    argv = ("--algo", algo, "--env", env, "--config", json.dumps(config), "--stop", '{"training_iteration": 2}')
    outcome = call("train", *argv, "--local-dir", results, "--local-mode", "--framework", "torch")
    assert outcome.status == 0, outcome.err
    last = result_of(results)[-1]
    assert last["num_env_steps_sampled"] == 80 and last["num_env_steps_trained"] > 0
    (checkpoint,) = Path(results).glob("*/*/checkpoint*")
    outcome = call("evaluate", str(checkpoint), "--algo", algo, "--episodes", "1")
    assert outcome.status == 0, outcome.err


@pytest.mark.parametrize("algo", ["A2C", "DQN"])
def test_remote_workers(ray_session, call, results, algo):
    """Workers of A2C and DQN: they act on NumPy, and episodes come back from all of them."""
    config = {**SMALL[algo], **QUICK, "num_workers": 2, "num_cpus_per_worker": 0.1, "train_batch_size": 40}
    if algo == "DQN":
        config["num_steps_sampled_before_learning_starts"] = 30
    argv = ("--algo", algo, "--env", "CartPole-v1", "--config", json.dumps(config), "--framework", "torch")
    outcome = call("train", *argv, "--stop", '{"training_iteration": 2}', "--local-dir", results)
    assert outcome.status == 0, outcome.err
    last = result_of(results)[-1]
    assert last["num_healthy_workers"] == 2 and last["num_env_steps_trained"] >= 80


def test_help_lists_them(call):
    text = " ".join(call("train", "--help").out.split())
    assert all(name in text for name in algorithm_names())
    assert "--algo DQN --env CartPole-v1" in text


def test_bad_settings_are_one_line(call, results):
    argv = ("--algo", "DQN", "--env", "Pendulum-v1", "--local-dir", results, "--local-mode", "--framework", "torch")
    outcome = call("train", *argv, "--stop", '{"training_iteration": 1}')
    assert outcome.status != 0 and "it needs a Discrete action space, not Box" in outcome.error
    outcome = call("train", "--algo", "DQM", "--env", "CartPole-v1", "--local-dir", results)
    assert "unknown algorithm 'DQM'. Did you mean 'DQN'?" in outcome.error
