"""A2C's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import Option, boolean, integer, number, schedule, schedule_or_number
from polylib.errors import ConfigError


class A2CConfig(AlgorithmConfig):
    """Settings of A2C.

    Example:
        >>> config = A2CConfig().environment("CartPole-v1").training(lr=1e-3, microbatch_size=50)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "A2C"
    options: ClassVar[tuple[Option, ...]] = (
        Option("lr", "training", 1e-4, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
        Option("lr_schedule", "training", None, schedule(), "[[timestep, learning rate], ...]; overrides lr."),
        Option("lambda", "training", 1.0, number(0, 1), "GAE's lambda; 1: n-step returns.", ("lambda_",)),
        Option("use_critic", "training", True, boolean(), "Subtract the value function as a baseline."),
        Option("use_gae", "training", True, boolean(), "Generalized advantage estimation; needs use_critic."),
        Option("vf_loss_coeff", "training", 0.5, number(0), "Weight of the value loss."),
        Option("entropy_coeff", "training", 0.01, schedule_or_number(), "Weight of the entropy bonus, or a schedule."),
        Option("entropy_coeff_schedule", "training", None, schedule(), "[[timestep, weight], ...]; overrides it."),
        Option(
            "microbatch_size",
            "training",
            None,
            integer(1, optional=True),
            "Rows whose gradients are computed at a time; the update is that of their mean.",
        ),
    )
    defaults: ClassVar[dict[str, Any]] = {
        "grad_clip": 40.0,
        "train_batch_size": 200,
        "rollout_fragment_length": 20,
        "min_time_s_per_iteration": 5,
    }

    def validate(self) -> None:
        """Checks A2C's keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        size = self["microbatch_size"]
        if size is not None and size > self["train_batch_size"]:
            raise ConfigError(
                f"config key 'microbatch_size': {size} rows are more than train_batch_size={self['train_batch_size']}"
            )
        if self["use_gae"] and not self["use_critic"]:
            raise ConfigError(
                "config key 'use_gae': GAE needs the value function; set use_critic=True or use_gae=False"
            )
