"""What all commands share: help, flags, and from exceptions to exit statuses."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from polylib.algorithms.registry import registered_name
from polylib.cli.failures import report
from polylib.cli.flags import CommandLine, Flag, UsageError, asks_for_help, parse
from polylib.cli.interruption import exit_status, said
from polylib.cli.process import import_quietly, importable
from polylib.errors import PolylibError

DONE, FAILED, WRONG = 0, 1, 2


def run_command(
    name: str,
    argv: Sequence[str],
    flags: Sequence[Flag],
    help_text: Callable[[], str],
    body: Callable[[CommandLine], int],
) -> int:
    """Runs a command.

    Args:
        name: such as `"train"`.
        argv: the arguments after it.
        flags: those that it knows.
        help_text: what `--help` prints.
        body: does it; returns the exit status. The modules in `python_path(line)` can be imported meanwhile.

    Returns:
        The exit status: 0 done, 1 failed, 2 the command line was wrong, 130 interrupted, 143 terminated.
    """
    if asks_for_help(argv):
        print(help_text(), end="")
        return DONE
    verbosity = 0
    try:
        line = parse(argv, flags)
        verbosity = line.verbosity
        with importable(python_path(line)):
            if any(flag.name == "algo" for flag in flags):
                _name_algorithm(line)
            return body(line)
    except KeyboardInterrupt as error:
        print(f"polylib {name}: {said(error)}", file=sys.stderr)
        return exit_status(error)
    except UsageError as error:
        report(name, error, verbosity)
        return WRONG
    except BrokenPipeError:
        # `polylib train --print-config | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _name_algorithm(line: CommandLine) -> None:
    """Imports what `--algo module:Class` names, and replaces it by the name that the class is registered under."""
    name = line["algo"]
    if not name or ":" not in name:
        return
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    with contextlib.suppress(Exception):  # `registered_name` says what is wrong
        import_quietly([name.partition(":")[0]])
    try:
        line.settle("algo", registered_name(name))
    except PolylibError as error:
        raise UsageError(f"--algo: {error}") from error


def python_path(line: CommandLine) -> list[str]:
    """The folders whose modules a command line may name: the current one, and that of the experiment's file."""
    folders = [os.getcwd()]
    if len(line.words) == 2 and line.words[1].endswith(".py"):
        folders.insert(0, str(Path(line.words[1]).expanduser().resolve().parent))
    return list(dict.fromkeys(folders))
