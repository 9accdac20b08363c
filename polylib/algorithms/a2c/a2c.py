"""A2C: sample a batch on all workers, take one step on it, broadcast the weights."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.a2c.config import A2CConfig
from polylib.algorithms.a2c.loss import A2CObjective
from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.execution.sgd import learn_in_microbatches, synchronous_sample
from polylib.policy.objective import Objective
from polylib.policy.sample_batch import DEFAULT_POLICY_ID


class A2C(Algorithm):
    """Synchronous advantage actor-critic, arXiv:1602.01783."""

    config_class: ClassVar[type[AlgorithmConfig]] = A2CConfig
    objective_class: ClassVar[type[Objective]] = A2CObjective

    def training_step(self) -> dict[str, Any]:
        """One batch: rollouts, one gradient step, the broadcast."""
        config, policy = self.config, self.get_policy()
        with self._timed("sample"):
            batch, episodes = synchronous_sample(self.workers, config["train_batch_size"])
        self._finished += episodes
        self._count("sampled", batch.count, batch.count)
        policy.set_timestep(self._counters["num_env_steps_sampled"])
        extra: dict[str, Any] = {}
        self.callbacks.call("on_learn_on_batch", policy=policy, train_batch=batch, result=extra)
        with self._timed("learn"):
            stats = learn_in_microbatches(policy, batch, config.get("microbatch_size"))
        self._count("trained", batch.count, batch.count)
        with self._timed("synch_weights"):
            self.workers.sync_weights(policy.global_timestep)
        info = {"learner_stats": stats, "num_grad_updates_lifetime": policy.num_updates, **extra}
        return {DEFAULT_POLICY_ID: info}
