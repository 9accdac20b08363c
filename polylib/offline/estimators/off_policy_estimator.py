"""OffPolicyEstimator: what a policy would earn, estimated from what another one did."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from polylib.errors import BatchError, ConfigError, ConfigTypeError
from polylib.offline.estimators.bootstrap import Estimate, intervals
from polylib.offline.estimators.logged import Logged, episodes, numbers, one_policy, require
from polylib.offline.estimators.target import TargetPolicy
from polylib.policy import columns as c

logger = logging.getLogger(__name__)


class OffPolicyEstimator(ABC):
    """Base of the estimators; a subclass writes `estimate_episodes`.

    Args:
        policy: the policy to judge: a `Policy` of any framework, or anything with `action_space` and
            `compute_log_likelihoods(actions, obs)`.
        gamma: the discount of returns.
        epsilon_greedy: the probability with which the policy is replaced by a uniform action; Discrete actions only.
        greedy: judge the policy's most likely actions. None: if its exploration departs from those instead of sampling,
            as DQN's epsilon-greedy does, whose values are no logits.
        unfinished: what becomes of episodes that aren't whole: `"drop"`, `"keep"` or `"error"`.
        resamples: of the bootstrap; 0: no intervals.
        confidence: of the intervals.
        seed: of the bootstrap and of sampled actions.
        policy_id: whose rows are meant, of a batch with several policies.
        filter_observations: apply the policy's observation filter; for logs of the environment's own observations
            (polylib's traces hold filtered ones).

    Raises:
        ConfigError: naming the setting that is wrong.
    """

    #: Columns that `estimate` needs.
    columns: ClassVar[tuple[str, ...]] = (c.OBS, c.ACTIONS, c.REWARDS)

    def __init__(
        self,
        policy: Any,
        gamma: float,
        epsilon_greedy: float = 0.0,
        *,
        greedy: bool | None = None,
        unfinished: str = "drop",
        resamples: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
        policy_id: str | None = None,
        filter_observations: bool = False,
    ) -> None:
        _check_number("gamma", gamma, 0.0, 1.0)
        _check_number("confidence", confidence, 0.0, 1.0)
        if isinstance(resamples, bool) or not isinstance(resamples, int | np.integer) or resamples < 0:
            raise ConfigError(f"resamples={resamples!r}, expected how often the bootstrap draws: an int >= 0")
        if confidence in (0, 1):
            raise ConfigError(f"confidence={confidence!r}, expected a number between 0 and 1, such as 0.95")
        self.policy, self.gamma, self.epsilon_greedy = policy, float(gamma), epsilon_greedy
        self.target = TargetPolicy(policy, epsilon_greedy, greedy, filter_observations, seed)
        self.unfinished, self.policy_id = unfinished, policy_id
        self.resamples, self.confidence, self.seed = int(resamples), float(confidence), seed

    def estimate(self, batch: Any, split_batch_by_episode: bool = True) -> dict[str, Any]:
        """Estimates the policy's mean discounted return.

        Args:
            batch: a `SampleBatch` (or a `MultiAgentBatch`, or a dict of columns `[B, ...]`) of whole episodes, in any
                order: `obs`, `actions`, `rewards`, what tells episodes apart (`eps_id`, `t`, `terminateds`,
                `truncateds`), and for importance sampling `action_logp` or `action_prob`.
            split_batch_by_episode: False: each row is an episode of one step, as in a bandit's log.

        Returns:
            `v_behavior`, `v_behavior_std`: mean and standard deviation of the logged episodes' discounted returns.
            `v_target`, `v_target_std`: the estimate, and the standard deviation of what episodes contribute to it.
            `v_gain`: v_target / v_behavior; NaN where returns aren't positive, where a ratio says nothing.
            `v_delta`: v_target - v_behavior. `ci_low`, `ci_high`: bootstrap interval of v_target; `v_delta_ci_low`,
            `v_delta_ci_high`: of v_delta. `ess`: effective sample size. `episodes`: how many were used, and
            `episodes_left_out`: how many weren't since they aren't whole.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        logged = self._logged(batch, split_batch_by_episode, self.columns)
        returns = logged.sums(logged.rewards * logged.discounts(self.gamma))
        found = self.estimate_episodes(logged)
        behavior, target = float(returns.mean()), float(found.values.mean())
        interval, delta = intervals(found, returns, self.resamples, self.confidence, self.seed)
        if not np.isfinite(target):
            logger.warning(
                "%s: the estimate is %s. Either the policy would never have done what was logged, or its density there "
                "is too large for a number: the log can't tell what it would earn. With epsilon_greedy=0.1, say, no "
                "action of a greedy policy (DQN's) is impossible",
                type(self).__name__,
                target,
            )
        return {
            "v_behavior": behavior,
            "v_behavior_std": float(returns.std()),
            "v_target": target,
            "v_target_std": float(found.values.std()) if np.isfinite(target) else float("nan"),
            "v_gain": target / behavior if behavior > 1e-8 else float("nan"),
            "v_delta": target - behavior,
            "ci_low": interval[0],
            "ci_high": interval[1],
            "v_delta_ci_low": delta[0],
            "v_delta_ci_high": delta[1],
            "ess": found.ess,
            "episodes": logged.episodes,
            "episodes_left_out": logged.left_out,
        }

    def train(self, batch: Any) -> dict[str, Any]:
        """Fits what the estimator needs to a batch like that of `estimate`; importance sampling needs nothing."""
        return {}

    @abstractmethod
    def estimate_episodes(self, logged: Logged) -> Estimate:
        """What each episode says of the policy's return, `gamma` counting from its first step.

        Args:
            logged: rows `[B, ...]` in the order of episodes and steps; `log_ratios` and `target` are what estimators
                need besides.
        """

    def _logged(self, batch: Any, split: bool, needed: tuple[str, ...]) -> Logged:
        rows = one_policy(batch, self.policy_id)
        require(rows, needed, type(self).__name__)
        return episodes(rows, split, self.unfinished)

    def log_ratios(self, logged: Logged) -> np.ndarray:
        """log(target probability / behaviour probability) of each logged action `[B]`."""
        behavior = self._behavior(logged)
        return self.target.log_probs(logged) - behavior

    def _behavior(self, logged: Logged) -> np.ndarray:
        rows, who = logged.rows, type(self).__name__
        if c.ACTION_LOGP in rows:
            self._check_known(rows[c.ACTION_LOGP])
            logp = numbers(rows, c.ACTION_LOGP)
        elif c.ACTION_PROB in rows:
            probabilities = numbers(rows, c.ACTION_PROB)
            if (probabilities <= 0).any():
                row = int(np.argmax(probabilities <= 0))
                raise BatchError(
                    f"column {c.ACTION_PROB!r}: row {row} holds {probabilities[row]}, expected the probability or "
                    "density > 0 of an action that was taken"
                )
            logp = np.log(probabilities)
        else:
            raise BatchError(
                f"the batch has no column {c.ACTION_LOGP!r} (log-probability of the logged action under the policy "
                f"that took it) nor {c.ACTION_PROB!r}, which {who} needs; it has {', '.join(rows)}. Record with a "
                "stochastic policy, add the column, or use the direct method ('dm'), which needs none"
            )
        if self.target.discrete:
            self._check_discrete(logp)
        return logp

    @staticmethod
    def _check_known(column: Any) -> None:
        column = np.asarray(column)
        unknown = np.isnan(column) if column.dtype.kind == "f" else np.zeros(1, np.bool_)
        if unknown.any():
            raise BatchError(
                f"column {c.ACTION_LOGP!r}: row {int(np.argmax(unknown))} holds nan, one of {int(unknown.sum())} "
                f"among {len(column)}: nobody knows how likely these actions were, as with ParameterNoise, noisy "
                "layers (noisy=True), a strategy of your own without log_probs, or Box actions without exploration. "
                "Record with another exploration_config, or use the direct method ('dm'), which needs no likelihoods"
            )

    def _check_discrete(self, logp: np.ndarray) -> None:
        if (logp > 1e-3).any():
            row = int(np.argmax(logp > 1e-3))
            raise BatchError(
                f"the log-probability in row {row} is {logp[row]}, above 0, which no discrete action has: is the "
                f"column a probability, or a loss? Probabilities belong in the column {c.ACTION_PROB!r}"
            )
        if len(logp) > 1 and not logp.any():
            logger.warning(
                "%s: every logged action has the probability 1. Whatever a deterministic policy didn't do, no weight "
                "can make up for; and if it did explore, what wrote the log didn't record how likely that was (RLlib's "
                "DQN doesn't)",
                type(self).__name__,
            )


def _check_number(name: str, value: Any, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ConfigTypeError(f"{name}={value!r} ({type(value).__name__}), expected a number from {low:g} to {high:g}")
    if not low <= value <= high:
        raise ConfigError(f"{name}={value!r}, expected a number from {low:g} to {high:g}")
