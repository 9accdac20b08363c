"""SAC's losses term by term, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from learners import CHOICE, MASKED, OBS, TORQUE, build, losses_of, nets_of, random_rows, spec_of

from polylib.algorithms.sac.config import SACConfig
from polylib.errors import ConfigError
from polylib.policy import numpy_ops

F32 = np.float32
LN = math.log
UNIT = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
#: log density of a standard normal at its mean.
PEAK = -0.5 * LN(2 * math.pi)
LINEAR = {"q_model_config": {"fcnet_hiddens": []}, "policy_model_config": {"fcnet_hiddens": []}}


def losses(given, batch, space=UNIT, noise=None, obs_space=OBS, **config):
    found, stats, rows = losses_of(spec_of("SAC", obs_space, space, **{**LINEAR, **config}), given, batch, noise)
    assert set(found) == {"critic", "actor", "alpha"} and set(rows) == {"td_error"}
    return found, stats, rows["td_error"]


def drawn(now=0.0, then=0.0, rows=1):
    return {"now": np.full((rows, 1), now), "next": np.full((rows, 1), then)}


# --- Box actions. All kernels are 0: mean 0, log std 0; Q1 = 1, Q2 = 0 here, and 3, 2 of the target network.

VALUES = {"q": {"q1": [1], "q2": [0]}, "target_q": {"q1": [3], "q2": [2]}}
ROW = {"actions": [[0.3]], "rewards": [1.0], "discounts": [0.5]}


def given_alpha(alpha, **more):
    return {**VALUES, "alpha": {"value": [LN(alpha)]}, **more}


def test_critic():
    """Noise 0: the next action is tanh(0) = 0, of log density PEAK - log(1 - tanh(0)^2) = PEAK.

    Target: 1 + 0.5 * (min(3, 2) - alpha PEAK), with alpha = 0.5. Loss: the sum of (Q_i - target)^2 / 2.
    """
    target = 1 + 0.5 * (2 - 0.5 * PEAK)
    found, stats, rows = losses(given_alpha(0.5), ROW, noise=drawn())
    assert found["critic"] == pytest.approx((1 - target) ** 2 / 2 + (0 - target) ** 2 / 2)
    assert rows == pytest.approx([(abs(1 - target) + abs(target)) / 2]), "the mean of both, without a sign"
    assert stats["alpha_value"] == pytest.approx(0.5) and stats["mean_q"] == 1
    # A terminal state has no value, and no entropy: target 1.
    found, _, rows = losses(given_alpha(0.5), {**ROW, "terminateds": [True]}, noise=drawn())
    assert found["critic"] == pytest.approx(0 + 1 / 2) and rows == pytest.approx([0.5])
    # One network: 1 + 0.5 * (3 - 0.5 PEAK).
    target = 1 + 0.5 * (3 - 0.5 * PEAK)
    single = {"q": {"q1": [1]}, "target_q": {"q1": [3]}, "alpha": {"value": [LN(0.5)]}}
    found, _, rows = losses(single, ROW, noise=drawn(), twin_q=False)
    assert found["critic"] == pytest.approx((1 - target) ** 2 / 2) and rows == pytest.approx([abs(1 - target)])


def test_importance_weights_are_the_critics():
    batch = {name: np.concatenate([x, x]) for name, x in ROW.items()} | {"terminateds": [True, True]}
    # Errors 0 and -1 of each row: 1/2; weights 1 and 0.2.
    found, _, _ = losses(given_alpha(0.5), {**batch, "weights": [1.0, 0.2]}, noise=drawn(rows=2))
    assert found["critic"] == pytest.approx((0.5 + 0.2 * 0.5) / 2)
    plain, _, _ = losses(given_alpha(0.5), batch, noise=drawn(rows=2))
    assert found["actor"] == plain["actor"] and found["alpha"] == plain["alpha"]


def test_the_next_actions_density_is_squashed():
    """Noise 1: before tanh 1, of log density PEAK - 1/2 - log(1 - tanh(1)^2)."""
    logp = PEAK - 0.5 - LN(1 - math.tanh(1) ** 2)
    target = 1 + 0.5 * (2 - 0.5 * logp)
    found, _, _ = losses(given_alpha(0.5), ROW, noise=drawn(then=1.0))
    assert found["critic"] == pytest.approx((1 - target) ** 2 / 2 + target**2 / 2)


def test_actor_and_alpha():
    """Actor: alpha logp - min(Q1, Q2) at the action drawn now. Alpha: log alpha (entropy - target entropy)."""
    # A Q network that sees the action: Q1 = 2 a, Q2 = 2 a + 1 (kernels of three observations and the action).
    seeing = {"q1": {"kernel": [0, 0, 0, 2], "bias": [0]}, "q2": {"kernel": [0, 0, 0, 2], "bias": [1]}}
    logp = PEAK - 0.5 - LN(1 - math.tanh(1) ** 2)
    found, stats, _ = losses(given_alpha(0.5, q=seeing), ROW, noise=drawn(now=1.0))
    assert found["actor"] == pytest.approx(0.5 * logp - 2 * math.tanh(1))
    # The target entropy is minus the number of dimensions.
    assert found["alpha"] == pytest.approx(LN(0.5) * (-logp + 1))
    assert stats["policy_entropy"] == pytest.approx(-logp) and stats["target_entropy"] == -1
    assert losses(given_alpha(0.5), ROW, noise=drawn(now=1.0), target_entropy=-3)[0]["alpha"] == pytest.approx(
        LN(0.5) * (-logp + 3)
    )


def test_mean_and_deviation_of_the_policy_count():
    """Mean 0.4, log std ln 0.5, noise -1: before tanh 0.4 - 0.5 = -0.1, of log density PEAK - ln 0.5 - 1/2 - slope."""
    logp = PEAK - LN(0.5) - 0.5 - LN(1 - math.tanh(-0.1) ** 2)
    given = given_alpha(1.0, policy={"logits": [0.4, LN(0.5)]})
    found, _, _ = losses(given, ROW, noise=drawn(now=-1.0))
    assert found["actor"] == pytest.approx(logp - 0)


def test_entropies_dont_depend_on_the_environments_units():
    """In [0, 10] the density is five times smaller; losses are those in [-1, 1]: 0.3 there is 6.5."""
    wide = gym.spaces.Box(0.0, 10.0, (1,), np.float32)
    q = {"q1": {"kernel": [0, 0, 0, 2], "bias": [0]}, "q2": {"kernel": [0, 0, 0, 2], "bias": [1]}}
    noise = drawn(0.7, -0.4)
    one, _, errors = losses(given_alpha(0.5, q=q), ROW, noise=noise)
    other, _, others = losses(given_alpha(0.5, q=q), {**ROW, "actions": [[6.5]]}, wide, noise=noise)
    assert {k: pytest.approx(x) for k, x in one.items()} == other and errors == pytest.approx(others)


# --- discrete actions: expectations over actions are sums

# Probabilities [1/4, 3/4] of the policy; Q1 = [1, 2], Q2 = [2, 1]; the target network's [8, 4] and [4, 8].
TWO = gym.spaces.Discrete(2, start=5)
DISCRETE = {
    "policy": {"logits": [0, LN(3)]},
    "q": {"q1": [1, 2], "q2": [2, 1]},
    "target_q": {"q1": [8, 4], "q2": [4, 8]},
    "alpha": {"value": [LN(0.5)]},
}
PROBS = np.array([0.25, 0.75])
ENTROPY = -(PROBS * np.log(PROBS)).sum()


def test_discrete():
    """Next value: sum p (min Q - alpha log p) = 4 + 0.5 H. Target 1 + 0.5 * that. Action 6: Q1 = 2, Q2 = 1.

    Actor: sum p (alpha log p - min Q) = -0.5 H - 1. The target entropy is 0.98 ln 2.
    """
    target = 1 + 0.5 * (4 + 0.5 * ENTROPY)
    found, stats, rows = losses(DISCRETE, {**ROW, "actions": [6]}, TWO)
    assert found["critic"] == pytest.approx((2 - target) ** 2 / 2 + (1 - target) ** 2 / 2)
    assert rows == pytest.approx([(abs(2 - target) + abs(1 - target)) / 2])
    assert found["actor"] == pytest.approx(-0.5 * ENTROPY - 1)
    assert found["alpha"] == pytest.approx(LN(0.5) * (ENTROPY - 0.98 * LN(2)))
    assert stats["policy_entropy"] == pytest.approx(ENTROPY)


def test_masked_actions_have_no_probability():
    """Only the first of three next actions is allowed: value min(8, 4) = 4, without entropy. Now two: p [1/4, 3/4]."""
    given = {
        "policy": {"logits": [0, LN(3), 9]},
        "q": {"q1": [1, 2, 3], "q2": [1, 2, 3]},
        "target_q": {"q1": [8, 40, 40], "q2": [4, 80, 80]},
        "alpha": {"value": [LN(0.5)]},
    }
    batch = {
        **ROW,
        "actions": [5],
        "obs/seen": np.zeros((1, 3)),
        "new_obs/seen": np.zeros((1, 3)),
        "obs/action_mask": np.array([[1, 1, 0]]),
        "new_obs/action_mask": np.array([[1, 0, 0]]),
    }
    found, stats, rows = losses(given, batch, CHOICE, obs_space=MASKED)
    assert rows == pytest.approx([abs(1 - (1 + 0.5 * 4))]) and stats["policy_entropy"] == pytest.approx(ENTROPY)
    assert found["actor"] == pytest.approx(-0.5 * ENTROPY - (0.25 * 1 + 0.75 * 2))


# --- the objective


def test_learning_rates_entropy_and_alpha_come_from_the_config():
    spec = spec_of("SAC", OBS, TORQUE, optimization={"actor_learning_rate": 0.1}, initial_alpha=0.25, tau=0.3)
    objective = spec.objective_class(spec)
    assert objective.coefficients() == {
        "critic_lr": 3e-4,
        "actor_lr": 0.1,
        "alpha_lr": 3e-4,
        "grad_clip": math.inf,
        "tau": 0.3,
    }
    assert objective.target_entropy == -2
    policy = build(("numpy", False), "SAC", OBS, TORQUE, initial_alpha=0.25)
    assert policy.get_weights()["alpha/000/value"] == pytest.approx([LN(0.25)])
    by_hand = spec_of("SAC", OBS, TORQUE, target_network_update_freq=5)
    assert "tau" not in by_hand.objective_class(by_hand).coefficients()


def test_the_learning_rates_have_rllibs_argument():
    """Whose `SACConfig.training` takes `optimization_config`."""
    given = SACConfig().training(optimization_config={"actor_learning_rate": 0.1})
    assert given["optimization"] == {"actor_learning_rate": 0.1}


def test_networks_have_relu_unless_told_otherwise():
    spec = spec_of("SAC", OBS, TORQUE, q_model_config={"fcnet_hiddens": [7]}, policy_model_config={})
    networks = spec.objective_class(spec).networks()
    hidden = {name: [x for x in networks[name].layers if x.kind == "dense" and x.activation] for name in networks}
    assert {x.activation for x in hidden["q"] + hidden["policy"]} == {"relu"}
    assert [x.units for x in hidden["q"]] == [7, 7] and [x.units for x in hidden["policy"]] == [256, 256]


def test_acting_squashes_and_scales():
    """Mean 0.5 without noise: tanh(0.5), scaled to [0, 10]."""
    spec = spec_of("SAC", OBS, gym.spaces.Box(0.0, 10.0, (1,), np.float32), **LINEAR)
    objective = spec.objective_class(spec)
    nets = nets_of(objective, {"policy": {"logits": [0.5, -1]}})
    noise = objective.act_noise(np.random.default_rng(0), 1, explore=False)
    out = objective.act(numpy_ops, nets, {"obs": np.zeros((1, 3))}, noise, objective.coefficients())
    assert out["actions"] == pytest.approx(np.array([[5 + 5 * math.tanh(0.5)]]))


@needs_torch
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_entropys_weight_follows_the_entropy(sign):
    """More entropy than asked for: alpha sinks; less: it rises."""
    policy = build(("torch", False), "SAC", OBS, TORQUE, target_entropy=-sign * 100)
    batch = random_rows(policy.spec, 8)
    before = policy.get_weights()["alpha/000/value"]
    policy.learn_on_batch(batch)
    assert np.sign(policy.get_weights()["alpha/000/value"] - before) == [-sign]


@needs_torch
def test_the_actor_climbs_the_q_function():
    """Q = 5 a: the mean of the policy grows."""
    policy = build(("torch", False), "SAC", OBS, UNIT, **LINEAR, initial_alpha=1e-6)
    weights = {key: np.zeros_like(w) for key, w in policy.get_weights().items()}
    for key in weights:
        if key.endswith("kernel") and key.split("/")[0] in ("q", "target_q"):
            weights[key][3] = 5
    policy.set_weights(weights)
    policy.learn_on_batch(random_rows(policy.spec, 8))
    assert policy.get_weights()["policy/000/bias"][0] > 0


@pytest.mark.parametrize("space", [gym.spaces.MultiDiscrete([2, 2]), gym.spaces.Dict({"a": UNIT})])
def test_spaces_that_it_doesnt_take(space):
    spec = spec_of("SAC", action_space=space)
    with pytest.raises(ConfigError, match="SAC needs a Box or Discrete action space, not"):
        spec.objective_class(spec)


def test_unbounded_actions_are_refused():
    spec = spec_of("SAC", action_space=gym.spaces.Box(np.float32([-1, -np.inf]), np.float32([1, 1])))
    with pytest.raises(ConfigError, match="SAC squashes actions into .* lacks some. For unbounded actions use PPO"):
        spec.objective_class(spec)


def test_another_distribution_is_refused():
    spec = spec_of("SAC", action_space=UNIT, model={"custom_action_dist": "Beta"})
    with pytest.raises(ConfigError, match="'model.custom_action_dist': SAC's losses are for SquashedGaussian"):
        spec.objective_class(spec)
