"""Runs an experiment in this process, without Ray, writing the files that Tune writes."""

from __future__ import annotations

import logging
import traceback
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

from polylib.algorithms.algorithm_config import FRAMEWORK_PACKAGES
from polylib.algorithms.registry import get_algorithm_class
from polylib.cli.checkpoints import KeptCheckpoints
from polylib.cli.experiment import Experiment, source_name
from polylib.cli.interruption import Interrupted, Interruption, exit_status
from polylib.cli.next_steps import print_best
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
        Interrupted: after a signal; it names the newest checkpoint.
        Exception: whatever the run raises, after its folder has an `error.txt`.
    """
    trial = _trial(experiment)
    name = Path(trial.local_path).name
    algorithm_class = get_algorithm_class(experiment.config.algo_name)
    options = experiment.checkpoints.for_algorithm(algorithm_class, tune.Trainable)
    checkpoints = KeptCheckpoints(trial.local_path, options)
    trial.init_local_path()
    loggers = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
    stop, table, status = StopCriteria(experiment.stop), ResultTable(), "failed"
    result: dict[str, Any] = {}
    algorithm: Any = None
    try:
        with Interruption() as interruption:
            for logger in loggers:
                logger.log_trial_start(trial)
            import_quietly(FRAMEWORK_PACKAGES[trial.config["framework"]])
            algorithm = _placed(algorithm_class, trial.local_path)(config=trial.config)
            if experiment.restore is not None:
                _restore(algorithm, experiment.restore)
            interruption.patient = True
            done = False
            while not done and interruption.signum is None:
                result = {**algorithm.train(), "trial_id": trial.trial_id}
                options.check(result)
                done = stop.met(result)
                result["done"] = done
                for logger in loggers:
                    logger.log_trial_result(result["training_iteration"], trial, result)
                table.add(name, result)
                if options.due(result["training_iteration"], done):
                    checkpoints.save(algorithm, result)
            if interruption.signum is not None:
                if result and options.possible:
                    checkpoints.save(algorithm, result)
                raise Interrupted(interruption.signum)
        status = "done"
        return 0
    except KeyboardInterrupt as error:
        status = "interrupted"
        raise Interrupted(exit_status(error) - 128, checkpoints.last) from None
    except Exception:
        Path(trial.local_path, "error.txt").write_text(traceback.format_exc(), encoding="utf-8")
        raise
    finally:
        for logger in loggers:
            logger.log_trial_end(trial, failed=status == "failed")
        if algorithm is not None:
            algorithm.stop()
        print(summary_line(name, status, result, trial.local_path), flush=True)
        print_best(experiment, options, checkpoints.saved)


def _placed(algorithm_class: type, folder: str) -> type:
    """The class, with the trial's folder as that of its own files (`"output": "logdir"`), where Tune would set it."""

    def set_up(self: Any) -> None:
        self._logdir = folder

    return type(algorithm_class.__name__, (algorithm_class,), {"_setup_logdir": set_up})


def _restore(algorithm: Any, checkpoint: str) -> None:
    # What it would log of changed settings was said before the run, as for a run of Tune.
    logger = logging.getLogger("polylib.algorithms.checkpointing")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        algorithm.restore(checkpoint)
    finally:
        logger.setLevel(level)


def _trial(experiment: Experiment) -> LocalTrial:
    trial_id = f"{uuid.uuid4().hex[:5]}_00000"
    config = experiment.config.to_dict()
    trial = LocalTrial(trial_id, config, "")
    name = trial_name(experiment.config.algo_name, config["env"] or source_name(experiment.config), trial)
    trial.local_path = str(Path(experiment.local_dir, experiment.name, name))
    return trial
