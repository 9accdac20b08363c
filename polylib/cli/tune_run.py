"""Runs an experiment through Ray Tune, which writes its results."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ray.cloudpickle
from ray import tune

from polylib.algorithms.registry import get_algorithm_class
from polylib.algorithms.trainable import register_trainables
from polylib.cli.checkpoints import Saved
from polylib.cli.conductor import Conductor
from polylib.cli.experiment import Experiment, source_name
from polylib.cli.failures import explain, report
from polylib.cli.interruption import Interrupted, Interruption
from polylib.cli.next_steps import print_best
from polylib.cli.progress import ResultTable, summary_line
from polylib.cli.ray_cluster import connected
from polylib.cli.run_options import RunOptions
from polylib.cli.stopping import StopCriteria
from polylib.cli.trials import trial_name


class ProgressLines(tune.Callback):
    """Prints a line per result."""

    def __init__(self) -> None:
        self.trials: Sequence[Any] = []
        self._table = ResultTable()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Keeps the trials, whose names and states the results don't tell."""
        self.trials = trials

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Prints one result."""
        self._table.add(str(trial), result, map(str, trials))


def run_with_tune(experiment: Experiment, options: RunOptions) -> int:
    """Runs an experiment.

    Args:
        experiment: what to run.
        options: where to find Ray.

    Returns:
        0, or 1 if a trial failed (then the reasons were printed).

    Raises:
        PolylibError: if it couldn't be started.
        Interrupted: after a signal.
    """
    if experiment.module is not None:
        # Workers can't import an experiment's file by name.
        ray.cloudpickle.register_pickle_by_value(experiment.module)
    with connected(experiment, options), Interruption() as interruption:
        register_trainables()
        algorithm_class = get_algorithm_class(experiment.config.algo_name)
        checkpoints = experiment.checkpoints.for_algorithm(algorithm_class, tune.Trainable)
        conductor = Conductor(StopCriteria(experiment.stop), checkpoints, interruption)
        progress = ProgressLines()
        tuner = (_resumed if experiment.resumes else _new)(experiment, conductor, progress)
        interruption.patient = True
        results = list(tuner.fit())
        interruption.patient = False
        failed = _conclude(experiment, results, progress.trials, conductor, options.verbosity)
        if interruption.signum is not None:
            raise Interrupted(interruption.signum)
        return failed


def _new(experiment: Experiment, conductor: Conductor, progress: ProgressLines) -> tune.Tuner:
    config, checkpoints = experiment.config, conductor.checkpoints
    return tune.Tuner(
        config.algo_name,
        param_space=config.to_dict(),
        tune_config=tune.TuneConfig(
            num_samples=experiment.num_samples,
            scheduler=conductor,
            trial_name_creator=functools.partial(trial_name, config.algo_name, config["env"] or source_name(config)),
        ),
        run_config=tune.RunConfig(
            name=experiment.name,
            storage_path=experiment.local_dir,
            callbacks=[progress],
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                num_to_keep=checkpoints.keep,
                checkpoint_score_attribute=checkpoints.score,
                checkpoint_score_order="min" if checkpoints.lowest else "max",
                checkpoint_frequency=checkpoints.frequency,
                checkpoint_at_end=checkpoints.at_end,
            ),
        ),
        # Only tune.run has an argument for it; a trial's own checkpoints count before it when Tune resumes.
        _tuner_kwargs=None if experiment.restore is None else {"restore": experiment.restore},
    )


def _resumed(experiment: Experiment, conductor: Conductor, progress: ProgressLines) -> tune.Tuner:
    tuner = tune.Tuner.restore(experiment.folder, trainable=experiment.config.algo_name, resume_errored=True)
    # The restored objects are copies from the time when the experiment began; nothing public replaces them.
    inner = tuner._local_tuner
    run_config, tune_config = inner.get_run_config(), inner._tune_config
    others = [callback for callback in run_config.callbacks or [] if not isinstance(callback, ProgressLines)]
    run_config.callbacks, run_config.verbose = [*others, progress], 0
    before = tune_config.scheduler
    if isinstance(before, Conductor) or before is None:
        if before is not None:
            conductor.checkpoints = before.checkpoints
            conductor.stop = conductor.stop if experiment.stop else before.stop
        tune_config.scheduler = conductor
    return tuner


def _conclude(
    experiment: Experiment, results: list[Any], trials: Sequence[Any], conductor: Conductor, verbosity: int
) -> int:
    messages: list[str] = []
    for trial, result in zip(trials, results, strict=True):
        done = conductor.interruption.signum is None or (result.metrics or {}).get("done")
        status = "failed" if result.error else "stopped" if conductor.error else "done" if done else "interrupted"
        print(summary_line(str(trial), status, result.metrics or {}, result.path), flush=True)
        print_best(experiment, conductor.checkpoints, _checkpoints(result))
        if result.error and explain(result.error) not in messages:
            messages.append(explain(result.error))
            report("train", result.error, verbosity, f"{trial}: " if len(trials) > 1 else "")
    if conductor.error is not None:
        report("train", conductor.error, verbosity)
    return 1 if messages or conductor.error else 0


def _checkpoints(result: Any) -> list[Saved]:
    """A trial's checkpoints, oldest first."""
    saved = [Saved(checkpoint.path, metrics) for checkpoint, metrics in result.best_checkpoints or []]
    return sorted(saved, key=lambda checkpoint: checkpoint.result.get("training_iteration", 0))

