"""PG's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import Option, schedule, schedule_or_number


class PGConfig(AlgorithmConfig):
    """Settings of PG.

    Example:
        >>> config = PGConfig().environment("CartPole-v1").training(lr=4e-3, train_batch_size=500)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "PG"
    options: ClassVar[tuple[Option, ...]] = (
        Option("lr", "training", 4e-4, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
        Option("lr_schedule", "training", None, schedule(), "[[timestep, learning rate], ...]; overrides lr."),
    )
    defaults: ClassVar[dict[str, Any]] = {
        "train_batch_size": 200,
        "rollout_fragment_length": "auto",
        "batch_mode": "complete_episodes",
    }
