"""Checkpoint folders: JSON and safetensors, written whole or not at all, read without executing anything.

A folder holds `polylib_checkpoint.json`, the header (its presence makes the folder a checkpoint), `<name>.json` files
and `<name>.safetensors` files with arrays, whose checksums stand in the header. Restoring never unpickles; other files
that lie there are never opened.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polylib.errors import ConfigTypeError, PolylibError
from polylib.json_values import dumps, is_code, loads

HEADER = "polylib_checkpoint.json"
VERSION = "1.0"

Arrays = Mapping[str, np.ndarray]


class CheckpointError(PolylibError, ValueError):
    """A checkpoint is missing, damaged, foreign, or can't be written; the message names the folder and file."""


def checkpoint_folder(checkpoint: Any) -> str:
    """The folder of a checkpoint given as a path, as what `Algorithm.save()` returned, or as a Tune checkpoint.

    Raises:
        ConfigTypeError: if it is none of these.
    """
    checkpoint = getattr(checkpoint, "checkpoint", checkpoint)
    if hasattr(checkpoint, "to_directory"):
        # Tune's: a PathLike that refuses to be one. What lies in remote storage is downloaded.
        local = checkpoint.filesystem.type_name == "local"
        return os.fspath(checkpoint.path if local else checkpoint.to_directory())
    if isinstance(checkpoint, str | os.PathLike):
        return os.fspath(checkpoint)
    path = getattr(checkpoint, "path", None)
    if path is None:
        raise ConfigTypeError(f"a checkpoint must be a folder or what save() returned, got {checkpoint!r}")
    return os.fspath(path)


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
    target = _absolute(path)
    unfinished = target.with_name(f".{target.name}.unfinished-{uuid.uuid4().hex[:8]}")
    try:
        if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / HEADER).exists())):
            raise CheckpointError(f"{target} exists and is no polylib checkpoint: choose another folder, or remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        for old in target.parent.glob(f".{glob.escape(target.name)}.unfinished-*"):
            _remove(old)
        unfinished.mkdir()
        for name, value in documents.items():
            _write(unfinished / f"{name}.json", _dump(value))
        checksums = {}
        for name, group in arrays.items():
            data = _pack(group)
            _write(unfinished / f"{name}.safetensors", data)
            checksums[name] = zlib.crc32(data)
        full = {"checkpoint_version": VERSION, **header, "checksums": checksums}
        _write(unfinished / HEADER, _dump(full))
        _swap(unfinished, target)
    except BaseException as error:
        _remove(unfinished)
        if isinstance(error, OSError):
            raise CheckpointError(f"can't write checkpoint {target}: {error.strerror or error}") from error
        if isinstance(error, ValueError) and not isinstance(error, CheckpointError):
            raise CheckpointError(f"can't write checkpoint {target}: {error}") from error
        raise
    return target


def without_arrays(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    """A state without its arrays, which go into `arrays` under names that begin with `name`."""
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Mapping):
        return {key: without_arrays(item, arrays, f"{name}/{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [without_arrays(item, arrays, f"{name}/{i}") for i, item in enumerate(value)]
    return value


def with_arrays(value: Any, arrays: Arrays) -> Any:
    """The inverse of `without_arrays`."""
    if isinstance(value, Mapping):
        if value.keys() == {"array"} and isinstance(value["array"], str) and value["array"] in arrays:
            return arrays[value["array"]]
        return {key: with_arrays(item, arrays) for key, item in value.items()}
    return [with_arrays(item, arrays) for item in value] if isinstance(value, list) else value


def _absolute(path: str | os.PathLike[str]) -> Path:
    """The folder itself where `path` is a link to it: its neighbours are where a swap takes place."""
    target = Path(path).expanduser().absolute()
    return target.resolve() if target.is_symlink() else target


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _swap(new: Path, target: Path) -> None:
    previous = _previous(target)
    if not (target / HEADER).exists():
        new.rename(target)
    else:
        # Two renames: a crash between them leaves `previous`, which readers fall back to.
        _remove(previous)
        target.rename(previous)
        try:
            new.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                previous.rename(target)
            raise
    _remove(previous)


def _remove(folder: Path) -> None:
    """Removes a folder, its header first, so that what a crash leaves of it is no checkpoint."""
    with contextlib.suppress(OSError):
        (folder / HEADER).unlink()
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def find(path: str | os.PathLike[str]) -> Path:
    """The folder of a checkpoint: `path`, or where a crash has left the last whole one.

    Raises:
        CheckpointError: if there is none.
    """
    target = _absolute(path)
    try:
        for folder in (target, _previous(target)):
            if (folder / HEADER).is_file():
                return folder
        if not target.exists():
            raise CheckpointError(f"there is no checkpoint {target}: no such folder")
        inside = sorted(p.parent.name for p in target.glob(f"*/{HEADER}")) if target.is_dir() else []
        if any((target / name).exists() for name in ("rllib_checkpoint.json", "algorithm_state.pkl")):
            raise CheckpointError(f"{target} is an RLlib checkpoint: its files are pickles, which polylib never opens")
    except OSError as error:
        raise CheckpointError(f"can't read checkpoint {target}: {error.strerror or error}") from None
    hint = f"; it has checkpoints inside: {', '.join(inside)}" if inside else ""
    raise CheckpointError(f"{target} is no polylib checkpoint: it has no {HEADER}{hint}")


def read_header(path: str | os.PathLike[str], expected_type: str | None = None) -> dict[str, Any]:
    """The header of a checkpoint.

    Raises:
        CheckpointError: if there is none, it is damaged, of a newer format, or not of `expected_type`.
    """
    folder = find(path)
    header = read_document(folder, HEADER.removesuffix(".json"), dict)
    version = str(header.get("checkpoint_version"))
    if version.split(".")[0] != VERSION.split(".")[0]:
        raise CheckpointError(f"{folder / HEADER}: checkpoint_version is {version}, this polylib reads {VERSION}")
    if expected_type is not None and header.get("type") != expected_type:
        raise CheckpointError(f"{folder} is a checkpoint of type {header.get('type')!r}, expected {expected_type!r}")
    return header


def read_document(folder: Path, name: str, expected: type = object) -> Any:
    """A JSON file of a checkpoint.

    Args:
        folder: the checkpoint's.
        name: the file's, without its ending.
        expected: the type of what stands in it.

    Raises:
        CheckpointError: naming the file.
    """
    file = folder / f"{name}.json"
    try:
        value = loads(file.read_text("utf-8"))
    except OSError as error:
        raise CheckpointError(f"checkpoint {folder}: can't read {name}.json: {error.strerror or error}") from None
    except ValueError as error:
        raise CheckpointError(f"checkpoint {folder}: {name}.json is damaged: {error}") from None
    if not isinstance(value, expected):
        got = type(value).__name__
        raise CheckpointError(f"checkpoint {folder}: {name}.json is damaged: a {got}, expected a {expected.__name__}")
    return value


def read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint's file.

    Raises:
        CheckpointError: naming the file.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    file = folder / f"{name}.safetensors"
    checksums = read_document(folder, HEADER.removesuffix(".json"), dict).get("checksums")
    try:
        # From memory, not mapped: the folder may be replaced while the arrays are in use.
        data = file.read_bytes()
        if isinstance(checksums, dict) and checksums.get(name, zlib.crc32(data)) != zlib.crc32(data):
            raise ValueError(f"its checksum isn't the one in {HEADER}")
        return dict(load(data))
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"checkpoint {folder}: can't read {name}.safetensors: {reason}") from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {folder}: {name}.safetensors is damaged: {error}") from None


def _pack(arrays: Arrays) -> bytes:
    from safetensors.numpy import save

    return save({key: np.asarray(value, order="C") for key, value in arrays.items()})


def _dump(value: Any) -> bytes:
    return (dumps(value) + "\n").encode()


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


__all__ = [
    "HEADER",
    "VERSION",
    "CheckpointError",
    "checkpoint_folder",
    "find",
    "is_code",
    "read_arrays",
    "read_document",
    "read_header",
    "write_checkpoint",
]
