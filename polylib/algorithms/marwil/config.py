"""MARWIL's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.offline_algorithm import OfflineConfig
from polylib.algorithms.options import Option, boolean, number, schedule, schedule_or_number
from polylib.errors import ConfigError


class MARWILConfig(OfflineConfig):
    """Settings of MARWIL.

    Example:
        >>> config = MARWILConfig().offline_data(input_="traces/").training(beta=1.0, lr=1e-4)
        >>> config = config.evaluation(evaluation_interval=1, evaluation_config={"env": "CartPole-v1"})
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "MARWIL"
    options: ClassVar[tuple[Option, ...]] = (
        Option("lr", "training", 1e-4, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
        Option("lr_schedule", "training", None, schedule(), "[[timestep, learning rate], ...]; overrides lr."),
        Option("beta", "training", 1.0, number(0, 1), "How much better actions count more; 0: all the same (BC)."),
        Option(
            "bc_logstd_coeff",
            "training",
            0.0,
            number(0),
            "Weight of the log standard deviations of Box actions: keeps a policy from becoming too sure.",
        ),
        Option(
            "moving_average_sqd_adv_norm_update_rate",
            "training",
            1e-8,
            number(0, 1),
            "How far an update moves c^2, the running mean of squared advantages, to those of its batch.",
        ),
        Option("moving_average_sqd_adv_norm_start", "training", 100.0, number(0), "c^2 at the start."),
        Option("vf_coeff", "training", 1.0, number(0), "Weight of the value loss."),
        Option(
            "use_gae",
            "training",
            True,
            boolean(),
            "Returns mix in values of later states as lambda says; False: as with lambda 1.",
        ),
        Option("lambda", "training", 1.0, number(0, 1), "1: rewards to the end of what is recorded.", ("lambda_",)),
    )
    defaults: ClassVar[dict[str, Any]] = {
        **OfflineConfig.defaults,
        "train_batch_size": 2000,
        "postprocess_inputs": True,
    }

    def validate(self) -> None:
        """Checks MARWIL's keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        if self["beta"] > 0 and not self["postprocess_inputs"]:
            raise ConfigError(
                f"config key 'postprocess_inputs': with beta={self['beta']:g} returns have to be computed from the "
                "rewards that are read; set postprocess_inputs=True, or beta=0"
            )
