"""The table of what --framework and --trace run."""

from __future__ import annotations

import pytest
from modes import has

needs_tf = pytest.mark.skipif(not has("tf2"), reason="TensorFlow isn't installed")
needs_torch = pytest.mark.skipif(not has("torch"), reason="torch isn't installed")


def mode_of(call, *flags):
    outcome = call("train", "--algo", "PPO", "--env", "CartPole-v1", "--print-config", *flags)
    assert outcome.status == 0, outcome.err
    return outcome.out.splitlines()[0].partition("framework ")[2].partition(", ")[0]


RUNS = [
    ((), "tf2 (traced)"),
    (("--framework", "tf2"), "tf2 (eager)"),
    (("--framework", "tf2", "--trace"), "tf2 (traced)"),
    (("--framework", "tf2", "--no-trace"), "tf2 (eager)"),
    (("--framework", "tf2", "--config", '{"eager_tracing": true}'), "tf2 (traced)"),
    (("--framework", "tf2", "--config", '{"eager_tracing": false}'), "tf2 (eager)"),
    (("--trace",), "tf2 (traced)"),
    (("--no-trace",), "tf2 (eager)"),
    (("--framework", "tf"), "tf"),
    (("--framework", "tf", "--no-trace"), "tf"),
    # on the command line, --config is like --framework
    (("--config", '{"framework": "tf2"}'), "tf2 (eager)"),
    (("--config", '{"framework": "tf2"}', "--trace"), "tf2 (traced)"),
    (("--config", '{"framework": "tf2", "eager_tracing": false}', "--trace"), "tf2 (traced)"),
    (("--config", '{"framework": "tf2", "eager_tracing": true}'), "tf2 (traced)"),
    (("--config", '{"eager_tracing": false}'), "tf2 (eager)"),
    (("--config", '{"framework": "tf"}'), "tf"),
    (("--config", '{"framework": "tf"}', "--framework", "tf2"), "tf2 (eager)"),
    (("--config", '{"eager_tracing": {"grid_search": [true, false]}}'), "tf2 (traced) or tf2 (eager)"),
]


@needs_tf
@pytest.mark.parametrize(("flags", "mode"), RUNS)
def test_what_runs(call, flags, mode):
    assert mode_of(call, *flags) == mode


@needs_torch
def test_torch_runs(call):
    assert mode_of(call, "--framework", "torch") == "torch"
    assert mode_of(call, "--config", '{"framework": "torch"}') == "torch"


@needs_tf
@needs_torch
def test_a_grid_of_frameworks(call):
    assert mode_of(call, "--config", '{"framework": {"grid_search": ["tf", "torch"]}}') == "tf or torch"


@needs_tf
def test_files_and_python_are_traced(call, tmp_path):
    (tmp_path / "exp.py").write_text(
        "from polylib.algorithms.ppo import PPOConfig\n"
        "config = PPOConfig().environment('CartPole-v1').framework('tf2')\n"
    )
    (tmp_path / "exp.yaml").write_text("x: {run: PPO, env: CartPole-v1, config: {framework: tf2}}\n")
    for name in ("exp.py", "exp.yaml"):
        for flags, mode in (((), "traced"), (("--no-trace",), "eager"), (("--framework", "tf2"), "eager")):
            outcome = call("train", "file", str(tmp_path / name), "--print-config", *flags)
            assert f"framework tf2 ({mode})" in outcome.out.splitlines()[0]


@pytest.mark.parametrize(
    "flags",
    [
        ("--framework", "torch", "--trace"),
        ("--config", '{"framework": "torch"}', "--trace"),
        ("--config", '{"framework": {"grid_search": ["tf2", "torch"]}}', "--trace"),
    ],
)
def test_tracing_is_for_tf2(call, flags):
    outcome = call("train", "--algo", "PPO", "--env", "CartPole-v1", *flags)
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.error.startswith("--trace: tracing is for tf2, and the framework is torch")


def test_tracing_is_not_for_graphs(call):
    outcome = call("train", "--algo", "PPO", "--env", "CartPole-v1", "--framework", "tf", "--trace")
    assert outcome.status == 2 and "tracing is for tf2, and the framework is tf;" in outcome.error


def test_an_algorithm_without_a_backend(call, tf_only):
    outcome = call("train", "--algo", tf_only, "--env", "CartPole-v1", "--framework", "torch")
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.error == "TFONLY has no 'torch' backend; it runs with framework 'tf' or 'tf2'"


def test_a_framework_that_is_not_installed(call, block_import):
    block_import("torch")
    outcome = call("train", "--algo", "PPO", "--env", "CartPole-v1", "--framework", "torch")
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.error == "framework 'torch' needs torch, not installed here: pip install 'polylib[torch]'"


@needs_torch
def test_without_tensorflow_it_is_torch(call, block_import):
    block_import("tensorflow", "keras")
    assert mode_of(call) == "torch"
    outcome = call("train", "--algo", "PPO", "--env", "CartPole-v1", "--trace")
    assert outcome.status == 2 and "framework 'tf2' needs tensorflow" in outcome.error
