"""Runs an experiment in this process, without Ray, writing the files that Tune writes."""

from __future__ import annotations

import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

from polylib.algorithms.algorithm_config import FRAMEWORK_PACKAGES
from polylib.algorithms.registry import get_algorithm_class
from polylib.cli.experiment import Experiment
from polylib.cli.process import import_quietly
from polylib.cli.progress import ResultTable, summary_line
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


def run_locally(experiment: Experiment) -> int:
    """Runs an experiment of one trial.

    Args:
        experiment: what to run; `RunOptions.check` has passed it.

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
    table, algorithm = ResultTable(), None
    try:
        for logger in loggers:
            logger.log_trial_start(trial)
        import_quietly(FRAMEWORK_PACKAGES[trial.config["framework"]])
        algorithm = get_algorithm_class(algo)(config=trial.config)
        done = False
        while not done:
            result = {**algorithm.train(), "trial_id": trial.trial_id}
            done = stop.met(result)
            result["done"] = done
            for logger in loggers:
                logger.log_trial_result(result["training_iteration"], trial, result)
            table.add(name, result)
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
