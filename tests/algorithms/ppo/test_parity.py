"""PPO in the four modes and on NumPy: the same loss, stats, gradients, weights and actions."""

from __future__ import annotations

import functools
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate
from modes import MODE_PARAMS, MODES, has, mode_id
from policies import BOX, DISCRETE, MULTI, TORQUE, make, make_spec, random_batch

from polylib.models.numpy_network import NumpyNetwork
from polylib.policy import numpy_ops
from polylib.policy.gradients import clip_by_global_norm
from polylib.policy.policy import Policy

F32 = np.float32
AVAILABLE = [mode for mode in MODES if has(mode[0])]
PIXELS = gym.spaces.Box(0, 3, (2, 2), np.uint8)  # small numbers: 255 would saturate every unit
CARTPOLE = gym.spaces.Box(-5, 5, (4,), np.float32)
# name -> (observation space, action space, shared layers, with action_mask)
KINDS = {
    "discrete": (BOX, DISCRETE, False, False),
    "discrete_shared_masked": (gym.spaces.Discrete(4), DISCRETE, True, True),
    "multi_masked": (BOX, MULTI, False, True),
    "multi_shared": (PIXELS, MULTI, True, False),
    "box": (BOX, TORQUE, False, False),
    "box_shared": (PIXELS, gym.spaces.Box(-1, np.inf, (2,), np.float32), True, False),
}
# Every term counts.
CONFIG = {"entropy_coeff": 0.01, "kl_coeff": 0.2, "vf_loss_coeff": 0.5, "vf_clip_param": 9.0, "clip_param": 0.2}
SMALL, DEFAULT = (8,), (256, 256)


@functools.cache
def policy(kind: str, mode: tuple[str, bool], hiddens: tuple[int, ...]) -> Policy:
    """Built once; tests that learn put the first state back."""
    obs_space, action_space, share, _ = KINDS[kind]
    return make(mode, obs_space, action_space, share=share, hiddens=hiddens, **CONFIG)


def setting(kind: str, hiddens: tuple[int, ...], size: int) -> tuple[dict, dict[str, Any]]:
    """Weights that aren't the first ones (whose heads are nearly 0), and a batch."""
    obs_space, action_space, share, masked = KINDS[kind]
    spec = make_spec(obs_space, action_space, share=share, hiddens=hiddens, **CONFIG)
    network = spec.objective_class(spec).networks()["policy"]
    rng = np.random.default_rng(7)
    weights = network.initial_weights(rng)
    for key, w in weights.items():
        heads = ("logits", "value")
        scale = 0.5 if any(key in network.weight_keys()[head] for head in heads) else 0.1
        weights[key] = w + F32(scale / math.sqrt(w.shape[0])) * rng.standard_normal(w.shape).astype(F32)
    return weights, random_batch(spec, size, seed=3, masked=masked, wild=0.5)


def oracle(kind: str, hiddens: tuple[int, ...], weights: dict, batch: dict) -> tuple[float, dict[str, float]]:
    """Loss and stats on NumPy, in float64."""
    obs_space, action_space, share, _ = KINDS[kind]
    spec = make_spec(obs_space, action_space, share=share, hiddens=hiddens, **CONFIG)
    objective = spec.objective_class(spec)
    wide = {k: x.astype(np.float64) if x.dtype == F32 else x for k, x in batch.items()}
    network = NumpyNetwork(objective.networks()["policy"], {k: w.astype(np.float64) for k, w in weights.items()})
    c = objective.coefficients()
    losses, stats, rows = objective.losses(numpy_ops, {"policy": network}, wide, {}, c, True)
    assert rows == {}
    return losses["default"], stats


def central_differences(kind: str, weights: dict, batch: dict, step: float = 1e-6) -> dict[str, np.ndarray]:
    weights = {key: w.astype(np.float64) for key, w in weights.items()}
    gradients = {}
    for key, w in weights.items():
        gradients[key] = np.zeros_like(w)
        for index in np.ndindex(w.shape):
            kept, ends = w[index], []
            for sign in (1, -1):
                w[index] = kept + sign * step
                ends.append(oracle(kind, SMALL, weights, batch)[0])
            w[index] = kept
            gradients[key][index] = (ends[0] - ends[1]) / (2 * step)
    return gradients


def global_norm(gradients: dict[str, np.ndarray]) -> float:
    return math.sqrt(sum(float(np.square(g.astype(np.float64)).sum()) for g in gradients.values()))


# --- loss, stats and gradients


@functools.cache
def small_oracle(kind: str) -> Any:
    weights, batch = setting(kind, SMALL, 12)
    loss, stats = oracle(kind, SMALL, weights, batch)
    return weights, batch, loss, stats, central_differences(kind, weights, batch)


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracles_net_is_small_and_its_batch_is_hard(kind):
    """At most 200 parameters; ratios on both sides of the clip range; no gradient is left out."""
    weights, batch, _, stats, gradients = small_oracle(kind)
    assert sum(w.size for w in weights.values()) <= 200
    assert stats["kl"] > 0.01 and stats["entropy"] != 0 and abs(stats["policy_loss"]) > 1e-3
    # Columns of a one-hot class that the batch doesn't have are 0, others aren't.
    assert all(np.any(g) for g in gradients.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_loss_stats_and_gradients_are_the_oracles(framework, traced, kind):
    weights, batch, loss, stats, gradients = small_oracle(kind)
    p = policy(kind, (framework, traced), SMALL)
    p.set_weights(weights)
    found, info = p.compute_gradients(batch)
    expected = {
        **stats,
        "total_loss": loss,
        "grad_gnorm": global_norm(gradients),
        "cur_lr": p.coefficients["lr"],
    }
    assert set(info["learner_stats"]) == set(expected)
    for name, value in expected.items():
        assert info["learner_stats"][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    assert set(found) == set(gradients)
    for key, gradient in gradients.items():
        np.testing.assert_allclose(found[key], gradient, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("kind", KINDS)
def test_modes_have_the_same_gradients_on_the_default_net(kind):
    """Clipped and not: the limit is fed, like every coefficient."""
    weights, batch = setting(kind, DEFAULT, 128)
    loss, stats = oracle(kind, DEFAULT, weights, batch)
    results: dict[tuple[str, float], Any] = {}
    norm = math.nan
    for mode in AVAILABLE:
        p = policy(kind, mode, DEFAULT)
        p.set_weights(weights)
        for limit in (math.inf, 0.05):
            p.set_coefficients(grad_clip=limit)
            results[mode_id(*mode), limit] = p.compute_gradients(batch)
        p.set_coefficients(grad_clip=math.inf)
    first = mode_id(*AVAILABLE[0])
    norm = global_norm(results[first, math.inf][0])
    assert norm > 0.1, "the limit is at work"
    for (mode, limit), (gradients, info) in results.items():
        for name, value in stats.items():
            assert info["learner_stats"][name] == pytest.approx(value, rel=1e-5, abs=2e-6), (mode, name)
        assert info["learner_stats"]["total_loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6), mode
        assert info["learner_stats"]["grad_gnorm"] == pytest.approx(norm, rel=1e-5), "the norm before clipping"
        assert global_norm(gradients) == pytest.approx(min(limit, norm), rel=1e-5), f"{mode}: norm after clipping"
        for key, gradient in results[first, limit][0].items():
            np.testing.assert_allclose(gradients[key], gradient, rtol=1e-5, atol=1e-6, err_msg=f"{mode}, {key}")
            unclipped = results[first, math.inf][0][key] * min(1.0, limit / norm)
            np.testing.assert_allclose(gradients[key], unclipped, rtol=2e-5, atol=1e-6, err_msg=f"{mode}, {key}")


# --- learning


@pytest.mark.parametrize(("kind", "grad_clip"), [("discrete", math.inf), ("multi_masked", math.inf), ("box", 0.3)])
def test_weights_agree_after_a_whole_iteration(kind, grad_clip):
    """30 epochs of minibatches on the default net, then two more updates with another rate, without NumPy."""
    weights, batch = setting(kind, DEFAULT, 96)
    rng = np.random.default_rng(0)
    indices = np.concatenate([rng.permutation(96).reshape(3, 32) for _ in range(30)]).astype(np.int32)
    found, optimizers, losses = {}, {}, {}
    for mode in AVAILABLE:
        p = policy(kind, mode, DEFAULT)
        first = p.get_state()
        p.set_weights(weights)
        p.set_coefficients(grad_clip=grad_clip)
        stats = p.learn_on_minibatches(batch, indices)
        p.set_coefficients(lr=1e-4, kl_coeff=0.3)
        p.learn_on_minibatches(batch, indices[:2, :20])
        found[mode], losses[mode] = p.get_weights(), stats["total_loss"]
        optimizers[mode] = p.get_state()["optimizer"]
        assert p.num_updates == len(indices) + 2
        p.set_state(first)
    reference = AVAILABLE[0]
    moved = max(np.abs(found[reference][key] - w).max() for key, w in weights.items())
    assert moved > 0.005, "the weights have moved by more than is compared"
    for mode in AVAILABLE[1:]:
        for key, w in found[reference].items():
            np.testing.assert_allclose(found[mode][key], w, rtol=0, atol=1e-5, err_msg=f"{mode}: {key}")
        for key, x in optimizers[reference].items():
            np.testing.assert_allclose(optimizers[mode][key], x, rtol=1e-3, atol=1e-5, err_msg=f"{mode}: {key}")
        np.testing.assert_allclose(losses[mode], losses[reference], rtol=1e-4, atol=1e-5, err_msg=str(mode))


def test_a_state_goes_on_in_any_mode():
    """Weights and optimizer of one mode continue in the others as in the first."""
    kind = "multi_masked"
    weights, batch = setting(kind, SMALL, 12)
    start = policy(kind, AVAILABLE[0], SMALL)
    start.set_weights(weights)
    for _ in range(3):
        start.learn_on_batch(batch)
    state = start.get_state()
    ends = {}
    for mode in AVAILABLE:
        p = policy(kind, mode, SMALL)
        p.set_state(state)
        for _ in range(3):
            p.learn_on_batch(batch)
        assert p.num_updates == 6
        ends[mode] = p.get_weights()
    for mode in AVAILABLE:
        for key, w in ends[AVAILABLE[0]].items():
            np.testing.assert_allclose(ends[mode][key], w, rtol=0, atol=1e-6, err_msg=f"{mode}: {key}")


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_the_first_adam_step_by_hand(framework, traced):
    """m = 0.1 g and v = 0.001 g^2, corrected to g and g^2: every weight moves by lr * g / (|g| + eps').

    eps is added to sqrt(v) before the correction: eps' = 1e-7 / sqrt(0.001).
    """
    p = policy("discrete", (framework, traced), SMALL)
    first = p.get_state()
    before = p.get_weights()
    rng = np.random.default_rng(0)
    gradients = {key: rng.standard_normal(w.shape).astype(F32) for key, w in before.items()}
    gradients["policy/000/bias"][:4] = [0.0, 1e-7, -1e-6, 1e-3]
    p.set_coefficients(lr=0.01)
    p.apply_gradients(gradients)
    for key, w in p.get_weights().items():
        g = gradients[key].astype(np.float64)
        step = 0.01 * g / (np.abs(g) + 1e-7 / math.sqrt(0.001))
        np.testing.assert_allclose(w - before[key], -step, rtol=1e-4, atol=1e-7, err_msg=key)
    p.set_state(first)


# --- acting


def acted(mode: tuple[str, bool], steps: int) -> tuple[list[int], list[float], int]:
    """CartPole-v1 with a policy of this mode: actions, log-probabilities, finished episodes."""
    p = make(mode, CARTPOLE, gym.spaces.Discrete(2), hiddens=DEFAULT, seed=11)
    weights = p.get_weights()
    weights["policy/002/kernel"] *= 100  # the first policy would be nearly all noise
    p.set_weights(weights)
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=4)
    actions, logps, episodes = [], [], 0
    for _ in range(steps):
        action, _, extras = p.compute_single_action(obs, full_fetch=True)
        actions.append(int(action))
        logps.append(float(extras["action_logp"]))
        obs, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            episodes += 1
            obs, _ = env.reset()
    env.close()
    p.close()
    return actions, logps, episodes


def test_discrete_actions_are_equal_for_a_hundred_steps():
    runs = {mode: acted(mode, 100) for mode in AVAILABLE}
    actions, logps, episodes = runs[AVAILABLE[0]]
    assert 0 < sum(actions) < 100 and episodes > 1 and np.std(logps) > 0.1, "the policy isn't trivial"
    for mode in AVAILABLE[1:]:
        assert runs[mode][0] == actions, mode
        np.testing.assert_allclose(runs[mode][1], logps, rtol=1e-5, atol=1e-6, err_msg=str(mode))


@pytest.mark.parametrize("kind", ["box", "box_shared", "multi_shared"])
def test_actions_agree_on_the_same_observations(kind):
    """Box to 1e-5, discrete exactly; one by one and as a batch."""
    weights, batch = setting(kind, DEFAULT, 100)
    outs = {}
    for mode in AVAILABLE:
        p = policy(kind, mode, DEFAULT)
        p.set_weights(weights)
        p.rng = np.random.default_rng(5)
        single = [p.compute_single_action(o) for o in batch["obs"][:30]]
        outs[mode] = (np.stack(single), p.compute_actions(batch["obs"]), p.compute_values(batch["obs"]))
    single, out, values = outs[AVAILABLE[0]]
    tolerance = {"rtol": 0, "atol": 1e-5 if kind.startswith("box") else 0}
    for mode in AVAILABLE[1:]:
        np.testing.assert_allclose(outs[mode][0], single, **tolerance, err_msg=str(mode))
        np.testing.assert_allclose(outs[mode][1].actions, out.actions, **tolerance, err_msg=str(mode))
        for name, x in out.extras.items():
            np.testing.assert_allclose(outs[mode][1].extras[name], x, rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(outs[mode][2], values, rtol=1e-5, atol=1e-6, err_msg=str(mode))


# --- clipping by global norm


@pytest.mark.parametrize("backend", [pytest.param("numpy"), *BACKENDS])
@pytest.mark.parametrize(
    ("x", "y", "limit", "norm", "scale"),
    [
        # ||(3, 0), (0, 4)|| = 5
        ([3, 0], [0, 4], 1.0, 5.0, 0.2),
        ([3, 0], [0, 4], 5.0, 5.0, 1.0),
        ([3, 0], [0, 4], 7.0, 5.0, 1.0),
        ([3, 0], [0, 4], math.inf, 5.0, 1.0),
        # Nothing to scale, and nothing to divide by.
        ([0, 0], [0, 0], 1.0, 0.0, 1.0),
        ([0, 0], [0, 0], math.inf, 0.0, 1.0),
        ([1e-14, 0], [0, 0], 1.0, 1e-14, 1.0),
        # Squares overflow: the norm is infinite, what was finite stays finite.
        ([1e20, 0], [0, 1e-3], math.inf, math.inf, 1.0),
        ([1e30, 0], [0, 1.0], 1.0, math.inf, 0.0),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_clip_by_global_norm(backend, x, y, limit, norm, scale):
    def f(ops, x, y, limit):
        (x, y), norm = clip_by_global_norm(ops, [x, y], limit)
        return ops.concat([x, y, ops.reshape(norm, (1,))])

    value = evaluate(backend, f, F32(x), F32(y), F32(limit))
    expected = [*(scale * v for v in x), *(scale * v for v in y), norm]
    np.testing.assert_allclose(value, F32(expected), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_no_grad_clip_is_no_limit(framework, traced):
    p = policy("discrete", (framework, traced), SMALL)
    assert p.config["grad_clip"] is None and p.coefficients["grad_clip"] == math.inf
