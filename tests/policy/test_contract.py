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
IMAGE = S.Box(0, 255, (12, 12, 1), np.uint8)
BOX = S.Box(-1.0, 1.0, (3,), np.float32)
# name -> observation space, action space, keys of the config's `model`
NETWORKS = {
    "lstm": (BOX, S.Discrete(3, start=5), {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True}),
    "gru": (
        S.Tuple([BOX, S.Discrete(3)]),
        S.Box(-1.0, 2.0, (2,), np.float32),
        {"use_gru": True, "lstm_cell_size": 4, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
    ),
    "attention": (
        BOX,
        S.Discrete(3),
        {
            "use_attention": True,
            "attention_dim": 6,
            "attention_num_heads": 2,
            "attention_head_dim": 2,
            "attention_memory_inference": 3,
            "attention_memory_training": 3,
            "attention_position_wise_mlp_dim": 3,
        },
    ),
    "vision": (IMAGE, S.MultiDiscrete([2, 3], start=[1, -1]), {"conv_filters": [[3, [5, 4], 2], [4, [6, 6], 1]]}),
    "dict": (
        S.Dict({"eye": IMAGE, "arm": BOX, "gear": S.Discrete(3, start=2)}),
        S.Box(-1.0, 1.0, (2,), np.float32),
        {"conv_filters": [[3, [5, 4], 2], [4, [6, 6], 1]], "free_log_std": True},
    ),
    "tuple_actions": (
        S.Dict({"deep": S.Tuple([BOX, S.MultiBinary(2)])}),
        S.Tuple([S.Discrete(3, start=1), S.Dict({"push": S.Box(-2.0, 1.0, (2,), np.float32), "on": S.MultiBinary(2)})]),
        {},
    ),
}


def _contract(mode: tuple[str, bool], name: str) -> type:
    def make_policy(self, seed=0, **config):
        if name in NETWORKS:
            obs_space, action_space, model = NETWORKS[name]
            model = {"max_seq_len": 3, **model}
            return make(mode, obs_space, action_space, seed=seed, hiddens=(5,), lr=1e-2, model=model, **config)
        # Shared layers in half of the cases.
        return make(mode, *SPACES[name], seed=seed, share=name.startswith(("one", "float")), lr=1e-2, **config)

    title = "".join(part.title() for part in f"{mode_id(*mode)}_{name}".replace("-", "_").split("_"))
    made = type(f"Test{title}", (PolicyContract,), {"make_policy": make_policy})
    return pytest.mark.skipif(not has(mode[0]), reason=f"the package for {mode[0]!r} isn't installed")(made)


CASES = [*SPACES, *NETWORKS]
globals().update({made.__name__: made for mode in MODES for name in CASES for made in [_contract(mode, name)]})


def test_there_is_a_class_for_each_pair():
    found = [x for x in globals().values() if isinstance(x, type) and issubclass(x, PolicyContract)]
    assert len(found) == len(MODES) * len(CASES) + 1


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
