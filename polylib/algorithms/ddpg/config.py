"""The keys of DDPG and TD3: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.options import ACTIVATIONS, Option, boolean, choice, integer, number, sizes
from polylib.algorithms.replay_options import REPLAY_OPTIONS, ReplayConfig


class DDPGConfig(ReplayConfig):
    """Settings of DDPG.

    Example:
        >>> config = DDPGConfig().environment("Pendulum-v1").training(actor_lr=1e-3, tau=0.005)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "DDPG"
    rates: ClassVar[str | None] = "actor_lr and critic_lr"
    options: ClassVar[tuple[Option, ...]] = (
        *REPLAY_OPTIONS,
        Option("twin_q", "training", False, boolean(), "Two Q networks, of which the lower value counts."),
        Option("policy_delay", "training", 1, integer(1), "Updates of the critic for each of actor and targets."),
        Option("smooth_target_policy", "training", False, boolean(), "Noise on the target policy's actions."),
        Option("target_noise", "training", 0.2, number(0), "Its standard deviation, in units of half the range."),
        Option("target_noise_clip", "training", 0.5, number(0), "Its largest size."),
        Option("actor_hiddens", "training", [400, 300], sizes(), "Hidden layers of the policy."),
        Option("actor_hidden_activation", "training", "relu", choice(*ACTIVATIONS), "Their activation."),
        Option("critic_hiddens", "training", [400, 300], sizes(), "Hidden layers of the Q networks."),
        Option("critic_hidden_activation", "training", "relu", choice(*ACTIVATIONS), "Their activation."),
        Option("actor_lr", "training", 1e-3, number(0), "Learning rate of the policy."),
        Option("critic_lr", "training", 1e-3, number(0), "Learning rate of the Q networks."),
        Option("use_huber", "training", False, boolean(), "Huber loss of TD errors."),
        Option("huber_threshold", "training", 1.0, number(0, above=True), "Where it becomes linear."),
        # RLlib's default, 1e-6, makes no difference that could be measured.
        Option("l2_reg", "training", 0.0, number(0), "Weight decay.", built=False),
    )
    defaults: ClassVar[dict[str, Any]] = {
        "tau": 0.002,
        "target_network_update_freq": 0,
        "train_batch_size": 256,
        "rollout_fragment_length": "auto",
        "num_steps_sampled_before_learning_starts": 1500,
        "min_sample_timesteps_per_iteration": 1000,
        "replay_buffer_config": {
            "type": "MultiAgentPrioritizedReplayBuffer",
            "capacity": 50_000,
            "prioritized_replay_alpha": 0.6,
            "prioritized_replay_beta": 0.4,
            "prioritized_replay_eps": 1e-6,
        },
        "evaluation_config": {"explore": False},
        "exploration_config": {
            "type": "OrnsteinUhlenbeckNoise",
            "random_timesteps": 1000,
            "ou_base_scale": 0.1,
            "ou_theta": 0.15,
            "ou_sigma": 0.2,
            "initial_scale": 1.0,
            "final_scale": 0.02,
            "scale_timesteps": 10_000,
        },
    }


class TD3Config(DDPGConfig):
    """Settings of TD3: DDPG with twin Q networks, a delayed actor and smoothed target actions."""

    algo_name: ClassVar[str] = "TD3"
    defaults: ClassVar[dict[str, Any]] = {
        **DDPGConfig.defaults,
        "twin_q": True,
        "policy_delay": 2,
        "smooth_target_policy": True,
        "tau": 5e-3,
        "train_batch_size": 100,
        "num_steps_sampled_before_learning_starts": 10_000,
        "replay_buffer_config": {"type": "MultiAgentReplayBuffer", "capacity": 1_000_000},
        "exploration_config": {
            "type": "GaussianNoise",
            "random_timesteps": 10_000,
            "stddev": 0.1,
            "initial_scale": 1.0,
            "final_scale": 1.0,
            "scale_timesteps": 1,
        },
    }
