"""IQL's keys: the names of RLlib's newer versions, the paper's values."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.options import Option, number
from polylib.algorithms.replay_options import OFFLINE_DEFAULTS, REPLAY_OPTIONS, ReplayConfig
from polylib.algorithms.weighted_regression import REGRESSION_OPTIONS
from polylib.errors import ConfigError


class IQLConfig(ReplayConfig):
    """Settings of IQL.

    Example:
        >>> config = IQLConfig().environment("Pendulum-v1").offline_data(input="traces").training(expectile=0.9)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "IQL"
    rates: ClassVar[str | None] = "actor_lr, critic_lr and value_lr"
    options: ClassVar[tuple[Option, ...]] = (
        *REPLAY_OPTIONS,
        *REGRESSION_OPTIONS,
        Option("value_lr", "training", 3e-4, number(0), "Learning rate of the value network."),
        Option("expectile", "training", 0.7, number(0, 1, above=True), "0.5 is a mean over actions, near 1 a maximum."),
        Option("beta", "training", 3.0, number(0), "Factor of advantages in the weight exp(beta * advantage)."),
        Option("max_weight", "training", 100.0, number(0, above=True), "The largest weight of an action."),
    )
    defaults: ClassVar[dict[str, Any]] = {**OFFLINE_DEFAULTS, "train_batch_size": 256, "tau": 5e-3}

    def validate(self) -> None:
        """Checks IQL's keys.

        Raises:
            ConfigError: naming the key.
        """
        super().validate()
        if self["expectile"] == 1.0:
            raise ConfigError("config key 'expectile': got 1.0, expected a number below 1: nothing would lower values")
