"""--model: a network of the user's own from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from modes import has

pytestmark = pytest.mark.skipif(not has("tf"), reason="tensorflow isn't installed")

SMALL = '{"train_batch_size": 32, "sgd_minibatch_size": 16, "num_sgd_iter": 1, "model": {"custom_model_config": {}}}'
RUN = ("--algo", "PPO", "--env", "CartPole-v1", "--local-mode", "--framework", "tf", "-c", SMALL)


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """A module of the user's, where the command is typed."""
    (tmp_path / "my_nets.py").write_text(
        "import keras\n"
        "def my_net(observation_space, action_space, outputs):\n"
        "    x = inputs = keras.Input(observation_space.shape)\n"
        "    return keras.Model(inputs, {k: keras.layers.Dense(n)(x) for k, n in outputs.items()})\n"
    )
    (tmp_path / "broken_nets.py").write_text("raise RuntimeError('two\\nlines')\n")
    monkeypatch.chdir(tmp_path)
    return "my_nets:my_net"


def test_train_and_evaluate(call, nets, results):
    outcome = call("train", *RUN, "--model", nets, "--stop", '{"training_iteration": 1}', "--local-dir", results)
    assert outcome.status == 0, outcome.err
    (folder,) = Path(results).glob("*/*")
    assert json.loads((folder / "params.json").read_text())["model"]["custom_model"] == nets
    checkpoint = str(folder / "checkpoint_000001")
    assert outcome.out.splitlines()[-1].endswith(f"{checkpoint} --algo PPO --model {nets}")
    outcome = call("evaluate", checkpoint, "--episodes", "1", "--model", nets)
    assert outcome.status == 0 and "framework tf," in outcome.out, outcome.err
    refused = call("evaluate", checkpoint, "--episodes", "1")
    assert refused.status == 2
    assert f"was trained with code, '{nets}', which is run only if you say so: use --model {nets}" in refused.error
    assert "load it with framework='tf'" in call("evaluate", checkpoint, "--framework", "numpy", "--model", nets).error
    again = ("train", *RUN, "--restore", checkpoint, "--stop", '{"training_iteration": 2}', "--local-dir", results)
    assert f"use --model {nets}" in call(*again).error
    outcome = call(*again, "--model", nets)
    assert outcome.status == 0, outcome.err


def test_it_counts_before_the_config(call, nets):
    config = '{"model": {"custom_model": "my_nets:other", "fcnet_hiddens": [5]}}'
    outcome = call("train", "-a", "PPO", "-e", "CartPole-v1", "-c", config, "--model", nets, "--print-config")
    assert outcome.status == 0, outcome.err
    (line,) = (line for line in outcome.out.splitlines() if "model.custom_model " in line)
    assert nets in line and "--model" in line
    assert "[5]" in outcome.out


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("my_nets:nothing", "--model: config key 'custom_model': 'my_nets:nothing': 'my_nets' has no 'nothing'"),
        ("no_such_nets:net", "can't import 'no_such_nets': ModuleNotFoundError: No module named 'no_such_nets'"),
        ("broken_nets:net", "can't import 'broken_nets': RuntimeError: two lines"),
        ("my_nets:__name__", "is 'my_nets', expected a factory, a class or a model"),
        ("my_net", "no model is registered as 'my_net'"),
    ],
)
def test_bad_values(call, nets, results, value, says):
    outcome = call("train", *RUN, "--model", value, "--local-dir", results)
    assert outcome.status == 2 and says in outcome.error, outcome.err
    assert not Path(results).exists()


def test_help_says_it(call):
    for command in ("train", "evaluate"):
        assert "--model MODULE:NAME" in call(command, "--help").out
