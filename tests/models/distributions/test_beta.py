"""Beta distributions over bounds."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch

from polylib.errors import EnvError
from polylib.models.distributions import Beta
from polylib.policy import numpy_ops

F32, INF = np.float32, np.inf
ALL = [pytest.param("numpy"), *BACKENDS]
WIDE = gym.spaces.Box(F32([-2, 0]), F32([2, 10]))
# softplus of it is 1 and 2: alpha and beta of 2 and 3
ONE, TWO = math.log(math.e - 1), math.log(math.e**2 - 1)


@pytest.mark.parametrize("backend", ALL)
def test_by_hand(backend):
    """Beta(2, 3) on [0, 10]: density 12 x (1 - x)^2 / 10 with x = action / 10; its mean is 2/5."""
    dist = Beta(gym.spaces.Box(0, 10, (1,), np.float32))
    inputs = F32([[ONE, TWO]])
    logp = evaluate(backend, dist.logp, np.repeat(inputs, 2, 0), F32([[5], [2]]))
    assert logp == pytest.approx([math.log(12 * 0.125 / 10), math.log(12 * 0.2 * 0.64 / 10)], rel=1e-5)
    mean = evaluate(backend, lambda ops, x: dist.sample(ops, x, None)[0], inputs)
    assert mean.dtype == F32 and mean == pytest.approx(F32([[4.0]]), rel=1e-6)
    # Beta(1, 1), in the limit, is the uniform distribution.
    flat = F32([[-INF, -INF]])
    assert evaluate(backend, dist.entropy, flat) == pytest.approx([math.log(10)], rel=1e-6)
    assert evaluate(backend, dist.logp, flat, F32([[3]])) == pytest.approx([-math.log(10)], rel=1e-6)
    # KL(uniform, Beta(2, 3)) = -E[log 12 x (1 - x)^2] = -ln 12 + 1 + 2
    assert evaluate(backend, dist.kl, flat, inputs) == pytest.approx([3 - math.log(12)], rel=1e-5)
    assert evaluate(backend, dist.kl, inputs, inputs) == pytest.approx([0], abs=1e-6)


def concentrations(x):
    both = np.logaddexp(0, x.astype(np.float64)) + 1
    return both[:, :2], both[:, 2:]


def draw(seed, scale=2.0):
    rng = np.random.default_rng(seed)
    p, q = (scale * rng.standard_normal((6, 4)).astype(F32) for _ in range(2))
    dist = Beta(WIDE)
    return dist, p, q, *dist.draw(rng, p)


@pytest.mark.parametrize("scale", [2.0, 30.0])
def test_against_scipy(scale):
    stats = pytest.importorskip("scipy.stats")
    dist, p, q, actions, raw, logp = draw(0, scale)
    a = stats.beta(*concentrations(p), loc=[-2, 0], scale=[4, 10])
    expected = a.logpdf(actions.astype(np.float64)).sum(-1)
    np.testing.assert_allclose(logp, expected, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions), expected, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().sum(-1), rtol=1e-4, atol=1e-4)
    mean, _ = dist.sample(numpy_ops, p, None)
    np.testing.assert_allclose(mean, a.mean(), rtol=1e-5, atol=1e-5)


@needs_torch
def test_against_torch_distributions():
    import torch
    from torch import distributions as td

    dist, p, q, actions, raw, logp = draw(1)
    a, b = (td.Beta(*map(torch.tensor, concentrations(x))) for x in (p, q))
    width = math.log(4) + math.log(10)
    np.testing.assert_allclose(logp, a.log_prob(torch.tensor(raw)).sum(-1) - width, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().sum(-1) + width, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), td.kl_divergence(a, b).sum(-1), rtol=1e-4, atol=1e-5)


def test_against_tensorflow_probability():
    tfd = pytest.importorskip("tensorflow_probability", exc_type=ImportError).distributions
    dist, p, q, actions, raw, logp = draw(2)
    a, b = (tfd.Beta(*concentrations(x)) for x in (p, q))
    width = math.log(4) + math.log(10)
    log_prob = a.log_prob(raw.astype(np.float64)).numpy().sum(-1) - width
    np.testing.assert_allclose(logp, log_prob, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().numpy().sum(-1) + width, rtol=1e-4, atol=1e-5)
    kl = a.kl_divergence(b).numpy().sum(-1)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), kl, rtol=1e-4, atol=1e-5)


def test_samples():
    stats = pytest.importorskip("scipy.stats")
    dist, draws = Beta(WIDE), 20_000
    inputs = np.repeat(F32([[0.5, 3, 2, -1]]), draws, 0)
    actions, raw, _ = dist.draw(np.random.default_rng(8), inputs)
    assert actions.dtype == raw.dtype == F32 and all(WIDE.contains(x) for x in actions)
    alpha, beta = concentrations(inputs[:1])
    for i in range(2):
        assert stats.kstest(raw[:, i], stats.beta(alpha[0, i], beta[0, i]).cdf).pvalue > 0.01
    np.testing.assert_allclose(actions, raw * [4, 10] + [-2, 0], atol=1e-5)
    again, _, _ = dist.draw(np.random.default_rng(8), inputs)
    np.testing.assert_array_equal(actions, again)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("x", [-INF, -1e30, -100.0, 100.0, 1e30, INF])
def test_extreme_inputs(backend, x):
    dist = Beta(WIDE)
    inputs, other = F32([[x, x, -x, x]]), F32([[0, 1, 2, 3]])
    actions, raw, logp = dist.draw(np.random.default_rng(0), inputs)
    assert np.isfinite(logp).all() and WIDE.contains(actions[0])
    for bound in (actions, WIDE.low[None], WIDE.high[None]):
        for f in (
            lambda ops, x, bound=bound: dist.logp(ops, x, ops.constant(bound)),
            dist.entropy,
            lambda ops, x: dist.kl(ops, x, ops.constant(other)),
            lambda ops, x: dist.kl(ops, ops.constant(other), x),
        ):
            value, (gradient,) = evaluate(backend, f, inputs, smooth=(0,))
            assert np.isfinite(value).all() and np.isfinite(gradient).all()


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_in_inputs_is_seen_in_the_likelihood():
    _, _, logp = Beta(WIDE).draw(np.random.default_rng(0), F32([[0, np.nan, 0, 0], [0, 0, 0, 0]]))
    assert np.isnan(logp[0]) and np.isfinite(logp[1])


def test_it_needs_bounds():
    with pytest.raises(EnvError, match="Beta needs finite bounds"):
        Beta(gym.spaces.Box(-INF, 1, (2,), np.float32))
