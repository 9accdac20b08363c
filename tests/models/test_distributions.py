"""Action distributions: numbers worked out by hand, other libraries, sampling, and the same in every backend."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate, needs_torch

from polylib.errors import BatchError, EnvError
from polylib.models.distributions import Categorical, DiagGaussian, MultiCategorical, make_distribution
from polylib.policy import numpy_ops

F32 = np.float32
INF = np.inf
ALL = [pytest.param("numpy"), *BACKENDS]
S = gym.spaces


def box(low, high, shape=None, dtype=np.float32) -> gym.spaces.Box:
    return S.Box(np.asarray(low, dtype), np.asarray(high, dtype), shape, dtype)


# name -> distribution; inputs, other inputs and actions are drawn in `draw`
KINDS = {
    "discrete": lambda: make_distribution(S.Discrete(4, start=-1)),
    "multi": lambda: make_distribution(S.MultiDiscrete([3, 2], start=[5, 7])),
    "multi_2d": lambda: make_distribution(S.MultiDiscrete([[2, 3], [4, 2]])),
    "gaussian": lambda: make_distribution(S.Box(-INF, INF, (2,), np.float32)),
    "scaled": lambda: make_distribution(box([-2, 0], [2, 10])),
    "scaled_2d": lambda: make_distribution(S.Box(-0.5, 3.0, (2, 2), np.float32)),
    "scalar": lambda: make_distribution(S.Box(-2, 2, (), np.float32)),
}


def draw(dist, rows: int = 5, seed: int = 0):
    """Inputs and other inputs `[rows, inputs_size]`, actions of the first and the raw samples behind them."""
    rng = np.random.default_rng(seed)
    p, q = (0.7 * rng.standard_normal((rows, dist.inputs_size)).astype(F32) for _ in range(2))
    actions, raw = dist.sample(numpy_ops, p, dist.noise(rng, rows))
    return p, q, actions, raw


# --- numbers


@pytest.mark.parametrize("backend", ALL)
def test_categorical_by_hand(backend):
    """p = [1/2, 1/4, 1/4], q uniform over the three."""
    dist = Categorical(3, start=10)
    p, q = F32([[math.log(2), 0, 0]]), F32([[5, 5, 5]])
    # H = 1/2 ln 2 + 2 * 1/4 ln 4 = 3/2 ln 2
    entropy = 1.5 * math.log(2)
    assert evaluate(backend, dist.entropy, p) == pytest.approx([entropy], rel=1e-6)
    # KL(p, uniform) = ln 3 - H(p);  KL(uniform, p) = 1/3 ln(2/3) + 2/3 ln(4/3)
    assert evaluate(backend, dist.kl, p, q) == pytest.approx([math.log(3) - entropy], rel=1e-5)
    assert evaluate(backend, dist.kl, q, p) == pytest.approx([(math.log(2 / 3) + 2 * math.log(4 / 3)) / 3], rel=1e-5)
    assert evaluate(backend, dist.kl, p, p) == pytest.approx([0], abs=1e-7)
    # Action 10 is the first choice.
    logp = evaluate(backend, dist.logp, np.repeat(p, 3, 0), np.array([10, 11, 12]))
    assert logp == pytest.approx([-math.log(2), -math.log(4), -math.log(4)], rel=1e-6)


@pytest.mark.parametrize("backend", ALL)
def test_multi_categorical_by_hand(backend):
    """Independent components: everything adds up."""
    dist = MultiCategorical(np.array([3, 2]), np.array([5, 7]))
    # components [1/2, 1/4, 1/4] and [3/4, 1/4]
    p = F32([[math.log(2), 0, 0, math.log(3), 0]])
    q = np.zeros((1, 5), F32)
    h2 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    entropy = 1.5 * math.log(2) + h2
    assert evaluate(backend, dist.entropy, p) == pytest.approx([entropy], rel=1e-6)
    assert evaluate(backend, dist.kl, p, q) == pytest.approx([math.log(3) + math.log(2) - entropy], rel=1e-5)
    # [6, 7]: second of three, first of two
    logp = evaluate(backend, dist.logp, p, np.array([[6, 7]]))
    assert logp == pytest.approx([math.log(0.25) + math.log(0.75)], rel=1e-6)


@pytest.mark.parametrize("backend", ALL)
def test_gaussian_by_hand(backend):
    dist = DiagGaussian(S.Box(-INF, INF, (1,), np.float32))
    normal = F32([[0, 0]])
    # ln N(0; 0, 1) = -1/2 ln 2 pi;  ln N(2; 0, 1) = that - 2
    half = 0.5 * math.log(2 * math.pi)
    logp = evaluate(backend, dist.logp, np.repeat(normal, 2, 0), F32([[0], [2]]))
    assert logp == pytest.approx([-half, -half - 2], rel=1e-6)
    # H = 1/2 ln 2 pi e; a standard deviation of e^0.7 adds 0.7
    assert evaluate(backend, dist.entropy, F32([[3, 0], [3, 0.7]])) == pytest.approx([half + 0.5, half + 1.2], rel=1e-6)
    # KL(N(0,1), N(1,1)) = 1/2;  KL(N(0,1), N(0,2)) = ln 2 + 1/8 - 1/2;  KL(N(0,2), N(0,1)) = -ln 2 + 4/2 - 1/2
    other = F32([[1, 0], [0, math.log(2)]])
    kl = evaluate(backend, dist.kl, np.repeat(normal, 2, 0), other)
    assert kl == pytest.approx([0.5, math.log(2) - 0.375], rel=1e-5)
    assert evaluate(backend, dist.kl, other[1:], normal) == pytest.approx([1.5 - math.log(2)], rel=1e-5)


@pytest.mark.parametrize("backend", ALL)
def test_gaussian_in_the_environments_units(backend):
    """Box(-2, 2) and Box(0, 10) side by side: action = raw * [2, 5] + [0, 5], so densities are divided by 2 * 5."""
    dist = make_distribution(box([-2, 0], [2, 10]))
    inputs = F32([[0, 0, 0, 0]])
    half = 0.5 * math.log(2 * math.pi)
    # The mean is action [0, 5]; [2, 5] is one standard deviation off in the first.
    logp = evaluate(backend, dist.logp, np.repeat(inputs, 2, 0), F32([[0, 5], [2, 5]]))
    assert logp == pytest.approx([-2 * half - math.log(10), -2 * half - math.log(10) - 0.5], rel=1e-6)
    assert evaluate(backend, dist.entropy, inputs) == pytest.approx([2 * half + 1 + math.log(10)], rel=1e-6)
    # The scale cancels: KL is that of the normals.
    assert evaluate(backend, dist.kl, inputs, F32([[1, 0, 0, 0]])) == pytest.approx([0.5], rel=1e-6)


@pytest.mark.parametrize("mean, log_std", [(0.2, -0.5), (-0.9, 0.3), (3.0, -2.0)])
@pytest.mark.parametrize("space", [box([-2], [2]), box([0], [10]), box([-INF], [3]), box([-INF], [INF])])
def test_densities_integrate_to_one(space, mean, log_std):
    """Over all actions, of the sample before it was clipped, in the environment's units."""
    dist = make_distribution(space)
    center = mean * float(dist.scale[0]) + float(dist.shift[0])
    width = 9 * math.exp(log_std) * float(dist.scale[0])
    grid = np.linspace(center - width, center + width, 20001)
    inputs = np.repeat([[mean, log_std]], len(grid), 0)
    density = np.exp(dist.logp(numpy_ops, inputs, grid[:, None]))
    integrate = getattr(np, "trapezoid", None) or np.trapz  # NumPy 1 has the other name
    assert integrate(density, grid) == pytest.approx(1.0, abs=1e-5)
    # and entropy is -E[log density]
    entropy = -integrate(density * np.log(density), grid)
    assert dist.entropy(numpy_ops, inputs[:1])[0] == pytest.approx(entropy, abs=1e-4)


# --- masks


@pytest.mark.parametrize("backend", ALL)
def test_masked_logits_of_minus_infinity(backend):
    """p over two actions: [0.62246, 0.37754]; q: [0.42556, 0.57444].

    H(p) = -(0.62246 ln 0.62246 + 0.37754 ln 0.37754) = 0.6628
    KL = 0.62246 ln(0.62246 / 0.42556) + 0.37754 ln(0.37754 / 0.57444) = 0.0782
    """
    dist = Categorical(4)
    p, q = F32([[0.3, -0.2, -INF, -INF]]), F32([[0.1, 0.4, -INF, -INF]])
    calls = {
        "entropy": (dist.entropy, (p,), 0.6628),
        "kl": (dist.kl, (p, q), 0.0782),
        "logp": (dist.logp, (p, np.array([1])), math.log(0.37754)),
    }
    for name, (f, arrays, expected) in calls.items():
        smooth = (0, 1) if name == "kl" else (0,)
        if backend == "numpy":
            value = evaluate(backend, f, *arrays)
        else:
            value, gradients = evaluate(backend, f, *arrays, smooth=smooth)
            assert all(np.isfinite(g).all() for g in gradients), name
            # Those of the two actions alone.
            short = tuple(x[:, :2] if x.dtype == F32 else x for x in arrays)
            _, wanted = evaluate(backend, getattr(Categorical(2), name), *short, smooth=smooth)
            for g, w in zip(gradients, wanted, strict=True):
                np.testing.assert_allclose(g, np.pad(w, [(0, 0), (0, 2)]), atol=1e-6, err_msg=name)
        assert value == pytest.approx([expected], abs=5e-5), name


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("kind", ["discrete", "multi"])
def test_mask_is_as_if_the_choice_werent_there(backend, kind):
    """`mask` gives what -inf gives: the same entropy, KL and likelihoods."""
    dist = KINDS[kind]()
    p, q, _, _ = draw(dist, rows=1)
    allowed = np.ones((1, dist.inputs_size), bool)
    allowed[0, 1] = False

    def by_mask(ops, p, q, m):
        p, q = dist.mask(ops, p, m), dist.mask(ops, q, m)
        return ops.stack([dist.entropy(ops, p), dist.kl(ops, p, q)])

    def by_infinity(ops, p, q):
        return ops.stack([dist.entropy(ops, p), dist.kl(ops, p, q)])

    value = evaluate(backend, by_mask, p, q, allowed)
    expected = evaluate(backend, by_infinity, np.where(allowed, p, -INF), np.where(allowed, q, -INF))
    np.testing.assert_allclose(value, expected, atol=1e-6)
    assert evaluate(backend, lambda ops, p: dist.mask(ops, p, None), p).tolist() == p.tolist()


def test_a_mask_needs_a_choice_in_every_component():
    dist = MultiCategorical(np.array([3, 2]))
    dist.check_mask(np.array([[True, False, False, False, True]]))
    with pytest.raises(BatchError, match="action_mask.*row 1"):
        dist.check_mask(np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool))
    with pytest.raises(BatchError, match="row 0"):
        Categorical(3).check_mask(np.zeros((2, 3), bool))
    gaussian = KINDS["gaussian"]()
    with pytest.raises(BatchError, match="action_mask"):
        gaussian.check_mask(np.ones((1, 4), bool))
    with pytest.raises(EnvError, match="action masks"):
        gaussian.mask(numpy_ops, np.zeros((1, 4), F32), np.ones((1, 4), bool))


def test_actions_outside_a_discrete_space_have_no_probability():
    Categorical(3, start=5).check_actions(np.array([5, 6, 7]))
    for wrong in (4, 8):
        with pytest.raises(BatchError, match=f"'actions': row 1 holds {wrong}, expected 5 to 7"):
            Categorical(3, start=5).check_actions(np.array([5, wrong]))
    dist = MultiCategorical(np.array([[3, 2]]), np.array([[5, 7]]))
    dist.check_actions(np.array([[[7, 8]]]))
    with pytest.raises(BatchError, match="row 0 holds 9, expected 7 to 8"):
        dist.check_actions(np.array([[[7, 9]]]))
    KINDS["gaussian"]().check_actions(np.full((1, 2), 1e9))


# --- spaces with a start


@pytest.mark.parametrize("space", [S.Discrete(3, start=5), S.MultiDiscrete([3, 2], start=[5, 7])])
@pytest.mark.parametrize("backend", ALL)
def test_actions_begin_at_start(backend, space):
    dist = make_distribution(space)
    rng = np.random.default_rng(0)
    inputs = 5 * rng.standard_normal((200, dist.inputs_size)).astype(F32)
    for noise in (dist.noise(rng, 200), dist.zero_noise(200)):
        actions = evaluate(backend, lambda ops, x, z: dist.sample(ops, x, z)[0], inputs, noise)
        assert actions.dtype == np.int64
        assert all(space.contains(action) for action in actions)
        assert len(np.unique(actions, axis=0)) == dist.inputs_size + (len(space.shape) > 0)  # 3, and 3 * 2


# --- standard deviations out of range


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("log_std, clamped", [(100.0, 20.0), (-100.0, -20.0), (INF, 20.0), (-INF, -20.0)])
def test_log_std_is_clamped(backend, log_std, clamped):
    dist = KINDS["scaled"]()
    inputs = F32([[0.1, -0.2, log_std, log_std]])
    within = F32([[0.1, -0.2, clamped, clamped]])
    actions = F32([[1.0, 3.0]])
    noise = F32([[0.3, -1.2]])

    def everything(ops, inputs, other, actions, noise):
        sample = ops.sum(dist.sample(ops, inputs, noise)[1], -1)
        rest = dist.logp(ops, inputs, actions), dist.entropy(ops, inputs), dist.kl(ops, inputs, other)
        return ops.stack([sample, *rest])

    value = evaluate(backend, everything, inputs, F32([[0, 0, 0, 0]]), actions, noise)
    expected = evaluate(backend, everything, within, F32([[0, 0, 0, 0]]), actions, noise)
    assert np.isfinite(value).all()
    np.testing.assert_array_equal(value, expected)
    if backend != "numpy":
        for f in (dist.entropy, lambda ops, x: dist.logp(ops, x, ops.constant(actions))):
            _, (gradient,) = evaluate(backend, f, inputs, smooth=(0,))
            assert np.isfinite(gradient).all() and not gradient[0, 2:].any()


# --- scaling and clipping

MANY = F32([[0.0], [0.5], [-3.0], [3.0]])


@pytest.mark.parametrize(
    ("low", "high", "normalize", "clip", "expected"),
    [
        # [-1, 1] stretches to the bounds, and what is beyond is clipped.
        (-2, 2, True, False, [0, 1, -2, 2]),
        (-2, 2, True, True, [0, 1, -2, 2]),
        (0, 10, True, False, [5, 7.5, 0, 10]),
        # Nothing is done to actions, and the environment may get what is outside its space.
        (-2, 2, False, False, [0, 0.5, -3, 3]),
        (-2, 2, False, True, [0, 0.5, -2, 2]),
        # A bound on one side can't be scaled to.
        (-INF, 1, True, False, [0, 0.5, -3, 1]),
        (-1, INF, False, True, [0, 0.5, -1, 3]),
        (-1, INF, False, False, [0, 0.5, -3, 3]),
        (-INF, INF, True, True, [0, 0.5, -3, 3]),
        # A dimension of no width has one action.
        (4, 4, True, False, [4, 4, 4, 4]),
        # Beyond float32's range there are no bounds.
        (-1e300, 1e300, True, True, [0, 0.5, -3, 3]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_normalizing_and_clipping(low, high, normalize, clip, expected):
    space = box([low], [high], dtype=np.float64)
    dist = make_distribution(space, normalize, clip)
    inputs = np.concatenate([MANY, np.zeros_like(MANY)], 1)
    actions, raw = dist.sample(numpy_ops, inputs, dist.zero_noise(4))
    assert actions[:, 0] == pytest.approx(expected)
    assert raw.tolist() == MANY.tolist(), "the raw sample is neither scaled nor clipped"
    assert actions.dtype == raw.dtype == F32


def test_dimensions_are_scaled_one_by_one():
    space = box([[-2, -INF], [0, -1]], [[2, 5], [10, INF]])
    dist = make_distribution(space)
    mean = F32([[0.5, 0.5, 0.5, 0.5], [9, 9, 9, 9]])
    actions, _ = dist.sample(numpy_ops, np.concatenate([mean, mean], 1), dist.zero_noise(2))
    assert actions.tolist() == [[[1, 0.5], [7.5, 0.5]], [[2, 5], [10, 9]]]


@pytest.mark.parametrize("bounds", [(-0.1, 0.1), (0.1, 0.7), (-1e-3, 1 / 3), (-16777217.0, 16777219.0)])
def test_actions_stay_inside_bounds_that_float32_doesnt_have(bounds):
    """float32(0.1) is 0.100000001: outside a float64 Box up to 0.1."""
    space = box([bounds[0]], [bounds[1]], dtype=np.float64)
    dist = make_distribution(space)
    actions, _ = dist.sample(numpy_ops, F32([[9, 0], [-9, 0]]), dist.zero_noise(2))
    assert all(space.contains(action.astype(np.float64)) for action in actions)
    assert actions[:, 0] == pytest.approx(bounds[::-1], rel=1e-6), "and reach the bounds otherwise"


def test_likelihoods_use_the_raw_sample_where_they_have_it():
    """Clipping moves an action onto the bound; its density isn't that of what was drawn."""
    dist = make_distribution(box([-2], [2]))
    inputs = F32([[0, 0]])
    actions, raw = dist.sample(numpy_ops, inputs, F32([[3.0]]))
    assert actions.tolist() == [[2.0]] and raw.tolist() == [[3.0]]
    half = 0.5 * math.log(2 * math.pi)
    # Three standard deviations; the bound is one away.
    assert dist.logp(numpy_ops, inputs, actions, raw) == pytest.approx([-half - math.log(2) - 4.5])
    assert dist.logp(numpy_ops, inputs, actions) == pytest.approx([-half - math.log(2) - 0.5])
    inside, raw = dist.sample(numpy_ops, inputs, F32([[0.7]]))
    assert dist.logp(numpy_ops, inputs, inside) == pytest.approx(dist.logp(numpy_ops, inputs, inside, raw), rel=1e-6)


# --- sampling


def test_categorical_frequencies():
    p = np.array([0.5, 0.3, 0.15, 0.05])
    dist, rng, draws = Categorical(4, start=1), np.random.default_rng(1), 40_000
    inputs = np.repeat(np.log(p)[None].astype(F32), draws, 0)
    actions, _ = dist.sample(numpy_ops, inputs, dist.noise(rng, draws))
    frequencies = np.bincount(actions - 1, minlength=4) / draws
    # Four standard errors.
    assert np.all(np.abs(frequencies - p) < 4 * np.sqrt(p * (1 - p) / draws)), frequencies


def test_components_are_independent():
    dist, rng, draws = MultiCategorical(np.array([2, 2])), np.random.default_rng(2), 40_000
    actions, _ = dist.sample(numpy_ops, np.zeros((draws, 4), F32), dist.noise(rng, draws))
    counts = np.bincount(actions[:, 0] * 2 + actions[:, 1], minlength=4) / draws
    assert np.all(np.abs(counts - 0.25) < 4 * math.sqrt(0.25 * 0.75 / draws)), counts


def test_masked_choices_are_never_drawn():
    """Not even with the largest noise there is."""

    class Extreme(np.random.Generator):
        """One exponential variate in ten million is 0, and minus its logarithm infinite."""

        def standard_exponential(self, size=None, dtype=np.float64, method="zig", out=None):
            return np.zeros(size, dtype)

    dist = Categorical(3)
    noise = dist.noise(Extreme(np.random.PCG64(0)), 2)
    assert noise.dtype == F32 and np.isfinite(noise).all()
    noise[:, 1:] = -noise[:, 1:]
    mask = np.array([[False, True, True]] * 2)
    actions, _ = dist.sample(numpy_ops, dist.mask(numpy_ops, np.zeros((2, 3), F32), mask), noise)
    assert (actions != 0).all()


def test_gaussian_samples():
    stats = pytest.importorskip("scipy.stats")
    dist, rng, draws = make_distribution(box([-20, 0], [20, 100])), np.random.default_rng(3), 20_000
    inputs = np.repeat(F32([[0.1, -0.2, -3, -2]]), draws, 0)
    actions, raw = dist.sample(numpy_ops, inputs, dist.noise(rng, draws))
    for i, (mean, std) in enumerate([(0.1, math.exp(-3)), (-0.2, math.exp(-2))]):
        assert stats.kstest(raw[:, i], stats.norm(mean, std).cdf).pvalue > 0.01
        unit = (actions[:, i] - dist.shift[i]) / dist.scale[i]
        np.testing.assert_allclose(unit, raw[:, i], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_float32_and_follows_the_generator(kind):
    dist = KINDS[kind]()
    first, again = (dist.noise(np.random.default_rng(7), 4) for _ in range(2))
    assert first.shape == (4, dist.noise_size) and first.dtype == F32
    assert first.tolist() == again.tolist()
    zero = dist.zero_noise(4)
    assert zero.shape == first.shape and zero.dtype == F32 and not zero.any()


# --- the same in every backend


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(backend, kind):
    """Samples, likelihoods, entropies and KLs; their gradients as NumPy's central differences."""
    dist = KINDS[kind]()
    p, q, actions, raw = draw(dist)
    noise = dist.noise(np.random.default_rng(1), len(p))
    sampled = evaluate(backend, lambda ops, x, z: dist.sample(ops, x, z)[0], p, noise)
    expected, expected_raw = dist.sample(numpy_ops, p, noise)
    assert sampled.dtype == expected.dtype and sampled.shape == expected.shape
    np.testing.assert_allclose(sampled, expected, rtol=1e-6, atol=1e-6)
    if expected_raw is not None:
        got = evaluate(backend, lambda ops, x, z: dist.sample(ops, x, z)[1], p, noise)
        np.testing.assert_allclose(got, expected_raw, rtol=1e-6, atol=1e-6)

    def everything(ops, p, q, actions):
        logp, entropy, kl = dist.logp(ops, p, actions), dist.entropy(ops, p), dist.kl(ops, p, q)
        return ops.stack([logp, entropy, kl])

    value, gradients = evaluate(backend, everything, p, q, actions, smooth=(0, 1))
    wanted, differences = evaluate("numpy", everything, p, q, actions, smooth=(0, 1))
    assert value.shape == (3, len(p)) and value.dtype == F32
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    for gradient, difference in zip(gradients, differences, strict=True):
        np.testing.assert_allclose(gradient, difference, rtol=1e-4, atol=1e-5)
    if raw is not None:
        with_raw = evaluate(backend, lambda ops, p, a, r: dist.logp(ops, p, a, r), p, actions, raw)
        np.testing.assert_allclose(with_raw, dist.logp(numpy_ops, p, actions, raw), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize("kind", KINDS)
def test_the_terms_of_a_loss_are_what_they_are_alone(backend, kind):
    """`loss_terms` in one go, and each by its own function, which the tests above hold against numbers."""
    dist = KINDS[kind]()
    p, q, actions, raw = draw(dist)

    def together(ops, p, q, actions, *raw):
        return ops.stack(dist.loss_terms(ops, p, q, actions, *raw))

    def alone(ops, p, q, actions, *raw):
        return ops.stack([dist.logp(ops, p, actions, *raw), dist.kl(ops, q, p), dist.entropy(ops, p)])

    arrays = (p, q, actions) if raw is None else (p, q, actions, raw)
    value, gradients = evaluate(backend, together, *arrays, smooth=(0,))
    expected, wanted = evaluate(backend, alone, *arrays, smooth=(0,))
    np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradients[0], wanted[0], rtol=1e-5, atol=1e-6)


# --- other libraries


@needs_torch
@pytest.mark.parametrize("seed", range(3))
def test_against_torch_distributions(seed):
    import torch
    from torch import distributions as td

    def check(ours, theirs):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=1e-5)

    dist = Categorical(5)
    p, q, actions, _ = draw(dist, seed=seed)
    a, b = (td.Categorical(logits=torch.tensor(x)) for x in (p, q))
    check(dist.logp(numpy_ops, p, actions), a.log_prob(torch.tensor(actions)))
    check(dist.entropy(numpy_ops, p), a.entropy())
    check(dist.kl(numpy_ops, p, q), td.kl_divergence(a, b))

    # A Normal in [-1, 1], moved to the environment's units.
    dist = make_distribution(box([-2, 0], [2, 10]))
    p, q, _, raw = draw(dist, seed=seed)
    actions = raw * dist.scale + dist.shift
    a, b = (td.Normal(torch.tensor(x[:, :2]), torch.tensor(x[:, 2:]).exp()) for x in (p, q))
    scale = td.AffineTransform(torch.tensor(dist.shift), torch.tensor(dist.scale))
    moved = td.TransformedDistribution(a, scale)
    check(dist.logp(numpy_ops, p, actions), moved.log_prob(torch.tensor(actions)).sum(-1))
    check(dist.entropy(numpy_ops, p), (a.entropy() + torch.tensor(dist.scale).log()).sum(-1))
    check(dist.kl(numpy_ops, p, q), td.kl_divergence(a, b).sum(-1))


def test_against_tensorflow_probability():
    tfp = pytest.importorskip("tensorflow_probability", exc_type=ImportError)
    tfd = tfp.distributions
    dist = Categorical(5, start=2)
    p, q, actions, _ = draw(dist)
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions), tfd.Categorical(p).log_prob(actions - 2), rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), tfd.Categorical(p).entropy(), rtol=1e-5)
    kl = tfd.Categorical(p).kl_divergence(tfd.Categorical(q))
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), kl, rtol=1e-4, atol=1e-6)
    dist = KINDS["gaussian"]()
    p, q, actions, _ = draw(dist)
    a, b = (tfd.MultivariateNormalDiag(x[:, :2], np.exp(x[:, 2:])) for x in (p, q))
    np.testing.assert_allclose(dist.logp(numpy_ops, p, actions), a.log_prob(actions), rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(numpy_ops, p), a.entropy(), rtol=1e-5)
    np.testing.assert_allclose(dist.kl(numpy_ops, p, q), a.kl_divergence(b), rtol=1e-4)


def test_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    dist = make_distribution(box([-2, 0], [2, 10]))
    p, _, _, raw = draw(dist)
    actions = raw * dist.scale + dist.shift
    for row in range(len(p)):
        normal = stats.norm(p[row, :2] * dist.scale + dist.shift, np.exp(p[row, 2:]) * dist.scale)
        assert dist.logp(numpy_ops, p, actions)[row] == pytest.approx(normal.logpdf(actions[row]).sum(), rel=1e-5)
        assert dist.entropy(numpy_ops, p)[row] == pytest.approx(normal.entropy().sum(), rel=1e-5)


# --- spaces


@pytest.mark.parametrize(
    ("space", "inputs", "noise"),
    [
        (S.Discrete(4), 4, 4),
        (S.MultiDiscrete([3, 2]), 5, 5),
        (S.MultiDiscrete([[2, 3], [4, 2]]), 11, 11),
        (S.Box(-1, 1, (2, 3), np.float32), 12, 6),
        (S.Box(-1, 1, (), np.float64), 2, 1),
        (S.Box(-1, 1, (3,), np.float16), 6, 3),
    ],
)
def test_sizes(space, inputs, noise):
    dist = make_distribution(space)
    assert (dist.inputs_size, dist.noise_size) == (inputs, noise)
