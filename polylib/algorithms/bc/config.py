"""BC's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.marwil.config import MARWILConfig
from polylib.errors import ConfigError


class BCConfig(MARWILConfig):
    """Settings of BC: MARWIL's with `beta` 0, in which no reward counts.

    Example:
        >>> config = BCConfig().offline_data(input_="traces/").training(lr=1e-3)
        >>> config = config.evaluation(evaluation_interval=1, evaluation_config={"env": "CartPole-v1"})
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "BC"
    defaults: ClassVar[dict[str, Any]] = {**MARWILConfig.defaults, "beta": 0.0, "postprocess_inputs": False}

    def validate(self) -> None:
        """Checks that it is BC.

        Raises:
            ConfigError: if it isn't.
        """
        super().validate()
        if self["beta"]:
            raise ConfigError(f"config key 'beta': BC is MARWIL with beta=0, got {self['beta']:g}; use MARWIL")
