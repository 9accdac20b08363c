"""From a space and the config's `custom_action_dist` to a distribution."""

from __future__ import annotations

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate

from polylib import registry
from polylib.errors import ConfigError, ConfigTypeError, EnvError, PolylibError
from polylib.models import distributions as d
from polylib.models.distributions import make_distribution
from polylib.policy import numpy_ops
from polylib.utils.spaces import Simplex

F32, INF = np.float32, np.inf
S = gym.spaces
BOX = S.Box(-2, 2, (2,), np.float32)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_action_dists", {})


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (S.Discrete(3, start=5), d.Categorical),
        (S.MultiDiscrete([3, 2], start=[5, 7]), d.MultiCategorical),
        (S.MultiBinary([2, 3]), d.Bernoulli),
        (BOX, d.DiagGaussian),
        (S.Box(-INF, INF, (2, 2), np.float64), d.DiagGaussian),
        (S.Box(0, INF, (), np.float32), d.DiagGaussian),
        (Simplex((2, 3)), d.Dirichlet),
        (S.Tuple([S.Discrete(2)]), d.Product),
        (S.Dict({"a": S.Tuple([BOX, S.MultiBinary(2)])}), d.Product),
    ],
    ids=repr,
)
def test_defaults(space, kind):
    for custom in (None, ""):
        assert type(make_distribution(space, custom=custom)) is kind


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (S.Box(0, 255, (2,), np.uint8), "is a Box of integers, .* make it MultiDiscrete"),
        (S.Box(0, 1, (2,), np.bool_), "is a Box of integers, .* make it MultiDiscrete"),
        (S.Tuple([S.Box(-3, 3, (2,), np.int64)]), "action space Tuple.*: Box.* is a Box of integers"),
        (S.Box(0, 1, (0,)), "has no entries"),
        (S.Text(5), "isn't supported: .* is Text, expected Discrete, MultiDiscrete, MultiBinary, a Box of floats, Sim"),
        (S.Dict({"a": S.Sequence(BOX)}), "action space Dict.* isn't supported: .* is Sequence"),
        (S.Dict({}), "has no parts"),
    ],
    ids=repr,
)
def test_spaces_that_have_none(space, says):
    with pytest.raises(EnvError, match=says) as caught:
        make_distribution(space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("Categorical", S.Discrete(3, start=5)),
        ("MultiCategorical", S.MultiDiscrete([3, 2], start=[5, 7])),
        ("Bernoulli", S.MultiBinary(2)),
        ("DiagGaussian", BOX),
        ("SquashedGaussian", BOX),
        ("Beta", BOX),
        ("Deterministic", BOX),
        ("Dirichlet", Simplex((3,))),
    ],
)
def test_built_in_names_and_classes(name, space):
    kind = getattr(d, name)
    for custom in (name, kind):
        dist = make_distribution(space, custom=custom)
        assert type(dist) is kind
        inputs = np.zeros((3, dist.inputs_size), F32)
        actions, _, _ = dist.draw(np.random.default_rng(0), inputs)
        assert all(space.contains(action) for action in actions)
    with pytest.raises(EnvError, match=f"custom_action_dist': {name} is for .*, the action space is Text"):
        make_distribution(S.Text(3), custom=name)


def test_normalize_and_clip_reach_the_named_ones():
    for name in ("DiagGaussian", "Deterministic"):
        free = make_distribution(BOX, False, False, custom=name)
        assert free.identity and not free.clips
        assert make_distribution(BOX, False, True, custom=name).clips
        assert not make_distribution(BOX, custom=name).identity


@pytest.mark.parametrize("backend", [pytest.param("numpy"), *BACKENDS])
def test_deterministic(backend):
    dist = make_distribution(S.Box(F32([-2, 0]), F32([2, 10])), custom="Deterministic")
    assert (dist.inputs_size, dist.noise_size, dist.raw_size) == (2, 0, 0)
    inputs = F32([[0.5, -0.5], [3, -3]])
    actions = evaluate(backend, lambda ops, x: dist.sample(ops, x, None)[0], inputs)
    assert actions.tolist() == [[1, 2.5], [2, 0]]
    zeros = evaluate(
        backend,
        lambda ops, x: ops.stack([dist.logp(ops, x, x), dist.entropy(ops, x), dist.kl(ops, x, 2.0 * x)]),
        inputs,
    )
    assert zeros.shape == (3, 2) and not zeros.any()


class Laplace(d.Distribution):
    """A user's own, over ops."""

    def __init__(self, space):
        self.inputs_size, self.noise_size = 1, 1

    def noise(self, rng, batch_size):
        return rng.laplace(size=(batch_size, 1)).astype(F32)

    def sample(self, ops, inputs, noise):
        return inputs + noise, None

    def logp(self, ops, inputs, actions, raw=None):
        return ops.sum(-ops.abs(actions - inputs) - float(np.log(2)), -1)

    def entropy(self, ops, inputs):
        return ops.zeros_like(inputs[:, 0]) + float(1 + np.log(2))

    def kl(self, ops, inputs, other):
        gap = ops.abs(inputs - other)
        return ops.sum(ops.exp(-gap) + gap - 1.0, -1)


def test_a_users_own(tmp_path, monkeypatch):
    """As a class, a function, a name, and a place in a module."""
    (tmp_path / "my_own_dists.py").write_text("mine = None\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_dists

    monkeypatch.setattr(my_own_dists, "mine", Laplace)
    space = S.Box(-INF, INF, (1,), np.float32)
    registry.register_action_dist("laplace", Laplace)
    registry.register_action_dist("Beta", Laplace)  # goes before the built-in one
    for custom in (Laplace, lambda space: Laplace(space), "laplace", "Beta", "my_own_dists:mine"):
        dist = make_distribution(space, custom=custom)
        assert type(dist) is Laplace
    actions, raw, logp = dist.draw(np.random.default_rng(0), np.zeros((2000, 1), F32))
    assert raw is None and not dist.on_host
    # The mean of -logp is the entropy.
    assert -logp.mean() == pytest.approx(dist.entropy(numpy_ops, np.zeros((1, 1), F32))[0], abs=0.1)


def refuse(space):
    raise EnvError("only for my spaces")


@pytest.mark.parametrize(
    ("custom", "error", "says"),
    [
        ("SquashdGaussian", ConfigError, "unknown distribution 'SquashdGaussian'. Did you mean 'SquashedGaussian'?"),
        ("nothing", ConfigError, "Built in are Bernoulli, Beta, .*register_action_dist"),
        ("no_such_module:x", ConfigError, "can't load 'no_such_module:x': ModuleNotFoundError"),
        ("polylib.errors:Nothing", ConfigError, "can't load 'polylib.errors:Nothing': AttributeError"),
        (5, ConfigTypeError, r"got 5 \(int\), expected a name, a Distribution class"),
        (lambda space: 3, ConfigError, "returned builtins.int, expected a polylib.models.distributions.Distribution"),
        (lambda space: space[:, :2], ConfigError, "raised TypeError: .*framework_distribution\\(function, inputs_size"),
        (refuse, EnvError, "only for my spaces"),
    ],
)
def test_what_is_no_distribution(custom, error, says):
    with pytest.raises(error, match=says) as caught:
        make_distribution(BOX, custom=custom)
    assert isinstance(caught.value, PolylibError) and "\n" not in str(caught.value)


def test_looking_at_distributions_loads_no_framework():
    """Nor SciPy, which only Beta and Dirichlet need, when they are used."""
    code = (
        "import sys, polylib.models.distributions; "
        "print([m for m in ('scipy', 'tensorflow', 'tensorflow_probability', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "[]"
