"""Recording, learning from files and evaluating beside it, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from learners import SMALL
from modes import has

from polylib.cli.trials import trial_name

FRAMEWORK = "torch" if has("torch") else "tf"


@pytest.fixture
def traces(call, tmp_path):
    """What PPO wrote in an iteration of 200 steps."""
    folder = str(tmp_path / "traces")
    config = {**SMALL["PPO"], "output": folder, "train_batch_size": 200, "num_sgd_iter": 1}
    argv = ("--algo", "PPO", "--env", "CartPole-v1", "--config", json.dumps(config), "--framework", FRAMEWORK)
    local = ("--local-mode", "--local-dir", str(tmp_path / "recorded"))
    outcome = call("train", *argv, *local, "--stop", '{"training_iteration": 1}')
    assert outcome.status == 0, outcome.err
    return folder


def train(call, results, algo, config, *argv, stop=None):
    given = {**SMALL[algo], "seed": 0, **config}
    words = ("--config", json.dumps(given), "--stop", json.dumps(stop or {"training_iteration": 2}))
    local = ("--local-mode", "--local-dir", results, "--framework", FRAMEWORK)
    return call("train", "--algo", algo, *words, *local, *argv)


def lines_of(results):
    (path,) = Path(results).glob("*/*/result.json")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_cloning_with_and_without_evaluation(call, results, traces, tmp_path):
    config = {"input": traces, "evaluation_interval": 1, "evaluation_duration": 2}
    outcome = train(call, results, "BC", config, "--env", "CartPole-v1", stop={"evaluation/episode_reward_mean": 1})
    assert outcome.status == 0, outcome.err
    assert f"BC on {traces!r} and CartPole-v1, framework" in outcome.out
    (line,) = lines_of(results)
    assert line["evaluation"]["episode_reward_mean"] > 8 and line["timesteps_total"] == 2000
    assert f"ev {line['evaluation']['episode_reward_mean']:.2f}" in outcome.out
    assert "; evaluation's reward " in outcome.out
    # The environment in the config of evaluation, or none at all.
    other = str(tmp_path / "other")
    outcome = train(call, other, "BC", {**config, "evaluation_config": {"env": "CartPole-v1"}})
    assert outcome.status == 0 and len(lines_of(other)) == 2 and "BC_CartPole-v1_" in outcome.out
    (checkpoint,) = Path(other).glob("*/*/checkpoint*")
    outcome = call("evaluate", str(checkpoint), "--algo", "BC", "--episodes", "1")
    assert outcome.status == 0, outcome.err
    third = str(tmp_path / "third")
    outcome = train(call, third, "BC", {"input": traces})
    assert outcome.status == 0 and "BC_traces_" in outcome.out and "; reward -;" in outcome.out
    assert outcome.out.endswith(" --algo BC --env NAME\n")


def test_q_learning(call, results, traces):
    config = {"num_steps_sampled_before_learning_starts": 30, "min_sample_timesteps_per_iteration": 100}
    outcome = train(call, results, "DQN", {"input": traces, **config})
    assert outcome.status == 0, outcome.err
    assert lines_of(results)[-1]["num_env_steps_sampled"] == 200


def test_what_is_wrong_is_said_before_anything_starts(call, results, traces):
    outcome = train(call, results, "BC", {"input": traces, "evaluation_interval": 1})
    assert outcome.status == 2
    assert outcome.error.startswith("config key 'evaluation_interval': there is no environment to evaluate in")
    outcome = train(call, results, "PPO", {"input": traces}, "--env", "CartPole-v1")
    assert outcome.status == 2 and "PPO learns from what its own policy has just done" in outcome.error
    outcome = train(call, results, "BC", {"input": traces, "evaluation_config": {"env": "CartPoll-v1"}})
    assert outcome.status == 2 and "CartPoll-v1" in outcome.error
    outcome = train(call, results, "BC", {"input": f"{traces}/nothing"})
    assert outcome.status == 1 and "there is no file or folder" in outcome.err
    outcome = train(call, results, "BC", {})
    assert outcome.status == 2 and outcome.error.startswith("which environment?")


def test_a_long_name_of_an_input_fits_into_a_folders_name():
    trial = SimpleNamespace(config={}, trial_id="1a2b3_00000")
    name = trial_name("MARWIL", "ö" * 250, trial)
    assert len(name.encode()) < 200 and name.endswith("_1a2b3_00000")
