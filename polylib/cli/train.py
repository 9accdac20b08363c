"""`polylib train`: from arguments to an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from polylib.cli.experiment import Experiment, experiments_of, short_path
from polylib.cli.failures import report
from polylib.cli.flags import CommandLine, UsageError, asks_for_help, parse
from polylib.cli.print_config import config_table
from polylib.cli.process import import_tensorboard, importable, prepared
from polylib.cli.run_options import RunOptions
from polylib.cli.train_flags import TRAIN_FLAGS, help_text

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def train(argv: Sequence[str]) -> int:
    """Runs `polylib train`.

    Args:
        argv: the arguments after `train`.

    Returns:
        The exit status: 0 done, 1 the run failed, 2 the command line was wrong, 130 interrupted.
    """
    if asks_for_help(argv):
        print(help_text(), end="")
        return DONE
    verbosity = 0
    try:
        line = parse(argv, TRAIN_FLAGS)
        verbosity = line.verbosity
        with importable(_python_path(line)):
            return _train(line)
    except KeyboardInterrupt:
        print("polylib train: interrupted", file=sys.stderr)
        return INTERRUPTED
    except UsageError as error:
        report("train", error, verbosity)
        return WRONG
    except BrokenPipeError:
        # `polylib train --print-config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _train(line: CommandLine) -> int:
    experiments = experiments_of(line)
    if line["print-config"]:
        print("\n\n".join(config_table(experiment) for experiment in experiments), flush=True)
        return DONE
    options = RunOptions.of(line, _python_path(line))
    for experiment in experiments:
        options.check(experiment)
    status = DONE
    with prepared(line.verbosity):
        for experiment in experiments:
            status = _run(experiment, options) or status
            if status == INTERRUPTED:
                break
    return status


def _run(experiment: Experiment, options: RunOptions) -> int:
    for notice in experiment.notices:
        print(f"polylib train: note: {notice}", file=sys.stderr, flush=True)
    print(experiment.headline(), flush=True)
    try:
        # Only now: these import Ray.
        import_tensorboard()
        if options.local_mode:
            from polylib.cli.local_run import run_locally

            return run_locally(experiment)
        from polylib.cli.tune_run import run_with_tune

        return run_with_tune(experiment, options)
    except KeyboardInterrupt:
        print(f"polylib train: interrupted; results so far in {short_path(experiment.folder)}", file=sys.stderr)
        return INTERRUPTED
    except UsageError:
        raise
    except Exception as error:
        report("train", error, options.verbosity)
        return FAILED


def _python_path(line: CommandLine) -> list[str]:
    """The folders whose modules a run may name: the current one, and that of the experiment's file."""
    folders = [os.getcwd()]
    if len(line.words) == 2 and line.words[1].endswith(".py"):
        folders.insert(0, str(Path(line.words[1]).expanduser().resolve().parent))
    return list(dict.fromkeys(folders))
