"""CRR's keys: RLlib's names and defaults, but for how often targets move."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.options import Option, choice, integer, number
from polylib.algorithms.replay_options import OFFLINE_DEFAULTS, REPLAY_OPTIONS, ReplayConfig
from polylib.algorithms.weighted_regression import REGRESSION_OPTIONS
from polylib.errors import ConfigError


class CRRConfig(ReplayConfig):
    """Settings of CRR.

    Example:
        >>> config = CRRConfig().environment("Pendulum-v1").offline_data(input="traces").training(weight_type="exp")
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "CRR"
    rates: ClassVar[str | None] = "actor_lr and critic_lr"
    options: ClassVar[tuple[Option, ...]] = (
        *REPLAY_OPTIONS,
        *REGRESSION_OPTIONS,
        Option(
            "weight_type",
            "training",
            "bin",
            choice("bin", "exp"),
            "Imitate actions of positive advantage, or each by exp(advantage).",
        ),
        Option("temperature", "training", 1.0, number(0, above=True), "What advantages are divided by in exp."),
        Option("max_weight", "training", 20.0, number(0, above=True), "The largest weight of an action in exp."),
        Option(
            "advantage_type",
            "training",
            "mean",
            choice("mean", "max", "expectation"),
            "What an action is better than: the mean or the best of sampled actions, or the mean over all discrete.",
        ),
        Option("n_action_sample", "training", 4, integer(1), "Actions that mean and max sample."),
        Option("target_update_grad_intervals", "training", 1, integer(1), "Updates between moves of the targets."),
        Option("td_error_loss_fn", "training", "mse", choice("huber", "mse"), "Loss of a TD error."),
        Option(
            "categorical_distribution_temperature",
            "training",
            1.0,
            number(0, above=True),
            "Temperature of discrete policies.",
        ),
    )
    defaults: ClassVar[dict[str, Any]] = {**OFFLINE_DEFAULTS, "train_batch_size": 128, "tau": 5e-3}

    def validate(self) -> None:
        """Checks CRR's keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        if self["target_network_update_freq"]:
            raise ConfigError(
                f"config key 'target_network_update_freq': got {self['target_network_update_freq']}, but CRR counts "
                "updates, not steps: set target_update_grad_intervals"
            )
