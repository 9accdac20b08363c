"""How many environment steps PPO needs to reach a reward, by mode and seed; keeps the table in LEARNING.md.

    python benchmarks/learning.py                                  CartPole-v1, three fast modes, seeds 0 to 4
    python benchmarks/learning.py --modes tf2 --seeds 0            plain eager tf2
    python benchmarks/learning.py --env Pendulum-v1 --seeds 0
    python benchmarks/learning.py --config '{"num_workers": 2}'    other settings than the defaults

A run ends when the mean reward of the last 100 episodes reaches the bound, or after so many steps. Its row replaces the
one that the table has for the same environment, settings, mode and seed. One run after another, on one thread each.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polylib.algorithms.registry import get_config_class
from polylib.threads import limit_threads

TABLE = Path(__file__).parent / "LEARNING.md"
MODES = {"tf": ("tf", False), "tf2": ("tf2", False), "tf2-traced": ("tf2", True), "torch": ("torch", False)}
FAST_MODES = ("tf", "tf2-traced", "torch")


@dataclass(frozen=True)
class Task:
    """What is to be learned: a mean reward over the last 100 episodes, within so many environment steps."""

    bound: float
    steps: int
    config: dict[str, Any] = field(default_factory=dict)


# Pendulum-v1 pays about -1200 for random torques and -150 for good ones. PPO's defaults learn it slowly: they value the
# far future, and clip the value errors of returns in the hundreds.
PENDULUM = {
    "gamma": 0.95,
    "lambda": 0.95,
    "lr": 1e-3,
    "sgd_minibatch_size": 256,
    "num_sgd_iter": 10,
    "vf_clip_param": 10_000,
    "grad_clip": 0.5,
}
TASKS = {"CartPole-v1": Task(150.0, 40_000), "Pendulum-v1": Task(-400.0, 100_000, PENDULUM)}

HEADER = """# How fast PPO learns

Environment steps until the mean reward of the last 100 episodes reaches the bound, written by `benchmarks/learning.py`.
"Steps" is empty where it wasn't reached. "First" is the mean reward after the first iteration that finished an episode.

| env | config | mode | seed | bound | steps | reward | first | seconds | versions | date |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        steps: environment steps when the bound was reached, or None.
        reward: mean reward of the last 100 episodes at the end.
        first: the same after the first iteration that finished an episode.
        seconds: of training, without imports and set-up.
    """

    env: str
    config: str
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
        return self.cells()[:4]

    def cells(self) -> tuple[str, ...]:
        steps = "" if self.steps is None else str(self.steps)
        numbers = (f"{self.bound:g}", steps, f"{self.reward:.1f}", f"{self.first:.1f}", f"{self.seconds:.1f}")
        return (self.env, f"`{self.config}`", self.mode, str(self.seed), *numbers, self.versions, self.date)


def learn(
    mode: str,
    seed: int,
    env: str = "CartPole-v1",
    config: dict[str, Any] | None = None,
    bound: float | None = None,
    steps: int | None = None,
    algo: str = "PPO",
) -> Run:
    """Trains until the bound is reached or the steps are used up.

    Args:
        mode: a key of `MODES`.
        seed: of everything.
        env: a Gymnasium id.
        config: keys over the algorithm's defaults; None: those of `TASKS`.
        bound: mean reward of the last 100 episodes; None: that of `TASKS`.
        steps: environment steps at most; None: those of `TASKS`.
        algo: the algorithm's name.
    """
    task = TASKS.get(env, Task(math.inf, 100_000))
    bound, steps = task.bound if bound is None else bound, task.steps if steps is None else steps
    config = task.config if config is None else config
    framework, traced = MODES[mode]
    settings = get_config_class(algo)().environment(env).framework(framework, eager_tracing=traced)
    settings.debugging(seed=seed).update_from_dict(config)
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
        env,
        json.dumps(config, sort_keys=True),
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
    """Puts runs into the table, in place of older ones with the same key."""
    rows: dict[tuple[str, ...], tuple[str, ...]] = {}
    if table.exists():
        for line in table.read_text(encoding="utf-8").splitlines():
            cells = tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
            if line.startswith("| ") and not line.startswith(("| env ", "| --- ")):
                rows[cells[:4]] = cells
    rows.update({run.key: run.cells() for run in runs})
    text = "".join(f"| {' | '.join(rows[key])} |\n" for key in sorted(rows))
    table.write_text(HEADER + text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(FAST_MODES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--algo", default="PPO")
    parser.add_argument("--config", type=json.loads, help="JSON: keys over the defaults; '{}' for none")
    parser.add_argument("--bound", type=float, help="mean reward to reach")
    parser.add_argument("--steps", type=int, help="environment steps at most")
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args()
    limit_threads(1)
    for mode in args.modes:
        for seed in args.seeds:
            run = learn(mode, seed, args.env, args.config, args.bound, args.steps, args.algo)
            print(" | ".join(run.cells()), flush=True)
            write([run], args.table)


if __name__ == "__main__":
    main()
