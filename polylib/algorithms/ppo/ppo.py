"""PPO: sample a batch on all workers, take epochs of minibatch steps on it, broadcast the weights."""

from __future__ import annotations

from polylib.algorithms.on_policy import OnPolicyAlgorithm
from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective, standardized
from polylib.execution.sgd import train_minibatches
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch


class PPO(OnPolicyAlgorithm):
    """Proximal policy optimization, arXiv:1707.06347 (algorithm 1)."""

    config_class = PPOConfig
    objective_class = PPOObjective

    def _before_learning(self, batch: SampleBatch) -> None:
        """Standardizes the advantages."""
        if self.config["standardize_advantages"]:
            batch["advantages"] = standardized(batch["advantages"])

    def _learn(self, policy: Policy, batch: SampleBatch) -> dict[str, float]:
        """Epochs of minibatches."""
        config = self.config
        return train_minibatches(
            policy,
            batch,
            config["sgd_minibatch_size"],
            config["num_sgd_iter"],
            self.rng,
            config["shuffle_sequences"],
        )
