"""IQL's losses term by term, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from learners import CHOICE, MASKED, OBS, TORQUE, build, losses_of, random_rows, small_config, spec_of

from polylib.errors import ConfigError

LN = math.log
UNIT = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
LINEAR = {"actor_hiddens": [], "critic_hiddens": []}
#: log density at 0.25 of a normal with mean 0.5 and std 0.5.
LOGP = -0.5 * LN(2 * math.pi) - LN(0.5) - 0.5**2 / 2


def sees(slope, bias):
    """Q = slope * a + bias, whatever the three observations are."""
    return {"kernel": [0, 0, 0, slope], "bias": [bias]}


# V = 1.5 + 2 * the first number of the observation: 1.5 now, 3.5 next. Q1 = 2 a, Q2 = a + 1; target networks 2 a + 3
# and 4 a. The policy: mean 0.5, std 0.5.
GIVEN = {
    "policy": {"logits": [math.atanh(0.5)], "log_std": [LN(0.5)]},
    "q": {"q1": sees(2, 0), "q2": sees(1, 1)},
    "target_q": {"q1": sees(2, 3), "q2": sees(4, 0)},
    "value": {"q1": {"kernel": [2, 0, 0], "bias": [1.5]}},
}
LOW = {**GIVEN, "value": {"q1": {"kernel": [2, 0, 0], "bias": [0.5]}}}
ROW = {"actions": [[0.25]], "rewards": [1.0], "discounts": [0.5], "new_obs": np.array([[1.0, 0.0, 0.0]])}


def losses(given=GIVEN, batch=ROW, space=UNIT, obs_space=OBS, **config):
    found, stats, rows = losses_of(spec_of("IQL", obs_space, space, **{**LINEAR, **config}), given, batch)
    assert set(found) == {"critic", "actor", "value"} and set(rows) == {"td_error"}
    return found, stats, rows["td_error"]


def test_values_are_an_expectile():
    """Of 0.25 the target networks say min(3.5, 1) = 1: 0.5 below V = 1.5, or 0.5 above V = 0.5."""
    found, stats, _ = losses()
    assert found["value"] == pytest.approx(0.3 * 0.25) and stats["mean_value"] == pytest.approx(1.5)
    assert stats["mean_advantage"] == pytest.approx(-0.5)
    assert losses(LOW)[0]["value"] == pytest.approx(0.7 * 0.25)
    assert losses(expectile=0.9)[0]["value"] == pytest.approx(0.1 * 0.25)
    assert losses(LOW, expectile=0.9)[0]["value"] == pytest.approx(0.9 * 0.25)
    one = {**GIVEN, "q": {"q1": sees(2, 0)}, "target_q": {"q1": sees(2, 3)}}
    assert losses(one, twin_q=False)[0]["value"] == pytest.approx(0.7 * 4), "3.5 - 1.5"


def test_critic():
    """Target: 1 + 0.5 * V(s') = 1 + 0.5 * 3.5 = 2.75. Q(0.25): 0.5 and 1.25."""
    found, stats, rows = losses()
    assert found["critic"] == pytest.approx(2.25**2 / 2 + 1.5**2 / 2) and stats["mean_q"] == pytest.approx(0.5)
    assert rows == pytest.approx([(2.25 + 1.5) / 2])
    # terminal: 1; errors -0.5 and 0.25
    assert losses(batch={**ROW, "terminateds": [True]})[2] == pytest.approx([0.375])


def test_actor():
    """exp(beta * advantage) times log pi(0.25), up to max_weight."""
    assert losses()[0]["actor"] == pytest.approx(-math.exp(3 * -0.5) * LOGP)
    assert losses(LOW, beta=2.0)[0]["actor"] == pytest.approx(-math.exp(2 * 0.5) * LOGP)
    assert losses(LOW, beta=20.0)[0]["actor"] == pytest.approx(-100 * LOGP)
    assert losses(LOW, beta=2.0, max_weight=2.0)[0]["actor"] == pytest.approx(-2 * LOGP)
    assert losses(beta=0.0)[0]["actor"] == pytest.approx(-LOGP), "imitation"


def test_importance_weights_are_the_critics_and_the_values():
    batch = {name: np.concatenate([x, x]) for name, x in ROW.items()} | {"weights": [1.0, 0.5]}
    found, _, _ = losses(batch=batch)
    one = losses()[0]
    assert found["critic"] == pytest.approx(0.75 * one["critic"])
    assert found["value"] == pytest.approx(0.75 * one["value"]) and found["actor"] == pytest.approx(one["actor"])


def test_other_units_change_nothing_but_the_density():
    """In [0, 10] the action 6.25 is 0.25, and the density five times smaller."""
    space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    found, _, rows = losses(batch={**ROW, "actions": [[6.25]]}, space=space, beta=0.0)
    assert found["actor"] == pytest.approx(-LOGP + LN(5)) and rows == pytest.approx([(2.25 + 1.5) / 2])


def test_discrete():
    """Of action 6 the target networks say min(4, 5) = 4: 2.5 above V. Q: 3 and 2. log pi = ln(3/4)."""
    two = gym.spaces.Discrete(2, start=5)
    given = {
        "policy": {"logits": [0, LN(3)]},
        "q": {"q1": [1, 3], "q2": [2, 2]},
        "target_q": {"q1": [8, 4], "q2": [6, 5]},
        "value": GIVEN["value"],
    }
    found, _, rows = losses(given, {**ROW, "actions": [6]}, two, beta=0.4)
    assert found["value"] == pytest.approx(0.7 * 2.5**2) and found["actor"] == pytest.approx(-math.exp(1) * LN(0.75))
    assert rows == pytest.approx([(0.25 + 0.75) / 2])


def test_masked_actions_have_no_probability():
    given = {"policy": {"logits": [0, LN(3), 9]}, "q": {}, "target_q": {}, "value": {}}
    batch = {
        **{name: ROW[name] for name in ("rewards", "discounts")},
        "actions": [6],
        "obs/seen": np.zeros((1, 3)),
        "new_obs/seen": np.zeros((1, 3)),
        "obs/action_mask": np.array([[1, 1, 0]]),
        "new_obs/action_mask": np.array([[1, 0, 0]]),
    }
    assert losses(given, batch, CHOICE, MASKED)[1]["imitation_logp"] == pytest.approx(LN(0.75))


# --- the objective


def test_coefficients_and_values():
    spec = spec_of("IQL", OBS, TORQUE, actor_lr=0.1, critic_lr=0.2, value_lr=0.3)
    c = spec.objective_class(spec).coefficients()
    assert (c["actor_lr"], c["critic_lr"], c["value_lr"], c["tau"]) == (0.1, 0.2, 0.3, 5e-3)
    policy = build(("numpy", False), "IQL", OBS, TORQUE)
    weights = {key: np.zeros_like(w) for key, w in policy.get_weights().items()}
    (bias,) = [key for key, w in weights.items() if key.startswith("value/") and w.shape == (1,)]
    policy.set_weights({**weights, bias: np.float32([7])})
    assert policy.compute_values(np.zeros((2, 3), np.float32)) == pytest.approx([7, 7])


@needs_torch
def test_where_values_and_the_policy_end():
    """Half of the logged actions are 0.5, half -0.5; Q = 10 a, 5 or -5. With the expectile 0.7 the value v solves
    0.7 (5 - v) = 0.3 (v + 5): v = 2. Advantages are 3 and -7: with beta = 0.2 the weights are e^0.6 and e^-1.4, and
    the mean of the policy 0.5 (e^0.6 - e^-1.4) / (e^0.6 + e^-1.4) = 0.38.
    """
    keys = {**LINEAR, "critic_lr": 0.0, "tau": 0.0, "actor_lr": 0.02, "value_lr": 0.05, "beta": 0.2}
    policy = build(("torch", False), "IQL", OBS, UNIT, **keys)
    weights = {key: np.zeros_like(w) for key, w in policy.get_weights().items()}
    kernel = np.float32([[0], [0], [0], [10]])
    weights.update({f"{net}/00{i}/kernel": kernel for i in (0, 1) for net in ("q", "target_q")})
    policy.set_weights(weights)
    batch = random_rows(policy.spec, 32)
    batch.update(obs=np.zeros((32, 3), np.float32), weights=np.ones(32, np.float32))
    batch["actions"] = np.where(np.arange(32) % 2, 0.5, -0.5).astype(np.float32)[:, None]
    for _ in range(400):
        policy.learn_on_batch(batch)
    assert policy.compute_values(batch["obs"])[0] == pytest.approx(2, abs=0.05)
    mean = 0.5 * (math.exp(0.6) - math.exp(-1.4)) / (math.exp(0.6) + math.exp(-1.4))
    assert policy.compute_actions(batch["obs"][:1], explore=False).actions[0, 0] == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Dict({"a": UNIT})])
def test_spaces_that_it_doesnt_take(space):
    spec = spec_of("IQL", action_space=space)
    with pytest.raises(ConfigError, match="IQL needs a Box or Discrete action space, not .* use BC or MARWIL"):
        spec.objective_class(spec)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expectile": 0}, r"'expectile': .*expected a number in \(0, 1\]"),
        ({"expectile": 1}, "'expectile': got 1.0, expected a number below 1"),
        ({"beta": -1}, "'beta': .*expected a number >= 0"),
        ({"max_weight": 0}, "'max_weight': .*expected a number > 0"),
        ({"model": {"use_gru": True}}, "'model.use_gru': IQL has no networks with state"),
    ],
)
def test_values_that_make_no_sense(keys, message):
    with pytest.raises(ConfigError, match=message):
        small_config("IQL", **keys).validate()
