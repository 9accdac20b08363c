"""Off-policy evaluation while an algorithm trains: the config's estimators on its recorded episodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, ConfigError, PolylibError
from polylib.evaluation.inputs import reads
from polylib.models.preprocessors import restore
from polylib.models.spaces import is_nested
from polylib.offline.errors import OfflineError
from polylib.offline.estimators.direct_method import ModelBasedEstimator
from polylib.offline.estimators.off_policy_estimator import OffPolicyEstimator
from polylib.offline.estimators.registry import make_estimator, parse_methods
from polylib.offline.json_format import Batch
from polylib.offline.make_input import SAMPLER, make_input
from polylib.policy import columns as c
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch, concat_samples

logger = logging.getLogger(__name__)

#: Rows that are kept in memory for estimating.
MAX_ROWS = 1_000_000
_KEY = "config key 'off_policy_estimation_methods'"
_NEEDED = (c.OBS, c.ACTIONS, c.REWARDS)
# What estimators use besides, where all records have it.
_USED = (
    c.NEXT_OBS,
    c.TERMINATEDS,
    c.TRUNCATEDS,
    c.ACTION_LOGP,
    c.ACTION_PROB,
    c.ACTION_RAW,
    c.ACTION_MASK,
    c.EPS_ID,
    c.T,
    c.AGENT_INDEX,
)


def own_input(config: Any) -> Any:
    """The `input` that `evaluation_config` names; None if it names none."""
    own = config["evaluation_config"] or {}
    return own.get("input", own.get("input_"))


def recorded_input(config: Any) -> Any:
    """What is estimated from: the `input` of `evaluation_config`, or else that of training.

    Raises:
        ConfigError: if neither is recorded.
    """
    for value in (own_input(config), config["input"]):
        if reads(value):
            return value
    raise ConfigError(
        f"{_KEY}: estimators need recorded episodes: name them, as {{'evaluation_config': {{'input': FOLDER}}}}, or "
        "with the key 'input', which is learnt from, too"
    )


def check_methods(config: Any) -> dict[str, dict[str, Any]]:
    """Checks the config's `off_policy_estimation_methods`, and returns the settings of each.

    Raises:
        ConfigError: naming the method that is wrong.
    """
    methods = parse_methods(config["off_policy_estimation_methods"])
    if methods:
        recorded_input(config)
    return {name: settings for name, (_, settings) in methods.items()}


class OffPolicyEvaluation:
    """The estimators of an algorithm. The episodes are read once, when they are first needed, and kept.

    Args:
        config: the algorithm's.
        policy_of: the policy of an id, with its current weights.

    Raises:
        ConfigError: if an estimator can't judge the policy.
    """

    def __init__(self, config: Any, policy_of: Callable[[str], Policy]) -> None:
        self.config, self._policy_of = config, policy_of
        self._rows: dict[str, SampleBatch] = {}
        self._estimators: dict[str, tuple[OffPolicyEstimator, str]] = {}
        for name, (cls, settings) in parse_methods(config["off_policy_estimation_methods"]).items():
            policy_id = settings.pop("policy_id", None) or DEFAULT_POLICY_ID
            policy = policy_of(policy_id)
            # Files hold what the environment said, for learning as well.
            settings.setdefault("filter_observations", not policy.filter.identity)
            try:
                estimator = make_estimator(cls, settings, policy, config["gamma"])
            except PolylibError as error:
                raise type(error)(f"{_KEY}: {name!r}: {error}") from None
            self._estimators[name] = (estimator, policy_id)

    def run(self) -> dict[str, dict[str, Any]]:
        """What each estimator says, by the user's names.

        Raises:
            OfflineError: if the episodes can't be read.
            BatchError: naming the method, and the column that it lacks.
        """
        split, found = self.config["ope_split_batch_by_episode"], {}
        for name, (estimator, policy_id) in self._estimators.items():
            rows = self._recorded(policy_id)
            try:
                # The policy has changed since, so what was fitted to it has to follow.
                trained = estimator.train(rows, split) if isinstance(estimator, ModelBasedEstimator) else {}
                found[name] = {**estimator.estimate(rows, split), **trained}
            except BatchError as error:
                source = recorded_input(self.config)
                raise BatchError(f"{_KEY}: {name!r} on the input {source!r}: {error}") from None
        return found

    def _recorded(self, policy_id: str) -> SampleBatch:
        if policy_id not in self._rows:
            self._rows[policy_id] = self._read(policy_id)
        return self._rows[policy_id]

    def _read(self, policy_id: str) -> SampleBatch:
        policy, source = self._policy_of(policy_id), recorded_input(self.config)
        parts: list[SampleBatch] = []
        count = 0
        for record in self._records(source, policy):
            batches = record.as_multi_agent().policy_batches
            # A file of one policy is about the one that is there, whatever it was called.
            alone = next(iter(batches.values())) if len(batches) == 1 else SampleBatch()
            rows = batches.get(policy_id, alone)
            if not rows.count:
                continue
            parts.append(SampleBatch({name: rows[name] for name in (*_NEEDED, *_USED) if name in rows}))
            count += rows.count
            if count >= MAX_ROWS:
                logger.warning(
                    "%s: estimating from the first %d rows of %r: more aren't kept in memory", _KEY, count, source
                )
                break
        if not parts:
            raise OfflineError(f"{_KEY}: the input {source!r} has no rows of policy {policy_id!r}")
        common = set.intersection(*(set(part) for part in parts))
        rows = concat_samples([SampleBatch({name: part[name] for name in part if name in common}) for part in parts])
        for name in (c.OBS, c.NEXT_OBS):
            if name in rows:
                rows[name] = _as_the_environments(rows[name], policy.observation_space)
        return rows

    def _records(self, source: Any, policy: Policy) -> Iterator[Batch]:
        """The records of all sources, each once, in their order."""
        own = self.config["evaluation_config"] or {}
        settings = {"input_config": own["input_config"]} if "input_config" in own else {}
        for part in source if isinstance(source, Mapping) else [source]:
            if part == SAMPLER:
                continue
            config = self.config.copy().update_from_dict({"input": part, "shuffle_buffer_size": 0, **settings})
            reader = make_input(
                config,
                observation_space=policy.observation_space,
                action_space=policy.action_space,
                required=_NEEDED,
                loop=False,
            )
            try:
                yield from reader
            finally:
                reader.close()


def _as_the_environments(obs: Any, space: gym.Space[Any]) -> Any:
    """Observations as the space has them, where they were recorded one-hot or flattened."""
    if isinstance(obs, np.ndarray) and (is_nested(space) or obs.shape[1:] != (space.shape or ())):
        return restore(space, obs)
    return obs
