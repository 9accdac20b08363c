"""What an algorithm writes to a checkpoint, and how another one goes on from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from polylib import __version__
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.checkpoints import CheckpointError, find, read_arrays, read_document, read_header, write_checkpoint
from polylib.errors import ConfigError, EnvError
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.policy.checkpoint import (
    config_from_json,
    config_to_json,
    policy_files,
    policy_header,
    read_policy_state,
    read_spaces,
)
from polylib.policy.objective import PolicySpec
from polylib.policy.policy import Policy
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
        "algorithm_state": {
            **algo.progress(),
            "rng": algo.rng.bit_generator.state,
            "episodes": {"total": algo.episodes.total, "recent": [list(e) for e in algo.episodes.recent]},
        },
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
    header = {
        "type": "Algorithm",
        "algorithm": name,
        "framework": algo.config.framework_str,
        "polylib_version": __version__,
        "policies": policies,
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
    values, code = config_from_json(read_document(folder, "config"))
    try:
        config = config_class().update_from_dict(values, source="checkpoint")
    except ConfigError as error:
        raise CheckpointError(f"checkpoint {folder}: its config.json doesn't fit this polylib: {error}") from None
    before = config.to_dict()
    config.update_from_dict(overrides, source="given")
    if env is not None:
        config.update_from_dict({"env": env}, source="given")
    for key in overrides:
        if key in config and config[key] != before.get(key):
            logger.warning("checkpoint %s: config key %r is %r now, was %r", folder, key, config[key], before.get(key))
    missing = [key for key in code if key not in overrides and not (key == "env" and env is not None)]
    for key in missing:
        logger.warning(
            "checkpoint %s: config key %r was %s, which isn't stored: give it again if it is needed",
            folder,
            key,
            next(iter(code[key].values())),
        )
    if config["env"] is not None and config["env"] == before.get("env"):
        try:
            env_creator(config["env"])
        except EnvError as error:
            logger.warning("checkpoint %s: %s; the algorithm acts, but can't sample", folder, error)
            config.update_from_dict({"env": None}, source="checkpoint")
    if config["env"] is None:
        header = read_header(folder)
        entry = next(iter(header["policies"].values()))
        observation_space, action_space = read_spaces(folder, entry)
        config.update_from_dict({"observation_space": observation_space, "action_space": action_space})
    return config


def restore_algorithm(algo: Algorithm, path: str | os.PathLike[str]) -> None:
    """Lets an algorithm go on from a checkpoint; its own config wins over the stored one.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged, of another algorithm or for other spaces.
    """
    folder, header = find(path), read_header(path, "Algorithm")
    if header.get("algorithm") != algo.config.algo_name:
        raise CheckpointError(f"{folder} is a checkpoint of {header.get('algorithm')}, not of {algo.config.algo_name}")
    stored, _ = config_from_json(read_document(folder, "config"))
    state = read_document(folder, "algorithm_state")
    policies = {name: algo.get_policy(name) for name in algo.workers.local_worker().policy_map}
    states = {}
    for name, policy in policies.items():
        if name not in header["policies"]:
            raise CheckpointError(f"checkpoint {folder} has no policy {name!r}; it has {', '.join(header['policies'])}")
        _check_spaces(folder, policy, read_spaces(folder, header["policies"][name]))
        states[name] = read_policy_state(folder, f"policies/{name}/")
    try:
        for name, policy in policies.items():
            policy.set_state(states[name])
            _apply_changed_config(policy, stored)
        algo.set_progress(state)
        algo.rng.bit_generator.state = state["rng"]
        algo.episodes.total = int(state["episodes"]["total"])
        algo.episodes.recent.clear()
        algo.episodes.recent.extend(EpisodeMetrics(*e) for e in state["episodes"]["recent"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"checkpoint {folder} doesn't fit: {type(error).__name__}: {error}") from None
    algo.workers.sync_weights(next(iter(policies.values())).global_timestep)
    _restore_workers(algo, folder)


def _check_spaces(folder: Path, policy: Policy, stored: tuple[Any, Any]) -> None:
    for what, mine, theirs in zip(
        ("observation space", "action space"), (policy.observation_space, policy.action_space), stored, strict=True
    ):
        if mine != theirs:
            raise CheckpointError(f"checkpoint {folder} was trained on {what} {theirs}, this algorithm has {mine}")


def _apply_changed_config(policy: Policy, stored: Mapping[str, Any]) -> None:
    """Coefficients go on from the checkpoint, but those whose config key was changed start at the new value."""
    spec = policy.spec
    old = PolicySpec(spec.observation_space, spec.action_space, spec.objective_class, {**spec.config, **stored})
    before = spec.objective_class(old).coefficients()
    now = policy.objective.coefficients()
    policy.set_coefficients(**{name: value for name, value in now.items() if before.get(name) != value})
    policy.set_timestep(policy.global_timestep)


def _restore_workers(algo: Algorithm, folder: Path) -> None:
    """Sampling goes on where it stopped if there are as many workers; else episodes start anew."""
    count = 1 + algo.workers.num_remote_workers()
    if len(list((folder / "workers").glob("*.json"))) != count:
        logger.info("checkpoint %s was written with another number of workers: episodes start anew", folder)
        return
    states = [
        (read_document(folder, f"workers/{i:03d}"), read_arrays(folder, f"workers/{i:03d}")) for i in range(count)
    ]
    resumed = algo.workers.foreach_worker_with_index(lambda worker, index: worker.set_state(*states[index]))
    if not all(resumed):
        logger.info("checkpoint %s: environments can't be brought back to where they were: episodes start anew", folder)
