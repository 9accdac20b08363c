"""DDPG and TD3 in the four modes and on NumPy: the same losses, gradients, TD errors, targets and actions."""

from __future__ import annotations

import numpy as np
import pytest
from learners import OBS, TANH, TORQUE, check_learning, check_parity, check_targets, setting, shared, spec_of
from modes import MODE_PARAMS

KINDS = {
    "ddpg": ("DDPG", TANH),
    "ddpg_huber": ("DDPG", {**TANH, "use_huber": True, "huber_threshold": 0.7}),
    "td3": ("TD3", TANH),
}
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)


@pytest.mark.parametrize("kind", KINDS)
@MODES
def test_losses_gradients_and_td_errors_are_the_oracles(framework, traced, kind):
    algo, keys = KINDS[kind]
    check_parity((framework, traced), algo, OBS, TORQUE, keys)


@pytest.mark.parametrize("kind", ["ddpg", "td3"])
def test_modes_agree_after_some_updates(kind):
    algo, keys = KINDS[kind]
    check_learning(algo, OBS, TORQUE, keys)


@MODES
def test_targets_move_where_the_networks_are(framework, traced):
    check_targets((framework, traced), "TD3", OBS, TORQUE, TANH)


@MODES
def test_an_actor_that_is_not_due_stays_and_so_does_its_optimizer(framework, traced):
    """A step of 0 would still move Adam's moments."""
    weights, batch = setting(spec_of("TD3", OBS, TORQUE, **TANH))
    policy = shared((framework, traced), "TD3", OBS, TORQUE, **TANH)
    policy.set_weights(weights)
    policy.set_coefficients(due_actor=0.0, tau=0.0)
    policy.learn_on_batch(batch)
    after, optimizer = policy.get_weights(), policy.get_state()["optimizer"]
    for key, w in weights.items():
        assert np.array_equal(after[key], w) != key.startswith("q/"), key
    assert optimizer["actor/step"] == 0 and optimizer["critic/step"] == 1
    assert not any(np.any(x) for key, x in optimizer.items() if key.startswith("policy/"))
    policy.set_coefficients(due_actor=1.0, tau=0.5)
    policy.learn_on_batch(batch)
    assert policy.get_state()["optimizer"]["actor/step"] == 1
    assert all(not np.array_equal(w, after[key]) for key, w in policy.get_weights().items())
