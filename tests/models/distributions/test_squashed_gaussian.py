"""Normals squashed by tanh into bounds."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch

from polylib.errors import EnvError
from polylib.models.distributions import DiagGaussian, SquashedGaussian
from polylib.policy import numpy_ops

F32, INF = np.float32, np.inf
ALL = [pytest.param("numpy"), *BACKENDS]
UNIT = gym.spaces.Box(-1, 1, (1,), np.float32)
WIDE = gym.spaces.Box(F32([-2, 0]), F32([2, 10]))


def integrate(y, x):
    return (getattr(np, "trapezoid", None) or np.trapz)(y, x)  # NumPy 1 has the other name


@pytest.mark.parametrize("mean, log_std", [(0.2, -0.5), (-1.0, 0.0), (0.0, -3.0)])
def test_the_density_integrates_to_one_over_the_range(mean, log_std):
    """In the environment's units: the slope of the range counts."""
    dist = SquashedGaussian(gym.spaces.Box(-2, 2, (1,), np.float64))
    grid = 2 * np.tanh(np.linspace(-7, 7, 40001))  # dense where tanh is flat
    inputs = np.repeat([[mean, log_std]], len(grid), 0)
    logp = dist.logp(numpy_ops, inputs, grid[:, None], np.arctanh(grid / 2)[:, None])
    assert integrate(np.exp(logp), grid) == pytest.approx(1.0, abs=1e-4)
    without_raw = dist.logp(numpy_ops, inputs, grid[:, None])
    assert integrate(np.exp(without_raw), grid) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("backend", ALL)
def test_far_out_the_raw_sample_keeps_the_likelihood(backend):
    """ln N(8; 8, e^-2) = -0.9189 + 2; ln(1 - tanh(8)^2) = 2 (ln 2 - 8 - softplus(-16)) = -14.6137. Together 15.695."""
    dist = SquashedGaussian(UNIT)
    inputs, noise = F32([[8, -2]]), dist.zero_noise(1)
    actions, raw = (
        evaluate(backend, lambda ops, x, z, i=i: dist.sample(ops, x, z)[i], inputs, noise) for i in (0, 1)
    )
    assert raw.tolist() == [[8.0]] and actions[0, 0] == pytest.approx(1, abs=1e-6)
    logp = evaluate(backend, dist.logp, inputs, actions, raw)
    assert logp == pytest.approx([15.695], abs=1e-3)


@pytest.mark.parametrize("backend", ALL)
def test_logged_actions_near_and_on_the_bounds(backend):
    """Without the raw sample: finite on the bound, close to the density elsewhere."""
    dist = SquashedGaussian(UNIT)
    actions = F32([[1.0], [-1.0], [1 - 1e-6], [np.tanh(7)], [np.tanh(6)], [np.tanh(-4)], [0.3]])
    inputs = np.repeat(F32([[8, -2]]), len(actions), 0)
    logp = evaluate(backend, dist.logp, inputs, actions)
    assert np.isfinite(logp).all()
    exact = np.arctanh(actions[3:].astype(np.float64))
    expected = dist.logp(numpy_ops, inputs[3:].astype(np.float64), actions[3:], exact)
    np.testing.assert_allclose(logp[3:], expected, atol=0.2, rtol=1e-4)
    # The bound counts as 1 - 1e-6: atanh is 7.2543 there.
    assert logp[0] == pytest.approx(logp[2], abs=1e-3)
    z = (7.2543 - 8) / math.exp(-2)
    slope = math.log(1 - (1 - 1e-6) ** 2)
    assert logp[0] == pytest.approx(-0.5 * math.log(2 * math.pi) + 2 - 0.5 * z * z - slope, abs=0.4)


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("log_std, clamped", [(100.0, 2.0), (-100.0, -20.0), (INF, 2.0), (-INF, -20.0)])
def test_log_std_is_clamped(backend, log_std, clamped):
    dist = SquashedGaussian(WIDE)
    inputs, within = F32([[0.1, -0.2, log_std, log_std]]), F32([[0.1, -0.2, clamped, clamped]])
    actions, noise, other = F32([[1.0, 3.0]]), F32([[0.3, -1.2]]), F32([[0, 0, 0, 0]])

    def everything(ops, inputs, other, actions, noise):
        sample, raw = dist.sample(ops, inputs, noise)
        rest = dist.logp(ops, inputs, actions), dist.logp(ops, inputs, sample, raw), dist.entropy(ops, inputs)
        return ops.stack([ops.sum(sample, -1), *rest, dist.kl(ops, inputs, other)])

    value = evaluate(backend, everything, inputs, other, actions, noise)
    assert np.isfinite(value).all()
    np.testing.assert_array_equal(value, evaluate(backend, everything, within, other, actions, noise))
    if backend != "numpy":
        for f in (dist.entropy, lambda ops, x: dist.logp(ops, x, ops.constant(actions))):
            _, (gradient,) = evaluate(backend, f, inputs, smooth=(0,))
            assert np.isfinite(gradient).all() and not gradient[0, 2:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mean", [-1e6, -30.0, 30.0, 1e6])
def test_extreme_means(backend, mean):
    dist = SquashedGaussian(UNIT)
    inputs, noise = F32([[mean, 0.5]]), F32([[0.7]])

    def drawn(ops, x, z):
        # As a loss has it: the sample is data, without a gradient.
        actions, raw = dist.sample(ops, x, z)
        return dist.logp(ops, x, ops.stop_gradient(actions), ops.stop_gradient(raw))

    for f in (drawn, lambda ops, x, z: dist.entropy(ops, x), lambda ops, x, z: dist.kl(ops, x, ops.zeros_like(x))):
        value, (gradient,) = evaluate(backend, f, inputs, noise, smooth=(0,))
        assert np.isfinite(value).all() and np.isfinite(gradient).all()
    # log(1 - tanh^2) is 2 ln 2 - 2 |mean| there.
    entropy = evaluate(backend, dist.entropy, inputs)
    expected = 0.5 * math.log(2 * math.pi * math.e) + 0.5 + 2 * math.log(2) - 2 * abs(mean)
    assert entropy == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("mean, log_std", [(0.0, -5.0), (0.2, -0.5), (-2.0, 0.5), (0.0, 1.0), (3.0, 2.0), (0.3, 2.0)])
def test_entropy_is_minus_the_mean_log_density(mean, log_std):
    """To 0.005 nats, by an integral over a fine grid."""
    dist = SquashedGaussian(gym.spaces.Box(-2, 2, (1,), np.float64))
    z = np.linspace(-8, 8, 100_001)
    raw = (mean + math.exp(log_std) * z)[:, None]
    inputs = np.repeat([[mean, log_std]], len(z), 0)
    logp = dist.logp(numpy_ops, inputs, 2 * np.tanh(raw), raw)
    expected = -integrate(logp * np.exp(-0.5 * z**2), z) / math.sqrt(2 * math.pi)
    assert dist.entropy(numpy_ops, inputs[:1])[0] == pytest.approx(expected, abs=0.005)


def test_samples_fill_the_bounds_and_never_leave_them():
    stats = pytest.importorskip("scipy.stats")
    dist, draws = SquashedGaussian(WIDE), 20_000
    inputs = np.repeat(F32([[0.4, -0.3, -0.7, 0.2]]), draws, 0)
    actions, raw = dist.sample(numpy_ops, inputs, dist.noise(np.random.default_rng(5), draws))
    assert all(WIDE.contains(x) for x in actions)
    for i, (low, width) in enumerate([(-2, 4), (0, 10)]):
        mean, std = inputs[0, i], math.exp(inputs[0, 2 + i])

        def cdf(x, mean=mean, std=std, low=low, width=width):
            return stats.norm(mean, std).cdf(np.arctanh(np.clip(2 * (x - low) / width - 1, -1 + 1e-7, 1 - 1e-7)))

        assert stats.kstest(actions[:, i], cdf).pvalue > 0.01
    far, _ = dist.sample(numpy_ops, F32([[99, -99, 2, 2]]), dist.zero_noise(1))
    assert far.tolist() == [[2, 0]] and WIDE.contains(far[0])


def test_bounds_that_float32_doesnt_have():
    space = gym.spaces.Box(np.array([0.1]), np.array([0.7]), dtype=np.float64)
    actions, _ = SquashedGaussian(space).sample(numpy_ops, F32([[50, 0], [-50, 0]]), np.zeros((2, 1), F32))
    assert all(space.contains(x.astype(np.float64)) for x in actions)


def draw(seed):
    rng = np.random.default_rng(seed)
    dist = SquashedGaussian(WIDE)
    p, q = (0.6 * rng.standard_normal((5, 4)).astype(F32) for _ in range(2))
    actions, raw = dist.sample(numpy_ops, p, dist.noise(rng, 5))
    return dist, p, q, actions, raw


@needs_torch
@pytest.mark.parametrize("seed", range(2))
def test_against_torch_distributions(seed):
    import torch
    from torch import distributions as td

    dist, p, q, actions, raw = draw(seed)
    a, b = (td.Normal(torch.tensor(x[:, :2]), torch.tensor(x[:, 2:]).exp()) for x in (p, q))
    affine = td.AffineTransform(torch.tensor(dist.shift), torch.tensor(dist.scale))
    squashed = td.TransformedDistribution(a, [td.TanhTransform(cache_size=1), affine])
    expected = squashed.log_prob(torch.tensor(actions)).sum(-1)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions, raw), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), td.kl_divergence(a, b).sum(-1), rtol=1e-5)


def test_against_tensorflow_probability():
    tfp = pytest.importorskip("tensorflow_probability", exc_type=ImportError)
    tfd, tfb = tfp.distributions, tfp.bijectors
    dist, p, q, actions, raw = draw(3)
    chain = tfb.Chain([tfb.Shift(dist.shift), tfb.Scale(dist.scale), tfb.Tanh()])
    a = tfd.TransformedDistribution(tfd.Normal(p[:, :2], np.exp(p[:, 2:])), chain)
    expected = a.log_prob(actions).numpy().sum(-1)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions, raw), expected, rtol=1e-4, atol=1e-4)
    kl = tfd.Normal(p[:, :2], np.exp(p[:, 2:])).kl_divergence(tfd.Normal(q[:, :2], np.exp(q[:, 2:])))
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), kl.numpy().sum(-1), rtol=1e-5)


def test_kl_of_likelihoods():
    """E[log p - log q] over a grid of samples: squashing changes nothing."""
    dist = SquashedGaussian(gym.spaces.Box(-2, 2, (1,), np.float64))
    z = np.linspace(-9, 9, 50_001)
    p, q = np.array([[0.3, -0.5]]), np.array([[-0.4, 0.1]])
    raw = (0.3 + math.exp(-0.5) * z)[:, None]
    log_p, log_q = (dist.logp(numpy_ops, np.repeat(x, len(z), 0), 2 * np.tanh(raw), raw) for x in (p, q))
    expected = integrate((log_p - log_q) * np.exp(-0.5 * z**2), z) / math.sqrt(2 * math.pi)
    assert dist.kl(numpy_ops, p, q)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("low, high", [(-INF, INF), (-1, INF), (-INF, 1), (2, 2)])
def test_it_needs_bounds(low, high):
    with pytest.raises(EnvError, match="SquashedGaussian needs finite bounds with low < high in every dimension"):
        SquashedGaussian(gym.spaces.Box(F32([-1, low]), F32([1, high])))
    DiagGaussian(gym.spaces.Box(F32([-1, low]), F32([1, high])))
