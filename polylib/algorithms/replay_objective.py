"""What the objectives of algorithms with a replay buffer have in common: exploration, coefficients, n-step rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.errors import ConfigError
from polylib.evaluation.replayed import replayed_rows
from polylib.policy.exploration import Exploration, make_exploration
from polylib.policy.fragment import Fragment
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


def huber(ops: Any, error: Array, threshold: float = 1.0) -> Array:
    """`0.5 e^2` up to the threshold, a straight line beyond (arXiv:1312.5602's error clipping)."""
    return ops.huber(error, threshold)


def check_memory(config: Mapping[str, Any], has_state: bool) -> None:
    """Checks that a user's network with state, and none without, learns from sequences.

    Raises:
        ConfigError: naming the key.
    """
    buffer = config["replay_buffer_config"]
    sequences = buffer.get("storage_unit") == "sequences" or (buffer.get("replay_sequence_length") or 0) > 1
    if has_state and not sequences:
        raise ConfigError(
            "config key 'custom_model': your network has state, which is learnt from sequences: set "
            "replay_buffer_config={'storage_unit': 'sequences'} (of model.max_seq_len steps) and n_step=1"
        )
    if sequences and not has_state:
        raise ConfigError(
            "config key 'replay_buffer_config': sequences are for networks with state, and your custom_model has none; "
            "leave out replay_sequence_length and storage_unit"
        )


class ReplayObjective(Objective):
    """An objective that learns from replayed rows, a batch every few steps.

    Attributes:
        exploration: how acting departs from the best action.
    """

    columns = ("obs", "new_obs", "actions", "rewards", "terminateds", "discounts")
    optional_columns: tuple[str, ...] = ("weights",)
    updates_often = True
    needs_values = needs_extras = False
    postprocesses_inputs = True
    exploration: Exploration

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        worker = (spec.stream, self.config.get("num_workers", 0))
        self.exploration = make_exploration(self.exploration_config(), spec.action_space, self.dist, worker)

    @property
    def looks_ahead(self) -> bool:
        """With more than one step."""
        return int(self.config["n_step"]) > 1

    def exploration_config(self) -> Mapping[str, Any]:
        """The strategy and its keys."""
        return self.config["exploration_config"]

    def coefficients(self) -> dict[str, float]:
        """Clipping, what exploration changes with time, and `tau` where updates move the targets."""
        clip = self.config["grad_clip"]
        found = {"grad_clip": math.inf if clip is None else clip, **self.exploration.coefficients(0)}
        if not self.config["target_network_update_freq"]:
            found["tau"] = self.config["tau"]
        return found

    def scheduled(self, timestep: int) -> dict[str, float]:
        """Exploration at `timestep`."""
        return self.exploration.coefficients(timestep)

    def act_noise(self, rng: np.random.Generator, batch_size: int, explore: bool) -> np.ndarray:
        """The exploration's."""
        return self.exploration.noise(rng, batch_size, explore)

    @property
    def untold(self) -> str:
        """What the exploration says."""
        return self.exploration.untold and f"{type(self.exploration).__name__} {self.exploration.untold}"

    def choose_blindly(
        self, inputs: Mapping[str, np.ndarray], noise: np.ndarray, c: Mapping[str, float]
    ) -> dict[str, np.ndarray] | None:
        """Random actions, where exploration takes them in every row."""
        actions = self.exploration.at_random(noise, inputs.get("action_mask"), c)
        return None if actions is None else {"actions": actions}

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Folds `n_step` rewards into each row; `discounts` are each row's own `gamma^k`."""
        return replayed_rows(fragment, self.config["gamma"], self.config["n_step"])


class StochasticObjective(ReplayObjective):
    """One whose policy is a distribution; a subclass says its `dist_inputs`."""

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Samples from the policy's distribution, or does what exploration makes of it."""
        dist_inputs = self.dist_inputs(ops, nets, inputs)
        actions, raw = self.exploration.actions(ops, dist_inputs, noise, c)
        extras = self.exploration.extras(ops, dist_inputs, noise, c, actions, raw)
        return {"actions": actions, "action_dist_inputs": dist_inputs, **extras}

    def choose(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The same actions."""
        return {"actions": self.exploration.actions(ops, self.dist_inputs(ops, nets, inputs), noise, c)[0]}
