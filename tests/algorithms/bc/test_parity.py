"""BC in the four modes and on NumPy: the same loss and gradients."""

from __future__ import annotations

import pytest
from learners import CHOICE, LSTM, MASKED, OBS, TORQUE, check_learning, check_parity
from modes import MODE_PARAMS

KINDS = {"masked": (MASKED, CHOICE, {}), "box": (OBS, TORQUE, {"bc_logstd_coeff": 0.1}), "lstm": (OBS, CHOICE, LSTM)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_loss_and_gradients_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "BC", *KINDS[kind])


def test_modes_agree_after_some_updates():
    check_learning("BC", MASKED, CHOICE, {"lr": 1e-2})
