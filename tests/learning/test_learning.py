"""PPO with its default settings learns. Minutes of training: run with `make learn`."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest
from modes import has

_PATH = Path(__file__).parents[2] / "benchmarks" / "learning.py"
_SPEC = importlib.util.spec_from_file_location("learning", _PATH)
learning = importlib.util.module_from_spec(_SPEC)
sys.modules["learning"] = learning  # dataclasses look their module up
_SPEC.loader.exec_module(learning)

FAST_MODES = [
    pytest.param(mode, marks=pytest.mark.skipif(not has(learning.MODES[mode][0]), reason=f"no package for {mode}"))
    for mode in learning.FAST_MODES
]


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", FAST_MODES)
def test_cartpole_in_every_fast_mode(mode):
    """A mean reward of 150 within 40,000 steps, in the median of five seeds."""
    runs = [learning.learn(mode, seed) for seed in range(5)]
    steps = [run.steps or 10**9 for run in runs]
    assert statistics.median(steps) <= 40_000, [(run.seed, run.steps, run.reward) for run in runs]


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has("tf2"), reason="no package for tf2")
def test_cartpole_in_eager_tf2():
    run = learning.learn("tf2", 0)
    assert run.steps is not None, run


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", FAST_MODES)
def test_pendulum_in_every_fast_mode(mode):
    """From -1200 to -400."""
    run = learning.learn(mode, 0, "ppo-pendulum")
    assert run.steps is not None and run.first < -900, run


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has("torch"), reason="no package for torch")
def test_pendulum_improves_with_the_defaults():
    run = learning.learn("torch", 0, "ppo-pendulum", config={}, bound=-1150.0, steps=60_000)
    assert run.steps is not None and run.reward > run.first + 50, run


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", FAST_MODES)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_memory_balances_a_pole_whose_velocity_it_cannot_see(mode, cell):
    run = learning.learn(mode, 0, f"{cell}-stateless-cartpole")
    assert run.steps is not None and run.first < 50, run


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has("torch"), reason="no package for torch")
def test_without_memory_nothing_balances_it():
    run = learning.learn("torch", 0, "mlp-stateless-cartpole", steps=80_000)
    assert run.steps is None and run.reward < 100, run


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", FAST_MODES)
def test_a_vision_network_catches_balls(mode):
    run = learning.learn(mode, 0, "vision-catch")
    assert run.steps is not None and run.first < 0, run


# --- the script, in no time


def test_a_run_and_its_row(tmp_path):
    fast = {"train_batch_size": 200, "sgd_minibatch_size": 32, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [8]}}
    run = learning.learn("torch", 0, config=fast, bound=1.0, steps=200)
    assert run.steps == 200 and run.reward > 1 and run.reward == run.first and run.seconds > 0
    missed = learning.learn("torch", 1, config=fast, bound=1e6, steps=400)
    assert missed.steps is None and missed.reward < 1e6
    table = tmp_path / "LEARNING.md"
    learning.write([run], table)
    learning.write([missed], table)
    learning.write([run], table)
    lines = table.read_text().splitlines()
    assert lines[-2].startswith("| ppo-cartpole | torch | 0 | 1 | 200 |")
    assert lines[-1].startswith("| ppo-cartpole | torch | 1 | 1e+06 |  |")
    assert "torch " in lines[-1] and lines[-1].count(" | ") == learning.COLUMNS.count(" | ")
    (summed,) = [line for line in lines if line.startswith("| ppo-cartpole | PPO, CartPole-v1 |")]
    assert "| torch | 2 | 150 | not | 200 to 200, 1 not |" in summed
    assert sum(line.startswith("| ppo-cartpole | torch") for line in lines) == 2


def test_tasks_are_complete():
    for name, task in learning.TASKS.items():
        settings = learning.get_config_class(task.algo)().update_from_dict(dict(task.config))
        assert settings["train_batch_size"] > 0 and task.steps > 0, name
