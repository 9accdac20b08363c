"""The writer that a config asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError, did_you_mean
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import FORMATS
from polylib.offline.json_writer import COMPRESS_COLUMNS, MAX_FILE_SIZE, ON_ERROR, JsonWriter

_SETTINGS = ("format", "on_error")


def make_output(
    config: Mapping[str, Any] | Any,
    worker_index: int = 0,
    logdir: str | None = None,
    spaces: tuple[gym.Space[Any], gym.Space[Any]] | None = None,
    worker: Any = None,
) -> Any:
    """The writer of a worker's traces, or None where none are wanted.

    Args:
        config: With the keys `output` (None, a folder, `"logdir"`, or a function of an `IOContext` that returns a
            writer), `output_config` (`{"format": "json" | "polylib", "on_error": "raise" | "warn"}`),
            `output_compress_columns` and `output_max_file_size`.
        worker_index: Of the worker.
        logdir: The folder of the run's results, which `"logdir"` stands for.
        spaces: Of the worker's environments, which the files note.
        worker: The rollout worker, for users' writers.

    Returns:
        A `JsonWriter`, or what the function returned: anything with `write(batch)`.

    Raises:
        ConfigError: A bad value; the message names the key.
        TraceFileError: The folder can't be written to.
    """
    output = config.get("output")
    if output is None:
        return None
    if callable(output):
        return _from_function(output, IOContext(logdir, config, worker_index, worker))
    if not isinstance(output, str | os.PathLike) or not os.fspath(output):
        raise ConfigTypeError(
            f"output={output!r}: expected a folder, 'logdir', or a function of an IOContext that returns a writer"
        )
    if output == "logdir":
        if not logdir:
            raise ConfigError("output='logdir': this run has no folder of results; name a folder instead")
        output = logdir
    settings = config.get("output_config") or {}
    _check_keys(settings)
    return JsonWriter(
        output,
        max_file_size=config.get("output_max_file_size") or MAX_FILE_SIZE,
        compress_columns=_columns(config.get("output_compress_columns")),
        worker_index=worker_index,
        format=_choice(settings, "format", FORMATS),
        spaces=spaces,
        on_error=_choice(settings, "on_error", ON_ERROR),
    )


def _from_function(function: Any, context: IOContext) -> Any:
    writer = function(context)
    if not callable(getattr(writer, "write", None)):
        raise ConfigTypeError(
            f"output={function!r} returned {writer!r}: expected a writer, an object with a method write(batch)"
        )
    return writer


def _columns(names: Any) -> tuple[str, ...]:
    if names is None:
        return COMPRESS_COLUMNS
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigTypeError(f"output_compress_columns={names!r}: expected a list of column names, [] for none")
    return tuple(names)


def _check_keys(settings: Mapping[str, Any]) -> None:
    for key in settings:
        if key not in _SETTINGS:
            raise UnknownKeyError(
                f"output_config has no key {key!r}; it has {', '.join(map(repr, _SETTINGS))}."
                f"{did_you_mean(str(key), _SETTINGS)}"
            )


def _choice(settings: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> Any:
    """A setting; the first choice where it isn't set."""
    value = settings.get(key, choices[0])
    if value not in choices:
        raise ConfigError(f"output_config: {key}={value!r}: expected {' or '.join(map(repr, choices))}")
    return value
