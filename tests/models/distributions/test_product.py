"""Dict and Tuple action spaces."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from backends import BACKENDS, evaluate

from polylib.errors import BatchError, EnvError
from polylib.models.distributions import (
    Bernoulli,
    Beta,
    Categorical,
    DiagGaussian,
    Dirichlet,
    MultiCategorical,
    Product,
    SquashedGaussian,
    make_distribution,
)
from polylib.policy import numpy_ops
from polylib.utils.spaces import Simplex

F32 = np.float32
S = gym.spaces
ALL = [pytest.param("numpy"), *BACKENDS]
BOX = S.Box(F32([-2, 0]), F32([2, 10]))
SPACE = S.Dict({"arm": S.Tuple([BOX, S.Discrete(3, start=5)]), "lamp": S.MultiBinary(2), "x": S.Box(-1, 1, (1,))})


def test_parts_stand_side_by_side():
    dist = make_distribution(SPACE)
    assert {name: type(part) for name, part in dist.parts.items()} == {
        "actions/arm/0": DiagGaussian,
        "actions/arm/1": Categorical,
        "actions/lamp": Bernoulli,
        "actions/x": DiagGaussian,
    }
    # Means and log_stds of two, logits of three and of two, mean and log_std of one.
    assert (dist.inputs_size, dist.noise_size, dist.raw_size) == (4 + 3 + 2 + 2, 2 + 3 + 2 + 1, 2 + 1)
    assert not dist.on_host and dist.maskable
    rng = np.random.default_rng(0)
    inputs, noise = rng.standard_normal((5, 11)).astype(F32), dist.noise(np.random.default_rng(1), 5)
    actions, raw = dist.sample(numpy_ops, inputs, noise)
    own = np.random.default_rng(1)
    first, x = dist.parts["actions/arm/0"], slice(0, 4)
    alone, alone_raw = first.sample(numpy_ops, inputs[:, x], first.noise(own, 5))
    np.testing.assert_array_equal(actions["actions/arm/0"], alone)
    np.testing.assert_array_equal(raw[:, :2], alone_raw)
    # Log-probabilities add up, and each part gets its own raw sample.
    last = dist.parts["actions/x"]
    total = (
        first.logp(numpy_ops, inputs[:, :4], alone, raw[:, :2])
        + dist.parts["actions/arm/1"].logp(numpy_ops, inputs[:, 4:7], actions["actions/arm/1"])
        + dist.parts["actions/lamp"].logp(numpy_ops, inputs[:, 7:9], actions["actions/lamp"])
        + last.logp(numpy_ops, inputs[:, 9:], actions["actions/x"], raw[:, 2:])
    )
    np.testing.assert_allclose(dist.logp(numpy_ops, inputs, actions, raw), total, rtol=1e-6)


def test_one_part_on_the_host_puts_all_there():
    space = S.Dict({"a": Simplex((3,)), "b": S.Discrete(2), "c": BOX})
    dist = make_distribution(space)
    assert dist.on_host and dist.noise_size == 0 and dist.raw_size == 2
    inputs = np.random.default_rng(0).standard_normal((4, 9)).astype(F32)
    actions, raw = dist.sample(numpy_ops, inputs, dist.zero_noise(4))
    np.testing.assert_array_equal(raw, inputs[:, 5:7])  # the Gaussian's means
    np.testing.assert_array_equal(actions["actions/b"], inputs[:, 3:5].argmax(-1))
    many = np.repeat(inputs[:1], 2000, 0)
    drawn, raw, _ = dist.draw(np.random.default_rng(1), many)
    assert set(drawn["actions/b"].tolist()) == {0, 1} and raw.std(0).min() > 0.1


@pytest.mark.parametrize("backend", ALL)
def test_masks_are_for_the_discrete_parts(backend):
    dist = make_distribution(SPACE)
    inputs = np.random.default_rng(0).standard_normal((3, 11)).astype(F32)
    allowed = np.zeros((3, 11), bool)  # false for the Boxes, too, which have no choices
    allowed[:, 5] = allowed[:, 8] = True
    masked = evaluate(backend, dist.mask, inputs, allowed)
    for columns in (slice(0, 4), slice(9, 11), [5, 8]):
        np.testing.assert_array_equal(masked[:, columns], inputs[:, columns])
    assert (masked[:, [4, 6, 7]] == -1e9).all()
    dist.check_mask(allowed)
    with pytest.raises(BatchError, match="row 1 allows no action"):
        dist.check_mask(np.where(np.arange(3)[:, None] == 1, False, allowed))


def test_masks_need_a_discrete_part():
    dist = make_distribution(S.Tuple([BOX, Simplex((2,))]))
    assert not dist.maskable
    with pytest.raises(EnvError, match="action masks work with discrete"):
        dist.mask(numpy_ops, np.zeros((1, 6), F32), np.ones((1, 6), bool))
    with pytest.raises(BatchError, match="column 'action_mask'"):
        dist.check_mask(np.ones((1, 6), bool))
    assert dist.mask(numpy_ops, "inputs", None) == "inputs"


@pytest.mark.parametrize(
    ("space", "choices"),
    [
        (S.Discrete(4, start=2), {0: 2, 1: 3, 2: 4, 3: 5}),
        (S.MultiDiscrete([2, 2]), None),
        (S.Tuple([S.Discrete(4), BOX]), None),
    ],
    ids=["discrete", "multi", "product"],
)
def test_masked_choices_are_never_drawn(space, choices):
    """In 100,000 samples of logits that favour them."""
    dist, rows = make_distribution(space), 100_000
    rng = np.random.default_rng(0)
    inputs = np.tile(F32([20, -20, 20, -20, 0, 0, 0, 0])[: dist.inputs_size], (rows, 1))
    mask = np.ones_like(inputs, bool)
    mask[:, [0, 2]] = False
    dist.check_mask(mask)
    masked = dist.mask(numpy_ops, inputs, mask)
    actions, _ = dist.sample(numpy_ops, masked, dist.noise(rng, rows))
    if isinstance(space, S.Tuple):
        assert set(np.unique(actions["actions/0"])) == {1, 3}
    elif choices:
        assert set(np.unique(actions)) == {3, 5}
    else:
        assert (actions == 1).all()
    assert np.isfinite(dist.entropy(numpy_ops, masked[:1])) and np.isfinite(dist.kl(numpy_ops, masked[:1], inputs[:1]))


def test_wrong_actions_are_named():
    dist = make_distribution(SPACE)
    actions = {
        "actions/arm/0": F32([[0, 5]]),
        "actions/arm/1": np.array([5]),
        "actions/lamp": np.array([[0, 1]], np.int8),
        "actions/x": F32([[0]]),
    }
    dist.check_actions(actions)
    with pytest.raises(BatchError, match="column 'actions/arm/1': row 0 holds 8, expected 5 to 7"):
        dist.check_actions({**actions, "actions/arm/1": np.array([8])})
    with pytest.raises(BatchError, match="column 'actions/lamp': row 0 holds 3"):
        dist.check_actions({**actions, "actions/lamp": np.array([[3, 1]], np.int8)})


def test_parts_by_name_or_in_order():
    """Also nests of everything."""
    space = S.Tuple([S.Discrete(2), BOX])
    for parts in ([Categorical(2), Beta(BOX)], {"actions/1": Beta(BOX), "actions/0": Categorical(2)}):
        assert [type(p) for p in Product(space, parts).parts.values()] == [Categorical, Beta]
    with pytest.raises(ValueError):
        Product(space, [Categorical(2)])
    deep = S.Dict({"a": S.Tuple([S.Dict({"b": Simplex((2,)), "c": S.MultiDiscrete([2, 3])})]), "d": BOX})
    parts = make_distribution(deep, custom="SquashedGaussian").parts
    assert {k: type(p) for k, p in parts.items()} == {
        "actions/a/0/b": Dirichlet,
        "actions/a/0/c": MultiCategorical,
        "actions/d": SquashedGaussian,
    }
