"""PPO's keys: RLlib 2.6's names and defaults, but for the learning rate."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import Option, boolean, integer, number, schedule, schedule_or_number
from polylib.errors import ConfigError


class PPOConfig(AlgorithmConfig):
    """Settings of PPO.

    Example:
        >>> config = PPOConfig().environment("CartPole-v1").training(sgd_minibatch_size=64)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "PPO"
    options: ClassVar[tuple[Option, ...]] = (
        # RLlib's default, 5e-5, needs about three times the environment steps on CartPole-v1.
        Option("lr", "training", 3e-4, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
        Option("lr_schedule", "training", None, schedule(), "[[timestep, learning rate], ...]; overrides lr."),
        Option("lambda", "training", 1.0, number(0, 1), "GAE's lambda.", ("lambda_",)),
        Option("use_critic", "training", True, boolean(), "Subtract the value function as a baseline."),
        Option("use_gae", "training", True, boolean(), "Generalized advantage estimation; needs use_critic."),
        Option("use_kl_loss", "training", True, boolean(), "Add the adaptive KL penalty to the loss."),
        Option(
            "sgd_minibatch_size",
            "training",
            128,
            integer(1),
            "Rows per gradient step.",
            aliases=("minibatch_size",),
        ),
        Option("num_sgd_iter", "training", 30, integer(1), "Epochs over a training batch.", ("num_epochs",)),
        Option(
            "shuffle_sequences",
            "training",
            True,
            boolean(),
            "Draw minibatches at random, anew in each epoch.",
            aliases=("shuffle_batch_per_epoch",),
        ),
        Option("standardize_advantages", "training", True, boolean(), "Advantages with mean 0, std 1 over the batch."),
        Option("clip_param", "training", 0.3, number(0, above=True), "Clip range of the probability ratio."),
        Option("vf_clip_param", "training", 10.0, number(0, above=True), "Upper bound of a row's squared value error."),
        Option("vf_loss_coeff", "training", 1.0, number(0), "Weight of the value loss."),
        Option("entropy_coeff", "training", 0.0, schedule_or_number(), "Weight of the entropy bonus, or a schedule."),
        Option("entropy_coeff_schedule", "training", None, schedule(), "[[timestep, weight], ...]; overrides it."),
        Option("kl_coeff", "training", 0.2, number(0), "First weight of the KL penalty."),
        Option("kl_target", "training", 0.01, number(0, above=True), "KL per iteration that the weight aims at."),
    )
    defaults: ClassVar[dict[str, Any]] = {"train_batch_size": 4000, "rollout_fragment_length": "auto"}

    def validate(self) -> None:
        """Checks PPO's keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        if self["sgd_minibatch_size"] > self["train_batch_size"]:
            raise ConfigError(
                f"config key 'sgd_minibatch_size': {self['sgd_minibatch_size']} rows don't fit into "
                f"train_batch_size={self['train_batch_size']}; lower the one or raise the other"
            )
        if self["use_gae"] and not self["use_critic"]:
            raise ConfigError(
                "config key 'use_gae': GAE needs the value function; set use_critic=True or use_gae=False"
            )
