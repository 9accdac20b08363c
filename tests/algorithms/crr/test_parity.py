"""CRR in the four modes and on NumPy: the same losses, gradients, TD errors, targets and actions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from learners import CHOICE, MASKED, OBS, TANH, TORQUE, check_learning, check_parity, check_targets
from modes import MODE_PARAMS

ANYWHERE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
EXP = {**TANH, "weight_type": "exp", "temperature": 2.0, "max_weight": 1.2}
KINDS = {
    "box_bin_mean": (OBS, TORQUE, TANH),
    "box_exp_max": (OBS, TORQUE, {**EXP, "advantage_type": "max", "twin_q": False}),
    "box_without_bounds": (OBS, ANYWHERE, {**EXP, "n_action_sample": 2, "td_error_loss_fn": "huber"}),
    "discrete_exp_mean": (OBS, CHOICE, {**EXP, "categorical_distribution_temperature": 0.5}),
    "discrete_max": (OBS, CHOICE, {**EXP, "advantage_type": "max", "n_action_sample": 2}),
    "discrete_masked_expectation": (MASKED, CHOICE, {**EXP, "advantage_type": "expectation"}),
}
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)


@pytest.mark.parametrize("kind", KINDS)
@MODES
def test_losses_gradients_and_td_errors_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "CRR", *KINDS[kind])


@pytest.mark.parametrize("kind", ["box_without_bounds", "discrete_exp_mean"])
def test_modes_agree_after_some_updates(kind):
    check_learning("CRR", *KINDS[kind])


@MODES
def test_targets_move_where_the_networks_are(framework, traced):
    check_targets((framework, traced), "CRR", *KINDS["box_bin_mean"])
