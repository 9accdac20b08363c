"""Experiment files: `polylib train file exp.py` and YAML files in the format of RLlib's tuned examples."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from polylib.cli.flags import UsageError
from polylib.cli.values import read_file, read_text, stop_criteria
from polylib.errors import PolylibError, did_you_mean

# The name under which an experiment's Python file is loaded.
MODULE_NAME = "polylib_experiment_file"

# Keys of a YAML file that are flags too -> (flag, type, least value).
_CHECKPOINT_KEYS: dict[str, tuple[str, type, int]] = {
    "checkpoint_freq": ("checkpoint-freq", int, 0),
    "checkpoint_at_end": ("checkpoint-at-end", bool, 0),
    "keep_checkpoints_num": ("keep-checkpoints-num", int, 1),
    "checkpoint_score_attr": ("checkpoint-score-attr", str, 0),
}
# The same, as newer files have them below checkpoint_config.
_NEWER_NAMES = {
    "checkpoint_frequency": "checkpoint_freq",
    "checkpoint_at_end": "checkpoint_at_end",
    "num_to_keep": "keep_checkpoints_num",
    "checkpoint_score_attribute": "checkpoint_score_attr",
}
_YAML_KEYS = ("run", "algo", "env", "config", "stop", "num_samples", "checkpoint_config", *_CHECKPOINT_KEYS)


@dataclass
class Draft:
    """What a file says of an experiment, before the flags.

    Attributes:
        origin: the file's name; empty without a file.
        algo: the algorithm's name, if the file says it.
        config: an `AlgorithmConfig` or a dict.
        stop: stop criteria, if the file has some.
        num_samples: repetitions.
        name: the experiment's folder.
        module: the loaded Python file.
        checkpoints: values of the flags about checkpoints.
    """

    origin: str = ""
    algo: str | None = None
    config: Any = field(default_factory=dict)
    stop: dict[str, float] | None = None
    num_samples: int | None = None
    name: str | None = None
    module: ModuleType | None = None
    checkpoints: dict[str, Any] = field(default_factory=dict)


def read_drafts(name: str) -> list[Draft]:
    """The experiments in a `.py`, `.yaml` or `.yml` file.

    Raises:
        UsageError: naming the file and the key that is wrong.
    """
    path = Path(name).expanduser()
    if "://" in name:
        raise UsageError(f"{name}: polylib reads local files only: download it first")
    if path.suffix == ".py":
        return [_read_python(path)]
    if path.suffix in (".yaml", ".yml"):
        return _read_yaml(path)
    raise UsageError(f"{name}: an experiment is a .py, .yaml or .yml file")


def _read_python(path: Path) -> Draft:
    read_text(path, "train file")
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    try:
        spec.loader.exec_module(module)
    except PolylibError as error:
        raise UsageError(f"{path}{_line_in(error, path)}: {error}") from error
    except Exception as error:
        raise UsageError(f"{path}{_line_in(error, path)}: {type(error).__name__}: {error}") from error
    if not hasattr(module, "config"):
        raise UsageError(f"{path}: needs a variable `config`: a config object such as PPOConfig(), or a dict")
    config = module.config
    known_algo = getattr(config, "algo_name", None)
    if not isinstance(config, Mapping) and not known_algo:
        raise UsageError(f"{path}: config is a {type(config).__name__}, expected a config object or a dict")
    algo = known_algo or getattr(module, "algo", None) or getattr(module, "run", None)
    if algo is not None and not isinstance(algo, str):
        raise UsageError(f"{path}: algo: got {algo!r}, expected an algorithm's name")
    stop = getattr(module, "stop", None)
    return Draft(path.name, algo, config, _stop(stop, f"{path}: stop"), module=module)


def _read_yaml(path: Path) -> list[Draft]:
    content = read_file(str(path), "train file")
    if not content:
        raise UsageError(f"{path}: holds no experiment")
    return [_read_entry(path, str(name), entry, len(content) > 1) for name, entry in content.items()]


def _read_entry(path: Path, name: str, entry: Any, several: bool) -> Draft:
    where = f"{path}: {name}"
    if not isinstance(entry, Mapping):
        raise UsageError(
            f"{where}: got {entry!r}, expected an experiment: a name, and below it run, env, stop and config"
        )
    for key in entry:
        if key not in _YAML_KEYS:
            hint = did_you_mean(str(key), _YAML_KEYS)
            raise UsageError(f"{where}: unknown key {str(key)!r}.{hint} Settings of the algorithm stand under config")
    algo = entry.get("run", entry.get("algo"))
    if algo is not None and not isinstance(algo, str):
        raise UsageError(f"{where}: key 'run': got {algo!r}, expected an algorithm's name")
    config = entry.get("config") or {}
    if not isinstance(config, Mapping):
        raise UsageError(f"{where}: key 'config': got {config!r}, expected a mapping of settings")
    if "env" in entry:
        config = {**config, "env": entry["env"]}
    samples = entry.get("num_samples")
    if samples is not None and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
        raise UsageError(f"{where}: key 'num_samples': got {samples!r}, expected an integer >= 1")
    origin = f"{path.name}: {name}" if several else path.name
    stop = _stop(entry.get("stop"), f"{where}: stop")
    return Draft(origin, algo, dict(config), stop, samples, name, checkpoints=_checkpoints(entry, where))


def _checkpoints(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of the flags about checkpoints that an entry has."""
    newer = entry.get("checkpoint_config") or {}
    if not isinstance(newer, Mapping):
        raise UsageError(f"{where}: key 'checkpoint_config': got {newer!r}, expected a mapping")
    order = newer.get("checkpoint_score_order", "max")
    found: dict[str, Any] = {}
    for key, value in newer.items():
        if key in _NEWER_NAMES:
            found[_NEWER_NAMES[key]] = f"min-{value}" if order == "min" and key.endswith("attribute") else value
        elif key != "checkpoint_score_order" or order not in ("min", "max"):
            hint = did_you_mean(str(key), [*_NEWER_NAMES, "checkpoint_score_order"])
            raise UsageError(f"{where}: checkpoint_config: unknown key or value {str(key)!r}: {value!r}.{hint}")
    found.update({key: value for key, value in entry.items() if key in _CHECKPOINT_KEYS})
    flags = {}
    for key, value in found.items():
        flag, kind, low = _CHECKPOINT_KEYS[key]
        if value is None:
            continue
        if type(value) is not kind or (isinstance(value, int) and value < low):
            expected = {int: f"an integer >= {low}", bool: "true or false", str: "a key of the results"}[kind]
            raise UsageError(f"{where}: key {key!r}: got {value!r}, expected {expected}")
        flags[flag] = value
    return flags


def _stop(stop: Any, where: str) -> dict[str, float] | None:
    if stop is None:
        return None
    if not isinstance(stop, Mapping):
        raise UsageError(f"{where}: got {stop!r}, expected a dict of result keys and numbers")
    return stop_criteria(stop, where)


def _line_in(error: BaseException, path: Path) -> str:
    """`:LINE`, where in the file an error arose."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    line, traceback = None, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f":{line}" if line else ""
