"""From an exception, wherever it was raised, to one line for people."""

from __future__ import annotations

import re
import sys
import traceback

from polylib import errors

_PRINTED = re.compile(r"polylib\.[\w.]*?(\w+Error): (.*)")
# The last line of a traceback: "package.module.SomeError: message".
_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)): ?(.*)$")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def explain(error: BaseException) -> str:
    """One line that says what went wrong.

    A `PolylibError` speaks for itself. Ray wraps it: in an error with a cause where a method of an actor failed, in one
    that only quotes its traceback where the actor's constructor did.
    """
    original = _unwrap(error)
    if isinstance(original, errors.PolylibError):
        return _one_line(str(original))
    text = _COLOURS.sub("", str(original))
    quoted = [match for match in _PRINTED.finditer(text) if _is_ours(match[1])]
    if quoted:
        return _one_line(quoted[-1][2])
    if type(original).__module__.partition(".")[0] == "ray":
        lines = [match for match in map(_LAST_LINE.match, map(_bare, text.splitlines())) if match]
        if lines:
            return _one_line(f"{lines[-1][1].rpartition('.')[2]}: {lines[-1][2]}")
        text = next((line for line in text.splitlines() if line.strip()), "")
    return _one_line(f"{type(original).__name__}: {text}" if text else type(original).__name__)


def report(command: str, error: BaseException, verbosity: int = 0, where: str = "") -> None:
    """Prints an error to stderr: one line, after the traceback at `-vv`.

    Args:
        command: such as `"train"`.
        error: what was raised.
        verbosity: the count of `-v`.
        where: what it belongs to, such as a trial, with a colon.
    """
    if verbosity > 1:
        traceback.print_exception(error, file=sys.stderr)
    hint = "" if verbosity > 1 or isinstance(_unwrap(error), errors.PolylibError) else _hint(error)
    print(f"polylib {command}: error: {where}{explain(error)}{hint}", file=sys.stderr, flush=True)


def _hint(error: BaseException) -> str:
    """How to see more of an error that isn't polylib's own."""
    text = _COLOURS.sub("", str(_unwrap(error)))
    ours = any(_is_ours(match[1]) for match in _PRINTED.finditer(text))
    return "" if ours else " (-vv shows the traceback)"


def _unwrap(error: BaseException) -> BaseException:
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        cause = getattr(error, "cause", None)
        if isinstance(cause, BaseException):
            error = cause
    return error


def _is_ours(name: str) -> bool:
    """Whether a class of this name is one of polylib's errors, wherever it is defined."""
    waiting: list[type] = [errors.PolylibError]
    while waiting:
        found = waiting.pop()
        if found.__name__ == name:
            return True
        waiting += found.__subclasses__()
    return False


def _bare(line: str) -> str:
    """A line of a worker's log without its "(pid=..)" prefix."""
    return re.sub(r"^\([^)]*\) ", "", line)


def _one_line(text: str) -> str:
    return " ".join(text.split())
