"""Sampling: environment steps a second, postprocessing included."""

from __future__ import annotations

import time

from rows.algo import ENV, Built
from rows.spec import Bound, Row

ROWS = [
    Row(
        "sample-1",
        "sampling, 1 env",
        "steps/s",
        "rate",
        "sample",
        {"": {"envs": 1, "steps": 1000}, "tf2": {"steps": 200}},
        modes=("torch", "tf", "tf2-traced", "tf2"),
        peers={"rllib": {"": Bound(8, 15), "tf2": Bound(4, 15)}, "sb3": {}},
        one_process=True,
    ),
    Row(
        "sample-8",
        "sampling, 8 envs",
        "steps/s",
        "rate",
        "sample",
        {"": {"envs": 8, "steps": 4000}},
        peers={"rllib": {"": Bound(8, 13)}, "sb3": {"": Bound(2, 3)}},
        one_process=True,
    ),
    Row(
        "sample-64",
        "sampling, 64 vectorised envs",
        "steps/s",
        "rate",
        "sample",
        {"": {"envs": 64, "steps": 8192}},
        peers={"rllib": {"": Bound(20, 40)}, "sb3": {}},
        note="polylib steps Gymnasium's own vectorised CartPole, the peers 64 single ones: they have no other way.",
        one_process=True,
    ),
    Row(
        "sample-2x8",
        "sampling, 2 workers x 8 envs",
        "steps/s",
        "rate",
        "sample_workers",
        {"": {"workers": 2, "envs": 8, "steps": 4000}},
        peers={"rllib": {"": Bound(8, 12)}},
    ),
]
_VECTORISED = "benchmark-vectorised-cartpole"


class Sample(Built):
    """Sampling in this process."""

    def __init__(self, mode: str, envs: int, steps: int) -> None:
        env = ENV
        if envs == 64:
            import gymnasium as gym

            from polylib import register_env

            env = _VECTORISED
            register_env(env, lambda _: gym.make_vec(ENV, envs, vectorization_mode="vector_entry_point"))
        super().__init__(mode, 0, 1 if env == _VECTORISED else envs, env, train_batch_size=steps)
        self.worker = self.algo.workers.local_worker()

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        steps = sum(self.worker.sample().count for _ in range(n))
        return time.perf_counter() - start, steps


class SampleWorkers(Built):
    """Sampling by remote workers, until there is a training batch."""

    def __init__(self, mode: str, workers: int, envs: int, steps: int) -> None:
        super().__init__(mode, workers, envs, train_batch_size=steps)
        self.steps = steps

    def window(self, n: int, k: int) -> tuple[float, float]:
        from polylib.execution.sgd import synchronous_sample

        start = time.perf_counter()
        steps = sum(synchronous_sample(self.algo.workers, self.steps)[0].count for _ in range(n))
        return time.perf_counter() - start, steps


