"""Evaluation during training: the config's evaluation keys, on workers of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.errors import ConfigError, ConfigTypeError
from polylib.evaluation.inputs import reads
from polylib.evaluation.metrics import EpisodeMetrics, summarize_episodes
from polylib.evaluation.off_policy import OffPolicyEvaluation, check_methods, own_input
from polylib.evaluation.worker_set import WorkerSet
from polylib.registry import env_name

if TYPE_CHECKING:
    from polylib.algorithms.algorithm import Algorithm


def evaluation_config(config: AlgorithmConfig) -> AlgorithmConfig:
    """The config of the evaluation workers: the training's, with `evaluation_config` over it.

    Raises:
        ConfigError: naming a key of `evaluation_config` that is wrong.
    """
    defaults: dict[str, Any] = {"num_workers": config["evaluation_num_workers"], "output": None, "profile": False}
    defaults["update_worker_filter_stats"] = True  # they see what the policy that is evaluated was trained on
    if config["vectorization_mode"] == "auto":
        defaults["vectorization_mode"] = "sync"  # where every episode has a seed of its own
    # What an algorithm evaluates with by itself (DQN: greedily) holds unless the user says otherwise key by key.
    given = {**(config.defaults.get("evaluation_config") or {}), **(config["evaluation_config"] or {})}
    given = {key: value for key, value in given.items() if key not in ("input", "input_")}
    try:
        # They run episodes, whatever is learnt from.
        return config.copy().update_from_dict({**defaults, **given, "input": "sampler"})
    except ConfigError as error:
        raise type(error)(f"config key 'evaluation_config': {error}") from None


def check_evaluation(config: AlgorithmConfig) -> None:
    """Checks the evaluation keys against each other.

    Raises:
        ConfigError: naming the keys.
    """
    if config["evaluation_parallel_to_training"] and not config["evaluation_num_workers"]:
        raise ConfigError(
            "config key 'evaluation_parallel_to_training': it takes workers of its own: set evaluation_num_workers >= 1"
        )
    if config["evaluation_duration"] == "auto" and not config["evaluation_parallel_to_training"]:
        raise ConfigError(
            "config key 'evaluation_duration': 'auto' means as long as training takes, so it needs "
            "evaluation_parallel_to_training=True"
        )
    for name, settings in check_methods(config).items():
        network = settings.get("q_model_config")
        model = network.get("model") if isinstance(network, Mapping) else None  # anything else the method refuses
        try:
            AlgorithmConfig().update_from_dict({"model": model or {}})
        except ConfigError as error:
            key = f"off_policy_estimation_methods.{name}.q_model_config"
            raise type(error)(f"config key {key!r}: {error}") from None
    own = evaluation_config(config)
    source = own_input(config)
    if reads(source) and not config["off_policy_estimation_methods"]:
        raise ConfigError(
            f"config key 'evaluation_config.input': nobody would read {source!r}: files are for the estimators of "
            "off_policy_estimation_methods, such as {'is': {'type': 'is'}}; evaluation itself runs episodes"
        )
    others = config["custom_evaluation_function"] or config["off_policy_estimation_methods"]
    if config["evaluation_interval"] and own["env"] is None and not others:
        raise ConfigError(
            "config key 'evaluation_interval': there is no environment to evaluate in; name one, as "
            "{'evaluation_config': {'env': 'CartPole-v1'}} or --env CartPole-v1, or leave evaluation_interval out"
        )


def _shape(space: Any) -> Any:
    """What networks need of a space: not where its bounds lie."""
    if isinstance(space, gym.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return tuple(space.nvec.ravel().tolist())
    if isinstance(space, gym.spaces.Dict):
        return {key: _shape(part) for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return [_shape(part) for part in space.spaces]
    return type(space).__name__, space.shape


class Evaluation:
    """The evaluation workers of an algorithm.

    Args:
        algorithm: the algorithm, with its local worker.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm
        self.config = evaluation_config(algorithm.config)
        self.config.freeze()
        self.workers = WorkerSet(self.config, algorithm.get_default_policy_class(self.config))
        try:
            self._check_spaces()
        except BaseException:
            self.workers.stop()
            raise
        self.off_policy: OffPolicyEvaluation | None = None
        if algorithm.config["off_policy_estimation_methods"]:
            self.off_policy = OffPolicyEvaluation(algorithm.config, algorithm.workers.local_worker().get_policy)

    def _check_spaces(self) -> None:
        """Evaluation's environment must be one that the policy can act in."""
        trained = self.algorithm.get_policy()
        own = self.workers.local_worker().get_policy()
        for what, has, needs in (
            ("observation", own.observation_space, trained.observation_space),
            ("action", own.action_space, trained.action_space),
        ):
            if _shape(has) != _shape(needs):
                raise ConfigError(
                    f"config key 'evaluation_config.env': {env_name(self.config['env'])} has the {what} space {has}, "
                    f"and the policy learns for {needs}: evaluate in an environment with the spaces of training"
                )

    def start(self, seconds: float | None = None) -> Callable[[], dict[str, Any]]:
        """Hands over the current weights and begins to evaluate them.

        Args:
            seconds: how long `evaluation_duration="auto"` is.

        Returns:
            A function that waits for the results.
        """
        algorithm, config, workers = self.algorithm, self.algorithm.config, self.workers
        algorithm.callbacks.call("on_evaluate_start", algorithm=algorithm)
        filters = algorithm.workers.local_worker().get_filters()
        workers.local_worker().set_weights(algorithm.get_weights(), filters=filters)
        workers.sync_weights()
        custom = config["custom_evaluation_function"]
        if custom is not None:
            return lambda: self._finished(_checked(custom(algorithm, workers)))
        if self.config["env"] is None and self.off_policy is not None:
            found = self._estimates()  # all there is to say
            return lambda: self._finished(found)
        duration, unit = config["evaluation_duration"], config["evaluation_duration_unit"]
        amount = None if duration == "auto" else duration
        wait = workers.start_evaluation(
            amount if unit == "episodes" else None,
            amount if unit == "timesteps" else None,
            self.config["seed"],
            None if amount is not None else max(seconds or 0.0, 0.1),
        )
        estimates = self._estimates()  # now: where training goes on in parallel, weights are others when episodes end
        return lambda: self._finished({**self._results(wait()), **estimates})

    def _estimates(self) -> dict[str, Any]:
        """What off-policy estimators make of recorded episodes, under `off_policy_estimator`."""
        return {} if self.off_policy is None else {"off_policy_estimator": self.off_policy.run()}

    def _results(self, episodes: list[EpisodeMetrics]) -> dict[str, Any]:
        summary = summarize_episodes(episodes, self.config["keep_per_episode_custom_metrics"])
        return {
            **summary,
            "sampler_results": summary,
            "episodes_this_iter": len(episodes),
            "timesteps_this_iter": sum(e.episode_length for e in episodes),
            "num_healthy_workers": self.workers.num_remote_workers(),
        }

    def _finished(self, results: dict[str, Any]) -> dict[str, Any]:
        self.algorithm.callbacks.call("on_evaluate_end", algorithm=self.algorithm, evaluation_metrics=results)
        return results

    def stop(self) -> None:
        """Ends the workers."""
        self.workers.stop()


def _checked(results: Any) -> dict[str, Any]:
    if not isinstance(results, dict):
        raise ConfigTypeError(
            f"config key 'custom_evaluation_function': it returned {results!r}, expected a dict of metrics"
        )
    return results
