"""Runs an experiment in this process, without Ray, writing the files that Tune writes."""

from __future__ import annotations

import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

from polylib.algorithms.options import is_search_space
from polylib.algorithms.registry import get_algorithm_class
from polylib.cli.experiment import Experiment
from polylib.cli.flags import UsageError
from polylib.cli.progress import HEADER, result_line, summary_line
from polylib.cli.stopping import StopCriteria
from polylib.cli.trials import trial_name


@dataclass(eq=False)
class LocalTrial:
    """As much of a Tune trial as Tune's loggers ask for."""

    trial_id: str
    config: dict[str, Any]
    local_path: str
    checkpoint: None = None
    evaluated_params: dict[str, Any] = field(default_factory=dict)

    def init_local_path(self) -> None:
        """Makes the trial's folder."""
        Path(self.local_path).mkdir(parents=True, exist_ok=True)


def check_local(experiment: Experiment) -> None:
    """Raises a UsageError, if an experiment needs Ray or Tune."""
    config = experiment.config
    values = {**config.to_dict(), **{f"model.{key}": value for key, value in config["model"].items()}}
    for key, value in values.items():
        if is_search_space(value):
            raise UsageError(f"--local-mode runs one trial, and config key {key!r} is a search: leave one of them out")
    if experiment.num_samples > 1:
        raise UsageError(f"--local-mode runs one trial, and --num-samples says {experiment.num_samples}")
    if config["num_workers"] > 0:
        raise UsageError(
            f"--local-mode runs without Ray, and config key 'num_workers' is {config['num_workers']}: set it to 0 "
            "(num_envs_per_worker may be more than 1)"
        )
    if "://" in experiment.local_dir:
        raise UsageError(f"--local-dir {experiment.local_dir}: --local-mode writes to local folders only")


def run_locally(experiment: Experiment) -> int:
    """Runs an experiment of one trial.

    Args:
        experiment: what to run; `check_local` has passed it.

    Returns:
        0.

    Raises:
        Exception: whatever the run raises, after its folder has an `error.txt`.
    """
    algo = experiment.config.algo_name
    trial = _trial(experiment)
    name = Path(trial.local_path).name
    trial.init_local_path()
    loggers = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
    stop, result, status = StopCriteria(experiment.stop), {}, "failed"
    algorithm = None
    try:
        for logger in loggers:
            logger.log_trial_start(trial)
        algorithm = get_algorithm_class(algo)(config=trial.config)
        print(HEADER, flush=True)
        done = False
        while not done:
            result = {**algorithm.train(), "trial_id": trial.trial_id}
            done = stop.met(result)
            result["done"] = done
            for logger in loggers:
                logger.log_trial_result(result["training_iteration"], trial, result)
            print(result_line(name, result), flush=True)
        status = "done"
        return 0
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except Exception:
        Path(trial.local_path, "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        raise
    finally:
        for logger in loggers:
            logger.log_trial_end(trial, failed=status == "failed")
        if algorithm is not None:
            algorithm.stop()
        print(summary_line(name, status, result, trial.local_path), flush=True)


def _trial(experiment: Experiment) -> LocalTrial:
    trial_id = f"{uuid.uuid4().hex[:5]}_00000"
    config = experiment.config.to_dict()
    trial = LocalTrial(trial_id, config, "")
    trial.local_path = str(Path(experiment.local_dir, experiment.name, trial_name(experiment.config.algo_name, trial)))
    return trial
