"""Independent bits."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch

from polylib.errors import BatchError
from polylib.models.distributions import Bernoulli, make_distribution
from polylib.policy import numpy_ops

F32 = np.float32
ALL = [pytest.param("numpy"), *BACKENDS]
INF = np.inf


@pytest.mark.parametrize("backend", ALL)
def test_by_hand(backend):
    """P(1) = 3/4 and 1/2."""
    dist = Bernoulli((2,))
    p, q = F32([[math.log(3), 0]]), F32([[0, math.log(3)]])
    actions = np.array([[1, 0], [0, 1]], np.int8)
    logp = evaluate(backend, dist.logp, np.repeat(p, 2, 0), actions)
    assert logp == pytest.approx([math.log(0.75 * 0.5), math.log(0.25 * 0.5)], rel=1e-6)
    h = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    assert evaluate(backend, dist.entropy, p) == pytest.approx([h + math.log(2)], rel=1e-6)
    kl = (math.log(2) - h) + (0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert evaluate(backend, dist.kl, p, q) == pytest.approx([kl], rel=1e-5)


@pytest.mark.parametrize("backend", ALL)
def test_zero_noise_gives_the_mode_and_samples_are_int8(backend):
    space = gym.spaces.MultiBinary([2, 2])
    dist = make_distribution(space)
    inputs = F32([[3, -3, 0.1, -0.1], [-50, 50, -INF, INF]])
    for noise in (dist.zero_noise(2), dist.noise(np.random.default_rng(0), 2)):
        bits = evaluate(backend, lambda ops, x, z: dist.sample(ops, x, z)[0], inputs, noise)
        assert bits.dtype == np.int8 and all(space.contains(x) for x in bits)
        if not noise.any():
            assert bits.tolist() == [[[1, 0], [1, 0]], [[0, 1], [0, 1]]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("logit", [-INF, -1e9, -200.0, -20.0, 20.0, 200.0, 1e9, INF])
def test_extreme_logits(backend, logit):
    dist = Bernoulli((1,))
    p, q = F32([[logit]]), F32([[0.5]])
    on = np.ones((1, 1), np.int8)
    for name, f in {
        "logp": lambda ops, x: dist.logp(ops, x, ops.constant(on)),
        "logp off": lambda ops, x: dist.logp(ops, x, ops.constant(1 - on)),
        "entropy": dist.entropy,
        "kl": lambda ops, x: dist.kl(ops, x, ops.constant(q)),
        "kl to it": lambda ops, x: dist.kl(ops, ops.constant(q), x),
        "kl to itself": lambda ops, x: dist.kl(ops, x, x),
    }.items():
        value, (gradient,) = evaluate(backend, f, p, smooth=(0,))
        assert np.isfinite(value).all() and np.isfinite(gradient).all(), name
    likely = 1 if logit > 0 else 0
    tail = evaluate(backend, lambda ops, x: dist.logp(ops, x, ops.constant(on * likely)), p)
    assert tail == pytest.approx([-math.exp(-abs(logit))], rel=1e-5), "the tail isn't lost to rounding"


@pytest.mark.parametrize("backend", ALL)
def test_a_masked_bit_stays_off(backend):
    dist = Bernoulli((3,))
    mask = np.tile([True, False, True], (1000, 1))
    inputs = np.full((1000, 3), 5, F32)
    noise = dist.noise(np.random.default_rng(0), 1000)
    bits = evaluate(backend, lambda ops, x, m, z: dist.sample(ops, dist.mask(ops, x, m), z)[0], inputs, mask, noise)
    assert not bits[:, 1].any() and bits[:, [0, 2]].mean() > 0.9
    two = evaluate(backend, lambda ops, x, m: dist.entropy(ops, dist.mask(ops, x, m)), inputs[:1], mask[:1])
    assert two == pytest.approx(evaluate(backend, Bernoulli((2,)).entropy, inputs[:1, :2]), rel=1e-6)


def test_masks_and_actions_are_checked():
    dist = Bernoulli((2,))
    dist.check_mask(np.zeros((2, 2), bool))
    assert dist.mask(numpy_ops, "inputs", None) == "inputs"
    dist.check_actions(np.array([[0, 1], [1, 1]], np.int8))
    with pytest.raises(BatchError, match="'actions': row 1 holds 2, expected 0 or 1"):
        dist.check_actions(np.array([[0, 1], [1, 2]], np.int8))


def test_frequencies():
    p, draws = np.array([0.1, 0.5, 0.9]), 40_000
    dist = Bernoulli((3,))
    inputs = np.repeat(np.log(p / (1 - p))[None].astype(F32), draws, 0)
    bits, _ = dist.sample(numpy_ops, inputs, dist.noise(np.random.default_rng(1), draws))
    assert np.all(np.abs(bits.mean(0) - p) < 4 * np.sqrt(p * (1 - p) / draws))
    assert abs(np.corrcoef(bits.T)[0, 1]) < 4 / math.sqrt(draws), "bits are independent"


def draw(seed):
    rng = np.random.default_rng(seed)
    p, q = (2 * rng.standard_normal((6, 4)).astype(F32) for _ in range(2))
    return p, q, rng.integers(0, 2, (6, 4)).astype(np.int8)


@pytest.mark.parametrize("seed", range(2))
def test_against_scipy(seed):
    stats, special = pytest.importorskip("scipy.stats"), pytest.importorskip("scipy.special")
    p, q, bits = draw(seed)
    dist, a, b = Bernoulli((4,)), stats.bernoulli(special.expit(p)), stats.bernoulli(special.expit(q))
    np.testing.assert_allclose(dist.logp(numpy_ops, p, bits), a.logpmf(bits).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().sum(-1), rtol=1e-5)
    kl = sum(a.pmf(k) * (a.logpmf(k) - b.logpmf(k)) for k in (0, 1)).sum(-1)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), kl, rtol=1e-4, atol=1e-6)


@needs_torch
def test_against_torch_distributions():
    import torch
    from torch import distributions as td

    p, q, bits = draw(3)
    dist, a, b = Bernoulli((4,)), td.Bernoulli(logits=torch.tensor(p)), td.Bernoulli(logits=torch.tensor(q))
    logp = a.log_prob(torch.tensor(bits, dtype=torch.float32)).sum(-1)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, bits), logp, rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().sum(-1), rtol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), td.kl_divergence(a, b).sum(-1), rtol=1e-4)


def test_against_tensorflow_probability():
    tfd = pytest.importorskip("tensorflow_probability", exc_type=ImportError).distributions
    p, q, bits = draw(4)
    dist, a, b = Bernoulli((4,)), tfd.Bernoulli(p), tfd.Bernoulli(q)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, bits), a.log_prob(bits).numpy().sum(-1), rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().numpy().sum(-1), rtol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), a.kl_divergence(b).numpy().sum(-1), rtol=1e-4)
