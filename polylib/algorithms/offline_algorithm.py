"""The training loop of algorithms that learn from recorded experience: read a batch, take a step, broadcast."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.on_policy import OnPolicyAlgorithm
from polylib.execution.sgd import learn_in_microbatches
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch


class OfflineConfig(AlgorithmConfig):
    """Settings of algorithms that are made for files; `"sampler"` is read as any other input is."""

    reads_files: ClassVar[bool] = True
    defaults: ClassVar[dict[str, Any]] = {"rollout_fragment_length": "auto"}


class OfflineAlgorithm(OnPolicyAlgorithm):
    """Base of algorithms that use a batch as it is read; their configs are `OfflineConfig`s, or have `reads_files`.

    A batch has `train_batch_size` rows. What they are made of is the objective's affair: see
    `Objective.postprocesses_inputs` and `Objective.looks_ahead`.
    """

    def _learn(self, policy: Policy, batch: SampleBatch) -> dict[str, float]:
        """One gradient step on the whole batch."""
        return learn_in_microbatches(policy, batch)
