"""Config keys of the algorithms that learn from a replay buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import Option, boolean, integer, mapping, number
from polylib.errors import ConfigError, NotBuiltError

if TYPE_CHECKING:
    from polylib.execution.replay import ReplayOptions

_MEMORY = ("use_lstm", "use_gru", "use_attention")

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

#: What differs where the rows come from files: nothing waits for an environment, and an iteration is as long as asked.
OFFLINE_DEFAULTS: dict[str, Any] = {
    "rollout_fragment_length": "auto",
    "num_steps_sampled_before_learning_starts": 0,
    "min_sample_timesteps_per_iteration": 0,
    "min_train_timesteps_per_iteration": 100,
    "min_time_s_per_iteration": 1,
    "target_network_update_freq": 0,
    "replay_buffer_config": {"type": "MultiAgentReplayBuffer", "capacity": 1_000_000},
    "exploration_config": {"type": "StochasticSampling"},
    "evaluation_config": {"explore": False},
}


class ReplayConfig(AlgorithmConfig):
    """Checks that all algorithms with a replay buffer share."""

    #: Whether the algorithm learns networks with state, from sequences, and users' own networks.
    recurrent: ClassVar[bool] = False
    custom: ClassVar[bool] = False
    reads_files: ClassVar[bool] = True
    #: The keys that stand in place of `lr`, where networks have learning rates of their own.
    rates: ClassVar[str | None] = None

    def validate(self) -> None:
        """Checks keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        from polylib.execution.replay import check_replay_config  # not for --help

        super().validate()
        if self.rates and self["lr"] != AlgorithmConfig()["lr"]:
            raise ConfigError(
                f"config key 'lr': got {self['lr']!r}, but the networks of {self.algo_name} have learning rates of "
                f"their own; set {self.rates}"
            )
        replay = check_replay_config(self.replay_settings())
        if replay.capacity < self["train_batch_size"]:
            raise ConfigError(
                f"config key 'replay_buffer_config.capacity': {replay.capacity} rows are fewer than "
                f"train_batch_size={self['train_batch_size']}; raise the one or lower the other"
            )
        steps, length = self["n_step"], self["rollout_fragment_length"]
        if length != "auto" and length < steps and self["batch_mode"] == "truncate_episodes":
            raise ConfigError(
                f"config key 'n_step': rewards are summed inside a fragment, and rollout_fragment_length={length} "
                f"holds no {steps} steps; raise it to {steps} or more, or set it to 'auto'"
            )
        self._validate_model(steps, replay)

    def _validate_model(self, steps: int, replay: ReplayOptions) -> None:
        model = self["model"]
        own = model["custom_model"] is not None
        if own and not self.custom:
            raise NotBuiltError(
                f"config key 'model.custom_model': {self.algo_name} has the default networks only in this version; "
                "DQN, PPO, A2C and PG take your own"
            )
        memory = [key for key in _MEMORY if model[key]]
        if not memory and not (own and replay.sequences):  # whether a user's network has state is seen when it is made
            if replay.sequences:
                raise ConfigError(
                    "config key 'replay_buffer_config': sequences are for networks with state; set model.use_lstm, or "
                    "leave out replay_sequence_length and storage_unit"
                )
            return
        if memory and not self.recurrent:
            raise NotBuiltError(
                f"config key 'model.{memory[0]}': {self.algo_name} has no networks with state in this version; DQN, "
                "PPO, A2C and PG have"
            )
        if steps > 1:
            raise ConfigError(
                f"config key 'n_step': {steps} steps don't go together with a recurrent network, whose "
                "sequences are learnt step by step; set n_step=1"
            )
        if replay.kind == "reservoir":
            raise ConfigError(
                "config key 'replay_buffer_config.type': a ReservoirReplayBuffer holds transitions, and networks with "
                "state learn from sequences"
            )
        if replay.storage_unit == "episodes":
            raise NotBuiltError(
                "config key 'replay_buffer_config.storage_unit': networks with state learn from 'sequences' of at most "
                "model.max_seq_len steps in this version, not from whole 'episodes'"
            )
        whole, longest = replay.replay_sequence_length + replay.replay_burn_in, model["max_seq_len"]
        if whole > longest:
            raise ConfigError(
                f"config key 'model.max_seq_len': {longest} steps are fewer than the {whole} of a replayed sequence "
                "(replay_burn_in + replay_sequence_length); raise it"
            )
        sequences = max(1, self["train_batch_size"] // replay.replay_sequence_length)
        if sequences * whole > replay.capacity:
            raise ConfigError(
                f"config key 'replay_buffer_config.capacity': {replay.capacity} rows are fewer than a batch's "
                f"{sequences} sequences of {whole} (replay_burn_in + replay_sequence_length); raise it, or lower "
                "train_batch_size"
            )

    def replay_settings(self) -> dict[str, Any]:
        """`replay_buffer_config` with the algorithm's defaults below it; sequences for networks with state."""
        given, below = self["replay_buffer_config"], self.defaults.get("replay_buffer_config", {})
        # Shorter names (alpha for prioritized_replay_alpha) stand for the same keys.
        settings = {key: x for key, x in below.items() if key.removeprefix("prioritized_replay_") not in given} | given
        model = self["model"]
        unit = settings.get("storage_unit")
        own = model["custom_model"] is not None and unit == "sequences"
        if own or (any(model[key] for key in _MEMORY) and unit != "episodes"):
            burn_in = settings.get("replay_burn_in", 0)
            if settings.get("replay_sequence_length", -1) in (-1, None) and isinstance(burn_in, int):
                settings["replay_sequence_length"] = max(1, model["max_seq_len"] - burn_in)
            settings["storage_unit"] = "sequences"
        return settings

    def get_rollout_fragment_length(self, num_envs: int | None = None) -> int:
        """Steps per environment and sample call; `"auto"` is `n_step`, of files as many rows as an update trains."""
        length = self["rollout_fragment_length"]
        if length == "auto" and self["input"] == "sampler":
            return self["n_step"]
        return super().get_rollout_fragment_length(num_envs)
