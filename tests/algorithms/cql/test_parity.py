"""CQL in the four modes and on NumPy: the same losses, gradients, TD errors, targets and actions."""

from __future__ import annotations

import pytest
from learners import CHOICE, MASKED, OBS, TORQUE, check_learning, check_parity, check_targets
from modes import MODE_PARAMS

KINDS = {
    "box_imitating": (OBS, TORQUE, {}),
    "box_climbing": (OBS, TORQUE, {"bc_iters": 0, "temperature": 0.7, "num_actions": 3, "twin_q": False}),
    "box_lagrangian": (OBS, TORQUE, {"bc_iters": 0, "lagrangian": True, "lagrangian_thresh": 0.4}),
    "discrete_imitating": (OBS, CHOICE, {"lagrangian": True}),
    "discrete_masked": (MASKED, CHOICE, {"bc_iters": 0, "temperature": 2.0, "min_q_weight": 0.3}),
}
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)


@pytest.mark.parametrize("kind", KINDS)
@MODES
def test_losses_gradients_and_td_errors_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "CQL", *KINDS[kind])


@pytest.mark.parametrize("kind", ["box_lagrangian", "discrete_masked"])
def test_modes_agree_after_some_updates(kind):
    check_learning("CQL", *KINDS[kind])


@MODES
def test_targets_move_where_the_network_is(framework, traced):
    check_targets((framework, traced), "CQL", *KINDS["box_imitating"])
