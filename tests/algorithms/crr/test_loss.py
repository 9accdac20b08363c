"""CRR's losses term by term, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from learners import CHOICE, MASKED, OBS, TORQUE, build, losses_of, nets_of, random_rows, small_config, spec_of

from polylib.errors import ConfigError
from polylib.policy import numpy_ops

LN = math.log
UNIT = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
LINEAR = {"actor_hiddens": [], "critic_hiddens": []}
#: log density of a standard normal at its mean.
PEAK = -0.5 * LN(2 * math.pi)


def sees(slope, bias):
    """Q = slope * a + bias, whatever the three observations are."""
    return {"kernel": [0, 0, 0, slope], "bias": [bias]}


# The policy: mean 0, std 1; the target policy: mean tanh(atanh 0.5) = 0.5, std 0.5. Q1 = 2 a, Q2 = a + 1; the target
# networks 2 a + 3 and 4 a.
GIVEN = {
    "target_policy": {"logits": [math.atanh(0.5)], "log_std": [LN(0.5)]},
    "q": {"q1": sees(2, 0), "q2": sees(1, 1)},
    "target_q": {"q1": sees(2, 3), "q2": sees(4, 0)},
}
ROW = {"actions": [[0.25]], "rewards": [1.0], "discounts": [0.5]}
#: log pi(0.25)
LOGP = PEAK - 0.25**2 / 2


def drawn(then=1.0, now=(0.5, -3.0), rows=1):
    return {"next": np.full((rows, 1), then), "now": np.tile(np.reshape(now, (1, -1, 1)), (rows, 1, 1))}


def losses(given=GIVEN, batch=ROW, space=UNIT, noise=None, obs_space=OBS, **config):
    spec = spec_of("CRR", obs_space, space, **{**LINEAR, "n_action_sample": 2, **config})
    noise = drawn(rows=len(batch["actions"])) if noise is None else noise
    found, stats, rows = losses_of(spec, given, batch, noise)
    assert set(found) == {"critic", "actor"} and set(rows) == {"td_error"}
    return found, stats, rows["td_error"]


@pytest.mark.parametrize("then", [1.0, 3.0])
def test_critic(then):
    """Next action 0.5 + 0.5 * 1 = 1 (2 is cut to 1): min(5, 4) = 4, target 1 + 0.5 * 4 = 3. Q(0.25): 0.5, 1.25."""
    found, stats, rows = losses(noise=drawn(then))
    assert found["critic"] == pytest.approx(2.5**2 / 2 + 1.75**2 / 2) and stats["mean_q"] == pytest.approx(0.5)
    assert rows == pytest.approx([(2.5 + 1.75) / 2])
    # huber: 2.5 - 0.5 and 1.75 - 0.5
    assert losses(noise=drawn(then), td_error_loss_fn="huber")[0]["critic"] == pytest.approx(2 + 1.25)
    # terminal: 1; errors -0.5 and 0.25
    assert losses(batch={**ROW, "terminateds": [True]})[2] == pytest.approx([0.375])
    # one network: 1 + 0.5 * 5
    one = {**GIVEN, "q": {"q1": sees(2, 0)}, "target_q": {"q1": sees(2, 3)}}
    assert losses(one, noise=drawn(then), twin_q=False)[2] == pytest.approx([3])


def test_importance_weights_are_the_critics():
    batch = {name: np.concatenate([x, x]) for name, x in ROW.items()} | {"weights": [1.0, 0.5]}
    found, _, _ = losses(batch=batch)
    assert found["critic"] == pytest.approx(0.75 * (2.5**2 / 2 + 1.75**2 / 2))
    assert found["actor"] == pytest.approx(losses()[0]["actor"])


# The policy's own actions: 0.5, and -3 cut to -1; their lower values min(1, 1.5) = 1 and min(-2, 0) = -2. The logged
# action's: min(0.5, 1.25) = 0.5. Advantages: over the mean, -0.5, it is 1; over the best, 1, it is -0.5.


def test_only_what_is_better_is_imitated():
    found, stats, _ = losses()
    assert found["actor"] == pytest.approx(-LOGP) and stats["mean_advantage"] == pytest.approx(1)
    found, stats, _ = losses(advantage_type="max")
    assert found["actor"] == 0 and stats["mean_advantage"] == pytest.approx(-0.5) and stats["mean_weight"] == 0


def test_exponential_weights():
    found, stats, _ = losses(weight_type="exp", temperature=2.0)
    weight = math.exp(0.5)
    assert found["actor"] == pytest.approx(-weight * LOGP) and stats["mean_weight"] == pytest.approx(weight)
    found, _, _ = losses(weight_type="exp", advantage_type="max", temperature=2.0)
    assert found["actor"] == pytest.approx(-math.exp(-0.25) * LOGP)
    # e^10 is cut to 20, e^(-5) isn't.
    assert losses(weight_type="exp", temperature=0.1)[1]["mean_weight"] == pytest.approx(20)
    assert losses(weight_type="exp", temperature=0.1, max_weight=7)[1]["mean_weight"] == pytest.approx(7)
    found = losses(weight_type="exp", temperature=0.1, advantage_type="max")[1]["mean_weight"]
    assert found == pytest.approx(math.exp(-5))


def test_other_units_change_nothing_but_the_density():
    """In [0, 10] the action 6.25 is 0.25, and the density five times smaller."""
    space = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    found, _, rows = losses(batch={**ROW, "actions": [[6.25]]}, space=space)
    assert found["actor"] == pytest.approx(-LOGP + LN(5)) and rows == pytest.approx([(2.5 + 1.75) / 2])


def test_a_space_without_bounds():
    """The mean isn't squashed, nothing is cut: next action 2 + 0.5 * 1 = 2.5, now 0.5 and -3."""
    space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    given = {**GIVEN, "target_policy": {"logits": [2.0], "log_std": [LN(0.5)]}}
    found, stats, rows = losses(given, space=space)
    # min(2 * 2.5 + 3, 4 * 2.5) = 8: target 5. Values of now: 1 and min(-6, -2) = -6, mean -2.5; advantage 3.
    assert rows == pytest.approx([(4.5 + 3.75) / 2]) and stats["mean_advantage"] == pytest.approx(3)


# --- discrete actions

# Lower values: [1, 2] now, [6, 4] of the target networks; probabilities [1/4, 3/4], the target policy's [1/2, 1/2].
TWO = gym.spaces.Discrete(2, start=5)
DISCRETE = {
    "policy": {"logits": [0, LN(3)]},
    "q": {"q1": [1, 3], "q2": [2, 2]},
    "target_q": {"q1": [8, 4], "q2": [6, 5]},
}
BOTH = {"now": np.array([[[5.0, 0.0], [0.0, 5.0]]])}  # which makes the policy take the first, then the second


def test_discrete():
    """Target: 1 + 0.5 * (6 + 4) / 2 = 3.5; action 6 has 3 and 2: errors -0.5, -1.5.

    Its advantage: 2 less the mean 1.5 or the best 2 of both, or less 0.25 * 1 + 0.75 * 2 = 1.75.
    """
    batch = {**ROW, "actions": [6]}
    found, stats, rows = losses(DISCRETE, batch, TWO, BOTH)
    assert found["critic"] == pytest.approx(0.5**2 / 2 + 1.5**2 / 2) and rows == pytest.approx([1])
    assert stats["mean_advantage"] == pytest.approx(0.5) and found["actor"] == pytest.approx(-LN(0.75))
    _, stats, _ = losses(DISCRETE, batch, TWO, BOTH, advantage_type="max")
    assert stats["mean_advantage"] == 0 == stats["mean_weight"], "as good as the best is not better"
    _, stats, _ = losses(DISCRETE, batch, TWO, {}, advantage_type="expectation")
    assert stats["mean_advantage"] == pytest.approx(0.25)
    # Temperature 1/2 doubles the logits: probabilities 0.1 and 0.9, mean 1.9; the target policy's stay.
    found, stats, rows = losses(
        DISCRETE, batch, TWO, {}, advantage_type="expectation", categorical_distribution_temperature=0.5
    )
    assert stats["mean_advantage"] == pytest.approx(0.1) and found["actor"] == pytest.approx(-LN(0.9))
    assert rows == pytest.approx([1])


def test_masked_actions_are_never_taken():
    """Only the first next action is allowed: 4. Now two are, with 1/4 and 3/4, of values 1 and 2."""
    given = {
        "policy": {"logits": [0, LN(3), 9]},
        "q": {"q1": [1, 2, 3]},
        "target_q": {"q1": [4, 40, 40]},
    }
    batch = {
        **ROW,
        "actions": [6],
        "obs/seen": np.zeros((1, 3)),
        "new_obs/seen": np.zeros((1, 3)),
        "obs/action_mask": np.array([[1, 1, 0]]),
        "new_obs/action_mask": np.array([[1, 0, 0]]),
    }
    keys = {"obs_space": MASKED, "twin_q": False}
    found, stats, rows = losses(given, batch, CHOICE, {}, advantage_type="expectation", **keys)
    assert rows == pytest.approx([abs(2 - (1 + 0.5 * 4))]) and stats["mean_advantage"] == pytest.approx(2 - 1.75)
    assert found["actor"] == pytest.approx(-LN(0.75))
    noise = {"now": np.array([[[0.0, 0.0, 90.0], [9.0, 0.0, 90.0]]])}
    assert losses(given, batch, CHOICE, noise, **keys)[1]["mean_advantage"] == pytest.approx(2 - 1.5)


# --- the objective


@pytest.mark.parametrize(
    ("space", "keys", "shapes"),
    [
        (TORQUE, {}, {"now": (6, 4, 2), "next": (6, 2)}),
        (CHOICE, {"n_action_sample": 2}, {"now": (6, 2, 3)}),
        (CHOICE, {"advantage_type": "expectation"}, {}),
    ],
)
def test_noise(space, keys, shapes):
    spec = spec_of("CRR", OBS, space, **keys)
    objective = spec.objective_class(spec)
    one = objective.noise(np.random.default_rng(1), 6)
    rng = np.random.default_rng(1)
    parts = [objective.noise(rng, 3) for _ in range(2)]
    assert {name: x.shape for name, x in one.items()} == shapes
    for name, x in one.items():
        np.testing.assert_array_equal(x, np.concatenate([part[name] for part in parts]))


def test_acting_is_the_mean_without_exploration():
    """Mean 0.5 in [0, 10]: 7.5; deviations are the same whatever is seen."""
    spec = spec_of("CRR", OBS, gym.spaces.Box(0.0, 10.0, (1,), np.float32), **LINEAR)
    objective = spec.objective_class(spec)
    nets = nets_of(objective, {"policy": {"logits": [math.atanh(0.5)], "log_std": [LN(0.1)]}})
    noise = objective.act_noise(np.random.default_rng(0), 1, explore=False)
    out = objective.act(numpy_ops, nets, {"obs": np.ones((1, 3))}, noise, objective.coefficients())
    assert out["actions"] == pytest.approx(np.array([[7.5]]))
    # Density of the mean: std 0.1 of 5 units.
    assert out["action_logp"] == pytest.approx([PEAK - LN(0.1 * 5)])
    assert out["action_dist_inputs"] == pytest.approx(np.array([[0.5, LN(0.1)]]))


@needs_torch
@pytest.mark.parametrize("keys", [{}, {"weight_type": "exp", "temperature": 0.3}])
def test_the_policy_becomes_the_better_half_of_what_was_done(keys):
    """Half of the logged actions are 0.5, half -0.5, and Q = a: the mean of the policy moves to 0.5."""
    policy = build(("torch", False), "CRR", OBS, UNIT, **LINEAR, **keys, actor_lr=0.05, critic_lr=0.0)
    weights = {key: np.zeros_like(w) for key, w in policy.get_weights().items()}
    weights.update({f"q/00{i}/kernel": np.float32([[0], [0], [0], [1]]) for i in range(2)})
    policy.set_weights(weights)
    batch = random_rows(policy.spec, 32)
    batch["actions"] = np.where(np.arange(32) % 2, 0.5, -0.5).astype(np.float32)[:, None]
    for _ in range(150):
        policy.learn_on_batch(batch)
    mean = policy.compute_actions(np.zeros((1, 3), np.float32), explore=False).actions
    assert mean == pytest.approx(0.5, abs=0.15) if not keys else mean > 0.2


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Dict({"a": UNIT})])
def test_spaces_that_it_doesnt_take(space):
    spec = spec_of("CRR", action_space=space)
    with pytest.raises(ConfigError, match="CRR needs a Box or Discrete action space, not .* use BC or MARWIL"):
        spec.objective_class(spec)


def test_expectations_are_for_discrete_actions():
    spec = spec_of("CRR", action_space=UNIT, advantage_type="expectation")
    with pytest.raises(ConfigError, match="'advantage_type': 'expectation' is a sum over discrete actions.*use 'mean'"):
        spec.objective_class(spec)


def test_another_distribution_is_refused():
    spec = spec_of("CRR", action_space=UNIT, model={"custom_action_dist": "Beta"})
    with pytest.raises(ConfigError, match="'model.custom_action_dist': CRR's losses are for the distributions"):
        spec.objective_class(spec)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"weight_type": "sum"}, "'weight_type': .*expected one of 'bin', 'exp'"),
        ({"advantage_type": "median"}, "'advantage_type': .*expected one of 'mean', 'max', 'expectation'"),
        ({"max_weight": 0}, "'max_weight': .*expected a number > 0"),
        ({"n_action_sample": 0}, "'n_action_sample': .*expected an integer >= 1"),
        ({"target_network_update_freq": 500}, "'target_network_update_freq': .*set target_update_grad_intervals"),
        ({"model": {"use_lstm": True}}, "'model.use_lstm': CRR has no networks with state"),
    ],
)
def test_values_that_make_no_sense(keys, message):
    with pytest.raises(ConfigError, match=message):
        small_config("CRR", **keys).validate()
