"""The reader that a config asks for."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import gymnasium as gym

from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError, did_you_mean
from polylib.offline.checks import Expected
from polylib.offline.formats.open import FORMATS, detect_format, open_dataset
from polylib.offline.input_reader import InputReader
from polylib.offline.io_context import IOContext
from polylib.offline.json_format import Batch
from polylib.offline.json_reader import JsonReader
from polylib.offline.mixed_input import MixedInput, check_weights
from polylib.offline.rebatched import Rebatched
from polylib.offline.shuffled_input import ShuffledInput
from polylib.offline.sources import is_remote
from polylib.offline.whole_episodes import WholeEpisodes
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch
from polylib.registry import registered_input

__all__ = ["DATASET", "SAMPLER", "check_input", "dataset_of", "Rebatched", "input_of", "is_of_files", "make_input"]

SAMPLER = "sampler"
DATASET = "dataset"
_SETTINGS = ("columns", "seed", "shuffle")
_DATASET_SETTINGS = ("format", "paths")
_CLASS = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)(?P<sign>[:.])(?P<name>[A-Za-z_]\w*)")
_EXPECTED = (
    "expected 'sampler', a file, a folder, a pattern or an address of traces, a list of these, a mix {source: weight}, "
    "a name registered with polylib.register_input, 'module:Class', or a function of an IOContext that returns a reader"
)


def input_of(config: Mapping[str, Any] | Any) -> Any:
    """The config key `input` (or its alias); `"sampler"` where it isn't set."""
    value = config.get("input")
    if value is None and isinstance(config, dict):
        value = config.get("input_")
    return SAMPLER if value is None else value


def dataset_of(settings: Mapping[str, Any]) -> tuple[list[Any], str | None]:
    """The paths and the format of `input="dataset"`.

    Args:
        settings: The config key `input_config`.

    Raises:
        ConfigError: It names no paths, or no such format.
    """
    paths, kind = settings.get("paths"), settings.get("format")
    if not paths or not isinstance(paths, str | os.PathLike | list | tuple):
        raise ConfigError(
            f"input='dataset': input_config must name what to read, as {{'format': 'parquet', 'paths': 'FOLDER'}}; its "
            f"'paths' is {paths!r}"
        )
    if kind is not None and kind not in FORMATS:
        raise ConfigError(
            f"input_config: format={kind!r}: expected one of {', '.join(FORMATS)}.{did_you_mean(str(kind), FORMATS)}"
        )
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths), kind


def check_input(value: Any) -> None:
    """Checks that the config key `input` is of a type that it may be; whether it is there shows when it is read.

    Raises:
        ConfigTypeError: It isn't.
        ConfigError: A mix whose weights are wrong.
    """
    if isinstance(value, Mapping):
        check_weights(value)
        for part in value:
            check_input(part)
        return
    if isinstance(value, InputReader) or callable(value):
        return
    # Other iterables than these would be used up by looking.
    items = value if isinstance(value, list | tuple | set | frozenset) else [value]
    for item in items:
        if not isinstance(item, str | os.PathLike) and (item is not value or isinstance(item, bytes | dict)):
            raise ConfigTypeError(f"config key 'input': got {item!r} ({type(item).__name__}) in {value!r}, {_EXPECTED}")
    if not isinstance(value, str | os.PathLike | Iterable) or isinstance(value, bytes):
        raise ConfigTypeError(f"config key 'input': got {value!r} ({type(value).__name__}), {_EXPECTED}")


def is_of_files(value: Any) -> bool:
    """Whether an input, or a part of a mix, is files: neither `"sampler"` nor a reader of the user's."""
    if isinstance(value, os.PathLike):
        return True
    if not isinstance(value, str):
        return isinstance(value, Iterable) and not isinstance(value, Mapping | bytes | InputReader)
    return (
        value not in (SAMPLER, DATASET)
        and registered_input(value) is None
        and (is_remote(value) or os.path.exists(os.path.expanduser(value)) or _class_of(value) is None)
    )


def make_input(
    config: Mapping[str, Any] | Any,
    worker_index: int = 0,
    num_workers: int = 0,
    *,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
    required: Collection[str] = (),
    sampler: Callable[[], Batch] | None = None,
    loop: bool = True,
    logdir: str | None = None,
    worker: Any = None,
) -> InputReader:
    """The reader that `config["input"]` asks for, which gives records as they come.

    Args:
        config: With the keys `input`, `input_config`, `actions_in_input_normalized`, `shuffle_buffer_size`,
            `batch_mode` and `seed`, as far as they are set.
        worker_index: Of the worker; 0 for the local one, which reads everything.
        num_workers: How many remote workers share the input.
        observation_space: What observations are checked against and converted to.
        action_space: What actions are checked against and converted to.
        required: Columns that every record from files and from users' readers must have.
        sampler: Samples a batch from the worker's environments, for `"sampler"`.
        loop: Files are read again and again, each time in another order; False: once, in the order of their names.
        logdir: The folder of the run's results.
        worker: The rollout worker, for users' readers.

    Raises:
        ConfigError: A bad value; the message names the key.
        TraceFileError: The files aren't there.
    """
    ioctx = IOContext(logdir, config, worker_index, worker, num_workers=num_workers, sampler=sampler, loop=loop)
    maker = _Maker(ioctx, Expected.of(ioctx, observation_space, action_space, required))
    return maker.shuffled(maker.make(input_of(config)))


class _Maker:
    """Makes readers for one worker."""

    def __init__(self, ioctx: IOContext, expected: Expected) -> None:
        self._ioctx, self._expected = ioctx, expected

    def make(self, value: Any) -> InputReader:
        if isinstance(value, InputReader):
            return self._checked(value, value)
        if isinstance(value, Mapping):
            return self._mix(value)
        if callable(value):
            return self._from_function(value, value)
        if isinstance(value, str):
            return self._named(value)
        paths = [value] if isinstance(value, os.PathLike) else value
        if isinstance(paths, Iterable) and not isinstance(paths, bytes):
            paths = list(paths)
            if all(isinstance(path, str | os.PathLike) for path in paths):
                return self._files(paths)
        raise ConfigTypeError(f"input={value!r}: {_EXPECTED}")

    def shuffled(self, reader: InputReader) -> InputReader:
        """The reader with the buffer of `shuffle_buffer_size` rows behind it, if there is to be one."""
        config = self._ioctx.config
        size = config.get("shuffle_buffer_size") or 0
        if not size or input_of(config) == SAMPLER:
            return reader
        whole = config.get("batch_mode") == "complete_episodes"
        return ShuffledInput(WholeEpisodes(reader) if whole else reader, size, self._ioctx.seed, rows=not whole)

    def _mix(self, parts: Mapping[Any, Any]) -> InputReader:
        check_weights(parts)
        seed = self._ioctx.seed
        # Each worker draws on its own, so that they don't all wait for the same source.
        seeds = None if seed is None else [seed, self._ioctx.worker_index]
        readers = {name: self.make(name) for name, weight in parts.items() if weight > 0}
        weights = {name: weight for name, weight in parts.items() if weight > 0}
        return MixedInput(readers, weights, seeds, endless=(SAMPLER,))

    def _named(self, name: str) -> InputReader:
        creator = registered_input(name)
        if creator is not None:
            return self._from_function(creator, name)
        if name == SAMPLER:
            return self._ioctx.default_sampler_input()
        if name == DATASET:
            return self._dataset()
        if not is_remote(name) and not os.path.exists(os.path.expanduser(name)):
            found = _class_of(name)
            if found is not None:
                return self._from_function(found, name)
        return self._files([name])

    def _from_function(self, function: Callable[[IOContext], Any], name: Any) -> InputReader:
        return self._checked(function(self._ioctx), name)

    def _checked(self, reader: Any, name: Any) -> InputReader:
        if not callable(getattr(reader, "next", None)):
            raise ConfigTypeError(
                f"input={name!r} gave {reader!r}: expected a reader, an object with a method next() that returns a "
                "batch"
            )
        return _Checked(reader, self._expected, getattr(name, "__name__", str(name)))

    def _dataset(self) -> InputReader:
        """The data set that `input_config` names."""
        source, kind = dataset_of(self._ioctx.input_config)
        return self._files(source, kind, (*_SETTINGS, *_DATASET_SETTINGS))

    def _files(self, paths: list[Any], format: str | None = None, known: tuple[str, ...] = _SETTINGS) -> InputReader:
        settings = self._ioctx.input_config
        for key in settings:
            if key not in known:
                raise UnknownKeyError(
                    f"input_config has no key {key!r} for files; it has {', '.join(map(repr, known))}."
                    f"{did_you_mean(str(key), known)}"
                )
        expected = self._expected
        spaces: dict[str, Any] = {
            "observation_space": expected.observation_space,
            "action_space": expected.action_space,
        }
        if format is None:
            format = detect_format(paths)
        if format != "json":
            # Pieces in another order in every pass, as files below.
            shuffle = bool(settings.get("shuffle", self._ioctx.loop))
            return open_dataset(paths, format, self._ioctx, required=expected.required, shuffle=shuffle, **spaces)
        return JsonReader(
            paths,
            self._ioctx,
            required=expected.required,
            shuffle=settings["shuffle"] if "shuffle" in settings else "files" if self._ioctx.loop else None,
            **spaces,
        )


class _Checked(InputReader):
    """A user's reader, whose batches are held against the spaces as those of files are."""

    def __init__(self, reader: Any, expected: Expected, name: str) -> None:
        self._reader, self._expected, self._name = reader, expected, name
        self._count = 0

    def next(self) -> Batch:
        batch = self._reader.next()
        self._count += 1
        where = f"input {self._name}, batch {self._count}"
        if not isinstance(batch, SampleBatch | MultiAgentBatch):
            raise ConfigTypeError(f"{where}: expected a SampleBatch or MultiAgentBatch, got {type(batch).__name__}")
        return self._expected.check(batch.copy(shallow=True), where)

    @property
    def passes(self) -> int:
        return self._reader.passes if isinstance(self._reader, InputReader) else 0

    @property
    def where(self) -> str:
        own = self._reader.where if isinstance(self._reader, InputReader) else ""
        return own or f"input {self._name}, batch {self._count}"

    def get_state(self) -> Any:
        get = getattr(self._reader, "get_state", None)
        return None if get is None else get()

    def set_state(self, state: Any) -> bool:
        put = getattr(self._reader, "set_state", None)
        return state is not None and put is not None and put(state) is not False

    def close(self) -> None:
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()


def _class_of(name: str) -> Any:
    """What "module:Class" or "module.Class" names; None for what is no such name, a file's perhaps.

    Raises:
        ConfigError: The module can't be imported, or doesn't have it.
    """
    match = _CLASS.fullmatch(name)
    if match is None:
        return None
    module = match["module"]
    if match["sign"] == ".":
        # "traces.json" looks the same: only a module that is there makes it a class.
        try:
            if importlib.util.find_spec(module) is None:
                return None
        except (ImportError, ValueError, AttributeError):
            return None
    try:
        found = getattr(importlib.import_module(module), match["name"], None)
    except Exception as e:  # whatever a user's module raises
        text = f"{type(e).__name__}: {' '.join(str(e).split())}"
        raise ConfigError(f"config key 'input': {name!r}: can't import {module!r}: {text}") from e
    if not callable(found):
        what = "has no such class or function" if found is None else f"has {found!r} there, which can't be called"
        raise ConfigError(f"config key 'input': {name!r}: the module {module!r} {what}")
    return found
