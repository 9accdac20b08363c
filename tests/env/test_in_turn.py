"""Environments stepped in turn, against Gymnasium's own class for them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from polylib.env.in_turn import InTurn


def both(name, count):
    makers = [lambda: gym.make(name)] * count
    return InTurn(makers), SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.DISABLED)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype and a.shape == b.shape
    assert ours[-1].keys() == theirs[-1].keys()
    for key in ours[-1]:
        np.testing.assert_array_equal(ours[-1][key], theirs[-1][key])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Pendulum-v1", "Blackjack-v1"])
def test_it_does_what_gymnasiums_does(name, count):
    """Box and Discrete observations, with and without infos, with Box and Discrete actions; and a Tuple's."""
    ours, theirs = both(name, count)
    assert ours.plain == (name != "Blackjack-v1")
    rng = np.random.default_rng(0)
    ours.action_space.seed(0)
    found = [env.reset(seed=3) for env in (ours, theirs)]
    same(*found) if ours.plain else None
    ended = 0
    for _ in range(60):
        actions = ours.action_space.sample()
        one, other = ours.step(actions), theirs.step(actions)
        if ours.plain:
            same(one, other)
        else:
            for a, b in zip(one[0], other[0], strict=True):
                np.testing.assert_array_equal(a, b)
            same(one[1:], other[1:])
        done = one[2] | one[3]
        if done.any():
            ended += 1
            seeds = rng.integers(0, 100, count).tolist()
            again = [env.reset(seed=seeds, options={"reset_mask": done.copy()}) for env in (ours, theirs)]
            same(*again) if ours.plain else None
    assert ended or name == "Pendulum-v1"


def test_what_it_returned_stays_but_for_observations():
    ours, _ = both("CartPole-v1", 2)
    ours.reset(seed=0)
    _, rewards, terminations, truncations, _ = ours.step(np.array([0, 1]))
    kept = [x.copy() for x in (rewards, terminations, truncations)]
    for _ in range(30):
        done = np.logical_or(*ours.step(np.array([0, 1]))[2:4])
        if done.any():
            ours.reset(options={"reset_mask": done})
    for x, before in zip((rewards, terminations, truncations), kept, strict=True):
        np.testing.assert_array_equal(x, before)


class Wrong(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    obs = np.zeros(3, np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return self.obs, 0.0, False, False, {}


@pytest.mark.parametrize("obs", [np.zeros(2, np.float32), np.zeros(1, np.float32), np.float32(0), np.zeros((1, 3))])
def test_an_observation_of_another_shape_is_refused(obs):
    """None is repeated until it fits."""
    env = InTurn([Wrong])
    env.reset()
    env.step(np.array([0]))
    env.envs[0].obs = obs
    with pytest.raises(ValueError, match=r"an observation of shape \[.*\], expected \[3\]"):
        env.step(np.array([0]))
