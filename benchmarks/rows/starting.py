"""Starting: importing the library, and building an algorithm with remote workers."""

from __future__ import annotations

import time

from peers.protocol import Case, ImportTime

from rows.algo import config, start_ray, stop_ray
from rows.spec import Bound, Row

ROWS = [
    Row(
        "import",
        "import of PPO's config",
        "s",
        "seconds",
        "import",
        modes=("",),
        peers={"rllib": {}, "sb3": {}},
        limit=Bound(0.5, 0.3),
        window_s=0.0,
        note="In a fresh interpreter. The peers import torch with it, polylib when a policy is built.",
    ),
    Row(
        "build-2",
        "build with 2 workers after ray.init",
        "s",
        "seconds",
        "build",
        {"": {"workers": 2}},
        peers={"rllib": {"": Bound(3, 5)}},
        windows=3,
        window_s=0.0,
        fresh=True,
        slow=True,
        note="polylib's figure includes importing the framework into the driver, which RLlib's import did before.",
    ),
]


def imports(mode: str) -> Case:
    """Of the config, without which nothing can be built; it must load no framework and no Ray."""
    return ImportTime("from polylib.algorithms.ppo import PPOConfig", ("torch", "tensorflow", "keras", "ray"))


class Build(Case):
    """Building with remote workers, in a process that has imported polylib's config and started Ray."""

    def __init__(self, mode: str, workers: int) -> None:
        start_ray(workers)
        self.config = config(mode, workers)

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        self.algo = self.config.build()
        return time.perf_counter() - start, 1.0

    def close(self) -> None:
        self.algo.stop()
        stop_ray()
