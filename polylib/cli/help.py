"""The layout of `--help`: groups of flags in two columns, as wide as the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from polylib.algorithms.registry import algorithm_names
from polylib.cli.flags import Flag

# Flags that are parsed elsewhere, for the help only: (spelling, group, text).
Other = tuple[str, str, str]
VERBOSE: Other = ("-v, -vv", "Help", "Log more: INFO, and the workers' output; DEBUG, and tracebacks of errors.")
HELP: Other = ("-h, --help", "Help", "Prints this and exits.")


def render_help(usage: str, flags: Sequence[Flag], others: Sequence[Other], tail: Sequence[str]) -> str:
    """The text of a command's `--help`.

    Args:
        usage: what stands first.
        flags: the command's flags, in the order of their groups.
        others: rows of flags that aren't in the table.
        tail: what follows the flags.
    """
    width = max(72, min(110, shutil.get_terminal_size((100, 24)).columns))
    groups: dict[str, list[tuple[str, str]]] = {}
    for flag in flags:
        groups.setdefault(flag.group, []).append((_spelling(flag), _description(flag)))
    for spelling, group, text in others:
        groups.setdefault(group, []).append((spelling, text))
    parts = [usage]
    for group, rows in groups.items():
        parts.append("\n".join([group, *_rows(rows, width)]) + "\n")
    return "\n".join([*parts, *tail])


def _spelling(flag: Flag) -> str:
    letters = "".join(f"-{letter}, " for letter in flag.short[:1])
    return f"{letters or '    '}--{flag.name}" + (f" {flag.metavar}" if flag.metavar else "")


def _description(flag: Flag) -> str:
    text = flag.help
    if flag.name == "algo":
        text += f" One of: {', '.join(algorithm_names())}."
    if isinstance(flag.default, str | int) and not flag.switch:
        text += f" Default: {flag.default}."
    others = [f"--{alias}" for alias in flag.aliases] + [f"-{letter}" for letter in flag.short[1:]]
    return text + (f" Also {', '.join(others)}." if others else "")


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    indent = 30
    lines: list[str] = []
    for spelling, text in rows:
        first = f"  {spelling}".ljust(indent)
        if len(first.rstrip()) >= indent - 1:
            lines.append(first.rstrip())
            first = " " * indent
        lines += textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False
        )
    return lines
