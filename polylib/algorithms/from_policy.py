"""Algorithms from a policy's definition: `build_algorithm`, for policies with a user's own loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig, is_installed
from polylib.algorithms.on_policy import OnPolicyAlgorithm
from polylib.algorithms.options import Option, anything, boolean, integer, number, schedule, schedule_or_number
from polylib.algorithms.registry import is_built_in, register_algorithm
from polylib.errors import ConfigError, ConfigTypeError
from polylib.execution.sgd import train_minibatches
from polylib.policy.objective import Objective
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch


class PolicyAlgorithmConfig(AlgorithmConfig):
    """Settings of algorithms that `build_algorithm` makes: those of a policy gradient.

    Attributes:
        first_values: the algorithm's own defaults.
    """

    options: ClassVar[tuple[Option, ...]] = (
        Option("lr", "training", 1e-3, schedule_or_number(), "Learning rate, or a schedule [[timestep, value], ...]."),
        Option("lr_schedule", "training", None, schedule(), "[[timestep, learning rate], ...]; overrides lr."),
        Option("lambda", "training", 1.0, number(0, 1), "GAE's lambda, for a postprocess_fn.", ("lambda_",)),
        Option("use_critic", "training", True, boolean(), "Use the value function, for a postprocess_fn."),
        Option("use_gae", "training", True, boolean(), "Use GAE, for a postprocess_fn."),
        Option(
            "sgd_minibatch_size",
            "training",
            None,
            integer(1, optional=True),
            "Rows per gradient step; None: the whole batch.",
            aliases=("minibatch_size",),
        ),
        Option("num_sgd_iter", "training", 1, integer(1), "Epochs over a training batch.", ("num_epochs",)),
        Option(
            "shuffle_sequences",
            "training",
            True,
            boolean(),
            "Draw minibatches at random, anew in each epoch.",
            aliases=("shuffle_batch_per_epoch",),
        ),
    )
    reads_files: ClassVar[bool] = True  # whether its loss may is up to who wrote it
    defaults: ClassVar[dict[str, Any]] = {"rollout_fragment_length": "auto"}
    first_values: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        super().__init__()
        if self.first_values:
            self._set(self.first_values, "default")
            self.sources.clear()


class PolicyAlgorithm(OnPolicyAlgorithm):
    """Samples a batch, takes epochs of steps on it, broadcasts the weights.

    Attributes:
        policies: definitions of the policy, one per framework at most.
    """

    config_class: ClassVar[type[AlgorithmConfig]] = PolicyAlgorithmConfig
    policies: ClassVar[tuple[type[Objective], ...]] = ()

    @classmethod
    def get_default_policy_class(cls, config: AlgorithmConfig) -> type[Objective]:
        """The definition for the framework that the config says, or the first one that is installed."""
        framework = config["framework"]
        candidates = [policy for policy in cls.policies if framework in policy.frameworks]
        installed = [policy for policy in cls.policies if any(map(is_installed, policy.frameworks))]
        return [*candidates, *installed, *cls.policies][0]

    def _learn(self, policy: Policy, batch: SampleBatch) -> dict[str, float]:
        """Epochs of minibatches, or of the whole batch."""
        config = self.config
        size = config["sgd_minibatch_size"] or batch.count
        return train_minibatches(
            policy, batch, size, config["num_sgd_iter"], self.rng, config["shuffle_sequences"]
        )


def build_algorithm(
    name: str,
    *,
    policy: type[Objective] | Sequence[type[Objective]],
    config: Mapping[str, Any] | None = None,
) -> type[PolicyAlgorithm]:
    """An algorithm around a policy's definition, known by its name to `--algo` and Tune.

        MyPG = polylib.build_algorithm("MyPG", policy=MyPolicy, config={"lr": 4e-3, "my_coeff": 0.01})
        MyPG.get_default_config().environment("CartPole-v1").build().train()

    Where it is assigned to its own name in a module, `bin/train --algo my_pkg.module:MyPG` finds it.

    Args:
        name: a Python name.
        policy: what `build_tf_policy` or `build_torch_policy` returned, or an `Objective` subclass; or several, one per
            framework.
        config: defaults of config keys, over those of the policy; keys that no algorithm has become its own.

    Returns:
        The algorithm's class.

    Raises:
        ConfigError: if the name is none, or taken by polylib, or a default is wrong.
        ConfigTypeError: if `policy` is no definition.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigError(f"build_algorithm: the name has to be a Python name, got {name!r}")
    if is_built_in(name):
        raise ConfigError(f"build_algorithm: {name!r} is polylib's own algorithm, choose another name")
    policies = tuple(policy) if isinstance(policy, tuple | list) else (policy,)
    for item in policies:
        if not isinstance(item, type) or not issubclass(item, Objective):
            raise ConfigTypeError(
                f"build_algorithm({name!r}): policy is {item!r}, expected what build_tf_policy or build_torch_policy "
                "returns, or an Objective subclass"
            )
    frameworks = [framework for item in policies for framework in item.frameworks]
    if not policies or len(set(frameworks)) < len(frameworks):
        raise ConfigError(f"build_algorithm({name!r}): expected one policy per framework, got {len(policies)}")
    values: dict[str, Any] = {}
    for item in policies:
        values |= getattr(item, "default_config", dict)()
    values |= config or {}
    known = PolicyAlgorithmConfig()
    own = tuple(
        Option(key, "training", value, anything(), f"A setting of {name}.")
        for key, value in values.items()
        if key not in known
    )
    module = policies[0].__module__
    config_class = type(
        f"{name}Config",
        (PolicyAlgorithmConfig,),
        {
            "algo_name": name,
            "supported_frameworks": tuple(frameworks),
            "options": PolicyAlgorithmConfig.options + own,
            "first_values": {key: value for key, value in values.items() if key in known},
            "__module__": module,
            "__doc__": f"Settings of {name}.",
            # Pickled by name, if the algorithm is found under its own; by value, if not.
            "__qualname__": f"{name}.config_class",
        },
    )
    config_class()  # raises for a wrong default
    members = {
        "config_class": config_class,
        "objective_class": policies[0],
        "policies": policies,
        "__module__": module,
        "__doc__": policies[0].__doc__,
    }
    algorithm_class = type(name, (PolicyAlgorithm,), members)
    register_algorithm(name, config_class, algorithm_class)
    return algorithm_class
