"""The training loop of algorithms that learn from a replay buffer: sample, store, learn, move the targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.algorithms.algorithm import Algorithm
from polylib.execution.replay import make_replay_buffer
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch


class OffPolicyAlgorithm(Algorithm):
    """Base of algorithms with a replay buffer; their configs are `ReplayConfig`s.

    Attributes:
        replay: the buffer.
    """

    replay: Any

    def setup(self, config: dict[str, Any]) -> None:
        """Builds workers and the buffer."""
        super().setup(config)
        self.replay = make_replay_buffer(self.config.replay_settings(), self.config["seed"])
        self._credit = 0.0  # rows that training_intensity still allows to train
        self._learner_info: dict[str, Any] = {}

    def training_step(self) -> dict[str, Any]:
        """One round of sampling, and as many updates as it pays for."""
        config, policy = self.config, self.get_policy()
        with self._timed("sample"):
            batches, episodes = self.workers.sample()
        self._finished += episodes
        rows = sum(batch.count for batch in batches)
        self._count("sampled", rows, rows)
        with self._timed("replay_add"):
            for batch in batches:
                self.replay.add(batch)
        sampled = self._counters["num_env_steps_sampled"]
        policy.set_timestep(sampled)
        if sampled >= config["num_steps_sampled_before_learning_starts"]:
            updates = self._updates_due(rows)
            for _ in range(updates):
                self._update(policy, sampled)
            if updates:
                with self._timed("synch_weights"):
                    self.workers.sync_weights(sampled)
        elif self.workers.num_remote_workers():
            self.workers.sync_weights(sampled)
        return {DEFAULT_POLICY_ID: self._learner_info}

    def _updates_due(self, rows: int) -> int:
        intensity = self.config["training_intensity"]
        if intensity is None:
            return 1
        self._credit += rows * intensity
        updates = int(self._credit // self.config["train_batch_size"])
        self._credit -= updates * self.config["train_batch_size"]
        return updates

    def _update(self, policy: Policy, sampled: int) -> None:
        """One update, and what follows from it."""
        with self._timed("replay_sample"):
            batch = self.replay.sample(self.config["train_batch_size"], timestep=sampled)
        extra: dict[str, Any] = {}
        self.callbacks.call("on_learn_on_batch", policy=policy, train_batch=batch, result=extra)
        self._before_update(policy)
        with self._timed("learn"):
            info = policy.learn_on_batch(batch)
        self._count("trained", batch.count, batch.count)
        with self._timed("replay_update"):
            self._after_update(batch, info)
        with self._timed("update_target"):
            self._move_targets(policy, sampled)
        self._learner_info = {
            "learner_stats": info["learner_stats"], "num_grad_updates_lifetime": policy.num_updates, **extra
        }

    def _before_update(self, policy: Policy) -> None:
        """Sets what differs from update to update; nothing by default."""

    def _after_update(self, batch: SampleBatch, info: Mapping[str, Any]) -> None:
        """New priorities from TD errors."""
        update = getattr(self.replay, "update_priorities", None)
        if update is not None and "rows" in info:
            update(batch["batch_indexes"], np.abs(info["rows"]["td_error"]))

    def _move_targets(self, policy: Policy, sampled: int) -> None:
        """Moves the targets every `target_network_update_freq` environment steps."""
        if not self.config["target_network_update_freq"]:
            return  # every update moves them by itself
        if sampled - self._counters["last_target_update_ts"] >= self.config["target_network_update_freq"]:
            policy.update_target(self.config["tau"])
            self._counters["last_target_update_ts"] = sampled
            self._counters["num_target_updates"] += 1

    def extra_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The buffer, if `store_buffer_in_checkpoints` says so."""
        values: dict[str, Any] = {"credit": self._credit}
        if not self.config["store_buffer_in_checkpoints"]:
            return values, {}
        values["replay"], arrays = self.replay.get_state()
        return values, arrays

    def set_extra_state(self, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on from `extra_state()`."""
        self._credit = float(values.get("credit", 0.0))
        if "replay" in values:
            self.replay.set_state(values["replay"], arrays)
