"""Offline algorithms find the best policy of a chain from steps that went anywhere.

Five states in a row; right of the last there is a reward of 1, and the end. With gamma = 0.9 going right is worth
0.9^(4 - s) in state s. Every step is recorded once, so half of what was done was wrong.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from learners import build

CHAIN, SIDES = gym.spaces.Discrete(5), gym.spaces.Discrete(2)
STATE, SIDE = np.repeat(np.arange(5), 2), np.tile([0, 1], 5)
WON = (STATE == 4) & (SIDE == 1)
ROWS = {
    "obs": STATE,
    "new_obs": np.clip(STATE + 2 * SIDE - 1, 0, 4),
    "actions": SIDE,
    "rewards": WON.astype(np.float32),
    "terminateds": WON,
    "discounts": np.full(10, 0.9, np.float32),
}
VALUES = 0.9 ** np.arange(4, -1, -1)
_FAST = {"actor_lr": 0.01, "critic_lr": 0.01, "tau": 0.05}
CASES = {
    "CRR-bin": ("CRR", {**_FAST, "advantage_type": "expectation"}),
    "CRR-exp": ("CRR", {**_FAST, "weight_type": "exp", "temperature": 0.05}),
    # Of the next values it takes an expectile, not the best: a bit less.
    "IQL": ("IQL", {**_FAST, "value_lr": 0.01, "expectile": 0.95, "beta": 20.0}),
    # Hardly conservative, and hardly random.
    "CQL": (
        "CQL",
        {
            "bc_iters": 0,
            "min_q_weight": 0.02,
            "target_entropy": 0.05,
            "tau": 0.05,
            "optimization": dict.fromkeys(
                ("actor_learning_rate", "critic_learning_rate", "entropy_learning_rate"), 0.01
            ),
        },
    ),
}


@needs_torch
@pytest.mark.parametrize("case", CASES)
def test_the_best_policy_of_a_chain(case):
    algo, keys = CASES[case]
    policy = build(("torch", False), algo, CHAIN, SIDES, **keys)
    for _ in range(600):
        stats = policy.learn_on_batch(ROWS)["learner_stats"]
    assert policy.compute_actions(np.arange(5), explore=False).actions.tolist() == [1] * 5
    # Over all rows: right is worth VALUES, left what the state left of it is worth, a step later.
    left = 0.9 * VALUES[[0, 0, 1, 2, 3]]
    assert stats["mean_q"] == pytest.approx((VALUES.mean() + left.mean()) / 2, abs=0.03)
    assert stats["max_q"] == pytest.approx(1, abs=0.02) and stats["min_q"] == pytest.approx(left[0], abs=0.05)
