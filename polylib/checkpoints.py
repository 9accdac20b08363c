"""Checkpoint folders: JSON and safetensors, written whole or not at all, read without executing anything.

A folder holds `polylib_checkpoint.json`, the header (its presence makes the folder a checkpoint), `<name>.json` files
and `<name>.safetensors` files with arrays. Restoring never unpickles; other files that lie there are never opened.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polylib.errors import PolylibError

HEADER = "polylib_checkpoint.json"
VERSION = "1.0"

Arrays = Mapping[str, np.ndarray]


class CheckpointError(PolylibError, ValueError):
    """A checkpoint is missing, damaged, foreign, or can't be written; the message names the folder and file."""


def write_checkpoint(
    path: str | os.PathLike[str], header: Mapping[str, Any], documents: Mapping[str, Any], arrays: Mapping[str, Arrays]
) -> Path:
    """Writes a checkpoint folder; until it is complete, one that was there stays as it is.

    Args:
        path: the folder. Its parents are made; a checkpoint in it is replaced.
        header: what goes into the header beside the version.
        documents: JSON values by name (which may hold slashes).
        arrays: arrays by key, by name.

    Returns:
        The folder.

    Raises:
        CheckpointError: if the folder holds something else, or can't be written.
    """
    target = Path(path).expanduser().absolute()
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / HEADER).exists())):
        raise CheckpointError(f"{target} exists and is no polylib checkpoint: choose another folder, or remove it")
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex[:8]}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob(f".{target.name}.unfinished-*"):
            shutil.rmtree(old, ignore_errors=True)
        unfinished.mkdir()
        for name, value in documents.items():
            _write(unfinished / f"{name}.json", _dump(value))
        for name, group in arrays.items():
            _write(unfinished / f"{name}.safetensors", _pack(group))
        _write(unfinished / HEADER, _dump({"checkpoint_version": VERSION, **header}))
        _swap(unfinished, target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(f"can't write checkpoint {target}: {error.strerror or error}") from error
    return target


def _swap(new: Path, target: Path) -> None:
    previous = target.with_name(f".{target.name}.previous")
    if (target / HEADER).exists():
        # Two renames: a crash between them leaves `previous`, which readers fall back to.
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)
    new.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def find(path: str | os.PathLike[str]) -> Path:
    """The folder of a checkpoint: `path`, or where a crash has left the last whole one.

    Raises:
        CheckpointError: if there is none.
    """
    target = Path(path).expanduser().absolute()
    for folder in (target, target.with_name(f".{target.name}.previous")):
        if (folder / HEADER).is_file():
            return folder
    if not target.exists():
        raise CheckpointError(f"there is no checkpoint {target}: no such folder")
    inside = sorted(p.parent.name for p in target.glob(f"*/{HEADER}")) if target.is_dir() else []
    if (target / "rllib_checkpoint.json").exists() or (target / "algorithm_state.pkl").exists():
        raise CheckpointError(f"{target} is an RLlib checkpoint: its files are pickles, which polylib never opens")
    hint = f"; it has checkpoints inside: {', '.join(inside)}" if inside else ""
    raise CheckpointError(f"{target} is no polylib checkpoint: it has no {HEADER}{hint}")


def read_header(path: str | os.PathLike[str], expected_type: str | None = None) -> dict[str, Any]:
    """The header of a checkpoint.

    Raises:
        CheckpointError: if there is none, it is damaged, of a newer format, or not of `expected_type`.
    """
    folder = find(path)
    header = read_document(folder, HEADER.removesuffix(".json"))
    version = str(header.get("checkpoint_version") if isinstance(header, dict) else None)
    if version.split(".")[0] != VERSION.split(".")[0]:
        raise CheckpointError(f"{folder / HEADER}: checkpoint_version is {version}, this polylib reads {VERSION}")
    if expected_type is not None and header.get("type") != expected_type:
        raise CheckpointError(f"{folder} is a checkpoint of type {header.get('type')!r}, expected {expected_type!r}")
    return header


def read_document(folder: Path, name: str) -> Any:
    """A JSON file of a checkpoint.

    Raises:
        CheckpointError: naming the file.
    """
    file = folder / f"{name}.json"
    try:
        return json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder}: can't read {name}.json: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"checkpoint {folder}: {name}.json is damaged: {error}") from None


def read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint's file.

    Raises:
        CheckpointError: naming the file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = folder / f"{name}.safetensors"
    try:
        # From memory, not mapped: the folder may be replaced while the arrays are in use.
        return dict(load(file.read_bytes()))
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"checkpoint {folder}: can't read {name}.safetensors: {reason}") from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {folder}: {name}.safetensors is damaged: {error}") from None


def _pack(arrays: Arrays) -> bytes:
    from safetensors.numpy import save

    return save({key: np.asarray(value, order="C") for key, value in arrays.items()})


def _dump(value: Any) -> bytes:
    return (json.dumps(value, indent=1, default=plain) + "\n").encode()


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def plain(value: Any) -> Any:
    """What stands in JSON for a value that JSON lacks: NumPy as lists and numbers; code by its name, to be read only."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if callable(value):
        return {"__callable__": f"{getattr(value, '__module__', '?')}:{getattr(value, '__qualname__', repr(value))}"}
    return {"__object__": repr(value)}


def is_code(value: Any) -> bool:
    """Whether a value read from JSON only names what couldn't be written."""
    return isinstance(value, dict) and bool({"__callable__", "__object__"} & set(value))
