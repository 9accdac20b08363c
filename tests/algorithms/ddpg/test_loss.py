"""The losses of DDPG and TD3 term by term, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from learners import OBS, TORQUE, build, losses_of, random_rows, spec_of

from polylib.errors import ConfigError

F32 = np.float32
UNIT = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
LINEAR = {"actor_hiddens": [], "critic_hiddens": []}


def sees(slope, bias):
    """Q = slope * a + bias, whatever the three observations are."""
    return {"kernel": [0, 0, 0, slope], "bias": [bias]}


# The target policy does tanh(atanh 0.5) = 0.5, the policy -0.6. Q1 = a, Q2 = a + 1; the target's 2 a + 3 and 4 a.
GIVEN = {
    "policy": {"logits": [math.atanh(-0.6)]},
    "target_policy": {"logits": [math.atanh(0.5)]},
    "q": {"q1": sees(1, 0), "q2": sees(1, 1)},
    "target_q": {"q1": sees(2, 3), "q2": sees(4, 0)},
}
ONE_Q = {**GIVEN, "q": {"q1": sees(1, 0)}, "target_q": {"q1": sees(2, 3)}}
ROW = {"actions": [[0.25]], "rewards": [1.0], "discounts": [0.5]}


def losses(given=GIVEN, batch=ROW, algo="TD3", space=UNIT, noise=0.0, **config):
    spec = spec_of(algo, OBS, space, **{**LINEAR, **config})
    found, stats, rows = losses_of(spec, given, batch, {"target": np.full((len(batch["actions"]), 1), noise)})
    assert set(found) == {"critic", "actor"} and set(rows) == {"td_error"}
    return found, stats, rows["td_error"]


def test_ddpg():
    """Target: 1 + 0.5 * (2 * 0.5 + 3) = 3, Q(0.25) = 0.25, error -2.75. Actor: -Q(-0.6) = 0.6."""
    found, stats, rows = losses(ONE_Q, algo="DDPG")
    assert rows == pytest.approx([2.75]) and found["critic"] == pytest.approx(2.75**2 / 2)
    assert found["actor"] == pytest.approx(0.6) and stats["mean_q"] == pytest.approx(0.25)
    # huber, linear from 0.7 on: 0.7^2 / 2 + 0.7 * (2.75 - 0.7)
    found, _, _ = losses(ONE_Q, algo="DDPG", use_huber=True, huber_threshold=0.7)
    assert found["critic"] == pytest.approx(0.245 + 0.7 * 2.05)
    # terminal: 1; error 0.25 - 1
    _, _, rows = losses(ONE_Q, {**ROW, "terminateds": [True]}, "DDPG")
    assert rows == pytest.approx([0.75])


def test_importance_weights():
    """Errors -2.75 twice; weights 1 and 0.5."""
    batch = {name: np.concatenate([x, x]) for name, x in ROW.items()} | {"weights": [1.0, 0.5]}
    found, _, _ = losses(ONE_Q, batch, "DDPG")
    assert found["critic"] == pytest.approx(0.75 * 2.75**2 / 2) and found["actor"] == pytest.approx(0.6)


def test_the_lower_of_two_values_counts():
    """At 0.5 the target networks say 4 and 2: 1 + 0.5 * 2 = 2. Q1 = 0.25, Q2 = 1.25: errors -1.75, -0.75."""
    found, _, rows = losses()
    assert found["critic"] == pytest.approx(1.75**2 / 2 + 0.75**2 / 2)
    assert rows == pytest.approx([1.25]), "the mean of both, without a sign"
    assert found["actor"] == pytest.approx(0.6), "the actor follows the first alone"


@pytest.mark.parametrize(
    ("noise", "action"),
    [
        (0.5, 0.5 + 0.1),  # 0.2 * 0.5
        (-1.0, 0.5 - 0.2),
        (2.4, 0.5 + 0.48),
        (4.0, 1.0),  # 0.8, clipped to 0.5; 1.0
        (-9.0, 0.0),  # clipped to -0.5
    ],
)
def test_target_actions_are_smoothed(noise, action):
    """min(2 a + 3, 4 a) = 4 a for a below 1.5: target 1 + 0.5 * 4 a."""
    _, _, rows = losses(noise=noise)
    target = 1 + 2 * action
    assert rows == pytest.approx([(abs(0.25 - target) + abs(1.25 - target)) / 2])
    _, _, rows = losses(noise=noise, smooth_target_policy=False)
    assert rows == pytest.approx([1.25])


def test_smoothed_actions_stay_in_the_space():
    """0.9 + 0.2 is cut to 1: target 1 + 0.5 * 4."""
    given = {**GIVEN, "target_policy": {"logits": [math.atanh(0.9)]}}
    assert losses(given, noise=1.0)[2] == pytest.approx([(2.75 + 1.75) / 2])


def test_actions_are_seen_in_units_of_half_the_range():
    """In [0, 10] the action 6.25 is 0.25."""
    space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    assert losses(batch={**ROW, "actions": [[6.25]]}, space=space)[2] == pytest.approx([1.25])


def test_coefficients():
    spec = spec_of("TD3", OBS, TORQUE, actor_lr=0.1, critic_lr=0.2)
    c = spec.objective_class(spec).coefficients()
    assert (c["actor_lr"], c["critic_lr"], c["due_actor"], c["tau"]) == (0.1, 0.2, 1.0, 5e-3)
    assert c["random"] == 1.0 and c["grad_clip"] == math.inf
    by_hand = spec_of("DDPG", OBS, TORQUE, target_network_update_freq=5)
    assert "tau" not in by_hand.objective_class(by_hand).coefficients()


@needs_torch
def test_the_actor_climbs_the_q_function():
    """Q = 5 a: the policy's output grows."""
    policy = build(("torch", False), "DDPG", OBS, UNIT, **LINEAR)
    weights = {key: np.zeros_like(w) for key, w in policy.get_weights().items()}
    weights["q/000/kernel"][3] = 5
    policy.set_weights(weights)
    policy.learn_on_batch(random_rows(policy.spec, 8))
    assert policy.get_weights()["policy/000/bias"][0] > 0


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([2]), gym.spaces.Box(-np.inf, np.inf, (1,))]
)
@pytest.mark.parametrize("algo", ["DDPG", "TD3"])
def test_spaces_that_they_dont_take(algo, space):
    spec = spec_of(algo, OBS, space)
    with pytest.raises(ConfigError, match="DDPG and TD3 need a Box action space with finite bounds, not"):
        spec.objective_class(spec)
