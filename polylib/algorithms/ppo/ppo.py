"""PPO: sample a batch on all workers, take epochs of minibatch steps on it, broadcast the weights."""

from __future__ import annotations

from typing import Any

from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective, standardized
from polylib.execution.sgd import synchronous_sample, train_minibatches
from polylib.policy.sample_batch import DEFAULT_POLICY_ID


class PPO(Algorithm):
    """Proximal policy optimization, arXiv:1707.06347 (algorithm 1)."""

    config_class = PPOConfig
    objective_class = PPOObjective

    def training_step(self) -> dict[str, Any]:
        """One batch: rollouts, epochs of SGD, the new KL weight, the broadcast."""
        config, policy = self.config, self.get_policy()
        with self._timed("sample"):
            batch, episodes = synchronous_sample(self.workers, config["train_batch_size"])
        self._finished += episodes
        self._count("sampled", batch.count, batch.count)
        policy.set_timestep(self._counters["num_env_steps_sampled"])
        if config["standardize_advantages"]:
            batch["advantages"] = standardized(batch["advantages"])
        extra: dict[str, Any] = {}
        self.callbacks.call("on_learn_on_batch", policy=policy, train_batch=batch, result=extra)
        with self._timed("learn"):
            stats = train_minibatches(
                policy,
                batch,
                config["sgd_minibatch_size"],
                config["num_sgd_iter"],
                self.rng,
                config["shuffle_sequences"],
            )
        policy.adapt_coefficients(stats)
        self._count("trained", batch.count, batch.count)
        with self._timed("synch_weights"):
            self.workers.sync_weights(policy.global_timestep)
        info = {"learner_stats": stats, "num_grad_updates_lifetime": policy.num_updates, **extra}
        return {DEFAULT_POLICY_ID: info}
