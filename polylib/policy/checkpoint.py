"""Policies in checkpoints: what is written of a policy, and a policy built from it in any framework."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polylib.checkpoints import (
    CheckpointError,
    find,
    is_code,
    plain,
    read_arrays,
    read_document,
    read_header,
    write_checkpoint,
)
from polylib.errors import PolylibError
from polylib.policy.backends import make_policy
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.policy import Policy
from polylib.spaces_json import space_from_json, space_to_json


def policy_files(policy: Policy, prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The documents and arrays of a policy's state, named under `prefix`."""
    state = policy.get_state()
    arrays = {f"{prefix}weights": state.pop("weights"), f"{prefix}optimizer": state.pop("optimizer")}
    return {f"{prefix}policy_state": state}, arrays


def policy_header(policy: Policy, algorithm: str) -> dict[str, Any]:
    """A policy's entry in a header: what it takes to build it."""
    return {
        "framework": policy.framework,
        "algorithm": algorithm,
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
    }


def read_policy_state(folder: Path, prefix: str = "") -> dict[str, Any]:
    """A policy's state, as `Policy.set_state` takes it.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    state = read_document(folder, f"{prefix}policy_state")
    if not isinstance(state, dict) or not {"coefficients", "rng", "num_updates"} <= set(state):
        raise CheckpointError(f"checkpoint {folder}: {prefix}policy_state.json lacks keys of a policy's state")
    state["weights"] = read_arrays(folder, f"{prefix}weights")
    state["optimizer"] = read_arrays(folder, f"{prefix}optimizer")
    return state


def config_to_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config's values for a checkpoint; code stands there by name only."""
    return {key: plain(v) if callable(v) else v for key, v in config.items()}


def config_from_json(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values that can be used, and those that name code and have to be given again."""
    code = {key: value for key, value in values.items() if is_code(value)}
    return {key: value for key, value in values.items() if key not in code}, code


def save_policy(policy: Policy, path: str | os.PathLike[str], algorithm: str) -> Path:
    """Writes a checkpoint of one policy.

    Raises:
        CheckpointError: if the folder can't be written.
    """
    documents, arrays = policy_files(policy)
    documents["config"] = config_to_json(policy.config)
    return write_checkpoint(path, {"type": "Policy", **policy_header(policy, algorithm)}, documents, arrays)


def load_policy(
    path: str | os.PathLike[str],
    framework: str,
    find_objective: Callable[[str], type[Objective]],
    policy_id: str | None = None,
    eager_tracing: bool = True,
) -> Policy:
    """A policy from a checkpoint of a policy or of an algorithm, in any framework.

    Args:
        path: the checkpoint.
        framework: `"numpy"` (acting only), `"tf"`, `"tf2"` or `"torch"`.
        find_objective: an algorithm's objective by its name. A module named in a file is never imported.
        policy_id: which policy of an algorithm's checkpoint; its only one by default.
        eager_tracing: for `"tf2"`.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or foreign.
        FrameworkError: if the framework isn't installed.
    """
    folder, header = find(path), read_header(path)
    prefix, entry = "", header
    if header.get("type") == "Algorithm":
        ids = sorted(header.get("policies", {}))
        chosen = policy_id or (ids[0] if len(ids) == 1 else None)
        if chosen not in ids:
            raise CheckpointError(f"checkpoint {folder} has policies {', '.join(ids)}: got policy_id={policy_id!r}")
        prefix, entry = f"policies/{chosen}/", header["policies"][chosen]
    config, _ = config_from_json(read_document(folder, "config"))
    state = read_policy_state(folder, prefix)
    objective = find_objective(str(entry.get("algorithm")))
    spec = PolicySpec(*read_spaces(folder, entry), objective, config, config.get("seed"))
    policy = make_policy(spec, framework, framework == "tf2" and eager_tracing)
    policy.set_state(state)
    return policy


def read_spaces(folder: Path, entry: Mapping[str, Any]) -> tuple[Any, Any]:
    """The observation and action space in a header's entry of a policy.

    Raises:
        CheckpointError: if they are missing or damaged.
    """
    try:
        return space_from_json(entry["observation_space"]), space_from_json(entry["action_space"])
    except KeyError as error:
        raise CheckpointError(f"checkpoint {folder}: its header lacks {error}") from None
    except PolylibError as error:
        raise CheckpointError(f"checkpoint {folder}: {error}") from None
