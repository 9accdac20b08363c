"""The training loop of algorithms that learn from a replay buffer: sample, store, learn, move the targets."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.algorithms.algorithm import Algorithm
from polylib.errors import DivergedError
from polylib.execution.replay import Replay, SequenceReplayBuffer, make_replay_buffer, sequence_priorities
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import DEFAULT_POLICY_ID

logger = logging.getLogger(__name__)


class OffPolicyAlgorithm(Algorithm):
    """Base of algorithms with a replay buffer; their configs are `ReplayConfig`s.

    Attributes:
        replay: the buffer.
    """

    replay: Replay

    def setup(self, config: dict[str, Any]) -> None:
        """Builds workers and the buffer."""
        super().setup(config)
        own = self.config
        self.replay = make_replay_buffer(own.replay_settings(), own["seed"])
        self._credit = 0.0  # rows that training_intensity still allows to train
        self._start = own["num_steps_sampled_before_learning_starts"]  # steps after which learning starts
        self._learner_info: dict[str, Any] = {}
        # What every step asks for; looking it up in the config takes longer than what follows from it.
        self._items = self._batch_items()
        self._intensity, self._target_every = own["training_intensity"], own["target_network_update_freq"]

    def training_step(self) -> dict[str, Any]:
        """One round of sampling, and as many updates as it pays for."""
        policy = self.get_policy()
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
        if sampled >= self._start and len(self.replay) >= self._items:
            updates = self._updates_due(rows)
            for _ in range(updates):
                self._update(policy, sampled)
            if updates:
                with self._timed("synch_weights"):
                    self.workers.sync_weights(sampled)
        elif self.workers.num_remote_workers():
            self.workers.sync_weights(sampled)  # for the sake of schedules
        return {DEFAULT_POLICY_ID: self._learner_info}

    def _batch_items(self) -> int:
        """How many rows of the buffer, or sequences, a batch is made of."""
        size = self.config["train_batch_size"]
        if not isinstance(self.replay, SequenceReplayBuffer):
            return size
        return max(1, size // (self.replay.sequence_length or size))

    def _updates_due(self, rows: int) -> int:
        if self._intensity is None:
            return 1
        self._credit += rows * self._intensity
        updates = int(self._credit // self.config["train_batch_size"])
        self._credit -= updates * self.config["train_batch_size"]
        return updates

    def _update(self, policy: Policy, sampled: int) -> None:
        """One update, and what follows from it."""
        with self._timed("replay_sample"):
            batch: Any
            if isinstance(self.replay, SequenceReplayBuffer):
                batch = self.replay.sample_rows(self._items, timestep=sampled)
            else:
                batch = self.replay.sample(self._items, timestep=sampled)
        extra: dict[str, Any] = {}
        self.callbacks.call("on_learn_on_batch", policy=policy, train_batch=batch, result=extra)
        self._before_update(policy)
        with self._timed("learn"):
            info = policy.learn_on_batch(batch)
        loss = info["learner_stats"]["total_loss"]
        if not math.isfinite(loss):
            raise DivergedError(
                f"learning diverged: total_loss is {loss} in update {policy.num_updates}. Lower the learning rate, set "
                "grad_clip, or bring rewards and observations to a scale near 1; the last checkpoint holds the weights "
                "from before"
            )
        rows = len(batch["rewards"])
        self._count("trained", rows, rows)
        with self._timed("replay_update"):
            self._after_update(batch, info)
        if self._target_every:  # otherwise every update moves them by itself
            with self._timed("update_target"):
                self._move_targets(policy, sampled)
        self._learner_info = {
            "learner_stats": info["learner_stats"],
            "num_grad_updates_lifetime": policy.num_updates,
            **extra,
        }

    def _before_update(self, policy: Policy) -> None:
        """Sets what differs from update to update; nothing by default."""

    def _after_update(self, batch: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """New priorities from TD errors."""
        if not self.replay.prioritized or "rows" not in info:
            return
        errors = info["rows"]["td_error"]
        if isinstance(self.replay, SequenceReplayBuffer):
            errors = sequence_priorities(errors, batch["seq_lens"], batch["burn_in"])
        self.replay.update_priorities(batch["batch_indexes"], errors)

    def _move_targets(self, policy: Policy, sampled: int) -> None:
        """Moves the targets every `target_network_update_freq` environment steps."""
        if sampled - self._counters["last_target_update_ts"] >= self._target_every:
            policy.update_target(self.config["tau"])
            self._counters["last_target_update_ts"] = sampled
            self._counters["num_target_updates"] += 1

    def extra_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The buffer, if `store_buffer_in_checkpoints` says so, and when learning starts."""
        sampled = self._counters["num_env_steps_sampled"]
        values: dict[str, Any] = {"credit": self._credit, "start": self._start, "sampled": sampled}
        if not self.config["store_buffer_in_checkpoints"]:
            return values, {}
        state = self.replay.get_state(copy=False)  # written right away
        return {**values, "replay": state["values"]}, state["arrays"]

    def set_extra_state(self, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Goes on from `extra_state()`; with an empty buffer, where none was stored."""
        if "replay" in values:
            self.replay.set_state({"values": values["replay"], "arrays": arrays})
            self._start = int(values["start"])
        else:
            self.replay = make_replay_buffer(self.config.replay_settings(), self.config["seed"])
            wait = self.config["num_steps_sampled_before_learning_starts"]
            sampled = int(values["sampled"])
            self._start = sampled + wait
            if sampled:
                logger.info(
                    "the checkpoint holds no replay buffer (store_buffer_in_checkpoints=False): learning goes on after "
                    "%d more steps",
                    wait,
                )
        self._credit = float(values["credit"])
