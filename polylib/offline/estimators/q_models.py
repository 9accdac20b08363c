"""Action values for the direct method: tables and linear functions that people have, and what any model must offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tree

from polylib.errors import BatchError, ConfigError
from polylib.offline.estimators.logged import Logged
from polylib.offline.estimators.target import TargetPolicy

# Rows times actions that a q model is given at a time.
_ROWS = 65_536


class QModel(Protocol):
    """What `q_model=` takes. With a method `v_values(obs) -> [N]` that is used, too, instead of the policy's mean of
    `q_values`; with a method `train(batch) -> dict`, the estimator's `train` calls it.
    """

    def q_values(self, obs: Any, actions: Any) -> np.ndarray:
        """Values `[N]` of actions `[N, *action_shape]` at observations `[N, *obs_shape]`."""


class TabularQ:
    """Values from a table `[S, A]` (or `[T, S, A]`'s one step): observations and actions are Discrete.

    Args:
        table: `[S, A]`.
        first_state: the observation of the table's first row.
        first_action: the action of its first column.
    """

    def __init__(self, table: Any, first_state: int = 0, first_action: int = 0) -> None:
        self.table = np.asarray(table, np.float64)
        if self.table.ndim != 2:
            raise ConfigError(f"TabularQ: the table has shape {list(self.table.shape)}, expected [states, actions]")
        self.first_state, self.first_action = first_state, first_action

    def q_values(self, obs: Any, actions: Any) -> np.ndarray:
        """The table's entries `[N]` for observations `[N] int`, or one-hot `[N, S]`, and actions `[N] int`."""
        return self.table[self._states(obs), self._index("actions", actions, self.first_action, 1)]

    def _states(self, obs: Any) -> np.ndarray:
        obs = np.asarray(obs)
        if obs.ndim == 2 and obs.shape[1] == len(self.table):
            return obs.argmax(1)
        return self._index("obs", obs, self.first_state, 0)

    def _index(self, name: str, value: Any, first: int, axis: int) -> np.ndarray:
        index = np.asarray(value)
        if index.ndim != 1 or index.dtype.kind not in "iu":
            raise BatchError(
                f"column {name!r} is {index.dtype}{list(index.shape)}: TabularQ takes integers [N]"
                + (f", or one-hot [N, {len(self.table)}]" if axis == 0 else "")
            )
        index = index.astype(np.int64) - first
        bad = (index < 0) | (index >= self.table.shape[axis])
        if bad.any():
            row = int(np.argmax(bad))
            raise BatchError(
                f"column {name!r}: row {row} holds {index[row] + first}, TabularQ has {first} to "
                f"{first + self.table.shape[axis] - 1}"
            )
        return index


class LinearQ:
    """`features(obs, actions) @ weights`.

    Args:
        weights: `[K]`.
        features: takes observations `[N, *obs_shape]` and actions `[N, *action_shape]`, returns `[N, K]`. None: both
            flattened, side by side, then a 1.
    """

    def __init__(self, weights: Any, features: Callable[[Any, Any], np.ndarray] | None = None) -> None:
        self.weights = np.asarray(weights, np.float64)
        if self.weights.ndim != 1:
            raise ConfigError(f"LinearQ: the weights have shape {list(self.weights.shape)}, expected [features]")
        self.features = features or _side_by_side

    def q_values(self, obs: Any, actions: Any) -> np.ndarray:
        """`[N]`."""
        found = np.asarray(self.features(obs, actions), np.float64)
        if found.ndim != 2 or found.shape[1] != len(self.weights):
            raise ConfigError(
                f"LinearQ: the features have shape {list(found.shape)}, expected [N, {len(self.weights)}] for "
                f"{len(self.weights)} weights"
            )
        return found @ self.weights


def _side_by_side(obs: Any, actions: Any) -> np.ndarray:
    rows = len(tree.flatten(obs)[0])
    parts = [np.asarray(x, np.float64).reshape(rows, -1) for x in (*tree.flatten(obs), *tree.flatten(actions))]
    return np.concatenate([*parts, np.ones((rows, 1))], 1)


class GivenQ:
    """A `QModel` with the policy's mean for what it doesn't have.

    Args:
        model: the user's.
        target: the policy.
        samples: actions drawn for each observation where they can't be counted.
    """

    def __init__(self, model: Any, target: TargetPolicy, samples: int) -> None:
        if not callable(getattr(model, "q_values", None)):
            raise ConfigError(
                f"q_model={model!r} ({type(model).__name__}): expected an object with q_values(obs, actions) -> [N], "
                "such as TabularQ or LinearQ"
            )
        self.model, self.target, self.samples = model, target, samples

    def fit(self, logged: Logged) -> dict[str, Any]:
        """The model's own `train`, if it has one."""
        train = getattr(self.model, "train", None)
        return dict(train(logged.rows) or {}) if callable(train) else {}

    def q_values(self, obs: Any, actions: Any) -> np.ndarray:
        """`[N] float64`."""
        return self._checked("q_values", self.model.q_values(obs, actions), len(tree.flatten(obs)[0]))

    def v_values(self, obs: Any) -> np.ndarray:
        """`[N] float64`."""
        own = getattr(self.model, "v_values", None)
        if callable(own):
            return self._checked("v_values", own(obs), len(tree.flatten(obs)[0]))
        return mean_over_actions(self.target, obs, self.q_values, self.samples)

    def _checked(self, name: str, values: Any, rows: int) -> np.ndarray:
        found = np.asarray(values, np.float64)
        if found.shape != (rows,):
            raise ConfigError(
                f"q_model: {type(self.model).__name__}.{name} returned shape {list(found.shape)}, expected [{rows}]"
            )
        return found


def mean_over_actions(
    target: TargetPolicy, obs: Any, q_values: Callable[[Any, Any], np.ndarray], samples: int
) -> np.ndarray:
    """The policy's mean of `q_values` `[N] float64`: exact for discrete actions, else over sampled ones."""
    rows = len(tree.flatten(obs)[0])
    chunk = max(1, _ROWS // (int(target.space.n) if target.discrete else max(samples, 1)))
    parts = []
    for start in range(0, rows, chunk):
        part = tree.map_structure(lambda x, a=start: np.asarray(x)[a : a + chunk], obs)
        parts.append((_counted if target.discrete else _sampled)(target, part, q_values, samples))
    return np.concatenate(parts) if parts else np.zeros(0)


def _counted(target: TargetPolicy, obs: Any, q_values: Callable[[Any, Any], np.ndarray], samples: int) -> np.ndarray:
    probabilities = target.probabilities(obs)
    rows, first = len(probabilities), int(target.space.start)
    values = [q_values(obs, np.full(rows, first + a, np.int64)) for a in range(probabilities.shape[1])]
    return (probabilities * np.stack(values, 1)).sum(1)


def _sampled(target: TargetPolicy, obs: Any, q_values: Callable[[Any, Any], np.ndarray], samples: int) -> np.ndarray:
    count = 1 if target.deterministic else samples
    repeated = tree.map_structure(lambda x: np.repeat(x, count, 0), obs)
    return q_values(repeated, target.actions(obs, count)).reshape(-1, count).mean(1)
