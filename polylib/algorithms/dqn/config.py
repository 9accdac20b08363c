"""DQN's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.options import (
    Option,
    anything,
    boolean,
    choice,
    integer,
    number,
    schedule,
    schedule_or_number,
    sizes,
)
from polylib.algorithms.replay_options import REPLAY_OPTIONS, ReplayConfig
from polylib.errors import ConfigError

_PRIORITIZED = {
    "type": "MultiAgentPrioritizedReplayBuffer",
    "capacity": 50_000,
    "prioritized_replay_alpha": 0.6,
    "prioritized_replay_beta": 0.4,
    "prioritized_replay_eps": 1e-6,
}


class DQNConfig(ReplayConfig):
    """Settings of DQN.

    Example:
        >>> config = DQNConfig().environment("CartPole-v1").training(n_step=3, num_atoms=51, v_min=0, v_max=100)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "DQN"
    recurrent: ClassVar[bool] = True
    custom: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        *REPLAY_OPTIONS,
        Option("lr", "training", 5e-4, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
        Option("lr_schedule", "training", None, schedule(), "[[timestep, learning rate], ...]; overrides lr."),
        Option("double_q", "training", True, boolean(), "The learning network chooses, the target network judges."),
        Option("dueling", "training", True, boolean(), "Heads of their own for the state's value and advantages."),
        Option("hiddens", "training", [256], sizes(), "Hidden layers of each head, with relu."),
        Option("num_atoms", "training", 1, integer(1), "Atoms of a distribution over returns; 1: their mean only."),
        Option("v_min", "training", -10.0, number(), "Lowest return of the distribution."),
        Option("v_max", "training", 10.0, number(), "Highest return of the distribution."),
        Option("noisy", "training", False, boolean(), "Noisy layers in the heads, beside epsilon-greedy."),
        Option("sigma0", "training", 0.5, number(0), "First scale of the noisy layers' noise."),
        Option("td_error_loss_fn", "training", "huber", choice("huber", "mse"), "Loss of a TD error."),
        Option(
            "categorical_distribution_temperature",
            "training",
            1.0,
            number(0, above=True),
            "Temperature of sampled actions (SoftQ).",
        ),
        Option("before_learn_on_batch", "training", None, anything(), "Changes a batch before learning.", built=False),
        Option("adam_epsilon", "training", 1e-7, number(0, above=True), "Adam's epsilon."),
    )
    defaults: ClassVar[dict[str, Any]] = {
        "grad_clip": 40.0,
        "train_batch_size": 32,
        "rollout_fragment_length": 4,
        "min_sample_timesteps_per_iteration": 1000,
        "replay_buffer_config": _PRIORITIZED,
        "evaluation_config": {"explore": False},
        "exploration_config": {
            "type": "EpsilonGreedy",
            "initial_epsilon": 1.0,
            "final_epsilon": 0.02,
            "epsilon_timesteps": 10_000,
        },
    }

    def validate(self) -> None:
        """Checks DQN's keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        if self["num_atoms"] > 1 and self["v_min"] >= self["v_max"]:
            raise ConfigError(
                f"config keys 'v_min' and 'v_max': the returns from {self['v_min']:g} to {self['v_max']:g} are no range"
            )


class SimpleQConfig(DQNConfig):
    """Settings of SimpleQ: DQN as it was first (arXiv:1312.5602), with a target network."""

    algo_name: ClassVar[str] = "SimpleQ"
    defaults: ClassVar[dict[str, Any]] = {
        **DQNConfig.defaults,
        "double_q": False,
        "dueling": False,
        "hiddens": [],
        "replay_buffer_config": {"type": "MultiAgentReplayBuffer", "capacity": 50_000},
    }
