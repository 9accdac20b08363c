"""`polylib train`: from arguments to an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from polylib.cli.command import DONE, FAILED, python_path, run_command
from polylib.cli.experiment import Experiment, experiments_of, short_path
from polylib.cli.failures import report
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.interruption import Interrupted, exit_status, said
from polylib.cli.next_steps import resume_line
from polylib.cli.print_config import config_table
from polylib.cli.process import import_tensorboard, prepared
from polylib.cli.run_options import RunOptions
from polylib.cli.train_flags import TRAIN_FLAGS, help_text

# Exit statuses from here on mean that a signal ended the run.
_SIGNALLED = 128


def train(argv: Sequence[str]) -> int:
    """Runs `polylib train`.

    Args:
        argv: the arguments after `train`.

    Returns:
        The exit status: 0 done, 1 the run failed, 2 the command line was wrong, 130 interrupted, 143 terminated.
    """
    return run_command("train", argv, TRAIN_FLAGS, help_text, _train)


def _train(line: CommandLine) -> int:
    experiments = experiments_of(line)
    if line["print-config"]:
        print("\n\n".join(config_table(experiment) for experiment in experiments), flush=True)
        return DONE
    options = RunOptions.of(line, python_path(line))
    for experiment in experiments:
        options.check(experiment)
    status = DONE
    with prepared(line.verbosity):
        for experiment in experiments:
            status = _run(experiment, options, line) or status
            if status >= _SIGNALLED:
                break
    return status


def _run(experiment: Experiment, options: RunOptions, line: CommandLine) -> int:
    for notice in experiment.notices:
        print(f"polylib train: note: {notice}", file=sys.stderr, flush=True)
    print(experiment.headline(), flush=True)
    try:
        # Only now: these import Ray.
        import_tensorboard()
        if options.local_mode:
            from polylib.cli.local_run import run_locally

            return run_locally(experiment)
        return _run_with_tune(experiment, options)
    except KeyboardInterrupt as error:
        print(f"polylib train: {said(error)}; results so far in {short_path(experiment.folder)}", file=sys.stderr)
        checkpoint = error.checkpoint if isinstance(error, Interrupted) else None
        if checkpoint is not None or not options.local_mode:
            again = resume_line(experiment, line, TRAIN_FLAGS, checkpoint)
            if again is not None:
                print(f"polylib train: this goes on from there: {again}", file=sys.stderr, flush=True)
        return exit_status(error)
    except UsageError:
        raise
    except Exception as error:
        report("train", error, options.verbosity)
        return FAILED


def _run_with_tune(experiment: Experiment, options: RunOptions) -> int:
    from polylib.cli.tune_run import run_with_tune

    try:
        return run_with_tune(experiment, options)
    except SystemExit as error:
        # What Ray does at SIGTERM while it starts.
        if error.code == signal.SIGTERM:
            raise Interrupted(signal.SIGTERM) from None
        raise
