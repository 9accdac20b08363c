"""DQN in the four modes and on NumPy: the same loss, gradients, TD errors, targets and actions."""

from __future__ import annotations

import pytest
from learners import CHOICE, LSTM, MASKED, OBS, check_learning, check_parity, check_targets
from modes import MODE_PARAMS

KINDS = {
    "double_dueling": (OBS, {}),
    "plain_mse": (OBS, {"double_q": False, "dueling": False, "hiddens": [], "td_error_loss_fn": "mse"}),
    "masked": (MASKED, {"double_q": False}),
    "c51": (OBS, {"num_atoms": 5, "v_min": -3.0, "v_max": 4.0}),
    "rainbow": (MASKED, {"num_atoms": 3, "v_min": -2.0, "v_max": 3.0, "noisy": True, "hiddens": [2]}),
    "noisy": (OBS, {"noisy": True, "dueling": False}),
    "lstm": (OBS, {**LSTM, "hiddens": [3]}),
    "lstm_prev": (
        OBS,
        {"model": {**LSTM["model"], "lstm_use_prev_action": True, "lstm_use_prev_reward": True}, "dueling": False},
    ),
}
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)


@pytest.mark.parametrize("kind", KINDS)
@MODES
def test_loss_gradients_and_td_errors_are_the_oracles(framework, traced, kind):
    obs_space, keys = KINDS[kind]
    check_parity((framework, traced), "DQN", obs_space, CHOICE, keys)


@pytest.mark.parametrize("kind", ["double_dueling", "rainbow", "lstm"])
def test_modes_agree_after_some_updates(kind):
    obs_space, keys = KINDS[kind]
    check_learning("DQN", obs_space, CHOICE, keys)


@MODES
def test_targets_move_where_the_network_is(framework, traced):
    check_targets((framework, traced), "DQN", OBS, CHOICE, {})
