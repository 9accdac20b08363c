"""`polylib evaluate`: the same episodes under every framework, and what it says about checkpoints that won't do."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
from fakes import MatchEnv, small_ppo
from modes import MODES, has, mode_id, mode_params

import polylib
from polylib.registry import register_env

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = [mode for mode in MODES if has(mode[0])]
PARAMS = mode_params(MODES)
SEED, EPISODES = 7, 3


@pytest.fixture(scope="module", autouse=True)
def match():
    """An environment by name."""
    register_env("evaluate-match", MatchEnv)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """`trained(mode)`: a checkpoint of CartPole, and the returns of `algo.evaluate()` and `compute_single_action`."""
    made = {}

    def train(mode):
        if mode not in made:
            config = small_ppo("CartPole-v1", mode, seed=SEED, evaluation_duration=EPISODES)
            config.evaluation(evaluation_config={"explore": False})
            with config.build() as algo:
                if mode != ("tf2", False):
                    algo.train()
                path = tmp_path_factory.mktemp(mode_id(*mode)) / "checkpoint_000001"
                algo.save(str(path))
                during = algo.evaluate()["hist_stats"]["episode_reward"]
                alone = [play(algo, SEED + k) for k in range(EPISODES)]
            made[mode] = path, during, alone
        return made[mode]

    return train


@pytest.fixture
def checkpoint(trained):
    """Some checkpoint."""
    return trained(INSTALLED[-1])[0]


@pytest.fixture
def changed(checkpoint, tmp_path):
    """`changed(file, function)`: a copy of a checkpoint with a JSON file changed."""

    def change(name, function):
        folder = Path(shutil.copytree(checkpoint, tmp_path / "changed", dirs_exist_ok=True))
        file = folder / name
        values = json.loads(file.read_text())
        function(values)
        file.write_text(json.dumps(values))
        return str(folder)

    return change


def play(actor, seed):
    """The return of an episode, without polylib's sampling."""
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(actor.compute_single_action(obs, explore=False))
        total, over = total + float(reward), terminated or truncated
    return total


def rows(outcome):
    """Episode, seed, return and length of each printed line."""
    assert outcome.status == 0, outcome.err
    return [tuple(float(x) for x in line.split()) for line in outcome.out.splitlines() if re.match(r" +\d", line)]


def returns(outcome):
    return [row[2] for row in rows(outcome)]


@pytest.mark.parametrize(("framework", "traced"), PARAMS)
def test_all_paths_play_the_same_episodes(call, trained, framework, traced):
    """Training's evaluation, compute_single_action, load_policy, and evaluate under each framework."""
    path, during, alone = trained((framework, traced))
    assert during == alone and len(alone) == EPISODES
    assert [play(polylib.load_policy(path), SEED + k) for k in range(EPISODES)] == alone
    assert returns(call("evaluate", str(path), "--episodes", str(EPISODES))) == alone
    for other, trace in INSTALLED:
        flags = ["--framework", other, *(["--trace"] if trace else [])]
        outcome = call("evaluate", str(path), "--episodes", str(EPISODES), *flags)
        assert returns(outcome) == alone, flags
        words = f"tf2 ({'traced' if trace else 'eager'})" if other == "tf2" else other
        assert f", framework {words}, explore off, seed {SEED}; " in outcome.out.splitlines()[0]


def test_what_it_prints_and_writes(call, checkpoint, tmp_path):
    out = tmp_path / "episodes.json"
    outcome = call("evaluate", str(checkpoint), "--algo", "PPO", "--seed", "20", "--out", str(out))
    lines = outcome.out.splitlines()
    assert outcome.status == 0 and outcome.err == "" and len(lines) == 13
    assert lines[0] == f"PPO on CartPole-v1, framework numpy, explore off, seed 20; {checkpoint}"
    assert lines[1].split() == ["episode", "seed", "return", "length"]
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(e["episode"], e["seed"]) for e in written] == [(k, 19 + k) for k in range(1, 11)]
    assert rows(outcome) == [(e["episode"], e["seed"], e["return"], e["length"]) for e in written]
    values, steps = [e["return"] for e in written], sum(e["length"] for e in written)
    error = statistics.stdev(values) / math.sqrt(10)
    assert lines[-1] == (
        f"10 episodes, {steps} steps: return mean {statistics.fmean(values):.2f}, range {min(values):.2f} to "
        f"{max(values):.2f}, standard error {error:.2f}; length mean {steps / 10:.2f}"
    )
    assert call("evaluate", str(checkpoint), "--seed", "20").out == outcome.out
    assert "standard error -;" in call("evaluate", str(checkpoint), "--episodes", "1").out


def test_steps(call, tmp_path):
    """Episodes of 10 steps: none begins after the number of steps, and those that began are finished."""
    with small_ppo("evaluate-match", INSTALLED[-1]).build() as algo:
        path = str(tmp_path / "checkpoint")
        algo.save(path)
    for flags, count in (("--steps 30", 3), ("--steps 31", 4), ("--steps 30 --episodes 2", 2), ("--steps 5", 1)):
        assert len(rows(call("evaluate", path, *flags.split()))) == count
    # several environments side by side play the same episodes
    several = call("evaluate", path, "--config", '{"num_envs_per_worker": 3}', "--episodes", "5")
    assert sorted(rows(several)) == rows(call("evaluate", path, "--episodes", "5"))


def test_settings(call, checkpoint):
    explored = call("evaluate", str(checkpoint), "--config", '{"explore": true, "seed": 5}')
    assert ", explore on, seed 5; " in explored.out and explored.err == ""
    assert returns(explored) != returns(call("evaluate", str(checkpoint), "--seed", "5"))
    outcome = call("evaluate", str(checkpoint), "--episodes", "1", "--config", '{"lr": 1, "num_rollout_workers": 2}')
    assert outcome.status == 0
    assert outcome.notes == ["--config: lr, num_rollout_workers: no effect in an evaluation"]
    config = '{"env_config": {"max_episode_steps": 4}}'
    assert returns(call("evaluate", str(checkpoint), "--episodes", "2", "--config", config)) == [4, 4]
    outcome = call("evaluate", str(checkpoint), "--env", "CartPole-v0", "--episodes", "1")
    assert outcome.status == 0 and outcome.out.startswith("PPO on CartPole-v0, ")


def test_the_evaluation_config_counts(call, changed):
    def change(config):
        config["evaluation_config"] = {"env_config": {"max_episode_steps": 3}, "explore": True, "seed": 9}

    path = changed("config.json", change)
    outcome = call("evaluate", path, "--episodes", "1")
    assert returns(outcome) == [3] and ", explore on, seed 9; " in outcome.out
    config = '{"env_config": {"max_episode_steps": 5}, "explore": false}'
    assert returns(call("evaluate", path, "--episodes", "1", "--config", config)) == [5]


def test_a_policys_checkpoint(call, checkpoint, tmp_path):
    from polylib.algorithms.algorithm import Algorithm

    with Algorithm.from_checkpoint(checkpoint) as algo:
        path = algo.export_policy_checkpoint(str(tmp_path / "policy"))
    assert returns(call("evaluate", path, "--run", "PPO")) == returns(call("evaluate", str(checkpoint)))


def test_an_env_that_was_code(call, tmp_path, monkeypatch):
    (tmp_path / "my_envs_to_evaluate.py").write_text("from fakes import MatchEnv\nclass Mine(MatchEnv): pass\n")
    monkeypatch.chdir(tmp_path)
    for env, name in ((MatchEnv, "fakes:MatchEnv"), ("fakes:MatchEnv", "fakes:MatchEnv")):
        path = str(tmp_path / "checkpoint")
        with small_ppo(env, INSTALLED[-1]).build() as algo:
            algo.save(path)
        outcome = call("evaluate", path)
        assert outcome.status == 2 and outcome.error == (
            f"which environment? the checkpoint's is code, '{name}', which is run only if you say so: use --env {name}"
        )
        outcome = call("evaluate", path, "--env", "my_envs_to_evaluate:Mine", "--episodes", "2")
        assert len(rows(outcome)) == 2


def test_render(call, checkpoint, tmp_path):
    pytest.importorskip("pygame")
    outcome = call("evaluate", str(checkpoint), "--render", "--episodes", "1")  # the test session has no screen
    assert len(rows(outcome)) == 1 and outcome.err == ""


def test_an_env_that_cannot_be_rendered(call, tmp_path):
    with small_ppo("evaluate-match", INSTALLED[-1]).build() as algo:
        algo.save(str(tmp_path / "checkpoint"))
    outcome = call("evaluate", str(tmp_path / "checkpoint"), "--render")
    assert outcome.status == 2 and outcome.error == (
        "--render: environment 'evaluate-match' has no render mode 'human' (it has none): leave the flag out"
    )


# --- what is wrong, in one line


WRONG = [
    ([], "which checkpoint? none was given, expected one folder"),
    (["{}", "{}"], "which checkpoint? got "),
    (["/no/such/checkpoint"], "there is no checkpoint /no/such/checkpoint: no such folder"),
    (["{}", "--algo", "DQN"], "--algo DQN: {} is a checkpoint of PPO"),
    (["{}", "--episodes", "0"], "flag --episodes=0: expected an integer >= 1"),
    (["{}", "--steps", "0"], "flag --steps=0: expected an integer >= 1"),
    (["{}", "--framework", "jax"], "flag --framework=jax: expected one of numpy, tf, tf2, torch"),
    (["{}", "--framework", "torch", "--trace"], "--trace: tracing is for tf2, and the framework is torch"),
    (["{}", "--env", "CartPol-v1"], "unknown environment 'CartPol-v1'"),
    (["{}", "--env", "nowhere:Env"], "environment 'nowhere:Env': can't import 'nowhere'"),
    (["{}", "--config", '{"exploer": true}'], "--config: unknown config key 'exploer' for PPO. Did you mean 'explore'"),
    (["{}", "--config", '{"explore": 1.5}'], "--config: config key 'explore': got 1.5"),
    (["{}", "--out", "/no/such/folder/file"], "--out: can't write '/no/such/folder/file': No such file or directory"),
    (["{}", "--out", "/"], "--out: can't write '/': Is a directory"),
    (["{}", "--env", "Acrobot-v1"], "environment 'Acrobot-v1' has observation space Box("),
    (["{}", "--env", "evaluate-match"], "environment 'evaluate-match' has observation space Box(0.0, 1.0, (3,)"),
    (["{}", "--episode", "3"], "unknown flag '--episode'. Did you mean '--episodes'? See --help"),
]


@pytest.mark.parametrize(("argv", "message"), WRONG)
def test_wrong_command_lines(call, checkpoint, argv, message):
    outcome = call("evaluate", *(word.format(checkpoint) if word == "{}" else word for word in argv))
    assert outcome.status == 2 and outcome.out == "" and outcome.error.startswith(message.format(checkpoint))


def test_checkpoints_that_are_half_there(call, checkpoint, tmp_path):
    (policy,) = (checkpoint / "policies").iterdir()
    for name in ("polylib_checkpoint.json", "config.json", f"{policy.relative_to(checkpoint)}/weights.safetensors"):
        folder = Path(shutil.copytree(checkpoint, tmp_path / "half", dirs_exist_ok=True))
        (folder / name).unlink()
        outcome = call("evaluate", str(folder))
        assert outcome.status == 2 and str(folder) in outcome.error and name.rpartition("/")[2] in outcome.error
        data = (checkpoint / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])
        outcome = call("evaluate", str(folder))
        assert outcome.status == 2 and str(folder) in outcome.error and "damaged" in outcome.error, name
    outcome = call("evaluate", str(tmp_path))
    assert outcome.status == 2 and "it has checkpoints inside: half" in outcome.error


def test_a_tampered_checkpoint(call, changed, checkpoint):
    (policy,) = (checkpoint / "policies").iterdir()
    state = f"policies/{policy.name}/policy_state.json"
    for name, change in (
        ("polylib_checkpoint.json", lambda header: header.pop("policies")),
        ("polylib_checkpoint.json", lambda header: header.update(algorithm="os:system")),
        ("polylib_checkpoint.json", lambda header: header.update(checkpoint_version="9.0")),
        ("config.json", lambda config: config.update(gamma="x")),
        ("config.json", lambda config: config["model"].update(fcnet_hiddens=[9])),
        (state, lambda values: values.update(rng={})),
        (state, lambda values: values.pop("coefficients")),
    ):
        path = changed(name, change)
        outcome = call("evaluate", path)
        assert outcome.status == 2 and path in outcome.error, outcome.err
        shutil.copy(checkpoint / name, Path(path, name))


def test_somebody_elses_checkpoint(call, tmp_path):
    (tmp_path / "rllib_checkpoint.json").write_text("{}")
    outcome = call("evaluate", str(tmp_path))
    assert outcome.status == 2 and outcome.error.startswith(f"{tmp_path} is an RLlib checkpoint: its files are pickles")


def test_an_env_that_fails(call, tmp_path):
    from fakes import BrokenEnv

    register_env("evaluate-broken", BrokenEnv)
    with small_ppo("evaluate-broken", INSTALLED[-1]).build() as algo:
        algo.save(str(tmp_path / "checkpoint"))
    config = '{"env_config": {"fault": "step", "at": 3}}'
    outcome = call("evaluate", str(tmp_path / "checkpoint"), "--config", config)
    assert outcome.status == 1
    assert outcome.error.startswith("environment 'evaluate-broken' raised in step(): RuntimeError: the motor is on")
    assert "Traceback" in call("evaluate", str(tmp_path / "checkpoint"), "--config", config, "-vv").err


def test_interruption_prints_what_was_done(call, checkpoint, monkeypatch):
    from polylib.cli import evaluate

    row = evaluate._row

    def interrupted(episode, *rest):
        row(episode, *rest)
        if episode == "2":
            raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "_row", interrupted)
    outcome = call("evaluate", str(checkpoint))
    assert outcome.status == 130 and outcome.err == "polylib evaluate: interrupted\n"
    assert outcome.out.splitlines()[-1].startswith("2 episodes, ")


def test_help(call):
    outcome = call("evaluate", "--help")
    assert outcome.status == 0 and outcome.out.startswith("usage: polylib evaluate CHECKPOINT [flags]\n")
    for flag in ("algo", "env", "config", "episodes", "steps", "seed", "framework", "trace", "render", "out"):
        assert f"--{flag}" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 120


# --- in a process of its own


def test_numpy_needs_no_framework_and_no_ray(checkpoint, tmp_path):
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from polylib.cli.main import main\n"
        f"status = main(['evaluate', {str(checkpoint)!r}, '--episodes', '2'])\n"
        "print([name for name in ('tensorflow', 'keras', 'torch', 'ray') if name in sys.modules], status)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[] 0" and "2 episodes, " in done.stdout


@pytest.mark.skipif(not has("tf"), reason="TensorFlow isn't installed")
def test_the_script_prints_nothing_of_tensorflow(checkpoint, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    command = [sys.executable, str(ROOT / "bin" / "evaluate"), str(checkpoint), "--framework", "tf", "--episodes", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 4
