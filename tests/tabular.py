"""A decision process small enough to work out by hand, policies given by tables, and its logs.

    state 0:  action 0 -> reward 2, the end          state 1:  action 0 -> reward -2, the end
              action 1 -> reward 1, state 1                    action 1 -> reward 4, the end

gamma is 1/2. Three things can happen: A = (0), B = (1, 0), C = (1, 1), with the returns

    G_A = 2          G_B = 1 + 0.5 * -2 = 0          G_C = 1 + 0.5 * 4 = 3

The behaviour tosses a coin. The target takes action 1 with probability 3/4 in state 0 and 1/4 in state 1:

    Q(1, .) = (-2, 4)                     V(1) = 0.75 * -2 + 0.25 * 4 = -0.5
    Q(0, .) = (2, 1 + 0.5 * -0.5 = 0.75)  V(0) = 0.25 * 2 + 0.75 * 0.75 = 1.0625

The ratios of the steps are 0.25 / 0.5 = 0.5 and 0.75 / 0.5 = 1.5:

    w_A = 0.5          w_B = 1.5 * 1.5 = 2.25          w_C = 1.5 * 0.5 = 0.75
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from polylib.policy.sample_batch import SampleBatch

GAMMA = 0.5
STATES, ACTIONS = gym.spaces.Discrete(2), gym.spaces.Discrete(2)
BEHAVIOR = np.full((2, 2), 0.5)
TARGET = np.array([[0.25, 0.75], [0.75, 0.25]])
Q = np.array([[2.0, 0.75], [-2.0, 4.0]])
V = np.array([1.0625, -0.5])
EPISODES = {"A": [(0, 0, 2.0)], "B": [(0, 1, 1.0), (1, 0, -2.0)], "C": [(0, 1, 1.0), (1, 1, 4.0)]}


class TablePolicy:
    """Probabilities of actions from a table `[S, A]`: all that an estimator needs of a policy."""

    observation_space, action_space = STATES, ACTIONS

    def __init__(self, table: Any = TARGET) -> None:
        self.table = np.asarray(table)

    def compute_log_likelihoods(self, actions: np.ndarray, obs: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(self.table[obs, actions])


def log(names: str, behavior: np.ndarray = BEHAVIOR, **changes: Any) -> SampleBatch:
    """A log of these episodes, such as `"ABBC"`; changes replace columns, None takes one away."""
    rows = [(k, t, *step) for k, name in enumerate(names) for t, step in enumerate(EPISODES[name])]
    ids, steps, obs, actions, rewards = (np.array(x) for x in zip(*rows, strict=True))
    columns = {
        "obs": obs,
        "actions": actions,
        "rewards": rewards.astype(np.float32),
        "terminateds": np.append(ids[1:] != ids[:-1], True),
        "truncateds": np.zeros(len(ids), bool),
        "new_obs": np.append(obs[1:], 0),
        "action_logp": np.log(behavior[obs, actions]).astype(np.float32),
        "eps_id": ids,
        "t": steps,
        **changes,
    }
    return SampleBatch({name: x for name, x in columns.items() if x is not None})
