"""Names of trials, with and without Tune."""

from __future__ import annotations

from typing import Any

from polylib.registry import env_name

# Letters of an environment's or an input's name: file systems take names of 255 bytes, and four bytes may be a letter.
_LONGEST = 40


def trial_name(algo: str, env: Any, trial: Any) -> str:
    """`PPO_CartPole-v1_1a2b3_00000`, without slashes.

    Args:
        algo: the algorithm's name.
        env: the experiment's environment: in trials Tune puts something else in the place of code.
        trial: has a `config` and a `trial_id`.
    """
    own = trial.config.get("env")
    name = own if isinstance(own, str) else env_name(env)
    return f"{algo}_{name.replace('/', '-').replace(':', '-')[:_LONGEST]}_{trial.trial_id}"
