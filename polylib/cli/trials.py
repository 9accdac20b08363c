"""Names of trials, with and without Tune."""

from __future__ import annotations

from typing import Any

from polylib.registry import env_name


def trial_name(algo: str, trial: Any) -> str:
    """`PPO_CartPole-v1_1a2b3_00000`, without slashes.

    Args:
        algo: the algorithm's name.
        trial: has a `config` and a `trial_id`.
    """
    env = str(env_name(trial.config.get("env"))).replace("/", "-").replace(":", "-")
    return f"{algo}_{env}_{trial.trial_id}"
