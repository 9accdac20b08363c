"""How many environment steps algorithms need to reach a reward, by task, mode and seed; keeps the table in LEARNING.md.

    python benchmarks/learning.py                                  PPO on CartPole-v1, three fast modes, seeds 0 to 4
    python benchmarks/learning.py --list                           the tasks
    python benchmarks/learning.py --task sac-pendulum --modes tf   some of them
    python benchmarks/learning.py --modes tf2 --seeds 0            plain eager tf2
    python benchmarks/learning.py --readmes                        trains nothing, puts the table into algorithms' pages

A run ends when the mean reward of the last episodes (100, or what the task's settings say) reaches the bound, or after
so many steps. Its row replaces the one that the table has for the same task, mode and seed. One run after another, on
one thread each.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import itertools
import json
import math
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polylib.algorithms.registry import get_config_class
from polylib.threads import limit_threads

TABLE = Path(__file__).parent / "LEARNING.md"
# Algorithms' pages, and whose results stand on them between two marks.
PAGES = {"ppo": ("PPO",), "a2c": ("A2C",), "dqn": ("DQN",), "sac": ("SAC",), "ddpg": ("TD3",)}
MARKS = ("<!-- results: written by benchmarks/learning.py --readmes -->", "<!-- end of results -->")
sys.path.insert(0, str(Path(__file__).parent))  # the environments in toys.py
MODES = {"tf": ("tf", False), "tf2": ("tf2", False), "tf2-traced": ("tf2", True), "torch": ("torch", False)}
FAST_MODES = ("tf", "tf2-traced", "torch")


@dataclass(frozen=True)
class Task:
    """What is to be learned: a mean reward over the last episodes, within so many environment steps.

    Attributes:
        algo: the algorithm's name.
        env: a Gymnasium id, or "module:Class".
        bound: the mean reward.
        steps: environment steps at most.
        config: keys over the algorithm's defaults.
        peer: steps that Stable-Baselines3 2.9 needs at its zoo's settings, seeds 0, 1, ...; None: it doesn't get there.
        like: the task whose settings these are but for some, which alone are shown on a page.
    """

    algo: str
    env: str
    bound: float
    steps: int
    config: Mapping[str, Any] = field(default_factory=dict)
    peer: tuple[int | None, ...] = ()
    like: str | None = None


# Pendulum-v1 pays about -1200 for random torques and -150 for good ones. PPO's defaults learn it slowly: they value the
# far future, and clip the value errors of returns in the hundreds.
_PENDULUM = {
    "gamma": 0.95,
    "lambda": 0.95,
    "lr": 1e-3,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 10,
    "vf_clip_param": 10_000,
    "grad_clip": 0.5,
}
_MEMORY = {
    "num_envs_per_worker": 8,
    "train_batch_size": 4000,
    "sgd_minibatch_size": 640,
    "num_sgd_iter": 6,
    "lr": 5e-4,
    "gamma": 0.95,
    "lambda": 0.95,
    # Values share the network with the policy: their errors, in the hundreds, must not drown everything else.
    "vf_loss_coeff": 1e-4,
    "grad_clip": 0.5,
}
_SMALL = {"fcnet_hiddens": [64]}
_CELL = {**_SMALL, "lstm_cell_size": 64, "max_seq_len": 20}
_PIXELS = {
    "num_envs_per_worker": 8,
    "train_batch_size": 1000,
    "sgd_minibatch_size": 250,
    "num_sgd_iter": 5,
    "lr": 5e-4,
    "model": {"conv_filters": [[8, [6, 6], 6], [32, [7, 7], 1]], "vf_share_layers": True},
}
# From here on: the settings of Stable-Baselines3's zoo as far as the algorithms have them, over the last 20 episodes.
_LAST = {"metrics_num_episodes_for_smoothing": 20}
_PPO_450 = {
    **_LAST,
    "num_envs_per_worker": 8,
    "train_batch_size": 256,
    "sgd_minibatch_size": 64,  # the zoo: 256
    "num_sgd_iter": 20,
    "lr": [[0, 1e-3], [100_000, 0.0]],
    "gamma": 0.98,
    "lambda": 0.8,
    "clip_param": 0.2,
    "kl_coeff": 0.0,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": 10_000,
    "grad_clip": 0.5,
    "model": {
        "fcnet_hiddens": [64, 64],
        "fcnet_weights_initializer": "orthogonal",
        "fcnet_weights_initializer_config": {"gain": 1.41421},
    },
}
_A2C = {
    **_LAST,
    "num_envs_per_worker": 8,
    "rollout_fragment_length": 5,
    "train_batch_size": 40,
    "lr": 7e-4,
    "entropy_coeff": 0.0,
    "grad_clip": 0.5,
    "min_time_s_per_iteration": None,
    "min_sample_timesteps_per_iteration": 1000,
    "model": {"fcnet_hiddens": [64, 64]},
}
_DQN = {
    **_LAST,
    "lr": 5e-4,
    "train_batch_size": 64,
    "rollout_fragment_length": 4,
    "n_step": 3,
    "target_network_update_freq": 500,
    "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"},
    "hiddens": [64],
}
_SAC = {
    **_LAST,
    "optimization": {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3, "entropy_learning_rate": 1e-3},
    "num_steps_sampled_before_learning_starts": 500,
    "min_time_s_per_iteration": None,
    "min_sample_timesteps_per_iteration": 200,
}
_TD3 = {
    **_LAST,
    "gamma": 0.98,
    "num_steps_sampled_before_learning_starts": 2000,
    "train_batch_size": 256,
    "min_sample_timesteps_per_iteration": 200,
    "exploration_config": {"type": "GaussianNoise", "random_timesteps": 2000, "stddev": 0.1, "final_scale": 1.0},
}
_PPO_PENDULUM = {
    **_LAST,
    "num_envs_per_worker": 4,
    "train_batch_size": 2048,
    "sgd_minibatch_size": 128,
    "num_sgd_iter": 10,
    "lr": 1e-3,
    "gamma": 0.9,
    "lambda": 0.95,
    "clip_param": 0.2,
    "kl_coeff": 0.0,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": 10_000,
    "grad_clip": 0.5,
    "model": {"fcnet_hiddens": [64, 64], "free_log_std": True},
}
# The zoo's 16 environments, but shorter rollouts, more epochs, and the discounts of most other tasks.
_PPO_LANDER = {
    **_LAST,
    "num_envs_per_worker": 16,
    "train_batch_size": 4096,
    "sgd_minibatch_size": 64,
    "num_sgd_iter": 10,
    "lr": 1e-3,
    "gamma": 0.99,
    "lambda": 0.95,
    "clip_param": 0.2,
    "kl_coeff": 0.0,
    "entropy_coeff": 0.01,
    "vf_loss_coeff": 0.5,
    "vf_clip_param": 10_000,
    "grad_clip": 0.5,
    "model": {
        "fcnet_hiddens": [64, 64],
        "fcnet_weights_initializer": "orthogonal",
        "fcnet_weights_initializer_config": {"gain": 1.41421},
    },
}
_UNIFORM = {"type": "MultiAgentReplayBuffer"}
_DQN_ZOO = {
    **_LAST,
    "train_batch_size": 128,
    "dueling": False,
    "hiddens": [],
    "grad_clip": 10.0,
    "model": {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"},
}
# Over the zoo's: returns of 4 steps carry the goal's news further, and few random actions cost few steps at the end.
_MOUNTAIN_CAR = {
    **_DQN_ZOO,
    "lr": [[0, 2e-3], [80_000, 1e-4]],
    "gamma": 0.98,
    "n_step": 4,
    "rollout_fragment_length": 16,
    "training_intensity": 64,  # 8 batches each 16 steps
    "target_network_update_freq": 600,
    "replay_buffer_config": {**_UNIFORM, "capacity": 50_000},
    "exploration_config": {"epsilon_timesteps": 12_000, "final_epsilon": 0.01},
}
_ACROBOT = {
    **_DQN_ZOO,
    "lr": 6.3e-4,
    "rollout_fragment_length": 4,
    "training_intensity": 128,  # a batch each step
    "num_steps_sampled_before_learning_starts": 128,
    "target_network_update_freq": 250,
    "replay_buffer_config": {**_UNIFORM, "capacity": 50_000},
    "exploration_config": {"epsilon_timesteps": 12_000, "final_epsilon": 0.1},
}
# Rainbow on CartPole, small: returns of gamma 0.99 lie between 0 and 100. Its noise explores, so epsilon is 0.
_RAINBOW = {
    **_LAST,
    "lr": 5e-4,
    "train_batch_size": 64,
    "rollout_fragment_length": 4,
    "target_network_update_freq": 500,
    "min_sample_timesteps_per_iteration": 500,
    "model": {"fcnet_hiddens": [64], "fcnet_activation": "relu"},
    "hiddens": [64],
    "double_q": True,
    "dueling": True,
    "n_step": 3,
    "num_atoms": 51,
    "v_min": 0.0,
    "v_max": 100.0,
    "noisy": True,
    "exploration_config": {"initial_epsilon": 0.0, "final_epsilon": 0.0},
}
# What each part of it is replaced by.
_WITHOUT: dict[str, dict[str, Any]] = {
    "double": {"double_q": False},
    "dueling": {"dueling": False},
    "prioritized": {"replay_buffer_config": {**_UNIFORM, "capacity": 50_000}},
    "n-step": {"n_step": 1},
    "c51": {"num_atoms": 1},
    "noisy": {"noisy": False, "exploration_config": {"epsilon_timesteps": 5000}},
}
_PLAIN = {key: value for change in _WITHOUT.values() for key, value in change.items()}


def _rainbow(changes: Mapping[str, Any]) -> Task:
    return Task(
        "DQN", "CartPole-v1", 150.0, 40_000, {**_RAINBOW, **changes}, like="rainbow-all" if changes else None
    )


TASKS = {
    "ppo-cartpole": Task("PPO", "CartPole-v1", 150.0, 40_000),
    "ppo-pendulum": Task("PPO", "Pendulum-v1", -400.0, 100_000, _PENDULUM),
    "lstm-stateless-cartpole": Task(
        "PPO", "toys:StatelessCartPole", 150.0, 150_000, {**_MEMORY, "model": {**_CELL, "use_lstm": True}}
    ),
    "gru-stateless-cartpole": Task(
        "PPO", "toys:StatelessCartPole", 150.0, 150_000, {**_MEMORY, "model": {**_CELL, "use_gru": True}}
    ),
    # Not to be reached: without memory there is nothing to balance by.
    "mlp-stateless-cartpole": Task("PPO", "toys:StatelessCartPole", 150.0, 150_000, {**_MEMORY, "model": _SMALL}),
    "ppo-cartpole-450": Task("PPO", "CartPole-v1", 450.0, 150_000, _PPO_450, (24_112, 18_840, 21_392)),
    "a2c-cartpole-450": Task("A2C", "CartPole-v1", 450.0, 300_000, _A2C, (106_088, 102_456, 83_512)),
    "dqn-cartpole-450": Task("DQN", "CartPole-v1", 450.0, 100_000, _DQN, (None, None, None)),
    "sac-pendulum": Task("SAC", "Pendulum-v1", -250.0, 30_000, _SAC, (6_800, 6_000, 6_400)),
    "td3-pendulum": Task("TD3", "Pendulum-v1", -250.0, 40_000, _TD3, (17_800, 17_400, 17_200)),
    "ppo-pendulum-250": Task("PPO", "Pendulum-v1", -250.0, 150_000, _PPO_PENDULUM, (40_800, 52_000, 40_800)),
    "ppo-lunarlander": Task("PPO", "LunarLander-v3", 200.0, 1_000_000, _PPO_LANDER, (None,)),
    "dqn-mountaincar": Task("DQN", "MountainCar-v0", -110.0, 120_000, _MOUNTAIN_CAR, (None, None, 111_850)),
    "dqn-acrobot": Task("DQN", "Acrobot-v1", -100.0, 100_000, _ACROBOT, (26_537, 26_782, 26_748)),
    "rainbow-all": _rainbow({}),
    **{f"rainbow-no-{part}": _rainbow(changes) for part, changes in _WITHOUT.items()},
    "rainbow-none": _rainbow(_PLAIN),
    "vision-catch": Task("PPO", "toys:PixelCatch", 0.9, 100_000, _PIXELS),
}

HEADER = """# How fast algorithms learn

Environment steps until the mean reward of the last episodes reaches the bound, written by `benchmarks/learning.py`
(`--list` shows each task's settings). "Steps" is empty where it wasn't reached. "First" is the mean reward after the
first iteration that finished an episode.
"""
COLUMNS = "| task | mode | seed | bound | steps | reward | first | seconds | versions | date |\n"
_RULE = "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        steps: environment steps when the bound was reached, or None.
        reward: mean reward of the last episodes at the end.
        first: the same after the first iteration that finished an episode.
        seconds: of training, without imports and set-up.
    """

    task: str
    mode: str
    seed: int
    bound: float
    steps: int | None
    reward: float
    first: float
    seconds: float
    versions: str
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        return self.cells()[:3]

    def cells(self) -> tuple[str, ...]:
        steps = "" if self.steps is None else str(self.steps)
        numbers = (f"{self.bound:g}", steps, f"{self.reward:.1f}", f"{self.first:.1f}", f"{self.seconds:.1f}")
        return (self.task, self.mode, str(self.seed), *numbers, self.versions, self.date)


def learn(
    mode: str, seed: int, task: str = "ppo-cartpole", config: Mapping[str, Any] | None = None, **changes: Any
) -> Run:
    """Trains until the bound is reached or the steps are used up.

    Args:
        mode: a key of `MODES`.
        seed: of everything.
        task: a key of `TASKS`.
        config: keys over the algorithm's defaults; None: the task's.
        **changes: `bound` or `steps` instead of the task's.
    """
    chosen = TASKS[task]
    bound, steps = changes.get("bound", chosen.bound), changes.get("steps", chosen.steps)
    config = chosen.config if config is None else config
    framework, traced = MODES[mode]
    settings = get_config_class(chosen.algo)().environment(chosen.env).framework(framework, eager_tracing=traced)
    settings.debugging(seed=seed).update_from_dict(dict(config))
    with settings.build() as algorithm:
        start = time.perf_counter()
        result = algorithm.train()
        first = result["episode_reward_mean"]
        while not result["episode_reward_mean"] >= bound and result["timesteps_total"] < steps:
            result = algorithm.train()
            first = result["episode_reward_mean"] if math.isnan(first) else first
        seconds = time.perf_counter() - start
    reached = result["episode_reward_mean"] >= bound and result["timesteps_total"] <= steps
    return Run(
        task,
        mode,
        seed,
        bound,
        result["timesteps_total"] if reached else None,
        result["episode_reward_mean"],
        first,
        seconds,
        versions(framework),
        datetime.date.today().isoformat(),
    )


def versions(framework: str) -> str:
    """The versions that matter, such as `polylib 0.1.0, torch 2.13.0, Python 3.11`."""
    package = "torch" if framework == "torch" else "tensorflow"
    found = [f"{name} {importlib.metadata.version(name)}" for name in ("polylib", package)]
    return ", ".join([*found, "Python " + ".".join(platform.python_version_tuple()[:2])])


def write(runs: list[Run], table: Path = TABLE) -> None:
    """Puts runs into the table, in place of older ones with the same key, and sums up above it."""
    rows = read(table) if table.exists() else {}
    rows.update({run.key: run.cells() for run in runs})
    order = {name: i for i, name in enumerate(TASKS)}
    keys = sorted(rows, key=lambda key: (order.get(key[0], len(order)), key))
    text = "".join(f"| {' | '.join(rows[key])} |\n" for key in keys)
    table.write_text(f"{HEADER}\n{summary(rows)}\n{COLUMNS}{_RULE}{text}", encoding="utf-8")


def read(table: Path = TABLE) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The cells of each run in the table, by task, mode and seed."""
    rows: dict[tuple[str, ...], tuple[str, ...]] = {}
    for line in table.read_text(encoding="utf-8").splitlines():
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
        if len(cells) == COLUMNS.count(" | ") + 1 and not line.startswith(("| task ", "| --- ")):
            rows[cells[:3]] = cells
    return rows


def results(algos: tuple[str, ...], rows: Mapping[tuple[str, ...], tuple[str, ...]]) -> str:
    """What an algorithm's page says: its lines of the summary, and each task's settings."""
    tasks = {name: task for name, task in TASKS.items() if task.algo in algos and any(key[0] == name for key in rows)}
    settings = ["Their settings, over the defaults:", ""]
    for name, task in tasks.items():
        base = TASKS[task.like].config if task.like else {}
        changes = (f"{key}={value!r}" for key, value in task.config.items() if key not in base or base[key] != value)
        said = (f"`{task.like}` with " if task.like else "") + (", ".join(changes) or "none")
        settings += textwrap.wrap(f"* `{name}`: {said}", 118, subsequent_indent="  ", break_on_hyphens=False)
    return f"{summary(rows, tasks)}\n" + "\n".join(settings) + "\n"


def page(name: str) -> Path:
    """Where an algorithm's page is."""
    return Path(__file__).resolve().parents[1] / "polylib" / "algorithms" / name / "README.md"


def with_results(text: str, found: str) -> str:
    """A page's text with other results between its marks."""
    before, mark, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise ValueError(f"the page has no lines {MARKS[0]!r} and {MARKS[1]!r}, between which results go")
    return f"{before}{mark}\n\n{found}\n{end}{after}"


def summary(rows: Mapping[tuple[str, ...], tuple[str, ...]], tasks: Mapping[str, Task] = TASKS) -> str:
    """A line for each task and mode: median and range of the steps, beside Stable-Baselines3's."""
    lines = ["| task | algorithm, environment | mode | seeds | bound | median steps | range | Stable-Baselines3 |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, task in tasks.items():
        for mode in MODES:
            found = [cells for key, cells in rows.items() if key[:2] == (name, mode)]
            if not found:
                continue
            steps = [int(cells[4]) if cells[4] else None for cells in found]
            reached = sorted(s for s in steps if s is not None)
            middle = f"{statistics.median(s or 10**9 for s in steps):,.0f}" if len(reached) * 2 > len(steps) else "not"
            span = f"{reached[0]:,} to {reached[-1]:,}" if reached else ""
            missed = f", {len(steps) - len(reached)} not" if reached and len(reached) < len(steps) else ""
            peer = ", ".join("not" if s is None else f"{s:,}" for s in task.peer)
            cells = (name, f"{task.algo}, {task.env}", mode, str(len(found)), f"{task.bound:g}", middle, span + missed)
            lines.append(f"| {' | '.join((*cells, peer))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="show the tasks and their settings")
    parser.add_argument("--readmes", action="store_true", help="put the table's results into the algorithms' pages")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=["ppo-cartpole"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(FAST_MODES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--config", type=json.loads, help="JSON: keys over the defaults; prints, writes nothing")
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args()
    if args.list:
        for name, task in TASKS.items():
            print(f"{name}: {task.algo} on {task.env}, {task.bound:g} within {task.steps:,} steps, {dict(task.config)}")
        return
    if args.readmes:
        write([], args.table)
        for name, algos in PAGES.items():
            text = page(name).read_text(encoding="utf-8")
            page(name).write_text(with_results(text, results(algos, read(args.table))), encoding="utf-8")
        return
    limit_threads(1)
    for task, mode, seed in itertools.product(args.task, args.modes, args.seeds):
        run = learn(mode, seed, task, args.config)
        print(" | ".join(run.cells()), flush=True)
        if args.config is None:
            write([run], args.table)


if __name__ == "__main__":
    main()
