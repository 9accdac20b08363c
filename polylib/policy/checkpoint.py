"""Policies in checkpoints: what is written of a policy, and a policy built from it in any framework."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polylib.checkpoints import (
    CheckpointError,
    checkpoint_folder,
    find,
    is_code,
    read_arrays,
    read_document,
    read_header,
    write_checkpoint,
)
from polylib.errors import FrameworkError, PolylibError
from polylib.json_values import code_name
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec
from polylib.policy.policy import Policy
from polylib.registry import registered_creator, registered_model
from polylib.spaces_json import space_from_json, space_to_json

# What knows algorithms by name. Found by name itself, like the backends: nothing down here imports an algorithm.
_PARTS = "polylib.algorithms.registry:get_policy_parts"

# Config keys whose text may be "module:Class", which importing would run.
_MAY_NAME_CODE = {
    f"{inside}{key}": find
    for inside in ("", "evaluation_config.")
    for key, find in (
        ("env", registered_creator),
        ("callbacks", registered_creator),
        ("model.custom_model", registered_model),
    )
}


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


def policy_entries(folder: Path, header: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries of an algorithm's policies in its header, by id.

    Raises:
        CheckpointError: if the header has none.
    """
    entries = header.get("policies")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()) or not entries:
        raise CheckpointError(f"checkpoint {folder}: its header lacks the policies")
    return entries


def read_policy_state(folder: Path, prefix: str = "") -> dict[str, Any]:
    """A policy's state, as `Policy.set_state` takes it.

    Raises:
        CheckpointError: naming the file that is missing or damaged.
    """
    state = read_document(folder, f"{prefix}policy_state", dict)
    state["weights"] = read_arrays(folder, f"{prefix}weights")
    state["optimizer"] = read_arrays(folder, f"{prefix}optimizer")
    return state


def set_policy_state(policy: Policy, state: Mapping[str, Any], folder: Path, prefix: str = "") -> None:
    """Lets a policy go on from a checkpoint's state.

    Raises:
        CheckpointError: if it doesn't fit the policy; nothing is set then.
    """
    try:
        policy.set_state(state)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = error if isinstance(error, PolylibError) else f"{type(error).__name__}: {error}"
        where = f"{prefix or 'its '}policy_state.json, weights and optimizer"
        raise CheckpointError(f"checkpoint {folder}: {where} don't fit the policy: {reason}") from None


def config_to_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config's values for a checkpoint; code stands there by name only."""
    return {key: code_name(value) if callable(value) else value for key, value in config.items()}


def config_from_json(values: Mapping[str, Any], inside: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """The values that can be used, and the names of code by key, which has to be given again.

    Code can stand inside of dicts: `evaluation_config.callbacks`. Text that names a module counts as code too where it
    would be imported, unless it is registered here: no module is imported because a file says so.
    """
    usable, code = {}, {}
    for key, value in values.items():
        if isinstance(value, dict) and not is_code(value):
            usable[key], found = config_from_json(value, f"{inside}{key}.")
            code.update(found)
        elif _has_code(value) or _names_module(value, _MAY_NAME_CODE.get(f"{inside}{key}")):
            parts = value if isinstance(value, list | tuple) else [value]
            code[f"{inside}{key}"] = ", ".join(str(next(iter(x.values()))) if is_code(x) else str(x) for x in parts)
        else:
            usable[key] = value
    return usable, code


def _has_code(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_code, value))
    return isinstance(value, dict) and (is_code(value) or any(map(_has_code, value.values())))


def _names_module(value: Any, find: Callable[[str], Any] | None) -> bool:
    """Whether text would be imported: where names of code stand (`find` gives what is registered), and it is none."""
    if find is None:
        return False
    if isinstance(value, list | tuple):
        return any(_names_module(item, find) for item in value)
    return isinstance(value, str) and ":" in value and find(value) is None


def check_custom_model(folder: Path, code: Mapping[str, str], model: Any) -> None:
    """Checks that a checkpoint's own network can be made again.

    Args:
        folder: of the checkpoint.
        code: the names of code in its config, by key.
        model: the config's `custom_model`, as stored or given again.

    Raises:
        CheckpointError: naming the model that is missing.
    """
    stored = code.get("model.custom_model")
    if isinstance(model, str) and ":" not in model and registered_model(model) is None:
        raise CheckpointError(
            f"checkpoint {folder}: its network is {model!r}, which isn't registered here: call "
            f"polylib.register_model({model!r}, ...) first, or pass custom_model=..."
        )
    if model is None and stored is not None:
        raise CheckpointError(
            f"checkpoint {folder}: its network is a user's own, {stored!r}, and code isn't stored: pass "
            "custom_model=..., what it was trained with or its 'module:attribute'"
        )


def save_policy(policy: Policy, path: str | os.PathLike[str], algorithm: str) -> Path:
    """Writes a checkpoint of one policy.

    Raises:
        CheckpointError: if the folder can't be written.
    """
    documents, arrays = policy_files(policy)
    documents["config"] = config_to_json(policy.config)
    return write_checkpoint(path, {"type": "Policy", **policy_header(policy, algorithm)}, documents, arrays)


def load_policy(
    path: Any,
    framework: str | None = "numpy",
    policy_id: str | None = None,
    eager_tracing: bool | None = None,
    custom_model: Any = None,
) -> Policy:
    """A policy from a checkpoint of a policy or of an algorithm, in any framework.

    Args:
        path: the checkpoint's folder, or what `Algorithm.save()` returned.
        framework: `"numpy"` (acting only), `"tf"`, `"tf2"` or `"torch"`; None: the one that saved it.
        policy_id: which policy of an algorithm's checkpoint; its only one by default.
        eager_tracing: for `"tf2"`; None: as its config says.
        custom_model: the user's network that the policy was trained with, where it isn't registered.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or foreign, or its network isn't given.
        FrameworkError: if the framework isn't installed.
    """
    folder, entries = _open(path)
    ids = sorted(key for key in entries if key is not None)
    chosen = policy_id if policy_id is not None or len(entries) > 1 else next(iter(entries))
    if chosen not in entries:
        which = f"policies {', '.join(ids)}" if ids else "one policy, without an id"
        raise CheckpointError(f"checkpoint {folder} has {which}: got policy_id={policy_id!r}")
    return _build(folder, chosen, entries[chosen], framework, eager_tracing, custom_model)


def policies_from_checkpoint(
    path: Any,
    policy_ids: Sequence[str] | None,
    framework: str | None,
    eager_tracing: bool | None,
    custom_model: Any = None,
) -> Policy | dict[str, Policy]:
    """What `Policy.from_checkpoint` returns: the policy of a policy's checkpoint, a dict for an algorithm's."""
    folder, entries = _open(path)
    if None in entries:
        return _build(folder, None, entries[None], framework, eager_tracing, custom_model)
    for name in policy_ids or ():
        if name not in entries:
            raise CheckpointError(f"checkpoint {folder} has policies {', '.join(map(str, entries))}: got {name!r}")
    chosen = entries if policy_ids is None else {name: entries[name] for name in policy_ids}
    return {
        str(name): _build(folder, name, entry, framework, eager_tracing, custom_model)
        for name, entry in chosen.items()
    }


def _open(path: Any) -> tuple[Path, dict[str | None, Mapping[str, Any]]]:
    """A checkpoint's folder and its policies' entries by id; the id None for a checkpoint of one policy."""
    folder = find(checkpoint_folder(path))
    header = read_header(folder)
    if header.get("type") == "Algorithm":
        return folder, {name: entry for name, entry in policy_entries(folder, header).items()}
    if header.get("type") != "Policy":
        raise CheckpointError(f"{folder} is a checkpoint of type {header.get('type')!r}, which has no policy")
    return folder, {None: header}


def _build(
    folder: Path,
    policy_id: str | None,
    entry: Mapping[str, Any],
    framework: str | None,
    eager_tracing: bool | None,
    custom_model: Any,
) -> Policy:
    prefix = "" if policy_id is None else f"policies/{policy_id}/"
    chosen = framework or str(entry.get("framework"))
    stored, code = config_from_json(read_document(folder, "config", dict))
    _put_model(folder, stored, code, custom_model, chosen, str(entry.get("framework")))
    state = read_policy_state(folder, prefix)
    module, _, name = _PARTS.partition(":")
    try:
        objective, config = getattr(importlib.import_module(module), name)(str(entry.get("algorithm")), stored, chosen)
    except PolylibError as error:
        raise CheckpointError(f"checkpoint {folder} doesn't fit this polylib: {error}") from None
    spec = PolicySpec(*read_spaces(folder, entry), objective, config, config["seed"])
    traced = config["eager_tracing"] if eager_tracing is None else eager_tracing
    try:
        policy = make_policy(spec, chosen, chosen == "tf2" and bool(traced))
    except FrameworkError as error:
        if framework:
            raise
        raise FrameworkError(f"checkpoint {folder}: {error}; or choose another with framework=...") from None
    try:
        set_policy_state(policy, state, folder, prefix)
    except BaseException:
        policy.close()
        raise
    return policy


def _put_model(
    folder: Path, stored: dict[str, Any], code: Mapping[str, str], custom_model: Any, framework: str, trained: str
) -> None:
    """Puts the user's network into a stored config, if the policy has one."""
    model = stored.get("model")
    found = custom_model if custom_model is not None or not isinstance(model, dict) else model.get("custom_model")
    if framework == "numpy" and (found is not None or "model.custom_model" in code):
        raise FrameworkError(
            f"checkpoint {folder}: its network is a user's own and runs in its framework only: load it with "
            f"framework={trained!r}"
        )
    check_custom_model(folder, code, found)
    if custom_model is not None:
        stored["model"] = {**(model or {}), "custom_model": custom_model}


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
