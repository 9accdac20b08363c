"""Observation spaces x action spaces x networks x modes: each acts, learns a batch, is saved and restored.

Every pair of two choices is in some cell of the fast tests; all combinations run with `-m grid` (an hour).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tree
from modes import MODES, has, mode_id
from policies import make

from polylib.models.spaces import leaves
from polylib.policy.checkpoint import load_policy, save_policy
from polylib.policy.policy import Policy
from polylib.policy.testing import row, sample_space
from polylib.utils.spaces.simplex import Simplex

F32 = np.float32
S = gym.spaces
IMAGE = S.Box(0, 255, (12, 12, 1), np.uint8)
OBSERVATIONS: dict[str, gym.Space] = {
    "box": S.Box(-1, 1, (3,), F32),
    "box_float64_matrix": S.Box(-1, 1, (2, 2), np.float64),
    "box_int": S.Box(-5, 5, (3,), np.int32),
    "image": IMAGE,
    "discrete": S.Discrete(4, start=2),
    "multi_discrete": S.MultiDiscrete([2, 3], start=[1, -1]),
    "multi_binary": S.MultiBinary(4),
    "dict": S.Dict({"arm": S.Box(-1, 1, (2,), F32), "gear": S.Discrete(3)}),
    "tuple": S.Tuple([IMAGE, S.Dict({"x": S.Box(-1, 1, (), F32), "y": S.MultiDiscrete([2, 2])})]),
}
ACTIONS: dict[str, gym.Space] = {
    "discrete": S.Discrete(3, start=5),
    "multi_discrete": S.MultiDiscrete([[2], [3]], start=[[1], [-1]]),
    "multi_binary": S.MultiBinary(2),
    "box": S.Box(-2, 1, (2,), F32),
    "half_bounded": S.Box(F32([-1, -np.inf]), F32([np.inf, 1])),
    "unbounded": S.Box(-np.inf, np.inf, (1, 2), F32),
    "simplex": Simplex((3,)),
    "nested": S.Dict({"a": S.Tuple([S.Discrete(2), S.Box(-1, 1, (2,), F32)]), "b": S.MultiBinary(2)}),
}
CONV = {"conv_filters": [[2, [4, 4], 3], [3, [4, 4], 1]]}
ATTENTION = {
    "use_attention": True,
    "attention_dim": 4,
    "attention_head_dim": 2,
    "attention_memory_inference": 2,
    "attention_memory_training": 2,
    "attention_position_wise_mlp_dim": 2,
}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"conv_filters": []},
    "shared": {"vf_share_layers": True, "conv_filters": []},
    "free_log_std": {"free_log_std": True, "conv_filters": []},
    "vision": CONV,
    "lstm": {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True, "conv_filters": []},
    "gru": {"use_gru": True, "conv_filters": []},
    "vision_lstm": {"use_lstm": True, **CONV},
    "attention": {**ATTENTION, "conv_filters": []},
}
Cell = tuple[str, str, str, tuple[str, bool]]


def _fits(cell: Cell) -> bool:
    """Convolutions need an image, and log-stds of their own need means."""
    observation, action, network, _ = cell
    if "vision" in network and observation not in ("image", "tuple"):
        return False
    return network != "free_log_std" or action in ("box", "half_bounded", "unbounded")


ALL = [cell for cell in itertools.product(OBSERVATIONS, ACTIONS, NETWORKS, MODES) if _fits(cell)]


def _pairs(cell: Cell) -> Iterable[tuple[Any, ...]]:
    return ((i, j, cell[i], cell[j]) for i, j in itertools.combinations(range(4), 2))


def _pairwise() -> list[Cell]:
    """Few cells in which each pair that some cell has occurs, chosen greedily."""
    wanted = {pair for cell in ALL for pair in _pairs(cell)}
    chosen = []
    while wanted:
        best = max(ALL, key=lambda cell: sum(pair in wanted for pair in _pairs(cell)))
        chosen.append(best)
        wanted.difference_update(_pairs(best))
    return chosen


def _params(cells: Iterable[Cell], *marks: Any) -> list[Any]:
    found = []
    for cell in cells:
        skip = pytest.mark.skipif(not has(cell[3][0]), reason=f"the package for {cell[3][0]!r} isn't installed")
        found.append(pytest.param(*cell, id="-".join([*cell[:3], mode_id(*cell[3])]), marks=[skip, *marks]))
    return found


PAIRWISE = _pairwise()
REST = [cell for cell in ALL if cell not in set(PAIRWISE)]


def test_the_grid_is_pairwise_and_small():
    assert len(PAIRWISE) <= 150
    assert {pair for cell in PAIRWISE for pair in _pairs(cell)} == {pair for cell in ALL for pair in _pairs(cell)}


@pytest.mark.parametrize(("observation", "action", "network", "mode"), _params(PAIRWISE))
def test_cell(tmp_path, observation, action, network, mode):
    check(tmp_path, observation, action, network, mode)


@pytest.mark.parametrize(("observation", "action", "network", "mode"), _params(REST, pytest.mark.grid))
def test_every_cell(tmp_path, observation, action, network, mode):
    check(tmp_path, observation, action, network, mode)


def check(path: Path, observation: str, action: str, network: str, mode: tuple[str, bool]) -> None:
    obs_space, action_space = OBSERVATIONS[observation], ACTIONS[action]
    model = {"max_seq_len": 2, "lstm_cell_size": 3, **NETWORKS[network]}
    policy = make(mode, obs_space, action_space, hiddens=(4,), model=model)
    restored: Policy | None = None
    try:
        obs = sample_space(obs_space, 6, 0)
        out = policy.compute_actions(obs)
        assert all(action_space.contains(row(out.actions, i)) for i in range(6))
        rng = np.random.default_rng(0)
        noise = {name: rng.standard_normal(6, F32) for name in ("advantages", "value_targets")}
        states = {f"state_in_{i}": x for i, x in enumerate(out.state)}
        ids = np.array([0, 0, 0, 1, 1, 2])
        before = policy.get_weights()
        stats = policy.learn_on_batch(
            {"obs": obs, "actions": out.actions, **out.extras, **noise, **states, "unroll_id": ids}
        )["learner_stats"]
        assert all(math.isfinite(x) for x in stats.values()) and 0 < stats["grad_gnorm"] < 1e6, stats
        after = policy.get_weights()
        assert all(np.isfinite(w).all() for w in after.values())
        assert any(not np.array_equal(before[key], w) for key, w in after.items())
        # Graphs take the most time here: that they are restored into each other is what other tests check.
        framework = "numpy" if mode in (("tf", False), ("tf2", True)) else mode[0]
        restored = load_policy(save_policy(policy, path / "policy", "PPO"), framework, eager_tracing=mode[1])
        first, again = (p.compute_actions(obs, out.state, explore=False) for p in (policy, restored))
        for x, y in zip(tree.flatten(tuple(first)), tree.flatten(tuple(again)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
        assert len(leaves(action_space)) == len(tree.flatten(first.actions))
    finally:
        policy.close()
        if restored is not None:
            restored.close()
