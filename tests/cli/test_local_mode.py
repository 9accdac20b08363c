"""--local-mode: this process, no Ray, the files that Tune writes."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import pytest
from modes import FAST_MODE_PARAMS, has


def trial_folder(results):
    (folder,) = Path(results).glob("*/*")
    return folder


def check_files(folder, iterations, algo_key=("env", "CartPole-v1")):
    assert json.loads((folder / "params.json").read_text())[algo_key[0]] == algo_key[1]
    lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [line["training_iteration"] for line in lines] == list(range(1, iterations + 1))
    assert [line["done"] for line in lines] == [False] * (iterations - 1) + [True]
    with open(folder / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["training_iteration"]) for row in rows] == list(range(1, iterations + 1))
    (events,) = folder.glob("events.out.tfevents.*")
    assert events.stat().st_size > 0
    return lines, rows


def test_it_stops_and_writes(call, count, results):
    argv = ("--algo", count, "--env", "CartPole-v1", "--local-dir", results, "-n", "N", "--local-mode")
    outcome = call("train", *argv, "--stop", '{"info/learner/kl": 0.25, "episode_reward_mean": 1000}')
    assert outcome.status == 0 and outcome.err == ""
    folder = trial_folder(results)
    lines, rows = check_files(folder, 3)
    assert math.isnan(lines[0]["episode_reward_mean"]) and rows[2]["info/learner/kl"].startswith("0.3")
    name = folder.name
    assert name.startswith("COUNT_CartPole-v1_") and folder.parent.name == "N"
    headline, header, *progress, summary, last, evaluate = outcome.out.splitlines()
    assert headline.startswith("COUNT on CartPole-v1, framework ") and headline.endswith(f"; results in {results}/N")
    assert header.split() == ["trial", "iter", "timesteps", "reward", "length", "time"]
    assert [line.split()[:5] for line in progress] == [
        [name, "1", "100", "-", "5.00"],
        [name, "2", "200", "10.00", "5.00"],
        [name, "3", "300", "20.00", "5.00"],
    ]
    assert summary.startswith(f"{name}: done after 3 iterations, 300 timesteps, ")
    assert last == f"  last checkpoint: {folder / 'checkpoint_000003'}" and Path(folder, "checkpoint_000003").is_dir()
    assert evaluate == f"  polylib evaluate {folder / 'checkpoint_000003'} --algo COUNT"


def test_a_file_says_when_to_stop(call, count, results, tmp_path):
    (tmp_path / "exp.py").write_text(
        'algo = "COUNT"\nconfig = {"env": "CartPole-v1"}\nstop = {"training_iteration": 3}\n'
    )
    outcome = call("train", "file", str(tmp_path / "exp.py"), "--local-mode", "--local-dir", results)
    assert outcome.status == 0, outcome.err
    check_files(trial_folder(results), 3)


def test_a_stop_key_that_never_comes(call, count, results):
    argv = ("--algo", count, "--env", "CartPole-v1", "--local-dir", results, "--local-mode")
    outcome = call("train", *argv, "--stop", '{"episode_reward": 100}')
    assert outcome.status == 1
    assert outcome.error.startswith(
        "--stop: no key 'episode_reward' in the results, so the run would never stop. Did you"
    )


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("setup", "environment 'x': setup broke"),
        ("step", "environment 'x': step broke"),
        ("step, a bug", "ZeroDivisionError: division by zero (-vv shows the traceback)"),
    ],
)
def test_failures_are_one_line(call, count, results, fail, message):
    config = json.dumps({"env": "CartPole-v1", "env_config": {"fail": fail}})
    argv = ("train", "--algo", count, "--config", config, "--local-dir", results, "--local-mode")
    outcome = call(*argv)
    assert outcome.status == 1 and outcome.error == message
    assert ": failed after 0 iterations" in outcome.out
    assert "Traceback" in (trial_folder(results) / "error.txt").read_text()
    outcome = call(*argv, "-vv")
    assert outcome.status == 1 and "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1] == "polylib train: error: " + message.partition(" (-vv")[0]


def test_interruption(call, count, results, monkeypatch):
    from polylib.algorithms.registry import get_algorithm_class

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(get_algorithm_class(count), "step", interrupt)
    argv = ("train", "--algo", count, "--env", "CartPole-v1", "-n", "N", "--local-dir", results, "--local-mode")
    outcome = call(*argv)
    assert outcome.status == 130
    assert outcome.err == f"polylib train: interrupted; results so far in {results}/N\n"
    assert ": interrupted after 0 iterations" in outcome.out


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
def test_ppo(call, results, framework, traced):
    config = '{"train_batch_size": 128, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}, "seed": 0, '
    config += '"output": "logdir"}'
    flags = ("--framework", framework, *(["--trace"] if traced else []))
    argv = ("train", "--algo", "PPO", "--env", "CartPole-v1", *flags, "--config", config, "--local-dir", results)
    outcome = call(*argv, "--local-mode", "--stop", '{"timesteps_total": 256}')
    assert outcome.status == 0 and outcome.err == ""
    lines, _ = check_files(trial_folder(results), 2)
    assert len(list(trial_folder(results).glob("output-*.json"))) == 1
    assert lines[1]["timesteps_total"] == 256 and lines[1]["info"]["learner"]["default_policy"]["learner_stats"]


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_an_error_of_the_env(call, results, tmp_path, monkeypatch):
    (tmp_path / "my_broken_envs.py").write_text(
        "import gymnasium\n"
        "class Broken(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Discrete(3)\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def __init__(self, env_config=None): pass\n"
        "    def reset(self, *, seed=None, options=None): raise ZeroDivisionError('in my reset')\n"
    )
    monkeypatch.chdir(tmp_path)
    argv = ("--algo", "PPO", "--env", "my_broken_envs:Broken", "--framework", "torch", "--local-dir", results)
    outcome = call("train", *argv, "--local-mode")
    assert outcome.status == 1
    assert "my_broken_envs:Broken" in outcome.error and "reset" in outcome.error and "in my reset" in outcome.error
    assert str(tmp_path) not in sys.path
