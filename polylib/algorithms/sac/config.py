"""SAC's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

import math
import numbers
from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import Check, Option, boolean, mapping, number
from polylib.algorithms.replay_options import REPLAY_OPTIONS, ReplayConfig
from polylib.errors import ConfigError, NotBuiltError, UnknownKeyError, did_you_mean

# The keys of `model` that the two networks have of their own; the others are `model`'s.
_NETWORK_KEYS = (
    "fcnet_hiddens",
    "fcnet_activation",
    "fcnet_weights_initializer",
    "fcnet_weights_initializer_config",
    "post_fcnet_hiddens",
    "post_fcnet_activation",
    "post_fcnet_weights_initializer",
    "post_fcnet_weights_initializer_config",
    "conv_filters",
    "conv_activation",
)
#: What `q_model_config` and `policy_model_config` lack, and `optimization`.
MODEL = {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"}
RATES = {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4, "entropy_learning_rate": 3e-4}


def _target_entropy() -> Check:
    def check(value: Any) -> Any:
        if value in (None, "auto"):
            return "auto"
        if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise TypeError("a number or 'auto'")
        return float(value)

    return check


class SACConfig(ReplayConfig):
    """Settings of SAC.

    Example:
        >>> config = SACConfig().environment("Pendulum-v1").training(initial_alpha=0.2)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "SAC"
    rates: ClassVar[str | None] = "optimization"
    options: ClassVar[tuple[Option, ...]] = (
        *REPLAY_OPTIONS,
        Option("twin_q", "training", True, boolean(), "Two Q networks, of which the lower value counts."),
        Option("q_model_config", "training", MODEL, mapping(), "Keys of `model` for the Q networks."),
        Option("policy_model_config", "training", MODEL, mapping(), "Keys of `model` for the policy."),
        Option("initial_alpha", "training", 1.0, number(0, above=True), "First weight of the entropy."),
        Option("target_entropy", "training", "auto", _target_entropy(), "Entropy that alpha aims at, in nats."),
        Option(
            "optimization",
            "training",
            RATES,
            mapping(),
            "Learning rates of actor, critic and entropy weight.",
            aliases=("optimization_config",),
        ),
    )
    defaults: ClassVar[dict[str, Any]] = {
        "tau": 5e-3,
        "target_network_update_freq": 0,
        "train_batch_size": 256,
        "rollout_fragment_length": "auto",
        "num_steps_sampled_before_learning_starts": 1500,
        "min_time_s_per_iteration": 1,
        "min_sample_timesteps_per_iteration": 100,
        "replay_buffer_config": {"type": "MultiAgentReplayBuffer", "capacity": 1_000_000},
        "exploration_config": {"type": "StochasticSampling"},
    }

    def validate(self) -> None:
        """Checks SAC's keys against each other.

        Raises:
            ConfigError: naming the keys.
        """
        super().validate()
        for key, value in self["optimization"].items():
            if key not in RATES:
                raise UnknownKeyError(
                    f"config key 'optimization': there is no {key!r}.{did_you_mean(key, list(RATES))} It has "
                    f"{', '.join(RATES)}"
                )
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(f"config key 'optimization.{key}': got {value!r}, expected a number >= 0")
        default = AlgorithmConfig()["model"]
        for name in ("q_model_config", "policy_model_config"):
            try:
                model = AlgorithmConfig().update_from_dict({"model": self[name]})["model"]
            except ConfigError as error:
                raise type(error)(f"config key {name!r}: {error}") from None
            for key in self[name]:
                if key not in _NETWORK_KEYS and model[key] != default[key]:
                    raise NotBuiltError(
                        f"config key '{name}.{key}': the networks of {self.algo_name} take "
                        f"{', '.join(_NETWORK_KEYS)} in this version"
                    )
