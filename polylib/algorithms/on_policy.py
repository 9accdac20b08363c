"""The training loop of algorithms that learn from what they have just sampled: sample, learn, broadcast."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from polylib.algorithms.algorithm import Algorithm
from polylib.execution.sgd import synchronous_sample
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch


class OnPolicyAlgorithm(Algorithm):
    """Base of algorithms that use a batch once and forget it; subclasses say how they learn from it."""

    def training_step(self) -> dict[str, Any]:
        """One batch: rollouts, learning, coefficients that follow it, the broadcast."""
        policy = self.get_policy()
        with self._timed("sample"):
            batch, episodes = synchronous_sample(self.workers, self.config["train_batch_size"])
        self._finished += episodes
        self._count("sampled", batch.count, batch.count)
        policy.set_timestep(self._counters["num_env_steps_sampled"])
        self._before_learning(batch)
        extra: dict[str, Any] = {}
        self.callbacks.call("on_learn_on_batch", policy=policy, train_batch=batch, result=extra)
        with self._timed("learn"):
            stats = self._learn(policy, batch)
        policy.adapt_coefficients(stats)
        self._count("trained", batch.count, batch.count)
        with self._timed("synch_weights"):
            self.workers.sync_weights(policy.global_timestep)
        info = {"learner_stats": stats, "num_grad_updates_lifetime": policy.num_updates, **extra}
        return {DEFAULT_POLICY_ID: info}

    def _before_learning(self, batch: SampleBatch) -> None:
        """Changes a training batch before callbacks see it; nothing by default."""

    @abstractmethod
    def _learn(self, policy: Policy, batch: SampleBatch) -> dict[str, float]:
        """Gradient steps on a batch; returns stats."""
