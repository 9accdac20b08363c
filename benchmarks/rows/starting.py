"""Starting: importing the library, and building an algorithm with remote workers."""

from __future__ import annotations

import time

from peers.protocol import Case, ImportTime, Memory, resident_mb

from rows.algo import Built, config, start_ray, stop_ray
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
    *(
        Row(
            f"memory-{what}",
            f"memory of {title}, 2 workers",
            "MB",
            "size",
            f"{what}_memory",
            {"": {"workers": 2}},
            peers={"rllib": {}},
            windows=1,
            fresh=True,
            slow=True,
            note="Resident memory after one iteration, shared libraries included; the ratio is of sizes.",
        )
        for what, title in (("driver", "the driver"), ("worker", "a worker"))
    ),
]


def imports(mode: str) -> Case:
    """Of the config, without which nothing can be built; it must load no framework and no Ray."""
    return ImportTime("from polylib.algorithms.ppo import PPOConfig", ("torch", "tensorflow", "keras", "ray"))


class DriverMemory(Memory, Built):
    """Of the process that learns."""

    def __init__(self, mode: str, workers: int) -> None:
        Built.__init__(self, mode, workers, train_batch_size=1000, sgd_minibatch_size=128, num_sgd_iter=1)

    def use(self) -> float:
        self.algo.train()
        return resident_mb()


class WorkerMemory(DriverMemory):
    """Of a remote worker, the mean of all."""

    def use(self) -> float:
        self.algo.train()
        found = self.algo.workers.foreach_worker(lambda worker: resident_mb(), local_worker=False)
        return sum(found) / len(found)


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
