"""What the objectives of algorithms with a replay buffer have in common: exploration, coefficients, n-step rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.evaluation.replayed import replayed_rows
from polylib.policy.exploration import Exploration, make_exploration
from polylib.policy.fragment import Fragment
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


def huber(ops: Any, error: Array, threshold: float = 1.0) -> Array:
    """`0.5 e^2` up to the threshold, a straight line beyond (arXiv:1312.5602's error clipping)."""
    return ops.huber(error, threshold)


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
    #: Whether every update moves the targets by `tau`, unless `target_network_update_freq` lets the algorithm do it.
    soft_targets = True

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
        if self.soft_targets and not self.config["target_network_update_freq"]:
            found["tau"] = self.config["tau"]
        return found

    def scheduled(self, timestep: int) -> dict[str, float]:
        """Exploration at `timestep`."""
        return self.exploration.coefficients(timestep)

    def act_noise(self, rng: np.random.Generator, batch_size: int, explore: bool) -> np.ndarray:
        """The exploration's."""
        return self.exploration.noise(rng, batch_size, explore)

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
        """Samples from the policy's distribution."""
        dist_inputs = self.dist_inputs(ops, nets, inputs)
        actions, raw = self.exploration.actions(ops, dist_inputs, noise, c)
        logp = self.dist.logp(ops, dist_inputs, actions, None if self.exploration.random else raw)
        return {"actions": actions, "action_logp": logp, "action_dist_inputs": dist_inputs}

    def choose(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The same actions."""
        return {"actions": self.exploration.actions(ops, self.dist_inputs(ops, nets, inputs), noise, c)[0]}
