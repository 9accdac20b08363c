"""What an algorithm writes to a checkpoint, and how another one goes on from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polylib import __version__
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.checkpoints import CheckpointError, find, read_arrays, read_document, read_header, write_checkpoint
from polylib.errors import ConfigError, EnvError, PolylibError
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.json_values import dumps, loads
from polylib.policy.checkpoint import (
    check_custom_model,
    config_from_json,
    config_to_json,
    policy_entries,
    policy_files,
    policy_header,
    read_policy_state,
    read_spaces,
    set_policy_state,
)
from polylib.policy.intrinsic import wrapped
from polylib.policy.objective import PolicySpec
from polylib.policy.policy import Policy, random_stream
from polylib.registry import env_creator

if TYPE_CHECKING:
    from polylib.algorithms.algorithm import Algorithm

logger = logging.getLogger(__name__)


def save_algorithm(algo: Algorithm, path: str | os.PathLike[str]) -> Path:
    """Writes a checkpoint of an algorithm; one that was there stays whole until the new one is.

    Raises:
        CheckpointError: if the folder can't be written.
    """
    name = algo.config.algo_name
    documents: dict[str, Any] = {
        "config": config_to_json(algo.config.to_dict()),
        "algorithm_state": algo.progress(),
    }
    arrays: dict[str, Mapping[str, np.ndarray]] = {}
    policies = {}
    for policy_id, policy in algo.workers.local_worker().policy_map.items():
        policies[policy_id] = policy_header(policy, name)
        policy_documents, policy_arrays = policy_files(policy, f"policies/{policy_id}/")
        documents.update(policy_documents)
        arrays.update(policy_arrays)
    for index, (values, columns) in enumerate(algo.workers.foreach_worker(lambda worker: worker.get_state())):
        documents[f"workers/{index:03d}"] = values
        arrays[f"workers/{index:03d}"] = columns
    extra, extra_arrays = algo.extra_state()
    if extra or extra_arrays:
        documents["extra"], arrays["extra"] = extra, extra_arrays
    header = {
        "type": "Algorithm",
        "algorithm": name,
        "framework": algo.config.framework_str,
        "polylib_version": __version__,
        "policies": policies,
        "workers": 1 + algo.workers.num_remote_workers(),
    }
    return write_checkpoint(path, header, documents, arrays)


def stored_config(
    path: str | os.PathLike[str], config_class: type[AlgorithmConfig], overrides: Mapping[str, Any], env: Any = None
) -> AlgorithmConfig:
    """The config of a checkpoint with `overrides` over it.

    Keys that hold code (an environment's class, callbacks) are in the file by name only: they are taken from
    `overrides` and `env`. An environment that isn't known here leaves the algorithm without one; it can act then.

    Raises:
        CheckpointError: if the checkpoint is damaged.
        ConfigError: naming a key of `overrides` that is wrong.
    """
    folder = find(path)
    config, code = _read_config(folder, config_class)
    given = {**overrides, **({} if env is None else {"env": env})}
    config.update_from_dict(given, source="given")
    names = {config._option(key).name for key in given}
    check_custom_model(folder, code, config["model"].get("custom_model"))
    for key, name in code.items():
        if key.partition(".")[0] not in names and key != "model.custom_model":
            logger.warning(
                "checkpoint %s: config key %r was %s, and code isn't stored: give it again if it is needed",
                folder,
                key,
                name,
            )
    if config["env"] is not None and "env" not in names:
        try:
            env_creator(config["env"])
        except EnvError as error:
            logger.warning("checkpoint %s: %s; the algorithm acts, but can't sample", folder, error)
            config.update_from_dict({"env": None}, source="checkpoint")
    if config["env"] is None:
        entries = policy_entries(folder, read_header(folder))
        observation_space, action_space = read_spaces(folder, next(iter(entries.values())))
        config.update_from_dict(
            {"observation_space": observation_space, "action_space": action_space}, source="checkpoint"
        )
    return config


def _read_config(folder: Path, config_class: type[AlgorithmConfig]) -> tuple[AlgorithmConfig, dict[str, str]]:
    """The config of a checkpoint, with defaults for what it lacks, and the names of code that stood in it."""
    values, code = config_from_json(read_document(folder, "config", dict))
    try:
        return config_class().update_from_dict(values, source="checkpoint"), code
    except ConfigError as error:
        raise CheckpointError(f"checkpoint {folder}: its config.json doesn't fit this polylib: {error}") from None


def restore_algorithm(algo: Algorithm, path: str | os.PathLike[str]) -> None:
    """Lets an algorithm go on from a checkpoint; its own config wins over the stored one, and differences are logged.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged, of another algorithm or for other spaces; the algorithm
            stays as it was.
    """
    folder, header = find(path), read_header(path, "Algorithm")
    if header.get("algorithm") != algo.config.algo_name:
        raise CheckpointError(f"{folder} is a checkpoint of {header.get('algorithm')}, not of {algo.config.algo_name}")
    stored, code = _read_config(folder, type(algo.config))
    progress = _read_progress(folder)
    entries = policy_entries(folder, header)
    policies = {name: algo.get_policy(name) for name in algo.workers.local_worker().policy_map}
    states = {}
    for name, policy in policies.items():
        if name not in entries:
            raise CheckpointError(f"checkpoint {folder} has no policy {name!r}; it has {', '.join(entries)}")
        _check_spaces(folder, policy, read_spaces(folder, entries[name]))
        states[name] = read_policy_state(folder, f"policies/{name}/")
    extra = _read_extra(folder, algo)
    workers = _read_workers(folder, header, 1 + algo.workers.num_remote_workers())
    before = {name: policy.get_state() for name, policy in policies.items()}
    try:
        for name, policy in policies.items():
            set_policy_state(policy, states[name], folder, f"policies/{name}/")
            _apply_changed_config(policy, stored.to_dict())
        if extra is not None:
            _set_extra(algo, folder, *extra)
    except BaseException:
        for name, policy in policies.items():
            policy.set_state(before[name])
        raise
    algo.set_progress(progress)
    _report_changed_config(folder, algo.config, stored, code, header.get("framework"))
    algo.workers.sync_weights(next(iter(policies.values())).global_timestep)
    _restore_workers(algo, folder, workers)


def _read_extra(folder: Path, algo: Algorithm) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """What `Algorithm.set_extra_state` takes, if the algorithm wrote any."""
    if not any(algo.extra_state()):
        return None
    return read_document(folder, "extra", dict), read_arrays(folder, "extra")


def _set_extra(algo: Algorithm, folder: Path, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    try:
        algo.set_extra_state(values, arrays)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = error if isinstance(error, PolylibError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(f"checkpoint {folder}: extra.json doesn't fit this algorithm: {what}") from None


def _read_progress(folder: Path) -> dict[str, Any]:
    """What `Algorithm.set_progress` takes, with every value's type checked."""
    state = read_document(folder, "algorithm_state", dict)
    try:
        random_stream(0).bit_generator.state = state["rng"]
        episodes = state["episodes"]
        return {
            **state,
            "iteration": int(state["iteration"]),
            "time_total_s": float(state["time_total_s"]),
            "counters": {str(name): int(value) for name, value in state["counters"].items()},
            "episodes": {"total": int(episodes["total"]), "recent": [_episode(e) for e in episodes["recent"]]},
            "evaluation": state.get("evaluation"),
        }
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"checkpoint {folder}: algorithm_state.json is damaged: {what}") from None


def _episode(values: Any) -> EpisodeMetrics:
    reward, length, custom_metrics, hist_data = values
    return EpisodeMetrics(float(reward), int(length), dict(custom_metrics), dict(hist_data))


def _check_spaces(folder: Path, policy: Policy, stored: tuple[Any, Any]) -> None:
    for what, mine, theirs in zip(
        ("observation space", "action space"), (policy.observation_space, policy.action_space), stored, strict=True
    ):
        if mine != theirs:
            raise CheckpointError(f"checkpoint {folder} was trained on {what} {theirs}, this algorithm has {mine}")


def _report_changed_config(
    folder: Path, config: AlgorithmConfig, stored: AlgorithmConfig, stored_code: Mapping[str, str], framework: Any
) -> None:
    """Logs one line with every value that isn't the checkpoint's; of code the names are compared."""
    values, code = config_from_json(loads(dumps(config_to_json(config.to_dict()))))
    now = {**_flat(values), **code, "framework": config.framework_str}
    then = {**_flat(stored.to_dict()), **stored_code, "framework": framework}
    # What is missing here was said already, or is no setting but follows from the environment.
    skipped = {"observation_space", "action_space", *(key for key in ("env", *stored_code) if now.get(key) is None)}
    changed = [
        f"{key} {now.get(key)!r} (was {then.get(key)!r})"
        for key in sorted({*now, *then} - skipped)
        if not _equal(now.get(key), then.get(key))
    ]
    if changed:
        text = ", ".join(changed)
        logger.warning("checkpoint %s: this config differs from the one stored, and wins: %s", folder, text)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts as one, with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


def _apply_changed_config(policy: Policy, stored: Mapping[str, Any]) -> None:
    """Coefficients go on from the checkpoint, but those whose config key was changed start at the new value."""
    spec = policy.spec
    old = PolicySpec(spec.observation_space, spec.action_space, spec.objective_class, {**spec.config, **stored})
    before = wrapped(spec.objective_class, old.config)(old).coefficients()
    now = policy.objective.coefficients()
    policy.set_coefficients(**{name: value for name, value in now.items() if before.get(name) != value})
    policy.set_timestep(policy.global_timestep)


def _read_workers(
    folder: Path, header: Mapping[str, Any], count: int
) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """How each worker goes on sampling; nothing where another number of workers wrote the checkpoint."""
    if header.get("workers") != count:
        return []
    names = [f"workers/{index:03d}" for index in range(count)]
    return [(read_document(folder, name, dict), read_arrays(folder, name)) for name in names]


def _restore_workers(algo: Algorithm, folder: Path, states: Sequence[tuple[dict[str, Any], Any]]) -> None:
    """Sampling goes on where it stopped if there are as many workers; else episodes start anew."""
    if not states:
        logger.info("checkpoint %s was written with another number of workers: episodes start anew", folder)
        return
    try:
        resumed = algo.workers.foreach_worker_with_index(lambda worker, index: worker.set_state(*states[index]))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"checkpoint {folder}: workers/*.json are damaged: {what}") from None
    if not all(resumed):
        if algo.config["input"] == "sampler":
            what = "environments can't be brought back to where they were: episodes start anew"
        else:
            what = "the input can't be read from where it was, or its environments: reading starts at the beginning"
        logger.info("checkpoint %s: %s", folder, what)
