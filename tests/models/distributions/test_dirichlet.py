"""Dirichlet distributions of shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch

from polylib.errors import BatchError
from polylib.models.distributions import Dirichlet, make_distribution
from polylib.policy import numpy_ops
from polylib.utils.spaces import Simplex

F32, INF = np.float32, np.inf
ALL = [pytest.param("numpy"), *BACKENDS]


@pytest.mark.parametrize("backend", ALL)
def test_the_deterministic_action_is_the_mean(backend):
    """Of concentration [10, 1, 1]: its mode would be [1, 0, 0]."""
    dist = make_distribution(Simplex((3,)))
    inputs = np.log(F32([[10, 1, 1]]))
    mean = evaluate(backend, lambda ops, x: dist.sample(ops, x, None)[0], inputs)
    assert mean.dtype == F32
    np.testing.assert_allclose(mean, [[0.8333, 0.0833, 0.0833]], atol=5e-5)


@pytest.mark.parametrize("backend", ALL)
def test_by_hand(backend):
    """Concentration [1, 1, 1] is uniform, with density 2; [2, 1, 1] has density 6 x_0."""
    dist = Dirichlet((3,))
    flat, other = F32([[0, 0, 0]]), F32([[math.log(2), 0, 0]])
    assert evaluate(backend, dist.entropy, flat) == pytest.approx([-math.log(2)], rel=1e-6)
    actions = F32([[0.5, 0.2, 0.3]])
    assert evaluate(backend, dist.logp, flat, actions) == pytest.approx([math.log(2)], rel=1e-6)
    assert evaluate(backend, dist.logp, other, actions) == pytest.approx([math.log(3)], rel=1e-5)
    # KL = ln 2 - ln 6 - E[ln x_0], and E[ln x_0] = digamma(1) - digamma(3) = -3/2
    assert evaluate(backend, dist.kl, flat, other) == pytest.approx([1.5 - math.log(3)], rel=1e-5)


def draw(seed, scale=1.0, shape=(4,)):
    rng = np.random.default_rng(seed)
    dist = Dirichlet(shape)
    p, q = (scale * rng.standard_normal((6, dist.inputs_size)).astype(F32) for _ in range(2))
    return dist, p, q, *dist.draw(rng, p)


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_against_scipy(scale):
    stats = pytest.importorskip("scipy.stats")
    dist, p, q, actions, raw, logp = draw(0, scale)
    assert raw is None
    for row in range(len(p)):
        a = stats.dirichlet(np.exp(p[row].astype(np.float64)))
        share = actions[row].astype(np.float64) / actions[row].sum(dtype=np.float64)
        assert logp[row] == pytest.approx(a.logpdf(share), rel=1e-4, abs=1e-3)
        assert dist.entropy(numpy_ops, p)[row] == pytest.approx(a.entropy(), rel=1e-4, abs=1e-4)
        np.testing.assert_allclose(dist.sample(numpy_ops, p, None)[0][row], a.mean(), rtol=1e-5)


@needs_torch
def test_against_torch_distributions():
    import torch
    from torch import distributions as td

    dist, p, q, actions, _, logp = draw(1, shape=(2, 3))
    a, b = (td.Dirichlet(torch.tensor(x.reshape(-1, 2, 3)).exp()) for x in (p, q))
    np.testing.assert_allclose(logp, a.log_prob(torch.tensor(actions)).sum(-1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy().sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), td.kl_divergence(a, b).sum(-1), rtol=1e-4, atol=1e-5)


def test_against_tensorflow_probability():
    tfd = pytest.importorskip("tensorflow_probability", exc_type=ImportError).distributions
    dist, p, q, actions, _, logp = draw(2)
    a, b = (tfd.Dirichlet(np.exp(x)) for x in (p, q))
    np.testing.assert_allclose(logp, a.log_prob(actions), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), a.kl_divergence(b), rtol=1e-4, atol=1e-5)


def test_samples():
    """A share's marginal is Beta(its concentration, the sum of the others)."""
    stats = pytest.importorskip("scipy.stats")
    dist, draws, concentration = Dirichlet((3,)), 20_000, np.array([0.5, 2.0, 5.0])
    inputs = np.repeat(np.log(concentration)[None].astype(F32), draws, 0)
    actions, _, _ = dist.draw(np.random.default_rng(3), inputs)
    for i, c in enumerate(concentration):
        assert stats.kstest(actions[:, i], stats.beta(c, concentration.sum() - c).cdf).pvalue > 0.01
    again, _, _ = dist.draw(np.random.default_rng(3), inputs)
    np.testing.assert_array_equal(actions, again)


@pytest.mark.parametrize("x", [-INF, -100.0, -5.0, 6.0, 100.0, INF])
def test_extreme_samples_are_contained_and_have_a_likelihood(x):
    space = Simplex((2, 5))
    dist = make_distribution(space)
    actions, _, logp = dist.draw(np.random.default_rng(0), np.full((500, 10), x, F32))
    assert all(space.contains(a) for a in actions) and np.isfinite(logp).all()
    dist.check_actions(actions)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("x", [-INF, -100.0, -5.0, 6.0, 100.0, INF])
def test_extreme_inputs(backend, x):
    dist = Dirichlet((3,))
    inputs, other = F32([[x, -x, x]]), F32([[0, 1, 2]])
    corner = F32([[1, 0, 0]])
    for f in (
        lambda ops, x: dist.logp(ops, x, ops.constant(corner)),
        dist.entropy,
        lambda ops, x: dist.kl(ops, x, ops.constant(other)),
        lambda ops, x: dist.kl(ops, ops.constant(other), x),
    ):
        value, (gradient,) = evaluate(backend, f, inputs, smooth=(0,))
        assert np.isfinite(value).all() and np.isfinite(gradient).all()


def test_actions_are_checked():
    dist = Dirichlet((2,))
    dist.check_actions(F32([[0.5, 0.5], [0, 1]]))
    for wrong in ([0.5, 0.4], [1.2, -0.2], [np.nan, 1]):
        with pytest.raises(BatchError, match="'actions': row 1 holds .*expected shares of at least 0 that sum to 1"):
            dist.check_actions(F32([[0.5, 0.5], wrong]))


def test_nan_in_inputs_is_seen_in_the_likelihood():
    _, _, logp = Dirichlet((2,)).draw(np.random.default_rng(0), F32([[0, np.nan], [0, 0]]))
    assert np.isnan(logp[0]) and np.isfinite(logp[1])
