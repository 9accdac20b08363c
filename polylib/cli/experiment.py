"""What is to be run: file and flags brought together, checked as far as that goes without a framework and Ray."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from polylib.algorithms.algorithm_config import AlgorithmConfig, is_installed
from polylib.algorithms.evaluation import check_evaluation
from polylib.algorithms.options import is_search_space
from polylib.algorithms.registry import algorithm_names, get_config_class
from polylib.cli.checkpoints import CheckpointOptions
from polylib.cli.files import Draft, read_drafts
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.modes import apply_framework_flags, choices, settle_frameworks
from polylib.cli.process import import_quietly
from polylib.cli.stored import Stored, read_stored
from polylib.cli.values import read_mapping, stop_criteria
from polylib.errors import ConfigError, PolylibError
from polylib.registry import env_creator, env_name, named_model, registered_model


@dataclass
class Experiment:
    """One run of Tune (or of `--local-mode`).

    Attributes:
        config: the settings; values may be search spaces.
        stop: result key -> value at which to stop.
        name: the folder of the results.
        local_dir: the folder in which that lies, absolute, or a storage URL.
        num_samples: repetitions.
        mode: the framework in words.
        module: the Python file that it came from, if any, loaded.
        file: that file's path, as it was typed.
        checkpoints: when to write them.
        restore: the checkpoint to start from.
        resumes: whether it is an experiment of Tune that was interrupted.
        title: what runs, in words; None: what the config says.
        notices: lines to show before the run.
    """

    config: AlgorithmConfig
    stop: dict[str, float]
    name: str
    local_dir: str
    num_samples: int
    mode: str
    module: ModuleType | None = None
    file: str | None = None
    checkpoints: CheckpointOptions = CheckpointOptions()
    restore: str | None = None
    resumes: bool = False
    title: str | None = None
    notices: list[str] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Where the results lie."""
        return f"{self.local_dir.rstrip('/')}/{self.name}"

    def headline(self) -> str:
        """What runs, in one line."""
        start = f", from {short_path(self.restore)}" if self.restore else ""
        ends = self.stop or self.resumes
        return f"{self.title or describe(self.config, self.mode)}{start}; results in {short_path(self.folder)}" + (
            "" if ends else "; no --stop: runs until Ctrl-C"
        )


def experiments_of(line: CommandLine) -> list[Experiment]:
    """The experiments that a command line asks for: one, or those of a file.

    Raises:
        PolylibError: for whatever is wrong with them.
    """
    if line["resume"]:
        from polylib.cli.resume import resumed_experiment

        return [resumed_experiment(line)]
    drafts = [Draft()]
    if line.words:
        if line.words[0] != "file":
            raise UsageError(
                f"unexpected word {line.words[0]!r}; flags start with --, and a file is run by: train file FILE"
            )
        if len(line.words) != 2:
            raise UsageError("usage: polylib train file EXPERIMENT.py (or .yaml)")
        drafts = read_drafts(line.words[1])
    return [_experiment(draft, line, len(drafts) > 1) for draft in drafts]


def describe(config: AlgorithmConfig, mode: str) -> str:
    """`PPO on CartPole-v1, framework tf2 (traced), 0 workers`."""
    envs = " or ".join(env_name(env) for env in choices(config["env"]) if env is not None)
    if config["input"] != "sampler":
        envs = f"{config['input']!r}" + (f" and {envs}" if envs else "")
    envs = envs or "no environment"
    workers = " or ".join(str(number) for number in choices(config["num_workers"]))
    return f"{config.algo_name} on {envs}, framework {mode}, {workers} worker{'' if workers == '1' else 's'}"


def source_name(config: AlgorithmConfig) -> str:
    """A short name of what is learnt from, for folders: the environment, or else what is read."""
    if config["env"] is not None:
        return env_name(config["env"])
    own = (config["evaluation_config"] or {}).get("env")
    if own is not None:
        return env_name(own)
    source = config["input"]
    return (Path(source.rstrip("/")).stem if isinstance(source, str) else "") or "offline"


def short_path(path: str) -> str:
    """A path with `~` for the home folder."""
    home = str(Path.home())
    return "~" + path[len(home) :] if path.startswith(home + os.sep) else path


def variants(config: AlgorithmConfig) -> Iterator[AlgorithmConfig]:
    """The settings of each trial of a grid (of the first thousand); other search spaces stay in.

    Args:
        config: settings; `grid_search` may stand in any key, not in those of `model`.
    """
    values = config.to_dict()
    grids = {key: choices(value) for key, value in values.items() if isinstance(value, dict) and is_search_space(value)}
    for combination in itertools.islice(itertools.product(*grids.values()), 1000):
        yield config.copy().update_from_dict(dict(zip(grids, combination, strict=True))) if grids else config.copy()


def local_folder(line: CommandLine) -> str:
    """The folder of all experiments, absolute, or a storage URL."""
    folder: str = line["local-dir"]
    return folder if "://" in folder else os.path.abspath(os.path.expanduser(folder))


def _experiment(draft: Draft, line: CommandLine, several: bool) -> Experiment:
    notices: list[str] = []
    stored = _stored(line)
    config = _config(draft, line, stored, notices)
    apply_framework_flags(config, line)
    if config.sources.get("framework") == "checkpoint" and not is_installed(config["framework"]):
        config.update_from_dict({"framework": None}, source="default, as installed")
    if line.verbosity:
        level = "DEBUG" if line.verbosity > 1 else "INFO"
        config.update_from_dict({"log_level": level}, source="-" + "v" * line.verbosity)
    if line["profile"]:
        config.update_from_dict({"profile": True}, source="--profile")
    if stored is not None:
        notices += _changes(stored, config)
    try:
        mode = settle_frameworks(config)
        _check(config, stored, env_needed=not line["print-config"])
    except PolylibError as error:
        raise UsageError(str(error)) from error
    stop = draft.stop or {}
    if line["stop"] is not None:
        stop = stop_criteria(read_mapping(line["stop"], "--stop"), "--stop")
    local_dir = local_folder(line)
    if line["experiment-name"] and several:
        raise UsageError("--experiment-name: the file holds several experiments, and each needs a folder of its own")
    samples = line["num-samples"] if line.given("num-samples") else draft.num_samples or 1
    name = line["experiment-name"] or _free_name(draft.name or _default_name(config), local_dir)
    if Path(name).name != name or name in (".", ".."):
        raise UsageError(f"--experiment-name: got {name!r}, expected a folder's name without slashes")
    return Experiment(
        config,
        stop,
        name,
        local_dir,
        samples,
        mode,
        draft.module,
        line.words[1] if draft.module is not None else None,
        CheckpointOptions.of(line, draft.checkpoints),
        str(stored.folder) if stored is not None else None,
        notices=notices,
    )


def _stored(line: CommandLine) -> Stored | None:
    if line["restore"] is None:
        return None
    try:
        return read_stored(line["restore"], "Algorithm")
    except PolylibError as error:
        raise UsageError(f"--restore: {error}") from error


def _config(draft: Draft, line: CommandLine, stored: Stored | None, notices: list[str]) -> AlgorithmConfig:
    algo = line["algo"] or draft.algo or (stored.algo if stored is not None else None)
    if not algo:
        flag = f"{draft.origin} doesn't say: " if draft.origin else ""
        raise UsageError(f"which algorithm? {flag}use --algo NAME with one of: {', '.join(algorithm_names())}")
    if line["algo"] and isinstance(draft.config, AlgorithmConfig) and line["algo"] != draft.algo:
        raise UsageError(f"--algo {line['algo']}: {draft.origin} has a config of {draft.algo}")
    try:
        config_class = get_config_class(algo)
    except PolylibError as error:
        raise UsageError(f"{'--algo' if line['algo'] else draft.origin}: {error}") from error
    if stored is not None and algo != stored.algo:
        raise UsageError(f"--restore: {stored.folder} is a checkpoint of {stored.algo}, not of {algo}")
    config = stored.config.copy() if stored is not None else config_class()
    if isinstance(draft.config, AlgorithmConfig) and stored is None:
        config = draft.config.copy()
        config.sources.update({key: draft.origin for key, source in config.sources.items() if source == "code"})
    elif isinstance(draft.config, AlgorithmConfig):
        _update(config, _set_keys(draft.config), draft.origin)
    else:
        _update(config, dict(draft.config), draft.origin)
    if line["config"] is not None:
        _update(config, read_mapping(line["config"], "--config"), "--config")
    if line["model"] is not None:
        _update(config, {"model": {"custom_model": line["model"]}}, "--model")
    if line["env"] is not None:
        if config["env"] is not None and config["env"] != line["env"]:
            said = config["env"] if is_search_space(config["env"]) else env_name(config["env"])
            source = config.sources["env"].replace("checkpoint", "the checkpoint")
            notices.append(f"--env {line['env']} replaces {said!r}, the env of {source}")
        config.update_from_dict({"env": line["env"]}, source="--env")
    return config


def _set_keys(config: AlgorithmConfig) -> dict[str, Any]:
    """What somebody set in a config object; of `model` only the keys that were."""
    model = {key.partition(".")[2]: config["model"][key.partition(".")[2]] for key in config.sources if "." in key}
    values = {key: config[key] for key in config.sources if key in config and key != "model"}
    return {**values, "model": model} if model else values


def _changes(stored: Stored, config: AlgorithmConfig) -> list[str]:
    """What a run that starts from a checkpoint does in another way than the one that wrote it."""
    before, now = ({key: value for key, value, _ in c.explain()} for c in (stored.config, config))
    changed = [key for key in now if key not in ("env", "log_level") and now[key] != before.get(key)]
    lines = [f"--restore: {key} is {now[key]!r} now, was {before.get(key)!r}" for key in sorted(changed)]
    lines += [
        f"--restore: {key} was {name}: code isn't stored, give it again if it is needed"
        for key, name in stored.code.items()
        if key not in ("env", "model.custom_model") and config[key] == before.get(key)
    ]
    return lines


def _update(config: AlgorithmConfig, values: dict[str, Any], source: str) -> None:
    try:
        config.update_from_dict(values, source=source)
    except PolylibError as error:
        raise UsageError(f"{source}: {error}") from error


def _check(config: AlgorithmConfig, stored: Stored | None, env_needed: bool) -> None:
    """Raises a PolylibError if the run would fail for what can be seen without starting it."""
    if config["env"] is None and env_needed and config["input"] == "sampler":
        hint = stored.env_hint() if stored is not None else ""
        files = ', or "input" there: recorded experience to learn from' if config.reads_files else ""
        raise UsageError("which environment? " + (hint or f'use --env NAME, or "env" in --config{files}'))
    for env in [*choices(config["env"]), (config["evaluation_config"] or {}).get("env")]:
        if env is not None and not is_search_space(env):
            env_creator(env)
    if stored is not None:
        stored.check_model(config)
    for variant in variants(config):
        if not any(is_search_space(v) for v in [*variant.to_dict().values(), *variant["model"].values()]):
            _check_model(variant)
            variant.validate()
            check_evaluation(variant)


def _check_model(config: AlgorithmConfig) -> None:
    """Imports the network that a config names, and raises a ConfigError if there is none."""
    name = config["model"]["custom_model"]
    if not isinstance(name, str):
        return
    if registered_model(name) is None and ":" in name:
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        with contextlib.suppress(Exception):  # `named_model` says what is wrong
            import_quietly([name.partition(":")[0]])
    try:
        named_model(name)
    except ConfigError as error:
        source = config.sources.get("model.custom_model", "")
        raise type(error)(f"{source}: {error}" if source.startswith("--") else str(error)) from error


def _default_name(config: AlgorithmConfig) -> str:
    envs = choices(config["env"])
    env = env_name(envs[0]) if len(envs) == 1 and envs[0] is not None else "grid" if envs[1:] else source_name(config)
    safe = "".join(character if character.isalnum() or character in "-_." else "-" for character in env)
    return f"{config.algo_name}_{safe}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"


def _free_name(name: str, local_dir: str) -> str:
    """`name`, or `name_2`, ...: a folder that doesn't exist yet."""
    for candidate in itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2))):
        if "://" in local_dir or not os.path.exists(os.path.join(local_dir, candidate)):
            return candidate
    return name
