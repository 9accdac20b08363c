"""Algorithms learn as fast as benchmarks/LEARNING.md says. Minutes to hours of training: run with `make learn`."""

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


# Steps within which seed 0 gets there in each fast mode: about half as many again as the slowest run in the table.
WITHIN = {
    "ppo-cartpole-450": 60_000,
    "a2c-cartpole-450": 170_000,
    "dqn-cartpole-450": 110_000,
    "sac-pendulum": 11_000,
    "td3-pendulum": 20_000,
    "ppo-pendulum-250": 100_000,
    "ppo-lunarlander": 500_000,
    "dqn-mountaincar": 60_000,
    "dqn-acrobot": 40_000,
}
_NEEDS = {"ppo-lunarlander": "Box2D"}


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", FAST_MODES)
@pytest.mark.parametrize("task", WITHIN)
def test_as_fast_as_its_peer(mode, task):
    """Reaches the bound that Stable-Baselines3's steps are known for."""
    if task in _NEEDS:
        pytest.importorskip(_NEEDS[task])
    run = learning.learn(mode, 0, task, steps=WITHIN[task])
    assert run.steps is not None and run.first < run.bound, run


@pytest.mark.learning
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not has("tf"), reason="no package for tf")
@pytest.mark.parametrize("task", [name for name in learning.TASKS if name.startswith("rainbow-")])
def test_rainbow_and_what_is_left_without_one_of_its_parts(task):
    run = learning.learn("tf", 0, task)
    assert run.steps is not None and run.first < 50, run


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


def test_each_part_of_rainbow_is_left_out_once():
    """What a variant changes, and that the plainest one has none of them left."""
    rainbow = learning.TASKS["rainbow-all"].config
    key = {"double": "double_q", "dueling": "dueling", "n-step": "n_step", "c51": "num_atoms", "noisy": "noisy"}
    plain = learning.TASKS["rainbow-none"].config
    for part in [*key, "prioritized"]:
        config = learning.TASKS[f"rainbow-no-{part}"].config
        changed = {name for name in config if config[name] != rainbow.get(name)}
        assert changed - {"exploration_config"} == {key.get(part, "replay_buffer_config")}, part
        assert all(plain[name] == config[name] for name in changed), part
    assert (plain["double_q"], plain["dueling"], plain["noisy"]) == (False, False, False)
    assert (plain["n_step"], plain["num_atoms"]) == (1, 1)


def test_peers_have_the_same_tasks():
    """Stable-Baselines3's script names environments and bounds of its own; they must be those of the table."""
    spec = importlib.util.spec_from_file_location("learn_sb3", _PATH.parent / "peers" / "learn_sb3.py")
    peers = importlib.util.module_from_spec(spec)
    sys.modules["learn_sb3"] = peers
    spec.loader.exec_module(peers)
    assert set(peers.TASKS) >= {name for name, task in learning.TASKS.items() if task.peer}
    for name, peer in peers.TASKS.items():
        task = learning.TASKS[name]
        assert (peer.algo, peer.env, peer.bound) == (task.algo, task.env, task.bound), name
        assert task.config["metrics_num_episodes_for_smoothing"] == peers.LAST, name


def test_pages_say_what_the_table_says():
    rows = learning.read()
    assert {algo for algos in learning.PAGES.values() for algo in algos} == {t.algo for t in learning.TASKS.values()}
    for name, algos in learning.PAGES.items():
        text = learning.page(name).read_text(encoding="utf-8")
        found = learning.with_results(text, learning.results(algos, rows))
        assert found == text, f"{learning.page(name)} is behind the table: run benchmarks/learning.py --readmes"
    with pytest.raises(ValueError, match="the page has no lines '<!-- results"):
        learning.with_results("# Page\n", "")


def test_the_summary_and_the_settings_of_some_tasks():
    rest = ("-240.0", "-999.0", "1.0", "", "")
    rows = {}
    for seed, steps in enumerate(["7000", "6000", ""]):
        key = ("sac-pendulum", "tf", str(seed))
        rows[key] = (*key, "-250", steps, *rest)
    found = learning.results(("SAC",), rows)
    line = "| sac-pendulum | SAC, Pendulum-v1 | tf | 3 | -250 | 7,000 | 6,000 to 7,000, 1 not | 6,800, 6,000, 6,400 |"
    assert line in found
    assert "* `sac-pendulum`: metrics_num_episodes_for_smoothing=20, " in found and "ppo" not in found
    assert max(map(len, found.splitlines())) <= 120


def test_settings_that_repeat_another_tasks_are_left_out():
    row = ("rainbow-no-n-step", "tf", "0", "150", "7000", "151.0", "20.0", "1.0", "", "")
    found = learning.results(("DQN",), {row[:3]: row})
    assert found.endswith("\n\n* `rainbow-no-n-step`: `rainbow-all` with n_step=1\n")
