"""Runs an experiment through Ray Tune, which writes its results."""

from __future__ import annotations

import functools
from typing import Any

import ray.cloudpickle
from ray import tune

from polylib.algorithms.trainable import register_trainables
from polylib.cli.experiment import Experiment
from polylib.cli.failures import explain, report
from polylib.cli.progress import ResultTable, summary_line
from polylib.cli.ray_cluster import connected
from polylib.cli.run_options import RunOptions
from polylib.cli.stopping import StopCriteria, StopKeyError
from polylib.cli.trials import trial_name


class ProgressLines(tune.Callback):
    """Prints a line per result."""

    def __init__(self) -> None:
        self.trials: list[Any] = []
        self._table = ResultTable()

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Keeps the trials, whose names the results don't tell."""
        self.trials = trials

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Prints one result."""
        self._table.add(str(trial), result, map(str, trials))


class Stop(tune.Stopper):
    """Stops a trial when its criteria are met, and all when a key isn't in the results."""

    def __init__(self, criteria: dict[str, float]) -> None:
        self._criteria = StopCriteria(criteria)
        self.error: StopKeyError | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether to stop a trial after this result."""
        try:
            return self._criteria.met(result)
        except StopKeyError as error:
            self.error = error
            return True

    def stop_all(self) -> bool:
        """Whether to stop everything."""
        return self.error is not None


def run_with_tune(experiment: Experiment, options: RunOptions) -> int:
    """Runs an experiment.

    Args:
        experiment: what to run.
        options: where to find Ray.

    Returns:
        0, or 1 if a trial failed (then the reasons were printed).

    Raises:
        PolylibError: if it couldn't be started.
    """
    if experiment.module is not None:
        # Workers can't import an experiment's file by name.
        ray.cloudpickle.register_pickle_by_value(experiment.module)
    with connected(experiment, options):
        register_trainables()
        progress, stop = ProgressLines(), Stop(experiment.stop)
        config = experiment.config
        tuner = tune.Tuner(
            config.algo_name,
            param_space=config.to_dict(),
            tune_config=tune.TuneConfig(
                num_samples=experiment.num_samples,
                trial_name_creator=functools.partial(trial_name, config.algo_name),
            ),
            run_config=tune.RunConfig(
                name=experiment.name,
                storage_path=experiment.local_dir,
                stop=stop,
                callbacks=[progress],
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
            ),
        )
        grid = tuner.fit()
        return _conclude(list(grid), progress.trials, stop, options.verbosity)


def _conclude(results: list[Any], trials: list[Any], stop: Stop, verbosity: int) -> int:
    messages: list[str] = []
    for trial, result in zip(trials, results, strict=True):
        status = "failed" if result.error else "stopped" if stop.error else "done"
        print(summary_line(str(trial), status, result.metrics or {}, result.path), flush=True)
        if result.error and explain(result.error) not in messages:
            messages.append(explain(result.error))
            report("train", result.error, verbosity, f"{trial}: " if len(trials) > 1 else "")
    if stop.error is not None:
        report("train", stop.error, verbosity)
    return 1 if messages or stop.error else 0
