"""MARWIL in the four modes and on NumPy: the same loss and gradients."""

from __future__ import annotations

import pytest
from learners import CHOICE, LSTM, MASKED, OBS, TORQUE, check_learning, check_parity
from modes import MODE_PARAMS

MOVING = {"moving_average_sqd_adv_norm_update_rate": 0.3, "moving_average_sqd_adv_norm_start": 20.0}
KINDS = {
    "masked": (MASKED, CHOICE, MOVING),
    "box": (OBS, TORQUE, {**MOVING, "bc_logstd_coeff": 0.2, "beta": 0.7}),
    "lstm": (OBS, CHOICE, {**LSTM, **MOVING}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_loss_and_gradients_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "MARWIL", *KINDS[kind])


def test_modes_agree_after_some_updates():
    check_learning("MARWIL", OBS, TORQUE, {"lr": 1e-2})
