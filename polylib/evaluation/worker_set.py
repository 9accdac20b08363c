"""WorkerSet: the local worker and its remote copies. The only place that makes Ray actors of rollout workers."""

from __future__ import annotations

import logging
import math
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from polylib import callbacks, errors
from polylib.env.vector_env import make_vector_env
from polylib.errors import PolylibError, WorkerError
from polylib.evaluation.inputs import portable_input, reads, samples
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.evaluation.rollout_worker import RolloutWorker, env_seed
from polylib.models.finished_keras import portable
from polylib.models.finished_torch import portable_script
from polylib.offline import errors as offline_errors
from polylib.policy.objective import Objective
from polylib.policy.sample_batch import SampleBatch
from polylib.registry import registered_creator, registered_model

logger = logging.getLogger(__name__)

# Seconds until a start is worth a word, and that workers have to close their environments.
_SLOW_START_S = 60.0
_CLOSE_TIMEOUT_S = 3.0
# Where the errors of a worker's constructor are defined.
_ERRORS = {module.__name__: module for module in (errors, callbacks, offline_errors)}


class WorkerSet:
    """Rollout workers of an algorithm.

    Without remote workers (`num_workers=0`) Ray is neither imported nor started, so that a debugger works.

    Args:
        config: an algorithm's config.
        objective_class: of the algorithm.
        logdir: the run's folder, for `output="logdir"`.
    """

    def __init__(self, config: Any, objective_class: type[Objective], logdir: str | None = None) -> None:
        self.config, self._logdir = config, logdir
        self._version = 0
        self._remote: list[Any] = []
        self._release: Callable[[], Any] = lambda: None  # gives back what was reserved for the remote workers
        try:
            self._start(objective_class)
        except BaseException:
            self.stop()
            raise

    def _start(self, objective_class: type[Objective]) -> None:
        config = self.config
        framework = config.resolve_framework()
        from_files = reads(config["input"])
        # Where files are all that is read, their spaces are known by now, and the environment is for evaluation.
        has_env = config["env"] is not None and samples(config["input"])
        remote = config["num_workers"] if has_env or from_files else 0
        local_env = has_env and (remote == 0 or config["create_env_on_local_worker"])
        spaces = None if has_env else (config["observation_space"], config["action_space"])
        if has_env and not local_env:
            probe = make_vector_env(config, 0, env_seed(config["seed"], 0))
            spaces = (probe.single_observation_space, probe.single_action_space)
            probe.close()
        # Remote workers start while the local policy is built: both import the framework.
        if remote:
            backend = self._worker_backend(framework, objective_class)
            self._remote = self._start_remote(objective_class, backend, remote, None if has_env else spaces)
        self._local = RolloutWorker(
            config, objective_class, framework, 0, local_env, spaces, logdir=self._logdir, make_reader=remote == 0
        )
        if remote:
            self._await_workers()
            self.sync_weights()

    # --- remote workers

    def _worker_backend(
        self, framework: tuple[str, bool], objective_class: type[Objective] = Objective
    ) -> tuple[str, bool]:
        """What remote workers act with.

        NumPy starts in a second, needs a tenth of the memory and is as fast for networks of this size. Plain eager tf2
        is for debugging, so it stays what it is; users' models and hooks that act run in their framework only.
        """
        custom = self.config["model"]["custom_model"] is not None or not objective_class.numpy_acting
        same = self.config["worker_policy_backend"] == "same" or framework == ("tf2", False) or custom
        return framework if same else ("numpy", False)

    def _start_remote(
        self,
        objective_class: type[Objective],
        framework: tuple[str, bool],
        count: int,
        spaces: tuple[Any, Any] | None = None,
    ) -> list[Any]:
        import ray

        config = _for_others(self.config)
        if not ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            if address:
                try:
                    ray.init(logging_level=logging.ERROR)
                except (ConnectionError, ValueError, RuntimeError) as error:
                    raise WorkerError(f"can't join the Ray cluster at RAY_ADDRESS={address}: {error}") from error
            else:
                # Workers that evaluate come later, and this Ray has to have room for them too.
                everybody = config["num_workers"] + config["evaluation_num_workers"]
                start_ray(max(count, everybody) * config["num_cpus_per_worker"])
        options: dict[str, Any] = {
            "num_cpus": config["num_cpus_per_worker"],
            "resources": config["custom_resources_per_worker"] or None,
        }
        group = self._reserve(count)
        if group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(placement_group=group)
        actor = ray.remote(RolloutWorker).options(**options)
        # The names that users gave environments are known in this process only.
        creator = registered_creator(config["env"])
        return [
            actor.remote(
                config, objective_class, framework, i + 1, spaces is None, spaces, creator, logdir=self._logdir
            )
            for i in range(count)
        ]

    def _reserve(self, count: int) -> Any:
        """A placement group for all workers, so that a lack of resources can be told from a slow start.

        Returns:
            None if nothing needs to be reserved: the workers ask for nothing, or live in the group of a Tune trial.

        Raises:
            WorkerError: if the cluster has no room after `placement_timeout_s`, naming what is missing.
        """
        import ray

        each = {"CPU": self.config["num_cpus_per_worker"], **self.config["custom_resources_per_worker"]}
        each = {name: amount for name, amount in each.items() if amount}
        if not each:
            return None
        captured = ray.get_runtime_context().should_capture_child_tasks_in_placement_group
        around = ray.util.get_current_placement_group() if captured else None
        if around is not None:
            for name, amount in each.items():
                has = sum(bundle.get(name, 0) for bundle in around.bundle_specs)
                if has < count * amount:
                    raise WorkerError(
                        f"{count} workers need {count * amount:g} {name}, and all that was reserved for this trial is "
                        f"{has:g}: leave its resources to polylib, or reserve a bundle per worker"
                    )
            return None
        group = ray.util.placement_group([each] * count, strategy=self.config["placement_strategy"])
        # Without stop(), the reservation ends with this object.
        self._release = weakref.finalize(self, _remove_group, group)
        timeout = self.config["placement_timeout_s"]
        ready, _ = ray.wait([group.ready()], timeout=timeout)
        if ready:
            return group
        total, free = ray.cluster_resources(), ray.available_resources()
        lacks = [
            f"{count * amount:g} {name} (the cluster has {total.get(name, 0):g}, {free.get(name, 0):g} of them free)"
            for name, amount in each.items()
            if free.get(name, 0) < count * amount
        ]
        raise WorkerError(
            f"{count} workers found no place on the cluster within placement_timeout_s={timeout:g}: they need "
            f"{', '.join(lacks) or f'{each} each, on nodes that have room for it'}. Lower num_workers or "
            "num_cpus_per_worker, or add nodes"
        )

    def _await_workers(self) -> None:
        """Waits until every worker has made its environments and policies.

        Raises:
            EnvError: what an environment did wrong, wherever it lives.
            WorkerError: if a worker died.
        """
        import ray

        waiting = [worker.ping.remote() for worker in self._remote]
        start = warned = time.monotonic()
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=1.0)
            self._get(ready)
            if waiting and time.monotonic() - warned > _SLOW_START_S:
                warned = time.monotonic()
                logger.warning(
                    "%d of %d workers are still starting after %.0f s", len(waiting), len(self._remote), warned - start
                )

    def _get(self, refs: Any) -> Any:
        """`ray.get`, with the error that happened on the worker instead of Ray's wrapping of it."""
        import ray

        try:
            return ray.get(refs)
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, PolylibError):
                raise cause from error
            raise
        except ray.exceptions.RayActorError as error:
            inner = _polylib_error_in(str(error))
            if inner:
                raise inner from error
            raise WorkerError(f"a rollout worker died: {_last_line(getattr(error, 'cause', None) or error)}") from error
        except ray.exceptions.RayError as error:
            raise WorkerError(f"lost contact to a rollout worker: {_last_line(error)}") from error

    # --- access

    def local_worker(self) -> RolloutWorker:
        """The worker in this process, whose policies learn."""
        return self._local

    def remote_workers(self) -> list[Any]:
        """The Ray actors."""
        return list(self._remote)

    def num_remote_workers(self) -> int:
        """How many Ray actors there are."""
        return len(self._remote)

    def foreach_worker(self, function: Callable[[Any], Any], local_worker: bool = True) -> list[Any]:
        """`function(worker)` on every worker, where it lives; the local one first.

        Args:
            function: must be picklable for remote workers.
            local_worker: whether to call it on the local worker too.
        """
        return self.foreach_worker_with_index(lambda worker, _: function(worker), local_worker)

    def foreach_worker_with_index(self, function: Callable[[Any, int], Any], local_worker: bool = True) -> list[Any]:
        """`function(worker, worker_index)` on every worker; the local one, with index 0, first."""
        refs = [worker.apply.remote(function, i + 1) for i, worker in enumerate(self._remote)]
        local = [function(self._local, 0)] if local_worker else []
        return local + (self._get(refs) if refs else [])

    def foreach_policy(self, function: Callable[[Any, str], Any]) -> list[Any]:
        """`function(policy, policy_id)` for every policy of every worker, as one list."""
        return [x for results in self.foreach_worker(lambda w: w.foreach_policy(function)) for x in results]

    def foreach_env(self, function: Callable[[Any], Any]) -> list[list[Any]]:
        """`function(env)` for every environment, a list per worker."""
        return self.foreach_worker(lambda w: w.foreach_env(function))

    # --- sampling and weights

    def sample(self) -> tuple[list[SampleBatch], list[EpisodeMetrics]]:
        """A fragment from every sampling worker, in the workers' order, and the episodes they finished.

        Raises:
            EnvError: what an environment did wrong, wherever it lives.
        """
        if not self._remote:
            batch, episodes = self._local.sample_with_metrics()
            return [batch], episodes
        results = self._get([worker.sample_for_driver.remote() for worker in self._remote])
        if self.config["use_worker_filter_stats"]:
            for _, _, deltas in results:
                self._local.merge_filters(deltas)
        return [batch for batch, _, _ in results], [e for _, episodes, _ in results for e in episodes]

    def start_evaluation(
        self, episodes: int | None, steps: int | None = None, seed: int | None = None, seconds: float | None = None
    ) -> Callable[[], list[EpisodeMetrics]]:
        """Begins to run episodes, divided among the remote workers, or puts it off until the result is asked for.

        Args:
            episodes: how many, in all; or None.
            steps: environment steps, in all; or None.
            seed: of the first episode, whichever worker runs it.
            seconds: time to go on for.

        Returns:
            A function that waits for the episodes' metrics, in the order of their seeds.
        """
        if not self._remote:
            return lambda: self._local.evaluate(episodes, steps, seed, seconds)
        count, refs, first = len(self._remote), [], 0
        for i, worker in enumerate(self._remote):
            share = None if episodes is None else episodes // count + (i < episodes % count)
            # Without a number of episodes their seeds must not meet either.
            offset = first if share is not None else i * 1_000_000
            refs.append(
                worker.evaluate.remote(
                    share,
                    None if steps is None else -(-steps // count),
                    None if seed is None else seed + offset,
                    seconds,
                )
            )
            first += share or 0
        return lambda: [metrics for part in self._get(refs) for metrics in part]

    def sync_weights(self, timestep: int | None = None) -> None:
        """Broadcasts the local worker's weights and filters once, under a new version.

        Args:
            timestep: environment steps sampled by all workers, for schedules.
        """
        self._version += 1
        if self._remote:
            import ray

            ref = ray.put(self._local.get_weights())
            filters = self._local.get_filters() if self.config["update_worker_filter_stats"] else None
            self._get([worker.set_weights.remote(ref, self._version, timestep, filters) for worker in self._remote])

    def stop(self) -> None:
        """Ends remote workers and closes the local one."""
        if self._remote:
            import ray

            remote, self._remote = self._remote, []
            if ray.is_initialized():
                # Environments get a moment to close: some write files then.
                closing = [worker.stop.remote() for worker in remote]
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT_S)
                for worker in remote:
                    ray.kill(worker)
        self._release()
        local = getattr(self, "_local", None)
        if local is not None:
            local.stop()


def _for_others(config: Any) -> Any:
    """A config for other processes: with the user's model or reader itself where it says a name known here only.

    Raises:
        ConfigError: if it is a finished model that can't be copied.
    """
    if (source := portable_input(config["input"])) is not config["input"]:
        config = config.copy().update_from_dict({"input": source})
    model = config["model"]["custom_model"]
    found = portable_script(portable(model if registered_model(model) is None else registered_model(model)))
    if found is model:
        return config
    return config.copy().update_from_dict({"model": {"custom_model": found}})


def _remove_group(group: Any) -> None:
    import ray

    if ray.is_initialized():
        ray.util.remove_placement_group(group)


def _last_line(error: BaseException) -> str:
    """Ray's explanations end with what matters."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def start_ray(num_cpus_needed: float, **options: Any) -> None:
    """Starts a Ray on this machine that has room for a run, whatever the number of cores.

    Args:
        num_cpus_needed: CPUs that the run reserves.
        **options: passed to `ray.init`.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # When one worker fails, its error is raised here; Ray would print the others' as tracebacks of their own.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    cores = os.cpu_count() or 1
    if num_cpus_needed > cores:
        logger.warning(
            "this run reserves %g CPUs and the machine has %d: they will share them", num_cpus_needed, cores
        )
    ray.init(
        address="local",  # never a cluster that happens to run here: joining one is said with RAY_ADDRESS
        num_cpus=max(cores, math.ceil(num_cpus_needed)),
        **{"include_dashboard": False, "logging_level": logging.ERROR, **options},
    )


def _polylib_error_in(text: str) -> PolylibError | None:
    """The polylib error that ended an actor's constructor: Ray hands it over as text only."""
    for line in text.splitlines():
        kind, separator, message = line.strip().partition(": ")
        module, _, name = kind.rpartition(".")
        found = getattr(_ERRORS.get(module), name, None)
        if separator and isinstance(found, type) and issubclass(found, PolylibError):
            return found(message)
    return None
