"""PG in the four modes and on NumPy: the same loss and gradients."""

from __future__ import annotations

import pytest
from learners import CHOICE, LSTM, OBS, TORQUE, check_learning, check_parity
from modes import MODE_PARAMS

KINDS = {"discrete": (OBS, CHOICE, {}), "box": (OBS, TORQUE, {}), "lstm": (OBS, CHOICE, LSTM)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_loss_and_gradients_are_the_oracles(framework, traced, kind):
    check_parity((framework, traced), "PG", *KINDS[kind])


def test_modes_agree_after_some_updates():
    check_learning("PG", OBS, TORQUE, {"lr": 1e-2})
