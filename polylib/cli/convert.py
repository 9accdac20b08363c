"""`polylib convert`: recorded episodes in another format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from polylib.cli.command import DONE, FAILED, run_command
from polylib.cli.convert_flags import CONVERT_FLAGS, help_text
from polylib.cli.failures import report
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.process import prepared
from polylib.cli.values import read_mapping
from polylib.errors import ConfigError, EnvError, FrameworkError, PolylibError
from polylib.offline.formats.convert import Converted
from polylib.offline.formats.convert import convert as convert_data


def convert(argv: Sequence[str]) -> int:
    """Runs `polylib convert`.

    Args:
        argv: the arguments after `convert`.

    Returns:
        The exit status: 0 done, 1 something couldn't be read or written, 2 the command line was wrong, 130
        interrupted.
    """
    return run_command("convert", argv, CONVERT_FLAGS, help_text, _convert)


def _convert(line: CommandLine) -> int:
    if len(line.words) != 2:
        got = f"got {' '.join(line.words)!r}" if line.words else "neither was given"
        raise UsageError(f"from what to what? {got}, expected two: polylib convert FROM TO")
    source, target = line.words
    columns = read_mapping(line["columns"], "--columns") if line["columns"] else None
    with prepared(line.verbosity):
        try:
            spaces = _spaces(line["env"]) if line["env"] else {}
            done = convert_data(
                source,
                target,
                source_format=line["from-format"],
                to_format=line["to-format"],
                encoding=line["encoding"] or "lists",
                env=line["env"],
                columns=columns,
                **spaces,
            )
        except (ConfigError, EnvError, FrameworkError) as error:
            raise UsageError(str(error)) from error
        except PolylibError as error:
            report("convert", error, line.verbosity)
            return FAILED
    print(_said(done, source, target), flush=True)
    return DONE


def _spaces(env: str) -> dict[str, Any]:
    try:
        made = gym.make(env)
    except Exception as error:  # whatever Gymnasium and an environment raise
        raise EnvError(f"--env {env}: {type(error).__name__}: {' '.join(str(error).split())}") from error
    try:
        return {"observation_space": made.observation_space, "action_space": made.action_space}
    finally:
        made.close()


def _said(done: Converted, source: str, target: str) -> str:
    episodes = "" if done.episodes is None else f", {done.episodes} episodes"
    left_out = f"; {done.left_out} left out, which lack steps or an end" if done.left_out else ""
    return (
        f"{source} ({done.source_format}) -> {target} ({done.target_format}): {done.records} records, {done.rows} rows"
        f"{episodes}{left_out}"
    )
