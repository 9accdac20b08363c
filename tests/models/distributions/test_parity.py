"""Every distribution in every backend: as NumPy has it, with NumPy's central differences as gradients."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_tf, needs_torch

from polylib.models.distributions import BoundDistribution, make_distribution
from polylib.models.spaces import leaves
from polylib.policy import numpy_ops
from polylib.utils.spaces import Simplex

F32, INF = np.float32, np.inf
S = gym.spaces
BOX = S.Box(F32([-2, 0]), F32([2, 10]))
NEST = S.Dict(
    {
        "move": S.Tuple([BOX, S.Discrete(3, start=5)]),
        "switch": S.MultiBinary(2),
        "gears": S.MultiDiscrete([3, 2], start=[5, 7]),
    }
)

KINDS = {
    "bernoulli": lambda: (S.MultiBinary([2, 2]), None),
    "squashed": lambda: (BOX, "SquashedGaussian"),
    "squashed_2d": lambda: (S.Box(-1, 3, (2, 1), np.float32), "SquashedGaussian"),
    "beta": lambda: (BOX, "Beta"),
    "dirichlet": lambda: (Simplex((3,)), None),
    "dirichlet_2d": lambda: (Simplex((2, 3)), None),
    "deterministic": lambda: (BOX, "Deterministic"),
    "product": lambda: (NEST, None),
    "product_on_host": lambda: (S.Tuple([Simplex((3,)), BOX, S.Discrete(3, start=2)]), "Beta"),
    "half_bounded": lambda: (S.Box(F32([-INF, 0]), F32([1, INF])), None),
}


def make(kind):
    space, custom = KINDS[kind]()
    return space, make_distribution(space, custom=custom)


def draw(dist, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    p, q = (0.7 * rng.standard_normal((rows, dist.inputs_size)).astype(F32) for _ in range(2))
    return p, q, *dist.draw(rng, p)


def columns(actions):
    """Actions as a list of arrays, and how to put them together again."""
    if isinstance(actions, dict):
        return list(actions.values()), lambda xs: dict(zip(actions, xs, strict=True))
    return [actions], lambda xs: xs[0]


def contained(space, actions):
    """Whether every row of every leaf is in the space."""
    flat = actions if isinstance(actions, dict) else {"actions": actions}
    parts = leaves(space, "actions")
    assert set(flat) == set(parts)
    for name, part in parts.items():
        assert flat[name].dtype == part.dtype, name
        assert all(part.contains(row) for row in flat[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(backend, kind):
    space, dist = make(kind)
    p, q, actions, raw, logp = draw(dist)
    arrays, together = columns(actions)
    raws = [] if raw is None else [raw]

    def everything(ops, p, q, *rest):
        taken, own = together(rest[: len(arrays)]), (rest[len(arrays)] if raws else None)
        return ops.stack([dist.logp(ops, p, taken, own), dist.entropy(ops, p), dist.kl(ops, p, q)])

    value, gradients = evaluate(backend, everything, p, q, *arrays, *raws, smooth=(0, 1))
    wanted, differences = evaluate("numpy", everything, p, q, *arrays, *raws, smooth=(0, 1))
    assert value.shape == (3, len(p)) and value.dtype == F32
    np.testing.assert_allclose(value, wanted, rtol=2e-5, atol=5e-6)
    np.testing.assert_allclose(value[0], logp, rtol=2e-5, atol=5e-6)
    for gradient, difference in zip(gradients, differences, strict=True):
        np.testing.assert_allclose(gradient, difference, rtol=2e-4, atol=5e-5)

    def terms(ops, p, q, *rest):
        taken, own = together(rest[: len(arrays)]), (rest[len(arrays)] if raws else None)
        logp, kl, entropy = dist.loss_terms(ops, p, q, taken, own)
        return ops.stack([logp, entropy, kl])

    value = evaluate(backend, terms, p, q, *arrays, *raws)
    np.testing.assert_allclose(value[:2], wanted[:2], rtol=2e-5, atol=5e-6)
    np.testing.assert_allclose(value[2], dist.kl(numpy_ops, q, p), rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("backend", [pytest.param("numpy"), *BACKENDS])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_agree_and_are_in_the_space(backend, kind):
    """From the same noise; zero noise, too."""
    space, dist = make(kind)
    inputs = 2 * np.random.default_rng(3).standard_normal((6, dist.inputs_size)).astype(F32)
    for noise in (dist.noise(np.random.default_rng(1), 6), dist.zero_noise(6)):
        assert noise.shape == (6, dist.noise_size) and noise.dtype == F32
        expected, raw = dist.sample(numpy_ops, inputs, noise)
        contained(space, expected)
        assert (raw is None) == (dist.raw_size == 0) and (raw is None or raw.shape == (6, dist.raw_size))
        names = list(expected) if isinstance(expected, dict) else [None]
        for name in names:

            def sampled(ops, x, z, name=name):
                actions = dist.sample(ops, x, z)[0]
                return actions if name is None else actions[name]

            got, wanted = evaluate(backend, sampled, inputs, noise), expected if name is None else expected[name]
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)
        if raw is not None:
            got = evaluate(backend, lambda ops, x, z: dist.sample(ops, x, z)[1], inputs, noise)
            np.testing.assert_allclose(got, raw, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_are_in_the_space_and_checked(kind):
    space, dist = make(kind)
    inputs = 3 * np.random.default_rng(4).standard_normal((300, dist.inputs_size)).astype(F32)
    actions, raw, logp = dist.draw(np.random.default_rng(2), inputs)
    contained(space, actions)
    dist.check_actions(actions)
    assert logp.shape == (300,) and np.isfinite(logp).all()
    assert (raw is None) == (dist.raw_size == 0)
    np.testing.assert_allclose(logp, dist.logp(numpy_ops, inputs, actions, raw), rtol=1e-6)
    again, _, _ = dist.draw(np.random.default_rng(2), inputs)
    for a, b in zip(columns(actions)[0], columns(again)[0], strict=True):
        np.testing.assert_array_equal(a, b)


def ops_of(name):
    import importlib

    return importlib.import_module("polylib.policy.numpy_ops" if name == "numpy" else f"polylib.policy.{name}.ops")


def as_numpy(x):
    if isinstance(x, dict):
        return {key: as_numpy(item) for key, item in x.items()}
    if isinstance(x, tuple):
        return tuple(map(as_numpy, x))
    return x.detach().numpy() if hasattr(x, "detach") else np.asarray(x)


NAMESPACES = ["numpy", pytest.param("tf", marks=needs_tf), pytest.param("torch", marks=needs_torch)]


@pytest.mark.parametrize("name", NAMESPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_bound_distributions(name, kind):
    """`policy.dist_class`: actions nested as the space, in the backend's own tensors."""
    space, dist = make(kind)
    ops = ops_of(name)
    p, q, _, _, _ = draw(dist)

    def bound(x, seed=9):
        return BoundDistribution(dist, ops, np.random.default_rng(seed), ops.constant(x))

    mine, other = bound(p), bound(q)
    for actions in (mine.sample(), mine.deterministic_sample()):
        nested = as_numpy(actions)
        rows = [index_rows(nested, i) for i in range(len(p))]
        assert all(space.contains(row) for row in rows)
        if "half" not in kind and "deter" not in kind:
            logp = as_numpy(mine.logp(actions))
            assert logp.shape == (len(p),) and np.isfinite(logp).all()
    expected = BoundDistribution(dist, numpy_ops, np.random.default_rng(9), p).sample()
    first = as_numpy(bound(p).sample())
    for a, b in zip(flat(first), flat(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(as_numpy(mine.entropy()), dist.entropy(numpy_ops, p), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(as_numpy(mine.kl(other)), dist.kl(numpy_ops, p, q), rtol=1e-4, atol=1e-5)
    if name != "numpy":
        assert not any(isinstance(x, np.ndarray) for x in flat(mine.sample()))


def index_rows(x, i):
    if isinstance(x, dict):
        return {key: index_rows(item, i) for key, item in x.items()}
    return tuple(index_rows(item, i) for item in x) if isinstance(x, tuple) else x[i]


def flat(x):
    if isinstance(x, dict | tuple):
        return [leaf for item in (x.values() if isinstance(x, dict) else x) for leaf in flat(item)]
    return [x]
