"""What algorithms make of recorded experience, beside what wrote it; keeps the table in OFFLINE_LEARNING.md.

    python benchmarks/offline_learning.py                                  CQL in tf, seeds 0 to 2
    python benchmarks/offline_learning.py --algos IQL CRR --modes torch
    python benchmarks/offline_learning.py --traces FOLDER                  traces that stay (made if there are none)

The traces are of Pendulum-v1: 30 episodes of a policy that hasn't learnt anything, with uniform torques, and 30 of SAC
when it is half trained. Every run learns from these alone; the environment is for evaluation, 20 episodes in the end.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polylib.algorithms.registry import get_config_class
from polylib.offline import JsonReader
from polylib.threads import limit_threads

sys.path.insert(0, str(Path(__file__).parent))
from learning import MODES, versions  # noqa: E402

TABLE = Path(__file__).parent / "OFFLINE_LEARNING.md"
EPISODES, LENGTH = 60, 200
#: Environment steps after which SAC counts as half trained: it is past the worst, and its episodes still differ a lot.
HALF_TRAINED = 3600

_NET = {"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}
_NETS = {"q_model_config": _NET, "policy_model_config": _NET}
_SAC = {
    **_NETS,
    "gamma": 0.95,
    "optimization": {"actor_learning_rate": 2e-3, "critic_learning_rate": 2e-3, "entropy_learning_rate": 2e-3},
    "num_steps_sampled_before_learning_starts": 300,
    "train_batch_size": 128,
    "min_time_s_per_iteration": None,
    "min_sample_timesteps_per_iteration": 200,
}
_OFFLINE = {"gamma": 0.95, "train_batch_size": 128, "min_time_s_per_iteration": None}
_HIDDENS = {"actor_hiddens": [64, 64], "critic_hiddens": [64, 64], "actor_lr": 1e-3, "critic_lr": 1e-3}
#: Keys over each algorithm's defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "CQL": {
        **_OFFLINE,
        **_NETS,
        "optimization": {"actor_learning_rate": 1e-3, "critic_learning_rate": 1e-3, "entropy_learning_rate": 1e-3},
        "bc_iters": 500,
        "num_actions": 4,
        "min_q_weight": 1.0,
    },
    "CRR": {**_OFFLINE, **_HIDDENS},
    "IQL": {**_OFFLINE, **_HIDDENS, "value_lr": 1e-3, "expectile": 0.9},
}
UPDATES = 5000

HEADER = f"""# What algorithms make of recorded experience

Traces of Pendulum-v1, half uniform torques, half a half-trained SAC; {UPDATES:,} updates with the settings in
`benchmarks/offline_learning.py`. "Traces" is the mean return of the episodes in them, "better half" that of SAC's;
"learnt" is the mean of 20 episodes of the policy that came out.
"""
COLUMNS = "| algorithm | mode | seed | traces | better half | learnt | seconds | versions | date |\n"
_RULE = "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        traces: mean return of the recorded episodes.
        better: mean return of those that SAC wrote.
        learnt: mean return of 20 episodes of the policy.
        seconds: of training.
    """

    algo: str
    mode: str
    seed: int
    traces: float
    better: float
    learnt: float
    seconds: float
    versions: str

    def cells(self) -> tuple[str, ...]:
        numbers = [f"{x:.0f}" for x in (self.traces, self.better, self.learnt, self.seconds)]
        return self.algo, self.mode, str(self.seed), *numbers, self.versions, datetime.date.today().isoformat()


def _sac(mode: str, seed: int, **keys: Any) -> Any:
    framework, traced = MODES[mode]
    config = get_config_class("SAC")().environment("Pendulum-v1").framework(framework, eager_tracing=traced)
    return config.update_from_dict({**_SAC, "seed": seed, **keys}).build()


def write_traces(folder: str | Path, mode: str, episodes: int = EPISODES, steps: int = HALF_TRAINED) -> None:
    """Half-trains SAC and records: half of the episodes with uniform torques, half with its policy."""
    with _sac(mode, 0) as learner:
        while learner.train()["num_env_steps_sampled"] < steps:
            pass
        weights = learner.get_weights()
    random = {"type": "StochasticSampling", "random_timesteps": episodes // 2 * LENGTH}
    keys = {"rollout_fragment_length": LENGTH, "num_steps_sampled_before_learning_starts": 10**9}
    with _sac(mode, 1, exploration_config=random, output=str(folder), **keys) as writer:
        writer.set_weights(weights)
        for _ in range(episodes):
            writer.train()


def returns_in(folder: str | Path) -> np.ndarray:
    """The return of every episode in the traces, `[episodes]`, in the order of recording."""
    found: dict[int, float] = {}
    for batch in JsonReader(str(folder)):
        for episode, reward in zip(batch["eps_id"].tolist(), batch["rewards"].tolist(), strict=True):
            found[episode] = found.get(episode, 0.0) + reward
    return np.array(list(found.values()))


def learn(
    algo: str, mode: str, seed: int, folder: str | Path, updates: int = UPDATES, config: Mapping[str, Any] | None = None
) -> Run:
    """Learns from the traces in a folder, and evaluates."""
    framework, traced = MODES[mode]
    settings = get_config_class(algo)().environment("Pendulum-v1").framework(framework, eager_tracing=traced)
    settings.update_from_dict({**SETTINGS[algo], **(config or {}), "input": str(folder), "seed": seed})
    settings.evaluation(evaluation_duration=20, evaluation_config={"explore": False})
    returns = returns_in(folder)
    with settings.build() as algorithm:
        start = time.perf_counter()
        while algorithm.get_policy().num_updates < updates:
            algorithm.train()
        seconds = time.perf_counter() - start
        learnt = algorithm.evaluate()["episode_reward_mean"]
    better = float(returns[len(returns) // 2 :].mean())
    return Run(algo, mode, seed, float(returns.mean()), better, learnt, seconds, versions(framework))


def write(runs: list[Run], table: Path = TABLE) -> None:
    """Puts runs into the table, in place of older ones of the same algorithm, mode and seed."""
    rows: dict[tuple[str, ...], tuple[str, ...]] = {}
    if table.exists():
        for line in table.read_text(encoding="utf-8").splitlines():
            cells = tuple(cell.strip() for cell in line.strip().strip("|").split(" | "))
            if len(cells) == COLUMNS.count(" | ") + 1 and not line.startswith(("| algorithm ", "| --- ")):
                rows[cells[:3]] = cells
    rows.update({run.cells()[:3]: run.cells() for run in runs})
    text = "".join(f"| {' | '.join(rows[key])} |\n" for key in sorted(rows))
    table.write_text(f"{HEADER}\n{COLUMNS}{_RULE}{text}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algos", nargs="+", choices=SETTINGS, default=["CQL"])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["tf"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--traces", type=Path, help="a folder; None: a temporary one")
    parser.add_argument("--table", type=Path, default=TABLE)
    args = parser.parse_args()
    limit_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.traces or Path(temporary)
        if not list(folder.glob("*.json")):
            write_traces(folder, args.modes[0])
        for algo in args.algos:
            for mode in args.modes:
                for seed in args.seeds:
                    run = learn(algo, mode, seed, folder)
                    print(" | ".join(run.cells()), flush=True)
                    write([run], args.table)


if __name__ == "__main__":
    main()
