"""What an experiment is made of: flags, files, and where each value comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from modes import has

from polylib.cli.experiment import experiments_of
from polylib.cli.flags import parse
from polylib.cli.train_flags import TRAIN_FLAGS

BASE = ("--algo", "PPO", "--env", "CartPole-v1")


def experiment(*argv):
    (found,) = experiments_of(parse(argv, TRAIN_FLAGS))
    return found


def rows(text):
    return {line.split()[0]: line for line in text.splitlines() if line and not line.startswith("#")}


# --- what is wrong, in one line and with status 2

WRONG = [
    ((), "which algorithm? use --algo NAME with one of: A2C, BC, CQL, CRR, DDPG, DQN, IQL, MARWIL, PG, PPO, SAC"),
    (("--algo", "PPO"), 'which environment? use --env NAME, or "env" in --config'),
    (("--algo", "PPP", "-e", "CartPole-v1"), "--algo: unknown algorithm 'PPP'. Did you mean 'PPO'?"),
    (("--algo", "ppo", "-e", "CartPole-v1"), "--algo: unknown algorithm 'ppo'. Did you mean 'PPO'?"),
    (("-a", "PPO", "-e", "CartPol-v1"), "unknown environment 'CartPol-v1'"),
    (("-a", "PPO", "-e", "nowhere:Env"), "environment 'nowhere:Env': can't import 'nowhere'"),
    ((*BASE, "-c", '{"lrr": 0.1}'), "--config: unknown config key 'lrr' for PPO. Did you mean 'lr'?"),
    ((*BASE, "-c", '{"model": {"fcnet_hidens": [1]}}'), "--config: unknown config key 'model.fcnet_hidens'"),
    ((*BASE, "-c", '{"lr": -1}'), "--config: config key 'lr': got -1"),
    ((*BASE, "-c", '{"lr": "0.1"}'), "--config: config key 'lr': got '0.1' (str)"),
    ((*BASE, "-c", '{"gamma": 1.5}'), "--config: config key 'gamma': got 1.5"),
    ((*BASE, "-c", '{"lr": {"grid_search": [0.1, -1]}}'), "--config: config key 'lr': got -1"),
    ((*BASE, "-c", '{"lr": 0.1'), "--config: malformed JSON at line 1, column 11"),
    ((*BASE, "-s", '{"training_iteration": 3,}'), "--stop: malformed JSON at line 1"),
    ((*BASE, "-s", '{"training_iteration": "3"}'), "--stop: key 'training_iteration': got '3'"),
    ((*BASE, "-c", '{"sgd_minibatch_size": 9999}'), "config key 'sgd_minibatch_size': 9999 rows"),
    (
        (*BASE, "-c", '{"train_batch_size": {"grid_search": [4000, 50]}}'),
        "config key 'sgd_minibatch_size': 128 rows don't fit",
    ),
    (
        (*BASE, "-c", '{"ignore_worker_failures": true, "recreate_failed_workers": true}'),
        "--config: config keys 'ignore_worker_failures' and 'recreate_failed_workers' exclude each other",
    ),
    ((*BASE, "extra"), "unexpected word 'extra'"),
    (("file",), "usage: polylib train file EXPERIMENT.py"),
    (("file", "/no/such/exp.py"), "train file: there is no file '/no/such/exp.py'"),
    (("file", "exp.toml"), "exp.toml: an experiment is a .py, .yaml or .yml file"),
    (("file", "https://host/exp.yaml"), "https://host/exp.yaml: polylib reads local files only"),
    ((*BASE, "-n", "a/b"), "--experiment-name: got 'a/b', expected a folder's name"),
    ((*BASE, "--ray-address", "1.2.3.4:5", "--ray-num-cpus", "2"), "--ray-num-cpus: a cluster that is joined"),
    ((*BASE, "--local-mode", "--ray-num-cpus", "2"), "--ray-num-cpus: --local-mode runs without Ray"),
    ((*BASE, "--local-mode", "--num-samples", "2"), "--local-mode runs one trial, and --num-samples says 2"),
    (
        (*BASE, "--local-mode", "-c", '{"num_workers": 2}'),
        "--local-mode runs without Ray, and config key 'num_workers'",
    ),
    (
        (*BASE, "--local-mode", "-c", '{"lr": {"grid_search": [0.1]}}'),
        "--local-mode runs one trial, and config key 'lr' is a search",
    ),
    (
        (*BASE, "--local-mode", "-c", '{"model": {"fcnet_hiddens": {"grid_search": [[8]]}}}'),
        "--local-mode runs one trial, and config key 'model.fcnet_hiddens' is a search",
    ),
]


@pytest.mark.parametrize(("argv", "message"), WRONG)
def test_what_is_wrong_is_said_in_one_line(call, argv, message):
    outcome = call("train", *argv)
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.error.startswith(message)


# --- flags


def test_the_config_may_say_the_env(call):
    outcome = call("train", "--algo", "PPO", "--config", '{"env": "CartPole-v1"}', "--print-config")
    assert outcome.status == 0 and outcome.err == "" and outcome.out.startswith("# PPO on CartPole-v1, ")
    assert re.search(r'^env +"CartPole-v1" +--config$', outcome.out, re.MULTILINE)


def test_the_flag_replaces_the_configs_env():
    found = experiment(*BASE, "--config", '{"env": "Pendulum-v1"}')
    assert found.config["env"] == "CartPole-v1" and found.config.sources["env"] == "--env"
    assert found.notices == ["--env CartPole-v1 replaces 'Pendulum-v1', the env of --config"]
    assert experiment(*BASE, "--config", '{"env": "CartPole-v1"}').notices == []


def test_names_and_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = experiment(*BASE, "--local-dir", "here")
    assert re.fullmatch(r"PPO_CartPole-v1_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", found.name)
    assert found.folder == str(tmp_path / "here" / found.name)
    (tmp_path / "here" / found.name).mkdir(parents=True)
    again = experiment(*BASE, "--local-dir", "here").name
    assert again != found.name
    assert experiment(*BASE, "-n", "mine").folder == str(Path.home() / "ray_results" / "mine")
    assert experiment(*BASE, "--local-dir", "s3://bucket/x", "-n", "mine").folder == "s3://bucket/x/mine"


def test_the_headline(monkeypatch):
    found = experiment(*BASE, "-n", "N", "-s", '{"training_iteration": 1}')
    assert re.fullmatch(
        r"PPO on CartPole-v1, framework \w+( \(\w+\))?, 0 workers; results in ~/ray_results/N", found.headline()
    )
    assert experiment(*BASE).headline().endswith("; no --stop: runs until Ctrl-C")
    assert ", 1 worker; " in experiment(*BASE, "-c", '{"num_workers": 1}').headline()
    assert ", 1 or 2 workers; " in experiment(*BASE, "-c", '{"num_workers": {"grid_search": [1, 2]}}').headline()


def test_verbosity_sets_the_log_level():
    assert experiment(*BASE).config["log_level"] == "WARN"
    for flag, level in (("-v", "INFO"), ("-vv", "DEBUG")):
        config = experiment(*BASE, flag, "-c", '{"log_level": "ERROR"}').config
        assert config["log_level"] == level and config.sources["log_level"] == flag


def test_a_class_in_the_current_folder_is_an_env(call, tmp_path, monkeypatch):
    (tmp_path / "my_envs_here.py").write_text("class MyEnv: pass\n")
    monkeypatch.chdir(tmp_path)
    outcome = call("train", "-a", "PPO", "-e", "my_envs_here:MyEnv", "--print-config")
    assert outcome.status == 0, outcome.err
    outcome = call("train", "-a", "PPO", "-e", "my_envs_here:MyEnw", "--print-config")
    assert outcome.status == 2 and "module 'my_envs_here' has no 'MyEnw'" in outcome.error


# --- --print-config


@pytest.mark.skipif(not has("tf"), reason="needs TensorFlow")
def test_print_config(call):
    config = (
        '{"lr": 0.01, "num_rollout_workers": 2, "model": {"fcnet_hiddens": [8]}, "gamma": {"grid_search": [0.5, 1]}}'
    )
    stop = '{"training_iteration": 3}'
    outcome = call("train", *BASE, "-n", "N", "-c", config, "-s", stop, "--framework", "tf2", "-v", "--print-config")
    assert outcome.status == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[:3] == [
        "# PPO on CartPole-v1, framework tf2 (eager), 2 workers",
        '# stop: {"training_iteration": 3}',
        "# results: ~/ray_results/N",
    ]
    table = rows(outcome.out)
    for key, value, source in [
        ("key", "value", "source"),
        ("lr", "0.01", "--config"),
        ("num_workers", "2", "--config"),
        ("model.fcnet_hiddens", "[8]", "--config"),
        ("model.fcnet_activation", '"tanh"', "default"),
        ("gamma", '{"grid_search": [0.5, 1]}', "--config"),
        ("env", '"CartPole-v1"', "--env"),
        ("framework", '"tf2"', "--framework"),
        ("eager_tracing", "false", "--framework"),
        ("log_level", '"INFO"', "-v"),
        ("seed", "null", "default"),
        ("clip_param", "0.3", "default"),
    ]:
        assert re.fullmatch(rf"{re.escape(key)} +{re.escape(value)} +{source}", table[key])
    headings = [line for line in lines if line.startswith("# ")]
    assert headings[3:6] == ["# training", "# environment", "# framework"]


def test_print_config_needs_no_env_and_says_what_was_found(call):
    outcome = call("train", "--algo", "PPO", "--print-config")
    assert outcome.status == 0 and outcome.out.startswith("# PPO on no environment, ")
    assert re.search(r'^framework +"\w+" +default, as installed$', outcome.out, re.MULTILINE)


# --- files

PYTHON = """
from polylib.algorithms.ppo import PPOConfig
config = PPOConfig().environment("CartPole-v1").training(lr=0.01, gamma=0.9)
stop = {"training_iteration": 3, "info": {"x": 1}}
"""


def test_a_python_file_with_a_config_object(tmp_path):
    (tmp_path / "exp.py").write_text(PYTHON)
    found = experiment("file", str(tmp_path / "exp.py"), "--config", '{"gamma": 0.5}')
    assert found.config.algo_name == "PPO" and found.config["lr"] == 0.01 and found.config["gamma"] == 0.5
    assert found.config.sources["lr"] == "exp.py" and found.config.sources["gamma"] == "--config"
    assert found.stop == {"training_iteration": 3, "info/x": 1}
    assert experiment("file", str(tmp_path / "exp.py"), "--stop", '{"a": 1}').stop == {"a": 1}


def test_a_python_file_with_a_dict(tmp_path):
    path = tmp_path / "exp.py"
    path.write_text('config = {"env": "CartPole-v1", "lr": 0.01}\nalgo = "PPO"\n')
    assert experiment("file", str(path)).config["lr"] == 0.01
    path.write_text('config = {"env": "CartPole-v1"}\nrun = "PPO"\n')
    assert experiment("file", str(path)).config.algo_name == "PPO"
    path.write_text('config = {"env": "CartPole-v1"}\n')
    assert experiment("file", str(path), "--algo", "PPO").config.algo_name == "PPO"


def test_a_python_file_beside_its_modules(call, tmp_path):
    (tmp_path / "my_settings_beside.py").write_text("LR = 0.25\n")
    (tmp_path / "exp.py").write_text(
        "import my_settings_beside\n"
        "config = {'env': 'CartPole-v1', 'lr': my_settings_beside.LR, 'framework': 'torch'}\nalgo = 'PPO'\n"
    )
    outcome = call("train", "file", str(tmp_path / "exp.py"), "--print-config")
    assert outcome.status == 0 and re.search(r"^lr +0.25 +exp.py$", outcome.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", ": needs a variable `config`"),
        ("config = 3\n", ": config is a int, expected a config object or a dict"),
        ("\n1 / 0\n", ":2: ZeroDivisionError: division by zero"),
        ("x = (\n", ":1: SyntaxError: "),
        (
            "from polylib.algorithms.ppo import PPOConfig\nconfig = PPOConfig().training(lrr=1)\n",
            ":2: unknown config key",
        ),
        ("config = {'env': 'CartPole-v1'}\nalgo = 3\n", ": algo: got 3, expected an algorithm's name"),
        ("config = {'env': 'CartPole-v1'}\nalgo = 'PPO'\nstop = 3\n", ": stop: got 3, expected a dict"),
        ("config = {'env': 'CartPole-v1'}\nalgo = 'PPO'\nstop = {'a': 'b'}\n", ": stop: key 'a': got 'b'"),
    ],
)
def test_what_is_wrong_in_a_python_file(call, tmp_path, text, message):
    path = tmp_path / "exp.py"
    path.write_text(text)
    outcome = call("train", "file", str(path))
    assert outcome.status == 2 and outcome.error.startswith(f"{path}{message}")


def test_what_a_files_config_lacks(call, tmp_path):
    path = tmp_path / "exp.py"
    path.write_text("config = {'env': 'CartPole-v1'}\n")
    assert call("train", "file", str(path)).error.startswith("which algorithm? exp.py doesn't say: use --algo NAME")
    path.write_text("config = {'lrr': 1}\nalgo = 'PPO'\n")
    assert call("train", "file", str(path)).error.startswith("exp.py: unknown config key 'lrr' for PPO")


def test_another_algorithm_than_the_files(call, tmp_path, tf_only):
    path = tmp_path / "exp.py"
    path.write_text(PYTHON)
    assert call("train", "file", str(path), "-a", tf_only).error == "--algo TFONLY: exp.py has a config of PPO"


YAML = """
cartpole-ppo:
    env: CartPole-v1
    run: PPO
    stop:
        episode_reward_mean: 150
        timesteps_total: 1e5
    config:
        framework: tf
        lr: 3e-4
        gamma:
            grid_search: [0.9, 0.99]
"""


@pytest.mark.skipif(not has("tf"), reason="needs TensorFlow")
def test_a_yaml_file(tmp_path):
    path = tmp_path / "cartpole.yaml"
    path.write_text(YAML)
    found = experiment("file", str(path), "--local-dir", str(tmp_path))
    assert found.name == "cartpole-ppo" and found.config["env"] == "CartPole-v1" and found.config["lr"] == 3e-4
    assert found.config["gamma"] == {"grid_search": [0.9, 0.99]} and found.config.sources["lr"] == "cartpole.yaml"
    assert found.stop == {"episode_reward_mean": 150, "timesteps_total": 1e5}


@pytest.mark.skipif(not has("tf"), reason="needs TensorFlow")
def test_a_yaml_file_with_two_experiments(call, tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(YAML + YAML.replace("cartpole-ppo", "other").replace("grid_search: [0.9, 0.99]", "0.9"))
    path.write_text(YAML + "other: {run: PPO, env: Pendulum-v1, num_samples: 2}\n")
    outcome = call("train", "file", str(path), "--print-config")
    assert outcome.status == 0 and "# PPO on CartPole-v1" in outcome.out
    assert "# PPO on Pendulum-v1" in outcome.out and ", 2 samples\n" in outcome.out
    outcome = call("train", "file", str(path), "-n", "one", "--print-config")
    assert outcome.status == 2 and "each needs a folder of its own" in outcome.error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x: {run: PPO, env: CartPole-v1, confg: {}}", ": x: unknown key 'confg'. Did you mean 'config'?"),
        ("x: {run: PPO, env: CartPole-v1, checkpoint_freq: -1}", ": x: key 'checkpoint_freq': got -1, expected an in"),
        ("x: {run: PPO, env: CartPole-v1, checkpoint_freq: true}", ": x: key 'checkpoint_freq': got True, expected an"),
        ("x: {run: PPO, env: CartPole-v1, checkpoint_at_end: 1}", ": x: key 'checkpoint_at_end': got 1, expected true"),
        ("x: {run: PPO, env: CartPole-v1, keep_checkpoints_num: 0}", ": x: key 'keep_checkpoints_num': got 0, expecte"),
        ("x: {run: PPO, checkpoint_config: {freq: 1}}", ": x: checkpoint_config: unknown key or value 'freq': 1"),
        ("x: {run: PPO, checkpoint_config: 1}", ": x: key 'checkpoint_config': got 1"),
        ("x: {run: [PPO], env: CartPole-v1}", ": x: key 'run': got ['PPO']"),
        ("x: {run: PPO, config: 3}", ": x: key 'config': got 3"),
        ("x: {run: PPO, num_samples: 0}", ": x: key 'num_samples': got 0"),
        ("x: {run: PPO, stop: {a: b}}", ": x: stop: key 'a': got 'b'"),
        ("run: PPO\nenv: CartPole-v1", ": run: got 'PPO', expected an experiment"),
        ("{}", ": holds no experiment"),
    ],
)
def test_what_is_wrong_in_a_yaml_file(call, tmp_path, text, message):
    path = tmp_path / "exp.yaml"
    path.write_text(text)
    outcome = call("train", "file", str(path))
    assert outcome.status == 2 and outcome.error.startswith(f"{path}{message}")
