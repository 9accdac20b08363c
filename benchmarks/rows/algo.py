"""How the rows make polylib's algorithm. Imports nothing heavy by itself: one row times imports."""

from __future__ import annotations

from typing import Any

from peers.protocol import Case

from rows.spec import MODES

ENV = "CartPole-v1"


def config(mode: str, workers: int = 0, envs: int = 1, env: str = ENV, **training: Any) -> Any:
    """PPO on CartPole in one of the four modes, everything else as polylib sets it."""
    from polylib.algorithms.ppo import PPOConfig

    framework, traced = MODES[mode]
    return (
        PPOConfig()
        .environment(env)
        .framework(framework, eager_tracing=traced)
        .rollouts(num_workers=workers, num_envs_per_worker=envs)
        .debugging(seed=0)
        .training(**training)
    )


def start_ray(workers: int) -> None:
    """A Ray of its own, where there are workers to start."""
    if not workers:
        return
    import ray

    # "local": not a cluster that somebody else runs on this machine.
    ray.init(
        address="local",
        num_cpus=max(2, workers + 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 1024**2,
    )


def stop_ray() -> None:
    """Ends it."""
    import sys

    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


class Built(Case):
    """A case that needs a built algorithm."""

    def __init__(self, mode: str, workers: int = 0, envs: int = 1, env: str = ENV, **training: Any) -> None:
        start_ray(workers)
        self.algo = config(mode, workers, envs, env, **training).build()

    def close(self) -> None:
        self.algo.stop()
        stop_ray()
