"""RolloutWorker: environments and policies in one process. A plain class: Ray makes actors of it in `worker_set.py`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
import tree

from polylib.callbacks import EPISODE_HOOKS, make_callbacks
from polylib.checkpoints import with_arrays, without_arrays
from polylib.env.atari import reports_lives
from polylib.env.check import one_line
from polylib.env.vector_env import EnvContext, make_vector_env
from polylib.errors import ConfigError, WorkerError
from polylib.evaluation.episode import EpisodeTracker
from polylib.evaluation.evaluator import EpisodeRunner
from polylib.evaluation.inputs import fragments_of, reads
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.evaluation.offline_input import OfflineInput
from polylib.evaluation.recording import add_learnt, take_record
from polylib.evaluation.sampler import Sampler
from polylib.offline.input_reader import InputReader
from polylib.offline.joined import Joiner
from polylib.offline.output import make_output
from polylib.policy.backends import make_policy
from polylib.policy.fragment import Fragment
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.policy import Policy, Weights, random_stream
from polylib.policy.sample_batch import DEFAULT_POLICY_ID, SampleBatch
from polylib.profiling import Profile
from polylib.registry import EnvCreator, env_name, register_env
from polylib.threads import limit_threads

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=Sampler)


def env_seed(seed: int | None, worker_index: int) -> int | None:
    """The seed of a worker's first environment; the worker's others count up from it."""
    if seed is None:
        return None
    return int(np.random.SeedSequence(seed, spawn_key=(3, worker_index)).generate_state(1)[0] % (1 << 31))


def _seen(fragment: Fragment, policy: Policy) -> tuple[Any, list[np.ndarray], Any, Any]:
    """What the network saw in each row and after each segment: observations, states, previous actions and rewards."""
    batch, last = fragment.batch, fragment.last_inputs

    def both(name: str) -> Any:
        if name not in last:
            return None
        return tree.map_structure(lambda x, y: np.concatenate([x, y]), batch[name], last[name])

    obs = tree.map_structure(lambda x, y: np.concatenate([x, y]), batch["obs"], fragment.last_obs)
    states = [both(f"state_in_{i}") for i in range(len(policy.get_initial_state()))]
    return obs, states, both("prev_actions"), both("prev_rewards")


class RolloutWorker:
    """Samples with its own copies of the policies; the local one also learns.

    Args:
        config: an algorithm's config.
        objective_class: of the algorithm.
        framework: `(framework, traced)` as the driver resolved it.
        worker_index: 0 for the local worker.
        make_env: whether this worker samples.
        make_reader: whether it reads the config's `input`, if that is more than the environment.
        spaces: `(observation_space, action_space)`; None: those of the environment.
        env_creator: what the config's environment name stands for, if it was registered in another process.
        logdir: the run's folder, for `output="logdir"`.

    Attributes:
        policy_map: policies by id.
        env: the vector environment, or None.
        weights_version: the newest weights received.
    """

    def __init__(
        self,
        config: Any,
        objective_class: type[Objective],
        framework: tuple[str, bool],
        worker_index: int = 0,
        make_env: bool = True,
        spaces: tuple[gym.Space[Any], gym.Space[Any]] | None = None,
        env_creator: EnvCreator | None = None,
        logdir: str | None = None,
        make_reader: bool = True,
    ) -> None:
        if worker_index > 0:
            limit_threads(1)
            os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if env_creator is not None:
            register_env(config["env"], env_creator)
        self.config, self.worker_index, self.weights_version = config, worker_index, 0
        seed = env_seed(config["seed"], worker_index)
        self.env = make_vector_env(config, worker_index, seed) if make_env else None
        if spaces is None:
            if self.env is None:
                raise ConfigError("a worker without an environment needs spaces")
            spaces = (self.env.single_observation_space, self.env.single_action_space)
        spec = PolicySpec(*spaces, objective_class, config.to_dict(), config["seed"], worker_index)
        self.policy_map: dict[str, Policy] = {DEFAULT_POLICY_ID: make_policy(spec, *framework)}
        self.policy_mapping_fn: Callable[..., str] = lambda agent_id, *args, **kwargs: DEFAULT_POLICY_ID
        self.callbacks = make_callbacks(config["callbacks"])
        self._logdir = logdir
        self._profile = Profile("worker-1") if config["profile"] and worker_index == 1 and logdir else None
        make_reader = make_reader and reads(config["input"])
        self._output = make_output(config, worker_index, logdir, spaces, self) if make_env or make_reader else None
        self._sampler = None if self.env is None else self._make_sampler(Sampler, seed)
        self._input: InputReader | None = None
        self._joiner = Joiner()
        if make_reader:
            rng = random_stream(config["seed"], 4, worker_index)
            self._input = fragments_of(config["input"], self._rows, self._make_reader, self._sample_env, rng)
        self._runner: EpisodeRunner | None = None  # made when this worker first evaluates
        if self.callbacks.has("on_sub_environment_created"):
            for index, env in enumerate(getattr(self.env, "envs", [])):
                context = EnvContext(config["env_config"], worker_index, config["num_workers"], index)
                self.callbacks.call(
                    "on_sub_environment_created",
                    worker=self,
                    sub_environment=env,
                    env_context=context,
                    env_index=index,
                )

    def _make_sampler(self, cls: type[S], seed: int | None) -> S:
        config, env = self.config, self.env
        if env is None:
            raise self._no_environment()
        lives, clip = reports_lives(env), config["clip_rewards"]
        policy = self.policy_map[DEFAULT_POLICY_ID]
        extras = self._output is not None or reads(config["input"]) or self.callbacks.has("on_postprocess_trajectory")
        records = self._output is not None and cls is Sampler
        if records and config["explore"] and self.worker_index < 2 and policy.objective.untold:
            logger.warning(
                "config key 'output': %s, so no likelihoods are recorded (action_logp is NaN): of off-policy "
                "estimators only the direct method ('dm') can use the files",
                policy.objective.untold,
            )
        return cls(
            env,
            policy,
            fragment_length=config.get_rollout_fragment_length(env.num_envs),
            complete_episodes=config["batch_mode"] == "complete_episodes",
            explore=config["explore"],
            worker_index=self.worker_index,
            env_name=env_name(config["env"]),
            seed=seed,
            tracker=EpisodeTracker(self.callbacks, self) if self.callbacks.has(*EPISODE_HOOKS) else None,
            reward_clip=(lives if clip is None else clip) or None,
            by_life=lives and cls is Sampler,
            extras=policy.objective.needs_extras or (extras and cls is Sampler),
            records=records,
        )

    def _make_reader(self, source: Any, rows: int) -> OfflineInput:
        """What reads one source, so many rows at a time."""
        output = self._output
        return OfflineInput(
            self.config,
            self.policy_map[DEFAULT_POLICY_ID],
            source,
            rows,
            self.worker_index,
            self.config["num_workers"],
            sample=self._sample_raw,
            logdir=self._logdir,
            worker=self,
            on_read=None if output is None else output.write,
            on_postprocessed=self._postprocessed if self.callbacks.has("on_postprocess_trajectory") else None,
        )

    def _no_environment(self) -> WorkerError:
        return WorkerError(
            "this worker has no environment: with num_workers > 0 the local worker only learns; "
            "set create_env_on_local_worker=True to sample on it"
            if self.config["env"] is not None
            else "there is no environment to sample from: give the algorithm an env"
        )

    def sample(self) -> SampleBatch:
        """A fragment from every environment, postprocessed: `[rows, ...]`.

        Raises:
            EnvError: if an environment raises or returns NaN.
            WorkerError: if this worker has no environment.
        """
        batch = self._sample_env() if self._input is None else self._read(self._input)
        self.callbacks.call("on_sample_end", worker=self, samples=batch)
        return batch

    def _read(self, reader: InputReader) -> SampleBatch:
        """As many rows as a fragment has; more where they are whole episodes."""
        parts: list[Any] = [reader.next()]
        while sum(part.count for part in parts) < self._rows:
            parts.append(reader.next())
        return self._joiner.join(parts)

    @property
    def _rows(self) -> int:
        """How many rows are read at a time: as many as a fragment of all environments has."""
        envs = self.config["num_envs_per_worker"]
        return self.config.get_rollout_fragment_length(envs) * envs

    def _sample_raw(self) -> SampleBatch:
        """A fragment from every environment, not postprocessed, for a user's reader."""
        if self._sampler is None:
            raise self._no_environment()
        if self._filtering():
            raise ConfigError(
                f"config key 'observation_filter': {self.config['observation_filter']!r} has filtered what a reader of "
                "your own gets from the environment, and would filter it again; use 'NoFilter', or a mix "
                "{'sampler': 0.5, your_reader: 0.5}"
            )
        fragment = self._sampler.sample()
        return fragment.with_new_obs() if self._output is None else take_record(fragment)

    def _sample_env(self) -> SampleBatch:
        """A fragment from every environment, postprocessed."""
        if self._sampler is None:
            raise self._no_environment()
        fragment = self._sampler.sample()
        output = self._output
        record = None if output is None else take_record(fragment)
        policy = self.policy_map[DEFAULT_POLICY_ID]
        if policy.objective.needs_values:
            # One batched pass over the fragment instead of a value per step; acting doesn't need them.
            values = policy.compute_values(*_seen(fragment, policy))
            rows = fragment.batch.count
            fragment.batch["vf_preds"] = values[:rows]
            fragment.bootstrap = np.where(fragment.terminated, np.float32(0), values[rows:])
        batch = policy.objective.postprocess(fragment)
        if output is not None and record is not None:
            add_learnt(record, batch)
            output.write(record)
        if self.callbacks.has("on_postprocess_trajectory"):
            self._postprocessed(batch, fragment.batch)
        return batch

    def _postprocessed(self, batch: SampleBatch, before: SampleBatch) -> None:
        """Tells callbacks of postprocessed rows."""
        self.callbacks.call(
            "on_postprocess_trajectory",
            worker=self,
            episode=None,
            agent_id="agent0",
            policy_id=DEFAULT_POLICY_ID,
            policies=self.policy_map,
            postprocessed_batch=batch,
            original_batches={"agent0": (DEFAULT_POLICY_ID, type(self.policy_map[DEFAULT_POLICY_ID]), before)},
        )

    def sample_with_metrics(self) -> tuple[SampleBatch, list[EpisodeMetrics]]:
        """`sample()` and `get_metrics()` in one call to an actor."""
        with self._profile.collecting() if self._profile else nullcontext():
            return self.sample(), self.get_metrics()

    def sample_for_driver(self) -> tuple[SampleBatch, list[EpisodeMetrics], dict[str, Any]]:
        """`sample_with_metrics()`, and what the policies' filters saw since the last call, by policy id."""
        batch, episodes = self.sample_with_metrics()
        return batch, episodes, {name: p.filter.pop_delta() for name, p in self._filtering()}

    def _filtering(self) -> list[tuple[str, Policy]]:
        """The policies that have an observation filter."""
        return [(name, policy) for name, policy in self.policy_map.items() if not policy.filter.identity]

    def get_filters(self) -> dict[str, Any]:
        """Statistics of observation filters by policy id."""
        return {name: policy.filter.get_state() for name, policy in self._filtering()}

    def set_filters(self, filters: Mapping[str, Any]) -> None:
        """Takes over what `get_filters` returned; what was seen here and not yet handed over stays in it."""
        for name, state in filters.items():
            self.get_policy(name).filter.set_state(state, keep_delta=True)

    def merge_filters(self, deltas: Mapping[str, Any]) -> None:
        """Adds what another worker's filters saw: the last part of `sample_for_driver`."""
        for name, delta in deltas.items():
            self.get_policy(name).filter.merge(delta)

    def evaluate(
        self, episodes: int | None, steps: int | None = None, seed: int | None = None, seconds: float | None = None
    ) -> list[EpisodeMetrics]:
        """Runs whole episodes with this worker's policies, keeping their metrics only.

        Args:
            episodes: how many; None: as many as it takes for `steps` or `seconds`.
            steps: environment steps after which no new episode begins.
            seed: of the first episode; episode k has `seed + k`.
            seconds: time after which no new episode begins; at least one is run.

        Raises:
            EnvError: if an environment raises or returns NaN.
            WorkerError: if this worker has no environment.
        """
        if self._runner is None:
            self._runner = self._make_sampler(EpisodeRunner, None)
        return self._runner.run(episodes, steps, seed, seconds)

    def get_metrics(self) -> list[EpisodeMetrics]:
        """The episodes finished since the last call."""
        return self._sampler.pop_episodes() if self._sampler else []

    def pop_act_s(self) -> float:
        """Seconds that policies took to act in `sample()` since the last call."""
        if self._sampler is None:
            return 0.0
        seconds, self._sampler.act_s = self._sampler.act_s, 0.0
        return seconds

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy:
        """A policy by id.

        Raises:
            ConfigError: naming the ids there are.
        """
        if policy_id not in self.policy_map:
            raise ConfigError(f"there is no policy {policy_id!r}; there are {', '.join(map(repr, self.policy_map))}")
        return self.policy_map[policy_id]

    def get_weights(self, policies: Iterable[str] | None = None) -> dict[str, Weights]:
        """Weights by policy id and key."""
        return {name: self.get_policy(name).get_weights() for name in (policies or self.policy_map)}

    def set_weights(
        self,
        weights: Mapping[str, Weights],
        version: int | None = None,
        timestep: int | None = None,
        filters: Mapping[str, Any] | None = None,
    ) -> None:
        """Sets weights by policy id.

        Args:
            weights: as `get_weights` returns them.
            version: a broadcast's number; one that this worker has already is ignored.
            timestep: environment steps sampled by all workers, for schedules.
            filters: statistics of observation filters, as `get_filters` returns them.
        """
        if version is not None and version <= self.weights_version:
            return
        for name, values in weights.items():
            policy = self.get_policy(name)
            policy.set_weights(values)
            if timestep is not None:
                policy.set_timestep(timestep)
        self.set_filters(filters or {})
        self.weights_version = self.weights_version if version is None else version

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """How this worker goes on sampling: JSON values, and arrays by name. Weights aren't part of it."""
        values: dict[str, Any] = {"rng": {name: p.rng.bit_generator.state for name, p in self.policy_map.items()}}
        values["exploration"] = {name: p.exploration_state() for name, p in self.policy_map.items()}
        arrays: dict[str, np.ndarray] = {}
        if self._sampler is not None:
            values["sampler"], arrays = self._sampler.get_state()
        state = None if self._input is None else self._input.get_state()
        if state is not None:
            values["input"] = without_arrays(state, arrays, "input")
        return values, arrays

    def set_state(self, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
        """Goes on from `get_state()`; False if episodes had to start anew, or reading from the beginning."""
        for name, state in values["rng"].items():
            if name in self.policy_map:
                self.policy_map[name].rng.bit_generator.state = state
        for name, state in values.get("exploration", {}).items():
            if name in self.policy_map:
                self.policy_map[name].set_exploration_state(state)
        same = True
        if self._input is not None:
            same = "input" in values and self._input.set_state(with_arrays(values["input"], arrays))
        if self._sampler is None:
            return same
        return "sampler" in values and self._sampler.set_state(values["sampler"], arrays) and same

    def foreach_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """`function(policy, policy_id)` for every policy."""
        return [function(policy, name) for name, policy in self.policy_map.items()]

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """`function(env)` for every environment (for the vector environment itself where it has no parts)."""
        return [] if self.env is None else [function(env) for env in getattr(self.env, "envs", [self.env])]

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """`function(worker, *args, **kwargs)`, where this worker lives."""
        return function(self, *args, **kwargs)

    def ping(self) -> int:
        """This worker's index: it is alive."""
        return self.worker_index

    def stop(self) -> None:
        """Closes environments, policies and trace files, and writes the profile."""
        if self._profile is not None and self._logdir is not None:
            self._profile.write(self._logdir)
            self._profile = None
        close = getattr(self._output, "close", None)
        if close is not None:
            close()
        if self._input is not None:
            self._input.close()
        if self.env is not None:
            try:
                self.env.close()
            except Exception as error:  # nothing is lost by it any more
                logger.warning("environment %r raised in close(): %s", env_name(self.config["env"]), one_line(error))
        for policy in self.policy_map.values():
            policy.close()
