"""Every mode keeps the contract, with every kind of action and observation space."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from modes import MODE_PARAMS, MODES, has, mode_id
from policies import make

from polylib.policy.testing import PolicyContract

S = gym.spaces
# Pairs rather than all combinations: encoding observations and choosing actions don't know of each other.
SPACES = {
    "one_hot_to_discrete": (S.Discrete(4, start=2), S.Discrete(3, start=5)),
    "pixels_to_multi_discrete": (S.Box(0, 255, (2, 2, 3), np.uint8), S.MultiDiscrete([3, 2], start=[5, 7])),
    "float64_to_bounded_box": (S.Box(-3.0, 3.0, (3,), np.float64), S.Box(-0.1, 0.3, (2,), np.float64)),
    "matrix_to_half_bounded_box": (
        S.Box(-np.inf, np.inf, (2, 2), np.float32),
        S.Box(np.float32([[-1, -np.inf], [0, -np.inf]]), np.float32([[1, np.inf], [np.inf, 2]]), dtype=np.float32),
    ),
}


def _contract(mode: tuple[str, bool], name: str) -> type:
    def make_policy(self, seed=0, **config):
        # Shared layers in half of the cases.
        return make(mode, *SPACES[name], seed=seed, share=name.startswith(("one", "float")), lr=1e-2, **config)

    title = "".join(part.title() for part in f"{mode_id(*mode)}_{name}".replace("-", "_").split("_"))
    made = type(f"Test{title}", (PolicyContract,), {"make_policy": make_policy})
    return pytest.mark.skipif(not has(mode[0]), reason=f"the package for {mode[0]!r} isn't installed")(made)


globals().update({made.__name__: made for mode in MODES for name in SPACES for made in [_contract(mode, name)]})


def test_there_is_a_class_for_each_pair():
    found = [x for x in globals().values() if isinstance(x, type) and issubclass(x, PolicyContract)]
    assert len(found) == len(MODES) * len(SPACES) + 1


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_an_environment_may_write_to_its_action(framework, traced):
    """In an unbounded Box the action is the raw sample itself, but not the same memory: that goes into the batch."""
    policy = make((framework, traced), action_space=S.Box(-np.inf, np.inf, (2,), np.float32))
    out = policy.compute_actions(np.ones((3, 3), np.float32))
    raw = out.extras["action_raw"].copy()
    np.testing.assert_array_equal(out.actions, raw)
    out.actions[...] = 0
    np.testing.assert_array_equal(out.extras["action_raw"], raw)
    policy.close()
