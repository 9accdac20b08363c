"""TensorFlow Probability's and torch's distributions as `custom_action_dist`."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from backends import RUNNERS, Case, needs_torch

from polylib.errors import ConfigError, EnvError, FrameworkError
from polylib.models.distributions import BoundDistribution, framework_distribution, make_distribution
from polylib.policy import numpy_ops
from polylib.utils.spaces import Simplex

F32, INF = np.float32, np.inf
S = gym.spaces
BOX = S.Box(F32([-2, 0]), F32([2, 10]))
needs_tfp = pytest.mark.skipif(not importlib.util.find_spec("tensorflow_probability"), reason="needs TFP")
FRAMEWORKS = [pytest.param("tf", marks=needs_tfp), pytest.param("torch", marks=needs_torch)]
BACKENDS = [
    *[pytest.param(name, "tf", marks=needs_tfp) for name in ("eager", "function", "graph")],
    pytest.param("torch", "torch", marks=needs_torch),
]


def tfp_normal(x):
    import tensorflow as tf
    import tensorflow_probability as tfp

    return tfp.distributions.Normal(x[:, :2], tf.exp(x[:, 2:]))


def tfp_diag(x):
    import tensorflow as tf
    import tensorflow_probability as tfp

    return tfp.distributions.MultivariateNormalDiag(x[:, :2], tf.exp(x[:, 2:]))


def torch_normal(x):
    import torch

    return torch.distributions.Normal(x[:, :2], x[:, 2:].exp())


def torch_diag(x):
    import torch

    return torch.distributions.Independent(torch_normal(x), 1)


def tfp_of(name, **kwargs):
    def factory(x):
        import tensorflow_probability as tfp

        return getattr(tfp.distributions, name)(x, **kwargs)

    return factory


def torch_of(name, keyword):
    def factory(x):
        import torch

        return getattr(torch.distributions, name)(**{keyword: x})

    return factory


NORMALS = {"tf": [tfp_normal, tfp_diag], "torch": [torch_normal, torch_diag]}
CATEGORICAL = {"tf": tfp_of("Categorical"), "torch": torch_of("Categorical", "logits")}
BERNOULLI = {"tf": tfp_of("Bernoulli"), "torch": torch_of("Bernoulli", "logits")}


def inputs(rows=5, size=4, seed=0):
    return 0.5 * np.random.default_rng(seed).standard_normal((rows, size)).astype(F32)


@pytest.mark.parametrize(("backend", "framework"), BACKENDS)
@pytest.mark.parametrize("which", [0, 1], ids=["per dimension", "per row"])
def test_a_normal_is_our_own_normal(backend, framework, which):
    """Likelihood, entropy, KL, all terms at once, and gradients, in the environment's units."""
    dist = make_distribution(BOX, custom=framework_distribution(NORMALS[framework][which], 4), framework=framework)
    own = make_distribution(BOX)
    assert dist.on_host and (dist.inputs_size, dist.noise_size, dist.raw_size) == (4, 0, 2)
    p, q = inputs(), inputs(seed=1)
    actions, raw, logp = dist.draw(np.random.default_rng(0), p)

    def everything(dist):
        def f(ops, p, q, actions, raw):
            terms = dist.loss_terms(ops, p, q, actions, raw)
            return ops.stack([dist.logp(ops, p, actions, raw), dist.entropy(ops, p), dist.kl(ops, p, q), *terms])

        return f

    arrays = (p, q, actions, raw)
    value, gradients = RUNNERS[backend](Case(everything(dist), arrays, (0, 1)))
    expected, wanted = RUNNERS[backend](Case(everything(own), arrays, (0, 1)))
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(value[0], logp, rtol=1e-5, atol=1e-6)
    for a, b in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    mean, _ = RUNNERS[backend](Case(lambda ops, x: dist.sample(ops, x, None)[0], (p,)))
    np.testing.assert_allclose(mean, own.sample(numpy_ops, p, own.zero_noise(5))[0], rtol=1e-6, atol=1e-6)
    # The oracle's side of it.
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), own.entropy(numpy_ops, p), rtol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), own.kl(numpy_ops, p, q), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions, raw), logp, rtol=1e-6)
    for a, b in zip(dist.loss_terms(numpy_ops, p, q, actions, raw), expected[3:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_draws_follow_the_generator_alone(framework):
    dist = make_distribution(BOX, custom=framework_distribution(NORMALS[framework][0], 4), framework=framework)
    p = np.repeat(inputs(1), 20_000, 0)
    first, raw, _ = dist.draw(np.random.default_rng(3), p)
    if framework == "torch":
        import torch

        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
    again, _, _ = dist.draw(np.random.default_rng(3), p)
    if framework == "torch":
        assert torch.equal(torch.rand(3), expected), "torch's own generator moved"
    np.testing.assert_array_equal(first, again)
    rng = np.random.default_rng(3)
    dist.draw(rng, p)
    assert not np.array_equal(dist.draw(rng, p)[0], first), "the next draw is another"
    assert first.dtype == raw.dtype == F32 and all(BOX.contains(x) for x in first)
    stats = pytest.importorskip("scipy.stats")
    for i in range(2):
        assert stats.kstest(raw[:, i], stats.norm(p[0, i], np.exp(p[0, 2 + i])).cdf).pvalue > 0.01


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_discrete_spaces_count_from_their_start(framework):
    space = S.Discrete(3, start=5)
    dist = make_distribution(space, custom=framework_distribution(CATEGORICAL[framework], 3), framework=framework)
    own, x = make_distribution(space), inputs(500, 3)
    actions, raw, logp = dist.draw(np.random.default_rng(0), x)
    assert raw is None and actions.dtype == np.int64 and set(actions.tolist()) == {5, 6, 7}
    np.testing.assert_allclose(logp, own.logp(numpy_ops, x, actions), rtol=1e-5)
    best, _ = dist.sample(numpy_ops, x, None)
    np.testing.assert_array_equal(best, own.sample(numpy_ops, x, own.zero_noise(500))[0])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bits_and_shares(framework):
    bits = S.MultiBinary(2)
    dist = make_distribution(bits, custom=framework_distribution(BERNOULLI[framework], 2), framework=framework)
    x = inputs(50, 2)
    actions, _, logp = dist.draw(np.random.default_rng(0), x)
    assert actions.dtype == np.int8 and all(bits.contains(a) for a in actions)
    np.testing.assert_allclose(logp, make_distribution(bits).logp(numpy_ops, x, actions), rtol=1e-5)

    def shares(x):
        if framework == "tf":
            import tensorflow as tf
            import tensorflow_probability as tfp

            return tfp.distributions.Dirichlet(tf.exp(x))
        import torch

        return torch.distributions.Dirichlet(x.exp())

    space = Simplex((3,))
    # The size may follow from the space.
    dist = make_distribution(space, custom=framework_distribution(shares, lambda s: s.shape[-1]), framework=framework)
    x = inputs(50, 3)
    actions, _, logp = dist.draw(np.random.default_rng(0), x)
    assert all(space.contains(a) for a in actions)
    np.testing.assert_allclose(logp, make_distribution(space).logp(numpy_ops, x, actions), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_a_mode_the_mean(framework):
    if framework == "tf":

        def factory(x):
            import tensorflow_probability as tfp

            tfd = tfp.distributions
            return tfd.MixtureSameFamily(tfd.Categorical([0.0, 0.0]), tfd.Normal(x[:, :2], 1.0))

    else:

        def factory(x):
            import torch

            td = torch.distributions
            return td.MixtureSameFamily(td.Categorical(torch.ones(len(x), 2)), td.Normal(x[:, :2], 1.0))

    space = S.Box(-INF, INF, (), np.float32)
    dist = make_distribution(space, custom=framework_distribution(factory, 2), framework=framework)
    x = inputs(3, 2)
    actions, raw = dist.sample(numpy_ops, x, None)
    np.testing.assert_allclose(actions, x.mean(-1), rtol=1e-5)
    assert raw.shape == (3, 1)
    with pytest.raises(FrameworkError, match="has no entropy, which losses need"):
        dist.entropy(numpy_ops, x)
    with pytest.raises(FrameworkError, match="has no KL divergence"):
        dist.kl(numpy_ops, x, x)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_not_normalized_it_works_in_the_environments_units(framework):
    dist = make_distribution(BOX, False, False, framework_distribution(NORMALS[framework][0], 4), framework)
    actions, raw, _ = dist.draw(np.random.default_rng(0), inputs())
    np.testing.assert_array_equal(actions, raw)
    assert make_distribution(BOX, False, True, framework_distribution(NORMALS[framework][0], 4), framework).units.clips


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_it_accepts_and_finds_out(framework):
    factory = NORMALS[framework][0]
    maker = pickle.loads(pickle.dumps(framework_distribution(factory, 4)))
    # No framework named: NumPy finds it.
    unnamed = make_distribution(BOX, custom=maker)
    a, _, logp = unnamed.draw(np.random.default_rng(0), inputs())
    assert unnamed.framework == framework and np.isfinite(logp).all()
    named = make_distribution(BOX, custom=maker, framework={"tf": "tf2"}.get(framework, framework))
    np.testing.assert_array_equal(named.draw(np.random.default_rng(0), inputs())[0], a)

    # A function that says how many inputs it takes.
    def with_size(x):
        return factory(x)

    with_size.inputs_size = 4
    assert make_distribution(BOX, custom=with_size, framework=framework).inputs_size == 4


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bound_distributions(framework):
    ops = importlib.import_module(f"polylib.policy.{framework}.ops")
    dist = make_distribution(BOX, custom=framework_distribution(NORMALS[framework][0], 4), framework=framework)
    own, x = make_distribution(BOX), inputs()
    for namespace in (numpy_ops, ops):
        bound = BoundDistribution(dist, namespace, np.random.default_rng(0), namespace.constant(x))
        actions = bound.sample()
        assert type(actions) is type(namespace.constant(x))
        assert all(BOX.contains(np.asarray(a)) for a in actions)
        expected = own.logp(numpy_ops, x, np.asarray(actions))
        np.testing.assert_allclose(np.asarray(bound.logp(actions)), expected, rtol=1e-5)
        np.testing.assert_allclose(np.asarray(bound.entropy()), own.entropy(numpy_ops, x), rtol=1e-5)
        np.testing.assert_allclose(np.asarray(bound.kl(bound)), 0, atol=1e-6)
        assert bound.deterministic_sample().shape == (5, 2)


@needs_tfp
@needs_torch
@pytest.mark.parametrize(("framework", "other"), [("tf", "torch"), ("torch", "tf2"), ("torch", "tf")])
def test_a_factory_of_the_other_framework_is_refused(framework, other):
    wanted = "torch.distributions.Distribution" if other == "torch" else "tfp.distributions.Distribution"
    for factory in (*NORMALS[framework], lambda x: CONSTANT[framework]()):
        with pytest.raises(FrameworkError) as caught:
            make_distribution(BOX, custom=framework_distribution(factory, 4), framework=other)
        text = str(caught.value)
        assert wanted in text and f"under framework {other.removesuffix('2')!r}" in text and "\n" not in text


def _tf_constant():
    return tfp_normal(np.zeros((2, 4), F32))


def _torch_constant():
    import torch

    return torch_normal(torch.zeros(2, 4))


CONSTANT = {"tf": _tf_constant, "torch": _torch_constant}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_mistakes(framework):
    normal = NORMALS[framework][0]
    for size in (0, -1, 2.0, True, None):
        with pytest.raises(ConfigError, match=r"inputs_size is .*, expected an int > 0"):
            make_distribution(BOX, custom=framework_distribution(normal, size), framework=framework)
    with pytest.raises(ConfigError, match=r"it samples \[2, 2\], expected \[B, 3\]"):
        make_distribution(S.Box(-1, 1, (3,)), custom=framework_distribution(normal, 4), framework=framework)
    with pytest.raises(EnvError, match=r"\(action_space\) -> Product\(action_space, parts\)"):
        make_distribution(S.Tuple([BOX]), custom=framework_distribution(normal, 4), framework=framework)
    with pytest.raises(FrameworkError, match="returned builtins.int, expected a .*distributions.Distribution"):
        make_distribution(BOX, custom=framework_distribution(lambda x: 3, 4), framework=framework)
    with pytest.raises(FrameworkError, match="raised ZeroDivisionError"):
        make_distribution(BOX, custom=framework_distribution(lambda x: 1 // 0, 4)).draw(
            np.random.default_rng(0), inputs()
        )


@needs_tfp
def test_tensorflow_probability_leaves_keras_alone():
    """It brings Keras 2 along (tf_keras); models are Keras 3's before and after."""
    code = """
import numpy as np, gymnasium as gym, sys
from polylib.models.distributions import framework_distribution, make_distribution
def factory(x):
    import tensorflow as tf, tensorflow_probability as tfp
    return tfp.distributions.Normal(x[:, :1], tf.exp(x[:, 1:]))
dist = make_distribution(gym.spaces.Box(-1, 1, (1,)), custom=framework_distribution(factory, 2), framework="tf2")
assert "tensorflow_probability" in sys.modules
import keras, tensorflow as tf
assert keras.__version__.startswith("3.") and tf.keras.__version__.startswith("3."), tf.keras.__version__
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
assert model(np.zeros((1, 3), "float32")).shape == (1, 2) and isinstance(model, keras.Model)
assert isinstance(tf.keras.layers.Dense(2), keras.layers.Layer)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]
