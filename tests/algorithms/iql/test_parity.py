"""IQL in the four modes and on NumPy: the same losses, gradients, TD errors, targets and actions."""

from __future__ import annotations

import pytest
from learners import CHOICE, MASKED, OBS, TANH, TORQUE, check_learning, check_parity, check_targets
from modes import MODE_PARAMS

KINDS = {
    "box": (OBS, TORQUE, {**TANH, "beta": 0.5}),
    "box_single_q": (OBS, TORQUE, {**TANH, "twin_q": False, "expectile": 0.2, "max_weight": 1.1}),
    "discrete": (OBS, CHOICE, {**TANH, "beta": 0.5, "expectile": 0.9}),
    "discrete_masked": (MASKED, CHOICE, {**TANH, "max_weight": 2.0}),
}
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)


@pytest.mark.parametrize("kind", KINDS)
@MODES
def test_losses_gradients_and_td_errors_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "IQL", *KINDS[kind])


@pytest.mark.parametrize("kind", ["box", "discrete_masked"])
def test_modes_agree_after_some_updates(kind):
    check_learning("IQL", *KINDS[kind])


@MODES
def test_targets_move_where_the_network_is(framework, traced):
    check_targets((framework, traced), "IQL", *KINDS["box"])
