"""SAC in the four modes and on NumPy: the same losses, gradients, TD errors, targets and actions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from learners import CHOICE, MASKED, OBS, TORQUE, check_learning, check_parity, check_targets
from modes import MODE_PARAMS

MATRIX = gym.spaces.Box(-1.0, 3.0, (2, 1), np.float32)
KINDS = {
    "box": (OBS, TORQUE, {}),
    "box_single_q": (OBS, MATRIX, {"twin_q": False, "target_entropy": -0.5, "initial_alpha": 0.3}),
    "discrete": (OBS, CHOICE, {"initial_alpha": 0.5}),
    "discrete_masked": (MASKED, CHOICE, {"twin_q": False}),
}
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)


@pytest.mark.parametrize("kind", KINDS)
@MODES
def test_losses_gradients_and_td_errors_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "SAC", *KINDS[kind])


@pytest.mark.parametrize("kind", ["box", "discrete_masked"])
def test_modes_agree_after_some_updates(kind):
    check_learning("SAC", *KINDS[kind])


@MODES
def test_targets_move_where_the_network_is(framework, traced):
    check_targets((framework, traced), "SAC", *KINDS["box"])
