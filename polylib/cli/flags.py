"""Flags of a command: how people may spell them, and how they are checked.

absl parses them, in a `FlagValues` of the command's own: the process-wide `FLAGS` belongs to others (absl.logging has
`-v` there). Before that `normalise` brings the spellings people use into absl's one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from absl import flags as absl_flags

from polylib.errors import PolylibError, did_you_mean

# The count of -v; not a flag that people write.
VERBOSITY = "verbosity"


class UsageError(PolylibError):
    """What was typed can't be run; the command line exits with status 2."""


@dataclass(frozen=True)
class Flag:
    """One flag of a command.

    Attributes:
        name: with dashes, without the leading ones.
        group: the heading of `--help` under which it stands.
        help: what it does, one or two lines.
        metavar: the name of its value; empty for a switch, which is on, off (`--no-x`) or unsaid.
        short: its letter.
        aliases: other names.
        default: its value when it isn't given.
        low: makes it an integer of at least this.
        real: makes it a number instead of an integer.
        choices: the values it may have.
    """

    name: str
    group: str
    help: str
    metavar: str = ""
    short: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    default: Any = None
    low: int | None = None
    real: bool = False
    choices: tuple[str, ...] = ()

    @property
    def switch(self) -> bool:
        """Whether the flag takes no value."""
        return not self.metavar

    @property
    def key(self) -> str:
        """The name that absl knows it under."""
        return self.name.replace("-", "_")


class CommandLine:
    """A parsed command line: `line["num-samples"]`, `line.given("trace")`, `line.words`."""

    def __init__(self, values: dict[str, Any], given: set[str], words: list[str]) -> None:
        self._values = values
        self._given = given
        self.words = words

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def settle(self, name: str, value: Any) -> None:
        """Says what a flag's value stands for."""
        self._values[name] = value

    def given(self, name: str) -> bool:
        """Whether the flag was on the command line or in a flagfile."""
        return name in self._given

    @property
    def verbosity(self) -> int:
        """0, 1 for `-v`, 2 for `-vv`."""
        return int(self._values[VERBOSITY])


def parse(argv: Sequence[str], table: Sequence[Flag]) -> CommandLine:
    """Parses the arguments that follow a command's name.

    Args:
        argv: the arguments.
        table: the command's flags.

    Raises:
        UsageError: for an unknown flag, a bad or missing value, a flagfile that can't be read.
    """
    values = _flag_values(table)
    try:
        expanded = values.read_flags_from_files(list(argv))
    except (absl_flags.Error, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"flag --flagfile: {str(error).removeprefix('ERROR:: ')}") from None
    try:
        words = values(["polylib", *normalise(expanded, table)])[1:]
    except absl_flags.Error as error:
        # "flag --num_samples=abc: expected ..."
        name, equals, rest = str(error).partition("=")
        raise UsageError(name.replace("_", "-") + equals + rest) from None
    names = [flag.name for flag in table] + [VERBOSITY]
    keys = {name: name.replace("-", "_") for name in names}
    return CommandLine(
        {name: values[key].value for name, key in keys.items()},
        {name for name, key in keys.items() if values[key].present},
        words,
    )


def asks_for_help(argv: Sequence[str]) -> bool:
    """Whether `--help` or `-h` is among the arguments."""
    before = list(argv)[: list(argv).index("--")] if "--" in argv else argv
    return any(token in ("--help", "-help", "-h") for token in before)


def normalise(argv: Sequence[str], table: Sequence[Flag]) -> list[str]:
    """The arguments in one spelling: `--name=value`, `--name`, `--noname`, with underscores.

    Dashes and underscores are equal, `--no-x` is `--nox`, letters (`-e X`, `-eX`, `-e=X`) become names, `-v` and `-vv`
    become `--verbosity`. Words without dashes stay as they are.

    Raises:
        UsageError: for an unknown flag, with the nearest one, or a flag without its value.
    """
    result: list[str] = []
    verbosity = 0
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if token == "--":
            result += ["--", *rest]
            break
        if not token.startswith("-") or token == "-":
            result.append(token)
            continue
        if set(token[1:]) == {"v"}:
            verbosity += len(token) - 1
            continue
        flag, positive, value = _find(token, table)
        if flag.switch:
            off = "" if positive else "no"
            result.append(f"--{off}{flag.key}" + ("" if value is None else f"={value}"))
            continue
        if value is None:
            if not rest or _is_flag(rest[0], table):
                raise UsageError(f"flag --{flag.name} needs a value: --{flag.name} {flag.metavar}")
            value = rest.pop(0)
        result.append(f"--{flag.key}={value}")
    if verbosity:
        result.insert(0, f"--{VERBOSITY}={min(verbosity, 2)}")
    return result


def _find(token: str, table: Sequence[Flag]) -> tuple[Flag, bool, str | None]:
    """The flag that a token names, whether it is said positively, and the value after its `=` (or letter)."""
    body = token[2:] if token.startswith("--") else token[1:]
    name, equals, text = body.partition("=")
    if len(name.split()) > 1 and not name.startswith(" "):
        # A line "--name value" of a flagfile is one token.
        name, text = body.split(None, 1)
        equals = " "
    value = text.strip() if equals == " " else text if equals else None
    wanted = name.replace("_", "-")
    for flag in table:
        if wanted in (flag.name, *flag.aliases) or (not token.startswith("--") and wanted in flag.short):
            return flag, True, value
        if flag.switch and wanted in (f"no-{flag.name}", f"no{flag.name}") and value is None:
            return flag, False, None
    if not token.startswith("--"):
        for flag in table:
            if body[:1] in flag.short and not flag.switch:
                return flag, True, body[1:]
    known = [f"--{name}" for flag in table for name in (flag.name, *flag.aliases)] + ["--help", "--flagfile"]
    known += [f"--no-{flag.name}" for flag in table if flag.switch]
    spelled = token.partition("=")[0]
    raise UsageError(f"unknown flag {spelled!r}.{did_you_mean('--' + wanted, known)} See --help")


def _is_flag(token: str, table: Sequence[Flag]) -> bool:
    if not token.startswith("-") or token == "-":
        return False
    try:
        _find(token, table)
    except UsageError:
        return set(token[1:]) == {"v"}
    return True


def _flag_values(table: Sequence[Flag]) -> Any:
    values = absl_flags.FlagValues()
    values.set_gnu_getopt(True)
    for flag in table:
        if flag.switch:
            absl_flags.DEFINE_boolean(flag.key, flag.default, flag.help, flag_values=values)
        elif flag.low is not None:
            parser = _Number(flag.low, flag.real)
            absl_flags.DEFINE(parser, flag.key, flag.default, flag.help, flag_values=values)
        elif flag.choices:
            absl_flags.DEFINE(_Choice(flag.choices), flag.key, flag.default, flag.help, flag_values=values)
        else:
            absl_flags.DEFINE_string(flag.key, flag.default, flag.help, flag_values=values)
    absl_flags.DEFINE_integer(VERBOSITY, 0, "count of -v", flag_values=values)
    return values


class _Number(absl_flags.ArgumentParser):
    def __init__(self, low: int, real: bool) -> None:
        super().__init__()
        self._low, self._real = low, real

    def parse(self, argument: Any) -> int | float:
        try:
            number = float(argument) if self._real else int(argument)
        except (TypeError, ValueError):
            number = None
        if number is None or not self._low <= number < float("inf"):
            raise ValueError(f"expected {'a number' if self._real else 'an integer'} >= {self._low}")
        return number


class _Choice(absl_flags.ArgumentParser):
    def __init__(self, choices: tuple[str, ...]) -> None:
        super().__init__()
        self._choices = choices

    def parse(self, argument: Any) -> str:
        if argument not in self._choices:
            hint = did_you_mean(str(argument).lower(), self._choices)
            raise ValueError(f"expected one of {', '.join(self._choices)}.{hint}".removesuffix("."))
        return str(argument)
