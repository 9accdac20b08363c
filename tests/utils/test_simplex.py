"""The space of shares that sum to one."""

from __future__ import annotations

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest

from polylib.errors import EnvError
from polylib.utils.spaces import Simplex
from polylib.utils.spaces.simplex import Simplex as ByPath


def test_samples_are_contained_and_follow_the_seed():
    assert ByPath is Simplex
    for space in (Simplex((3,)), Simplex((2, 4)), Simplex((2, 3, 2), dtype=np.float64), Simplex((1000,))):
        space.seed(1)
        samples = [space.sample() for _ in range(50)]
        assert all(space.contains(x) and x in space for x in samples)
        assert all(x.shape == space.shape and x.dtype == space.dtype for x in samples)
        space.seed(1)
        np.testing.assert_array_equal(space.sample(), samples[0])
        assert not np.array_equal(samples[0], samples[1])


def test_the_concentration_is_that_of_samples():
    """The mean of a Dirichlet is its concentration over the sum of it: [0.1, 0.2, 0.7]."""
    space = Simplex((3,), [1, 2, 7], seed=0)
    mean = np.mean([space.sample() for _ in range(4000)], 0)
    # Variances are at most 0.7 * 0.3 / 11.
    np.testing.assert_allclose(mean, [0.1, 0.2, 0.7], atol=4 * np.sqrt(0.21 / 11 / 4000))


@pytest.mark.parametrize(
    "x",
    [
        [0.5, 0.5], [0.5, 0.6, -0.1], [0.3, 0.3, 0.3], [1, 1, -1], [np.nan, 0.5, 0.5], [np.inf, -np.inf, 1],
        [[0.2, 0.3, 0.5]], "abc", None, [0.5, [0.5], 0], [True, False, False],
    ],
    ids=repr,
)  # fmt: skip
def test_what_it_doesnt_contain(x):
    assert not Simplex((3,)).contains(x)
    if isinstance(x, list) and x != [0.5, [0.5], 0]:
        assert not Simplex((3,)).contains(np.asarray(x))


def test_every_simplex_of_an_element_counts():
    space = Simplex((2, 2))
    assert space.contains(np.array([[0.5, 0.5], [0.1, 0.9]]))
    assert not space.contains(np.array([[0.5, 0.4], [0.1, 1.0]])), "the sum over both is 2"


def test_equality_repr_and_copies():
    space = Simplex([3], [1, 2, 3])
    assert repr(space) == "Simplex([3], [1.0, 2.0, 3.0], float32)"
    for other in (copy.deepcopy(space), pickle.loads(pickle.dumps(space)), Simplex((3,), np.array([1.0, 2, 3]))):
        assert other == space
    assert space != Simplex((3,)) and space != Simplex((2, 3), [1, 2, 3]) and space != gym.spaces.Box(0, 1, (3,))
    assert space != Simplex((3,), [1, 2, 3], np.float64)
    samples = [space.sample(), space.sample()]
    for a, b in zip(space.from_jsonable(space.to_jsonable(samples)), samples, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (((),), "shape is \\[\\]"),
        (((3, 0),), "shape is \\[3, 0\\]"),
        (((3,), [1, 2]), "concentration is .* expected 3 numbers above 0"),
        (((3,), [1, 2, 0]), "concentration"),
        (((3,), [1, 2, np.inf]), "concentration"),
        (((3,), None, np.int64), "dtype"),
    ],
)
def test_bad_arguments(args, says):
    with pytest.raises(EnvError, match=f"Simplex: {says}"):
        Simplex(*args)


class Portfolio(gym.Env):
    """Wants shares, also in a Dict."""

    observation_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, nested=False):
        self.action_space = gym.spaces.Dict({"shares": Simplex((3,))}) if nested else Simplex((3,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_vector_environments_take_batches_of_it():
    actions = np.array([[0.2, 0.3, 0.5], [1, 0, 0]], np.float32)
    for nested in (False, True):
        env = gym.vector.SyncVectorEnv([lambda nested=nested: Portfolio(nested)] * 2)
        env.reset()
        env.step({"shares": actions} if nested else actions)
        env.close()
