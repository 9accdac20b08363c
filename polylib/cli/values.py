"""Dicts that people write: JSON on the command line, JSON and YAML in files. Errors say where."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polylib.cli.flags import UsageError

_SUFFIXES = (".json", ".yaml", ".yml")


def read_mapping(text: str, where: str) -> dict[str, Any]:
    """The dict that the value of a flag stands for.

    Args:
        text: JSON, or `@FILE`, or the path of a `.json`, `.yaml` or `.yml` file.
        where: the flag's spelling, for errors.

    Raises:
        UsageError: if the text or the file isn't a dict, with line and column.
    """
    text = text.strip()
    if text.startswith("@") or ("{" not in text and text.lower().endswith(_SUFFIXES)):
        return read_file(text.removeprefix("@"), where)
    return _mapping(_parse_json(text, where), where, "a JSON object such as '{\"lr\": 0.001}'")


def read_file(name: str, where: str) -> dict[str, Any]:
    """The dict in a JSON or YAML file.

    Args:
        name: its path; `~` is the home folder.
        where: what named the file, for errors.

    Raises:
        UsageError: if it can't be read or isn't a dict.
    """
    path = Path(name).expanduser()
    text = read_text(path, where)
    label = f"{where}: {name}"
    if path.suffix.lower() in (".yaml", ".yml"):
        return _mapping(_parse_yaml(text, label), label, "a mapping of names to values")
    return _mapping(_parse_json(text, label), label, "a JSON object")


def read_text(path: Path, where: str) -> str:
    """The text of a file.

    Raises:
        UsageError: if it can't be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{where}: there is no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{where}: can't read {str(path)!r}: {error}") from None


def stop_criteria(values: Mapping[str, Any], where: str) -> dict[str, float]:
    """Criteria as `{"key/nested/key": number}`.

    Args:
        values: keys of results to numbers; dicts may be nested.
        where: what they come from, for errors.

    Raises:
        UsageError: naming the key whose value isn't a number.
    """
    criteria: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            nested = stop_criteria(value, where)
            criteria.update({f"{key}/{name}": number for name, number in nested.items()})
        elif isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise UsageError(
                f"{where}: key {str(key)!r}: got {value!r}, expected the number at which to stop, "
                'such as {"training_iteration": 10}'
            )
        else:
            criteria[str(key)] = value
    return criteria


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        before, after = text[max(0, error.pos - 24) : error.pos], text[error.pos : error.pos + 24]
        near = " ".join(f"{before}<HERE>{after}".split())
        hint = "; JSON wants double quotes around names and text" if "'" in after[:1] or "'" in before[-1:] else ""
        raise UsageError(
            f"{where}: malformed JSON at line {error.lineno}, column {error.colno}: {error.msg}, near {near!r}{hint}"
        ) from None
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} stands there twice")
        result[key] = value
    return result


def _parse_yaml(text: str, where: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-4 as a number: YAML 1.1 wants a point in it."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z"), list("-+0123456789")
    )
    try:
        return yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{where}: malformed YAML{place}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: malformed YAML: {' '.join(str(error).split())}") from None


def _mapping(value: Any, where: str, expected: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: got {json.dumps(value, default=str)[:80]}, expected {expected}")
    return value
