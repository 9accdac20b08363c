"""Importance sampling: logged returns, weighted by how much likelier the policy makes them (Precup et al. 2000)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from polylib.offline.estimators.bootstrap import Estimate, effective_sample_size, relative, step_blocks, weighted
from polylib.offline.estimators.logged import Logged
from polylib.offline.estimators.off_policy_estimator import OffPolicyEstimator


class ImportanceSampling(OffPolicyEstimator):
    """`mean_i(w_i G_i)`: an episode's weight is the product of its steps' probability ratios.

    Unbiased, and of a variance that grows exponentially with the length of episodes.
    """

    def estimate_episodes(self, logged: Logged) -> Estimate:
        """As the class says."""
        log_weights = logged.sums(self.log_ratios(logged))
        returns = logged.sums(logged.rewards * logged.discounts(self.gamma))
        with np.errstate(over="ignore", invalid="ignore"):
            values = np.where(returns == 0, 0.0, np.exp(log_weights) * returns)
        return Estimate(values, effective_sample_size(log_weights))


class WeightedImportanceSampling(OffPolicyEstimator):
    """`sum_i(w_i G_i) / sum_i(w_i)`: biased towards the behaviour, consistent, and much steadier."""

    def estimate_episodes(self, logged: Logged) -> Estimate:
        """As the class says."""
        log_weights = logged.sums(self.log_ratios(logged))
        returns = logged.sums(logged.rewards * logged.discounts(self.gamma))
        weights = relative(log_weights)[:, None]

        def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            yield weights, returns[:, None]

        return Estimate(weighted(blocks, logged.episodes), effective_sample_size(log_weights), blocks)


class PerDecisionImportanceSampling(OffPolicyEstimator):
    """`mean_i(sum_t gamma^t w_it r_it)`, where `w_it` has the ratios up to step t only: unbiased, less variance."""

    def estimate_episodes(self, logged: Logged) -> Estimate:
        """As the class says."""
        log_weights = logged.cumulated(self.log_ratios(logged))
        rewards = logged.rewards * logged.discounts(self.gamma)
        with np.errstate(over="ignore", invalid="ignore"):
            values = logged.sums(np.where(rewards == 0, 0.0, np.exp(log_weights) * rewards))
        return Estimate(values, effective_sample_size(_last(logged, log_weights)))


class WeightedPerDecisionImportanceSampling(OffPolicyEstimator):
    """`sum_t gamma^t sum_i(w_it r_it) / sum_i(w_it)`: per decision, with weights normalised at each step."""

    def estimate_episodes(self, logged: Logged) -> Estimate:
        """As the class says."""
        log_weights = logged.cumulated(self.log_ratios(logged))
        blocks = step_blocks(logged, log_weights, logged.rewards * logged.discounts(self.gamma))
        ess = effective_sample_size(_last(logged, log_weights))
        return Estimate(weighted(blocks, logged.episodes), ess, blocks)


def _last(logged: Logged, x: np.ndarray) -> np.ndarray:
    """What `x: [B]` is at the end of each episode."""
    return x[logged.starts + logged.lengths - 1]
