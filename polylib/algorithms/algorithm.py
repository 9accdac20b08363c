"""Algorithm: holds the workers, runs iterations and reports results under RLlib's keys. A Ray Tune `Trainable`."""

from __future__ import annotations

import copy
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.checkpointing import restore_algorithm, save_algorithm, stored_config
from polylib.algorithms.evaluation import Evaluation, check_evaluation, evaluation_config
from polylib.algorithms.registry import get_algorithm_class
from polylib.algorithms.trainable import TrainableAdapter
from polylib.callbacks import make_callbacks
from polylib.checkpoints import CheckpointError, checkpoint_folder, read_header
from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError, WorkerError
from polylib.evaluation.inputs import reads
from polylib.evaluation.metrics import EpisodeMetrics, EpisodeSummary
from polylib.evaluation.offline_spaces import offline_spaces
from polylib.evaluation.worker_set import WorkerSet
from polylib.models.spaces import flatten, is_nested, unflatten
from polylib.policy.checkpoint import save_policy
from polylib.policy.objective import Objective
from polylib.policy.policy import Policy, Weights, random_stream
from polylib.policy.sample_batch import DEFAULT_POLICY_ID
from polylib.profiling import Profile

_LOG_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}


class Algorithm(TrainableAdapter):
    """Base of all algorithms. Subclasses set `config_class` and `objective_class` and write `training_step`.

    Args:
        config: an `AlgorithmConfig` or a dict of keys over the algorithm's defaults.
        env: overrides the config's environment.
        storage: given by Tune.

    Attributes:
        config: the frozen config it runs with.
        workers: the rollout workers.

    Raises:
        ConfigError: naming the key that is wrong.
        EnvError: if the environment is unknown or misbehaves.
        FrameworkError: if the framework isn't installed.

    Example:
        >>> from polylib.algorithms.ppo import PPOConfig
        >>> with PPOConfig().environment("CartPole-v1").build() as algo:  # doctest: +SKIP
        ...     print(algo.train()["episode_reward_mean"])
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    objective_class: ClassVar[type[Objective]]
    config: Any
    workers: WorkerSet

    def __init__(
        self, config: AlgorithmConfig | Mapping[str, Any] | None = None, env: Any = None, storage: Any = None
    ) -> None:
        self._given_env = env
        self._given_config = config if isinstance(config, AlgorithmConfig) else None
        if config is not None and not isinstance(config, AlgorithmConfig | Mapping):
            raise ConfigTypeError(f"config must be an AlgorithmConfig or a dict, got {type(config).__name__}")
        self._stopped = False
        try:
            super().__init__({} if config is None or self._given_config is not None else dict(config), storage)
        except BaseException:
            self.cleanup()  # nobody else can: there is no algorithm to stop
            raise

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """The algorithm's config with its defaults."""
        return cls.config_class()

    @classmethod
    def get_default_policy_class(cls, config: AlgorithmConfig) -> type[Objective]:
        """The policy's definition, an `Objective` subclass; an algorithm may choose it by its config."""
        return cls.objective_class

    def setup(self, config: dict[str, Any]) -> None:
        """Builds workers; called once, by `__init__`."""
        if self._given_config is not None:
            if not isinstance(self._given_config, self.config_class):
                raise ConfigTypeError(
                    f"{type(self).__name__} takes a {self.config_class.__name__}, got "
                    f"{type(self._given_config).__name__}"
                )
            resolved = self._given_config.copy()
        else:
            resolved = self.get_default_config().update_from_dict(config)
        if self._given_env is not None:
            resolved.environment(self._given_env)
        from_files = reads(resolved["input"])
        unknown = None in (resolved["observation_space"], resolved["action_space"])
        if resolved["env"] is None and unknown and not from_files:
            files = "; or recorded experience to learn from: .offline_data(input_='traces/')"
            raise ConfigError(
                "config key 'env': no environment given; use .environment('CartPole-v1') or {'env': 'CartPole-v1'}, "
                "or give observation_space and action_space for an algorithm that doesn't sample"
                + (files if resolved.reads_files else "")
            )
        resolved.validate()
        check_evaluation(resolved)
        if from_files:
            spaces = offline_spaces(resolved, evaluation_config(resolved))
            known = dict(zip(("observation_space", "action_space"), spaces, strict=True))
            resolved.update_from_dict(known, source="input")
        resolved.freeze()
        self.config = resolved
        logging.getLogger("polylib").setLevel(_LOG_LEVELS[resolved["log_level"]])
        self._counters: dict[str, int] = defaultdict(int)
        self._timers: dict[str, float] = {}
        self.episodes = EpisodeSummary(
            resolved["metrics_num_episodes_for_smoothing"], resolved["keep_per_episode_custom_metrics"]
        )
        self.callbacks = make_callbacks(resolved["callbacks"])
        self._evaluation: Evaluation | None = None
        self._last_evaluation: dict[str, Any] | None = None
        self.rng = random_stream(resolved["seed"], 2)
        self._finished: list[EpisodeMetrics] = []
        self._profile = Profile("driver") if resolved["profile"] else None
        logdir = self.run_folder() if resolved["output"] == "logdir" or resolved["profile"] else None
        self.workers = WorkerSet(resolved, self.get_default_policy_class(resolved), logdir)
        if resolved["evaluation_interval"]:
            self._evaluation = Evaluation(self)
        elif resolved["off_policy_estimation_methods"]:
            logging.getLogger(__name__).warning(
                "off_policy_estimation_methods estimate when an algorithm evaluates: no evaluation_interval, no "
                "estimate"
            )
        self.callbacks.call("on_algorithm_init", algorithm=self)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Builds everything anew with another config, in the same process; Tune calls it with `reuse_actors=True`."""
        self.cleanup()
        self._stopped, self._given_config = False, None
        self.setup(copy.deepcopy(new_config))
        return True

    # --- training

    def training_step(self) -> dict[str, Any]:
        """Samples and learns once.

        Returns:
            Learner info by policy id: `{"default_policy": {"learner_stats": {...}}}`.
        """
        raise NotImplementedError

    def step(self) -> dict[str, Any]:
        """One iteration; `train()` calls it and adds times, dates and ids."""
        config = self.config
        interval = config["evaluation_interval"]
        due = bool(interval) and (self.iteration + 1) % interval == 0
        last_train_s = self._timers.get("training_iteration", 0.0)
        waiting = None
        if due and config["evaluation_parallel_to_training"]:
            waiting = self._evaluation_workers().start(last_train_s)
        with self._profile.collecting() if self._profile else nullcontext():
            result = self._train_once()
        if due:
            start = time.perf_counter()
            self._last_evaluation = self.evaluate() if waiting is None else waiting()
            result["timers"]["evaluation_time_ms"] = 1000.0 * (time.perf_counter() - start)
        if self._last_evaluation is not None and (due or config["always_attach_evaluation_results"]):
            result["evaluation"] = self._last_evaluation
        return result

    def train(self) -> dict[str, Any]:
        """Runs one iteration and returns its results under RLlib's keys.

        Raises:
            EnvError: if an environment raises, or returns NaN or what doesn't fit its spaces.
            WorkerError: if a rollout worker was lost, or the algorithm was stopped.
        """
        if self._stopped:
            raise WorkerError(f"this {type(self).__name__} was stopped: build another one to train")
        result = super().train()
        self.callbacks.call("on_train_result", algorithm=self, result=result)
        return result

    def evaluate(self) -> dict[str, Any]:
        """Runs evaluation episodes with the current weights, as the evaluation keys of the config say.

        Returns:
            `episode_reward_mean`, `hist_stats`, ...: what stands in a result under `evaluation`.

        Raises:
            EnvError: if an environment raises or returns NaN.
        """
        return self._evaluation_workers().start(self._timers.get("training_iteration", 0.0))()

    def _evaluation_workers(self) -> Evaluation:
        if self._evaluation is None:
            self._evaluation = Evaluation(self)
        return self._evaluation

    def _train_once(self) -> dict[str, Any]:
        start = time.perf_counter()
        before, self._timers = dict(self._counters), defaultdict(float)
        config = self.config
        least = config["min_sample_timesteps_per_iteration"], config["min_train_timesteps_per_iteration"]
        seconds = config["min_time_s_per_iteration"] or 0.0
        while True:
            learner = self.training_step()
            sampled = self._counters["num_env_steps_sampled"] - before.get("num_env_steps_sampled", 0)
            trained = self._counters["num_env_steps_trained"] - before.get("num_env_steps_trained", 0)
            if sampled >= least[0] and trained >= least[1] and time.perf_counter() - start >= seconds:
                break
        acting = self.workers.local_worker().pop_act_s()
        if acting:
            self._timers["act"] = acting  # part of "sample"
        self._timers["training_iteration"] = time.perf_counter() - start
        return self._result(learner, sampled, trained)

    def _result(self, learner: dict[str, Any], sampled: int, trained: int) -> dict[str, Any]:
        episodes, self._finished = self.episodes.update(self._finished), []
        counters = dict(self._counters)
        timers = {f"{name}_time_ms": 1000.0 * seconds for name, seconds in self._timers.items()}
        for name, rows in (("sample", sampled), ("learn", trained)):
            if self._timers.get(name):
                timers[f"{name}_throughput"] = rows / self._timers[name]
        return {
            **episodes,
            "sampler_results": episodes,
            "timesteps_total": counters["num_env_steps_sampled"],
            "num_env_steps_sampled_this_iter": sampled,
            "num_env_steps_trained_this_iter": trained,
            **counters,
            "agent_timesteps_total": counters["num_agent_steps_sampled"],
            "num_healthy_workers": self.workers.num_remote_workers(),
            "info": {"learner": learner, **counters},
            "counters": counters,
            "timers": timers,
        }

    def _timed(self, name: str) -> _Timed:
        """A block whose seconds are added to a timer."""
        return _Timed(self._timers, name)

    def _count(self, what: str, env_steps: int, agent_steps: int) -> None:
        """Counts steps that were "sampled" or "trained"."""
        self._counters[f"num_env_steps_{what}"] += env_steps
        self._counters[f"num_agent_steps_{what}"] += agent_steps

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Tune's own metrics, with the config as a dict."""
        metrics = super().get_auto_filled_metrics(*args, **kwargs)
        if "config" in metrics:
            metrics["config"] = self.config.to_dict()
        return metrics

    # --- checkpoints

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes a checkpoint into a folder; Tune calls it, people call `save()`.

        Raises:
            CheckpointError: if the folder can't be written.
        """
        save_algorithm(self, checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Goes on from a checkpoint folder; Tune calls it, people call `restore()`.

        Raises:
            CheckpointError: if it is missing, damaged, or of another algorithm or other spaces.
        """
        restore_algorithm(self, checkpoint)
        self.callbacks.call("on_checkpoint_loaded", algorithm=self)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Any, config: Mapping[str, Any] | None = None, env: Any = None, custom_model: Any = None
    ) -> Algorithm:
        """An algorithm that goes on from a checkpoint, in the same or another framework.

        Args:
            checkpoint: its folder, or what `save()` returned, or a Tune checkpoint.
            config: keys to change: `{"framework": "torch", "num_workers": 0}`.
            env: the environment, where the checkpoint names a class or function (code isn't stored).
            custom_model: the network of your own, where the checkpoint names one that isn't registered.

        Raises:
            CheckpointError: if it is missing, damaged or foreign, or of another algorithm than this class.
        """
        folder = checkpoint_folder(checkpoint)
        name = read_header(folder, "Algorithm").get("algorithm")
        if getattr(getattr(cls, "config_class", None), "algo_name", None) == name:
            algorithm_class: Any = cls  # also a subclass that nobody registered
        else:
            try:
                algorithm_class = get_algorithm_class(str(name))
            except UnknownKeyError as error:
                raise CheckpointError(f"{folder} is a checkpoint of an algorithm unknown here: {error}") from None
        if not issubclass(algorithm_class, cls):
            raise CheckpointError(f"{folder} is a checkpoint of {name}, not of {cls.__name__}")
        changes = dict(config or {})
        if custom_model is not None:
            changes["model"] = {**changes.get("model", {}), "custom_model": custom_model}
        algo = algorithm_class(stored_config(folder, algorithm_class.config_class, changes, env))
        try:
            algo.restore(folder)
        except BaseException:
            algo.stop()
            raise
        return algo

    def export_policy_checkpoint(self, export_dir: str, policy_id: str = DEFAULT_POLICY_ID) -> str:
        """Writes a checkpoint of one policy, for `polylib.load_policy` and `Policy.from_checkpoint`.

        Raises:
            CheckpointError: if the folder can't be written.
        """
        return str(save_policy(self.get_policy(policy_id), export_dir, self.config.algo_name))

    def extra_state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What an algorithm keeps in checkpoints beside policies, workers and counters: JSON values, arrays by name."""
        return {}, {}

    def set_extra_state(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Goes on from `extra_state()`."""

    def export_policy_model(
        self, export_dir: str, policy_id: str = DEFAULT_POLICY_ID, format: str | None = None, opset: int | None = None
    ) -> str:
        """Writes one policy's model for programs without polylib, as `Policy.export_model`; its path.

        Raises:
            ConfigError: if there is no such format.
            ExportError: if the model can't be written in this format.
            FrameworkError: if a package that it needs isn't installed.
        """
        return str(self.get_policy(policy_id).export_model(export_dir, format, opset))

    def progress(self) -> dict[str, Any]:
        """Counters, times, recent episodes and random state: what a checkpoint keeps beside policies and workers."""
        return {
            "iteration": self._iteration,
            "time_total_s": self._time_total,
            "counters": dict(self._counters),
            "rng": self.rng.bit_generator.state,
            "episodes": {"total": self.episodes.total, "recent": [list(e) for e in self.episodes.recent]},
            # Later results repeat it if they are asked to.
            "evaluation": self._last_evaluation if self.config["always_attach_evaluation_results"] else None,
        }

    def set_progress(self, state: Mapping[str, Any]) -> None:
        """Goes on from `progress()`."""
        self._iteration, self._time_total = state["iteration"], state["time_total_s"]
        self._counters.clear()
        self._counters.update(state["counters"])
        self.rng.bit_generator.state = state["rng"]
        self.episodes.total = self._episodes_total = state["episodes"]["total"]
        self.episodes.recent.clear()
        self.episodes.recent.extend(EpisodeMetrics(*e) for e in state["episodes"]["recent"])
        self._last_evaluation, self._finished = state["evaluation"], []

    # --- acting

    def compute_single_action(
        self,
        observation: Any,
        state: Any = None,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        explore: bool | None = None,
        full_fetch: bool = False,
        prev_action: Any = None,
        prev_reward: float | None = None,
    ) -> Any:
        """The action of one observation, as `Policy.compute_single_action`.

        Args:
            observation: `[*obs_shape]`, as the environment gives it.
            state: recurrent state.
            policy_id: which policy acts.
            explore: sample, or take the most likely action; None: the config's `explore`.
            full_fetch: return `(action, state, extras)`.
            prev_action: the action of the step before, for networks that see it; None: the first step.
            prev_reward: the reward of the step before, likewise.

        Raises:
            BatchError: if the observation doesn't fit the space.
        """
        return self.get_policy(policy_id).compute_single_action(
            observation, state, explore, full_fetch, prev_action=prev_action, prev_reward=prev_reward
        )

    def compute_actions(
        self,
        observations: Any,
        state: Any = None,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        explore: bool | None = None,
        full_fetch: bool = False,
        prev_actions: Any = None,
        prev_rewards: Any = None,
    ) -> Any:
        """Actions of several observations in one call.

        Args:
            observations: a dict `{id: observation}` (a dict of actions comes back), or `[B, *obs_shape]`, nested as
                the space is. A dict with the keys of a Dict space is a batch.
            state: recurrent state, as `Policy.compute_actions` takes it.
            policy_id: which policy acts.
            explore: sample, or take the most likely actions.
            full_fetch: return `(actions, state, extras)`.
            prev_actions: of the steps before, `[B, *action_shape]`, for networks that see them.
            prev_rewards: of the steps before, `[B]`, likewise.

        Raises:
            BatchError: if an observation doesn't fit the space.
        """
        policy, keys, batch = self.get_policy(policy_id), None, observations
        parts = getattr(policy.observation_space, "spaces", None)
        if isinstance(observations, Mapping) and not (isinstance(parts, Mapping) and set(observations) == set(parts)):
            keys = list(observations)
            batch = _side_by_side(policy.observation_space, list(observations.values()))
        policy.check_observations(batch)
        out = policy.compute_actions(batch, state, explore, prev_actions=prev_actions, prev_rewards=prev_rewards)
        actions: Any = out.actions
        if keys is not None:
            flat = flatten(policy.action_space, actions, "actions")
            actions = {
                key: unflatten(policy.action_space, {name: x[i] for name, x in flat.items()}, "actions")
                for i, key in enumerate(keys)
            }
        return (actions, out.state, out.extras) if full_fetch else actions

    # --- access

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy:
        """The local worker's policy, the one that learns."""
        return self.workers.local_worker().get_policy(policy_id)

    def get_weights(self, policies: Iterable[str] | None = None) -> dict[str, Weights]:
        """Weights by policy id and key, as NumPy arrays."""
        return self.workers.local_worker().get_weights(policies)

    def set_weights(self, weights: Mapping[str, Weights]) -> None:
        """Sets weights by policy id, on every worker.

        Raises:
            WeightsError: naming the variable that doesn't fit.
        """
        self.workers.local_worker().set_weights(weights)
        self.workers.sync_weights()

    def cleanup(self) -> None:
        """Ends the workers; `stop()` calls it."""
        self._stopped = True
        profile = getattr(self, "_profile", None)
        if profile is not None:
            profile.write(self.run_folder())
            self._profile = None
        for part in (getattr(self, "workers", None), getattr(self, "_evaluation", None)):
            if part is not None:
                part.stop()

    def __enter__(self) -> Algorithm:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        env = self.config["env"] if isinstance(self.config, AlgorithmConfig) else None
        return f"{type(self).__name__}(env={env!r}, iteration={self.iteration})"


class _Timed:
    """Adds a block's seconds to `timers[name]`; a class, since it stands around each part of each update."""

    __slots__ = ("_name", "_start", "_timers")

    def __init__(self, timers: dict[str, float], name: str) -> None:
        self._timers, self._name = timers, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._timers[self._name] = self._timers.get(self._name, 0.0) + time.perf_counter() - self._start


def _side_by_side(space: Any, values: list[Any]) -> Any:
    """Single observations as a batch, nested as the space is."""
    if not is_nested(space):
        return values
    flat = [flatten(space, value) for value in values]
    return unflatten(space, {name: [value[name] for value in flat] for name in (flat[0] if flat else ())})
