"""What happens after each result of a trial under Tune: it goes on, stops, or pauses with a checkpoint."""

from __future__ import annotations

import math
import signal
from typing import Any

from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from polylib.cli.checkpoints import CheckpointOptions, score_of
from polylib.cli.interruption import Interruption
from polylib.cli.stopping import ResultKeyError, StopCriteria


class Conductor(FIFOScheduler):
    """Runs trials one after another, or as many together as there is room for.

    A scheduler, and no `tune.Stopper`, since it can pause a trial (which writes a checkpoint, and leaves the trial
    unfinished for `--resume`), and since a resumed experiment would bring its old stopper with it.

    Args:
        stop: when a trial is done.
        checkpoints: names the score, which must be in the results.
        interruption: tells of signals.

    Attributes:
        error: why all trials were stopped, if they were.
    """

    def __init__(self, stop: StopCriteria, checkpoints: CheckpointOptions, interruption: Interruption) -> None:
        super().__init__()
        self.stop, self.checkpoints, self.interruption = stop, checkpoints, interruption
        self.error: ResultKeyError | None = None
        self._awaited: set[str] | None = None

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Ranks the checkpoints of a new trial by polylib's rules."""
        RankedCheckpoints.take_over(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """What to do with a trial after a result."""
        if self.error is not None:
            return self.STOP
        try:
            self.checkpoints.check(result)
            if self.stop.met(result):
                return self.STOP
        except ResultKeyError as error:
            self.error = error
            tune_controller.search_alg.set_finished()
            for other in tune_controller.get_trials():
                if other is not trial and not other.is_finished():
                    tune_controller.stop_trial(other)
            return self.STOP
        return self.CONTINUE if self.interruption.signum is None else self.PAUSE

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The next trial; after a signal none, and Tune ends once those have paused that were running then."""
        if self.interruption.signum is None:
            return super().choose_trial_to_run(tune_controller)
        running = {trial.trial_id for trial in tune_controller.get_trials() if trial.status == Trial.RUNNING}
        if self._awaited is None:
            self._awaited = running
        if not self.checkpoints.possible or not self._awaited & running:
            # Tune's loop ends at this signal, and saves the experiment.
            signal.raise_signal(signal.SIGUSR1)
        return None


class RankedCheckpoints(_CheckpointManager):
    """Which of a trial's checkpoints stay.

    Tune's own bookkeeping looks for the score among a result's outermost keys only, and takes checkpoints whose result
    has no score for the best ones.
    """

    @classmethod
    def take_over(cls, trial: Any) -> None:
        """Replaces Tune's own bookkeeping, as long as that is empty."""
        manager = trial.run_metadata.checkpoint_manager
        if type(manager) is _CheckpointManager and manager.latest_checkpoint_result is None:
            trial.run_metadata.checkpoint_manager = cls(manager.checkpoint_config)

    def register_checkpoint(self, checkpoint_result: _TrainingResult) -> None:
        """Takes a new checkpoint in, and removes what is too much."""
        key = self.checkpoint_config.checkpoint_score_attribute
        if key is not None:
            score = score_of(checkpoint_result.metrics, key)
            metrics = {**checkpoint_result.metrics, key: math.nan if score is None else score}
            checkpoint_result = _TrainingResult(checkpoint=checkpoint_result.checkpoint, metrics=metrics)
        super().register_checkpoint(checkpoint_result)
