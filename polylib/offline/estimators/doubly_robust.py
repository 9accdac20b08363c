"""Doubly robust estimation: a model's values, corrected by weighted errors (arXiv:1511.03722, arXiv:1604.00923)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polylib.errors import ConfigTypeError
from polylib.offline.estimators.bootstrap import Estimate, effective_sample_size, step_blocks, weighted
from polylib.offline.estimators.direct_method import ModelBasedEstimator
from polylib.offline.estimators.logged import Logged, take
from polylib.policy import columns as c


class DoublyRobust(ModelBasedEstimator):
    """`V(s_0) + sum_t gamma^t w_t (r_t + gamma V(s_t+1) - Q(s_t, a_t))`, averaged over episodes.

    Right if either the model or the probabilities are. Where an episode was truncated its return ends, as everywhere
    else; one that is kept though its end wasn't recorded goes on with V of the last `new_obs`.

    Args:
        policy: as for `OffPolicyEstimator`.
        gamma: as for `OffPolicyEstimator`.
        epsilon_greedy: as for `OffPolicyEstimator`.
        normalize_weights: divide the weights of each step by their mean over episodes: "weighted doubly robust".
        **settings: of `DirectMethod`.
    """

    def __init__(
        self, policy: Any, gamma: float, epsilon_greedy: float = 0.0, normalize_weights: bool = False, **settings: Any
    ) -> None:
        super().__init__(policy, gamma, epsilon_greedy, **settings)
        if not isinstance(normalize_weights, bool):
            raise ConfigTypeError(f"normalize_weights={normalize_weights!r}, expected True or False")
        self.normalize_weights = normalize_weights

    def estimate_episodes(self, logged: Logged) -> Estimate:
        """As the class says."""
        ratios = self.log_ratios(logged)  # first: it is what a log most often lacks
        self._fitted(logged)
        rows, starts = logged.rows, logged.starts
        q_values, v_values = self.model.q_values(rows[c.OBS], rows[c.ACTIONS]), self.model.v_values(rows[c.OBS])
        last = starts + logged.lengths - 1
        after = np.zeros(rows.count)
        after[:-1] = v_values[1:]
        after[last] = 0.0
        open_ends = last[~logged.whole & ~logged.terminateds[last]] if c.NEXT_OBS in rows else last[:0]
        if len(open_ends):
            after[open_ends] = self.model.v_values(take(rows[c.NEXT_OBS], open_ends))
        errors = (logged.rewards + self.gamma * after - q_values) * logged.discounts(self.gamma)
        log_weights = logged.cumulated(ratios)
        ess = effective_sample_size(log_weights[last])
        if not self.normalize_weights:
            with np.errstate(over="ignore", invalid="ignore"):
                corrections = np.where(errors == 0, 0.0, np.exp(log_weights) * errors)
            return Estimate(v_values[starts] + logged.sums(corrections), ess)
        return self._weighted(logged, log_weights, errors, v_values[starts], ess)

    def _weighted(
        self, logged: Logged, log_weights: np.ndarray, errors: np.ndarray, first: np.ndarray, ess: float
    ) -> Estimate:
        steps = step_blocks(logged, log_weights, errors)

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            yield np.ones((logged.episodes, 1)), first[:, None]
            yield from steps()

        return Estimate(weighted(blocks, logged.episodes), ess, blocks)
