"""PPO's loss term by term, with the numbers worked out in the comments; its coefficients and schedules."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch
from policies import BOX, DISCRETE, TORQUE, make, make_spec, random_batch

from polylib.algorithms.ppo.loss import PPOObjective, ppo_loss, standardized
from polylib.models.numpy_network import NumpyNetwork
from polylib.policy import numpy_ops
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

F32 = np.float32
LN = math.log
ALL = [pytest.param("numpy"), *BACKENDS]
C = {"clip_param": 0.2, "vf_clip_param": 10.0, "vf_loss_coeff": 0.0, "kl_coeff": 0.0, "entropy_coeff": 0.0}


def loss(logp=0.0, old=0.0, kl=0.0, entropy=0.0, values=0.0, advantages=0.0, targets=0.0, **c):
    """The loss and stats of a few rows; single numbers stand for one row."""
    rows = [np.atleast_1d(F32(x)) for x in (logp, kl, entropy, values, old, advantages, targets)]
    logp, kl, entropy, values, old, advantages, targets = np.broadcast_arrays(*rows)
    batch = {"action_logp": old, "advantages": advantages, "value_targets": targets}
    return ppo_loss(numpy_ops, logp, kl, entropy, values, batch, {**C, **c})


# --- policy term: -min(A r, A clip(r, 0.8, 1.2))

# (ratio, advantage) -> (loss, d loss / d logp); d r / d logp = r
SURROGATE = [
    # Inside the range nothing is clipped: -A r, with gradient -A r.
    (1.1, 1.0, -1.1, -1.1),
    (1.1, -1.0, 1.1, 1.1),
    (1.0, 2.0, -2.0, -2.0),
    # A good action that became likelier already: min(1.5, 1.2) is the bound, no further push.
    (1.5, 1.0, -1.2, 0.0),
    # A bad action that became likelier: min(-1.5, -1.2), not clipped, pushed back.
    (1.5, -1.0, 1.5, 1.5),
    # A good action that became rarer: min(0.5, 0.8), not clipped, pushed back.
    (0.5, 1.0, -0.5, -0.5),
    # A bad action that became rarer already: min(-0.5, -0.8) is the bound.
    (0.5, -1.0, 0.8, 0.0),
    # Three times the advantage, three times everything.
    (1.5, 3.0, -3.6, 0.0),
    (0.5, 3.0, -1.5, -1.5),
]


@pytest.mark.parametrize(("ratio", "advantage", "expected", "slope"), SURROGATE)
@pytest.mark.parametrize("backend", ALL)
def test_clipped_surrogate(backend, ratio, advantage, expected, slope):
    zero = np.zeros(1, F32)

    def f(ops, logp, old, advantages):
        batch = {"action_logp": old, "advantages": advantages, "value_targets": ops.zeros_like(old)}
        return ppo_loss(ops, logp, ops.zeros_like(old), ops.zeros_like(old), ops.zeros_like(old), batch, C)[0]

    # The old policy's logp isn't 0, so that a lost sign would show.
    arrays = (F32([LN(ratio) - 0.7]), F32([-0.7]), zero + F32(advantage))
    value, (gradient,) = evaluate(backend, f, *arrays, smooth=(0,))
    # weights of `evaluate`: cos(1) for the only output
    assert value == pytest.approx(expected, rel=1e-5)
    assert gradient[0] / math.cos(1) == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_policy_loss_is_the_mean_over_rows():
    # -mean(min(1.5, 1.2), min(-1.5, -1.2)) = -(1.2 - 1.5) / 2 = 0.15
    total, stats = loss(logp=[LN(1.5), LN(1.5)], advantages=[1, -1])
    assert total == pytest.approx(0.15) and stats["policy_loss"] == pytest.approx(0.15)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_that_overflows_leaves_gradients_finite(backend, advantage):
    """exp(1000) is infinite in float32, and infinity times the clip's gradient of 0 is NaN."""

    def f(ops, logp):
        zero = ops.zeros_like(logp)
        batch = {"action_logp": zero, "advantages": zero + advantage, "value_targets": zero}
        return ppo_loss(ops, logp, zero, zero, zero, batch, C)[0]

    value, (gradient,) = evaluate(backend, f, F32([1000.0, LN(1.1)]), smooth=(0,))
    assert np.isfinite(value) and np.isfinite(gradient).all()
    assert gradient[0] == 0, "no push from a row that is lost"
    assert gradient[1] / math.cos(1) == pytest.approx(-advantage * 1.1 / 2, rel=1e-4)


# --- value term: min((V - target)^2, vf_clip_param)


@pytest.mark.parametrize(
    ("value", "target", "bound", "expected"),
    [
        (1.0, 3.0, 10.0, 4.0),  # (1 - 3)^2
        (3.0, 1.0, 10.0, 4.0),  # sign doesn't matter
        (1.0, 3.0, 2.5, 2.5),  # bounded
        (1.0, 1.0, 10.0, 0.0),
    ],
)
def test_value_loss(value, target, bound, expected):
    total, stats = loss(values=value, targets=target, vf_clip_param=bound, vf_loss_coeff=0.5)
    assert stats["vf_loss"] == pytest.approx(expected), "the stat isn't weighted"
    assert total == pytest.approx(0.5 * expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bounded_value_error_has_no_gradient(backend):
    def f(ops, values):
        zero = ops.zeros_like(values)
        batch = {"action_logp": zero, "advantages": zero, "value_targets": zero}
        return ppo_loss(ops, zero, zero, zero, values, batch, {**C, "vf_loss_coeff": 1.0})[0]

    # mean of V^2 over two rows: d/dV = V; 5^2 is above the bound of 10.
    _, (gradient,) = evaluate(backend, f, F32([5.0, 2.0]), smooth=(0,))
    assert gradient / math.cos(1) == pytest.approx([0.0, 2.0], rel=1e-5)


# --- KL and entropy


def test_kl_is_a_penalty_and_entropy_a_bonus():
    # 0.2 * mean(0.5, 0.1) - 0.01 * mean(2, 1) = 0.06 - 0.015
    total, stats = loss(kl=[0.5, 0.1], entropy=[2, 1], kl_coeff=0.2, entropy_coeff=0.01)
    assert total == pytest.approx(0.045)
    assert stats["kl"] == pytest.approx(0.3) and stats["entropy"] == pytest.approx(1.5), "stats aren't weighted"


def test_all_terms_together():
    """One row: ratio 1.5, A = 2, V = 1, target 3, KL 0.4, entropy 0.9.

    -2 * 1.2 + 0.5 * 4 + 0.3 * 0.4 - 0.1 * 0.9 = -2.4 + 2 + 0.12 - 0.09 = -0.37
    """
    coefficients = {"vf_loss_coeff": 0.5, "kl_coeff": 0.3, "entropy_coeff": 0.1}
    total, _ = loss(LN(1.5), 0, kl=0.4, entropy=0.9, values=1, advantages=2, targets=3, **coefficients)
    assert total == pytest.approx(-0.37)


# --- explained variance: 1 - Var[target - V] / Var[target]


@pytest.mark.parametrize(
    ("values", "targets", "expected"),
    [
        ([1, 3], [1, 3], 1.0),  # all of it
        ([2, 2], [1, 3], 0.0),  # a constant explains nothing: Var = 1, residual's too
        ([1, 2], [1, 3], 0.75),  # residuals 0, 1: variance 1/4, of 1
        ([5, 6], [1, 3], 0.75),  # an offset doesn't count
        ([9, -9], [1, 3], -1.0),  # 1 - 100, bounded
        ([1, 2], [3, 3], -1.0),  # nothing to explain, and wrong
        ([3, 3], [3, 3], 1.0),  # nothing to explain
    ],
)
def test_explained_variance(values, targets, expected):
    assert loss(values=values, targets=targets)[1]["vf_explained_var"] == pytest.approx(expected, abs=1e-6)


# --- what the objective makes of network and batch


def losses(action_space, logits, value, batch, **c):
    """Loss and stats of a network whose outputs are constants: no hidden layers, all kernels 0."""
    ppo = PPOObjective(make_spec(BOX, action_space, hiddens=()))
    spec = ppo.networks()["policy"]
    biases = {spec.weight_keys()["logits"][1]: logits, spec.weight_keys()["value"][1]: [value]}
    weights = spec.initial_weights(np.random.default_rng(0))
    weights = {key: F32(biases[key]) if key in biases else np.zeros_like(w) for key, w in weights.items()}
    rows = len(batch["actions"])
    filled = {"obs": np.ones((rows, 3), F32), "advantages": np.ones(rows, F32), "value_targets": np.zeros(rows, F32)}
    nets = {"policy": NumpyNetwork(spec, weights)}
    found, stats, per_row = ppo.losses(numpy_ops, nets, {**filled, **batch}, {}, {**C, **c}, training=True)
    assert set(found) == {"default"} and per_row == {}
    return found["default"], stats


def test_kl_is_of_the_old_policy_from_the_new():
    """Old [1/2, 1/2], new [3/4, 1/4]: KL(old, new) = 1/2 ln(2/3) + 1/2 ln 2 = 1/2 ln(4/3), not 3/4 ln(3/2) - 1/4 ln 2.

    The first action: ratio 3/4 / (1/2) = 1.5, clipped to 1.2. H(new) = -(3/4 ln 3/4 + 1/4 ln 1/4).
    """
    old = {"action_dist_inputs": F32([[0, 0]]), "action_logp": F32([-LN(2)]), "actions": np.array([5])}
    _, stats = losses(gym.spaces.Discrete(2, start=5), [LN(3), 0], 2.0, old)
    assert stats["kl"] == pytest.approx(0.5 * LN(4 / 3), rel=1e-5)
    assert stats["policy_loss"] == pytest.approx(-1.2)
    assert stats["entropy"] == pytest.approx(-(0.75 * LN(0.75) + 0.25 * LN(0.25)), rel=1e-5)
    assert stats["vf_loss"] == pytest.approx(4.0), "the value is the network's second output"


def test_masks_count_in_the_loss():
    """New logits [0, 0, 5] with the third masked are [1/2, 1/2]; row 2 allows all three."""
    masks = np.array([[True, True, False], [True, True, True]])
    batch = {
        "action_dist_inputs": F32([[0, 0, -1e9], [0, 0, 5]]),
        "action_logp": F32([-LN(2), -LN(2 + math.exp(5))]),
        "actions": np.array([0, 0]),
        "action_mask": masks,
    }
    _, stats = losses(gym.spaces.Discrete(3), [0, 0, 5], 0.0, batch)
    # The same policy: ratio 1 and no divergence in both rows.
    assert stats["policy_loss"] == pytest.approx(-1.0, rel=1e-5) and stats["kl"] == pytest.approx(0, abs=1e-6)
    p = np.array([1, 1, math.exp(5)]) / (2 + math.exp(5))
    assert stats["entropy"] == pytest.approx((LN(2) - (p * np.log(p)).sum()) / 2, rel=1e-5)


def test_coefficients_of_the_update_are_stats():
    batch = {"action_dist_inputs": F32([[0, 0]]), "action_logp": F32([-LN(2)]), "actions": np.array([0])}
    total, stats = losses(gym.spaces.Discrete(2), [0, 0], 0.0, batch, entropy_coeff=0.3, kl_coeff=0.7)
    assert stats["cur_kl_coeff"] == 0.7 and stats["entropy_coeff"] == 0.3
    assert total == pytest.approx(-1.0 - 0.3 * LN(2))


# --- the objective


def objective(**config) -> PPOObjective:
    return PPOObjective(make_spec(**config))


def test_coefficients_come_from_the_config():
    c = objective(lr=0.01, grad_clip=0.5, clip_param=0.1, vf_clip_param=7.0, vf_loss_coeff=0.3, kl_coeff=0.4)
    assert c.coefficients() == {
        "lr": 0.01,
        "grad_clip": 0.5,
        "clip_param": 0.1,
        "vf_clip_param": 7.0,
        "vf_loss_coeff": 0.3,
        "kl_coeff": 0.4,
        "entropy_coeff": 0.0,
    }
    assert objective(grad_clip=None).coefficients()["grad_clip"] == math.inf
    assert objective(use_critic=False, use_gae=False).coefficients()["vf_loss_coeff"] == 0
    assert objective(use_kl_loss=False).coefficients()["kl_coeff"] == 0


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        # target 0.01: above 0.02 half as much again, below 0.005 half, between (bounds included) as it is
        (0.021, 0.3),
        (1.0, 0.3),
        (0.02, 0.2),
        (0.01, 0.2),
        (0.005, 0.2),
        (0.0049, 0.1),
        (0.0, 0.1),
        (math.nan, 0.2),
    ],
)
def test_adaptive_kl(kl, expected):
    changed = objective(kl_target=0.01).adapted({"kl_coeff": 0.2}, {"kl": kl})
    assert changed.get("kl_coeff", 0.2) == pytest.approx(expected)


def test_adaptive_kl_can_be_switched_off():
    assert objective(use_kl_loss=False).adapted({"kl_coeff": 0.0}, {"kl": 9.0}) == {}


@pytest.mark.parametrize(
    "config",
    [
        {"lr": [[0, 1e-3], [1000, 1e-4]]},  # newer: the schedule is the value
        {"lr": 5.0, "lr_schedule": [[0, 1e-3], [1000, 1e-4]]},  # RLlib 2.6: a key of its own, which wins
    ],
)
def test_learning_rate_schedule(config):
    ppo = objective(**config)
    assert ppo.coefficients()["lr"] == pytest.approx(1e-3)
    # half way: (1e-3 + 1e-4) / 2
    for timestep, rate in [(0, 1e-3), (500, 5.5e-4), (1000, 1e-4), (10_000, 1e-4)]:
        assert ppo.scheduled(timestep)["lr"] == pytest.approx(rate)


def test_entropy_schedule():
    ppo = objective(entropy_coeff=0.5, entropy_coeff_schedule=[[0, 0.1], [100, 0.0]])
    assert [ppo.scheduled(t)["entropy_coeff"] for t in (0, 25, 100)] == pytest.approx([0.1, 0.075, 0.0])
    assert objective(entropy_coeff=0.5).scheduled(99)["entropy_coeff"] == 0.5


@needs_torch
def test_a_policy_feeds_what_is_scheduled_and_adapted():
    policy = make(("torch", False), lr=[[0, 1e-3], [1000, 0.0]], kl_target=0.01, grad_clip=3.0)
    batch = random_batch(policy.spec, 8)
    policy.set_timestep(500)
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert stats["cur_lr"] == pytest.approx(5e-4) and stats["cur_kl_coeff"] == pytest.approx(0.2)
    policy.adapt_coefficients({"kl": 1.0})
    assert policy.learn_on_batch(batch)["learner_stats"]["cur_kl_coeff"] == pytest.approx(0.3)
    policy.set_timestep(1000)
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    assert all(np.array_equal(w, before[key]) for key, w in policy.get_weights().items()), "lr is 0 now"
    assert set(stats) == {
        "total_loss",
        "policy_loss",
        "vf_loss",
        "vf_explained_var",
        "kl",
        "entropy",
        "entropy_coeff",
        "cur_lr",
        "cur_kl_coeff",
        "grad_gnorm",
    }


@needs_torch
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("action_space", [DISCRETE, TORQUE])
def test_learning_makes_good_actions_likelier(action_space, sign):
    """A sign lost anywhere between loss and step would turn this round."""
    policy = make(("torch", False), BOX, action_space, lr=1e-3, kl_coeff=0.0)
    obs = random_batch(policy.spec, 1)["obs"]
    out = policy.compute_actions(obs)
    batch = {"obs": obs, "actions": out.actions, "value_targets": np.zeros(1, F32), **out.extras}
    policy.learn_on_batch({**batch, "advantages": F32([sign])})
    after = policy.compute_log_likelihoods(out.actions, obs)
    before = policy.objective.dist.logp(numpy_ops, out.extras["action_dist_inputs"], out.actions)
    assert np.sign(after - before) == [sign]


@needs_torch
def test_likelihoods_use_the_raw_sample():
    """Where an action was clipped, `action_raw` makes the ratio 1 at the first update; without it it isn't."""
    policy = make(("torch", False), BOX, TORQUE)
    obs = random_batch(policy.spec, 400)["obs"]
    out = policy.compute_actions(obs)
    assert (np.abs(out.actions) == 2).any(), "some actions are clipped"
    zeros = np.zeros(400, F32)
    batch = {"obs": obs, "actions": out.actions, "value_targets": zeros, "advantages": zeros + 1, **out.extras}
    # ratio 1, A = 1
    assert policy.compute_gradients(batch)[1]["learner_stats"]["policy_loss"] == pytest.approx(-1.0, abs=1e-6)
    del batch["action_raw"]
    assert policy.compute_gradients(batch)[1]["learner_stats"]["policy_loss"] != pytest.approx(-1.0, abs=1e-3)


def test_standardized_advantages():
    # mean 2, standard deviation sqrt(2/3)
    assert standardized(F32([1, 2, 3])) == pytest.approx(np.array([-1, 0, 1]) / math.sqrt(2 / 3), rel=1e-6)
    assert standardized(F32([5, 5])).tolist() == [0, 0], "nothing to divide by"
    assert standardized(F32([1, 2])).dtype == F32
    large = standardized(F32([1e6, 1e6 + 1, 1e6 + 2]))
    assert large == pytest.approx(np.array([-1, 0, 1]) / math.sqrt(2 / 3), rel=1e-5), "computed in float64"


@pytest.mark.parametrize(("terminated", "targets"), [(True, [1.9, 1.0]), (False, [10.0, 10.0])])
def test_postprocessing_bootstraps_where_the_episode_was_cut(terminated, targets):
    """gamma 0.9, lambda 1, r = [1, 1], V = 0, V(last) = 10: 1 + 0.9 * 1; or 1 + 0.9 * 10 = 10, 1 + 0.9 * 10."""
    batch = SampleBatch(
        obs=np.zeros((2, 3), F32),
        rewards=F32([1, 1]),
        vf_preds=F32([0, 0]),
        terminateds=np.array([False, terminated]),
        truncateds=np.array([False, False]),
    )
    fragment = Fragment(batch, np.array([0]), np.array([2]), np.zeros((1, 3), F32), F32([10]))
    out = objective(gamma=0.9, **{"lambda": 1.0}).postprocess(fragment)
    assert out["value_targets"] == pytest.approx(targets) and out["advantages"] == pytest.approx(targets)
