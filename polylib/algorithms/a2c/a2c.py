"""A2C: sample a batch on all workers, take one step on it, broadcast the weights."""

from __future__ import annotations

from typing import ClassVar

from polylib.algorithms.a2c.config import A2CConfig
from polylib.algorithms.a2c.loss import A2CObjective
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.on_policy import OnPolicyAlgorithm
from polylib.execution.sgd import learn_in_microbatches
from polylib.policy.objective import Objective
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch


class A2C(OnPolicyAlgorithm):
    """Synchronous advantage actor-critic, arXiv:1602.01783."""

    config_class: ClassVar[type[AlgorithmConfig]] = A2CConfig
    objective_class: ClassVar[type[Objective]] = A2CObjective

    def _learn(self, policy: Policy, batch: SampleBatch) -> dict[str, float]:
        """One gradient step, in parts if the config says so."""
        return learn_in_microbatches(policy, batch, self.config.get("microbatch_size"))
