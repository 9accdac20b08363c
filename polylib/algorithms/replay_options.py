"""Config keys of the algorithms that learn from a replay buffer."""

from __future__ import annotations

from typing import Any

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import Option, boolean, integer, mapping, number
from polylib.errors import ConfigError

REPLAY_OPTIONS: tuple[Option, ...] = (
    Option("n_step", "training", 1, integer(1), "Steps whose rewards a target sums up before it trusts a value."),
    Option(
        "training_intensity",
        "training",
        None,
        number(0, above=True, optional=True),
        "Rows trained per row sampled; None: one batch after each round of sampling.",
    ),
    Option(
        "num_steps_sampled_before_learning_starts", "training", 1000, integer(0), "Environment steps before learning."
    ),
    Option("target_network_update_freq", "training", 500, integer(0), "Steps between moves of the target network."),
    Option("tau", "training", 1.0, number(0, 1), "How far the target network moves towards the learning one."),
    Option("replay_buffer_config", "training", {}, mapping(), "The replay buffer: `type`, `capacity`, and its keys."),
    Option("store_buffer_in_checkpoints", "training", False, boolean(), "Keep the replay buffer in checkpoints."),
)


class ReplayConfig(AlgorithmConfig):
    """Checks that all algorithms with a replay buffer share."""

    def validate(self) -> None:
        """Checks keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        capacity = self["replay_buffer_config"].get("capacity")
        if capacity is not None and capacity < self["train_batch_size"]:
            raise ConfigError(
                f"config key 'replay_buffer_config.capacity': {capacity} rows are fewer than "
                f"train_batch_size={self['train_batch_size']}; raise the one or lower the other"
            )
        model = self["model"]
        if self["n_step"] > 1 and (model["use_lstm"] or model["use_gru"] or model["use_attention"]):
            raise ConfigError(
                f"config key 'n_step': {self['n_step']} steps don't go together with a recurrent network, whose "
                "sequences are learnt step by step; set n_step=1"
            )

    def replay_settings(self) -> dict[str, Any]:
        """`replay_buffer_config` with the algorithm's defaults below it."""
        return {**self.defaults.get("replay_buffer_config", {}), **self["replay_buffer_config"]}
