"""`polylib COMMAND ...`: finds the command and runs it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from polylib import __version__
from polylib.errors import did_you_mean

# Command -> ("module:function" that takes the arguments after it and returns the exit status, what it does).
COMMANDS = {
    "train": ("polylib.cli.train:train", "Trains an agent on an environment."),
    "evaluate": ("polylib.cli.evaluate:evaluate", "Runs episodes with the policy of a checkpoint."),
    "trace": ("polylib.cli.trace:trace", "Looks at recorded episodes, as text or as a page for a browser."),
    "export": ("polylib.cli.export:export", "Writes the policy of a checkpoint for programs without polylib."),
    "convert": ("polylib.cli.convert:convert", "Writes recorded episodes in another format."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: the arguments without the program's name; None: those of this process.

    Returns:
        The exit status: 0 done, 1 failed, 2 the command line was wrong, 130 interrupted, 143 terminated.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        print(_help(), file=sys.stderr, end="")
        return 2
    command, *rest = arguments
    if command in ("-h", "-help", "--help", "help"):
        print(_help(), end="")
        return 0
    if command in ("-V", "-version", "--version", "version"):
        print(f"polylib {__version__}")
        return 0
    if command not in COMMANDS:
        kind = "flag" if command.startswith("-") else "command"
        hint = did_you_mean(command, [*COMMANDS, "--help", "--version"])
        print(f"polylib: error: unknown {kind} {command!r}.{hint} See polylib --help", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[command][0].partition(":")
    return int(getattr(importlib.import_module(module), function)(rest))


def train(argv: Sequence[str] | None = None) -> int:
    """The same as `main(["train", *argv])`."""
    return main(["train", *(sys.argv[1:] if argv is None else argv)])


def _help() -> str:
    rows = "".join(f"  {name:<12}{text}\n" for name, (_, text) in COMMANDS.items())
    return (
        "usage: polylib COMMAND [flags]\n\nReinforcement learning in TensorFlow and PyTorch.\n\n"
        f"Commands (polylib COMMAND --help says more)\n{rows}\n"
        "Flags\n  --help      Prints this and exits.\n  --version   Prints the version and exits.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
