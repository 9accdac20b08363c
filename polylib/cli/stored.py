"""What a checkpoint says of the run that wrote it; its code is never run, and modules that it names aren't imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.registry import get_config_class
from polylib.checkpoints import CheckpointError, find, is_code, read_document, read_header
from polylib.errors import PolylibError, UnknownKeyError
from polylib.registry import registered_creator

# Keys whose text may be "module:Class".
_MAY_NAME_CODE = ("env", "callbacks")


@dataclass(frozen=True)
class Stored:
    """A checkpoint's header and settings.

    Attributes:
        folder: where it lies.
        header: as it was written.
        algo: the algorithm's name.
        config: the algorithm's config with the stored settings; sources say `"checkpoint"` where they aren't defaults.
        code: what stood in settings that name code, which has to be given again.
    """

    folder: Path
    header: dict[str, Any]
    algo: str
    config: AlgorithmConfig
    code: dict[str, str]

    def env_hint(self) -> str:
        """What to say when the environment is missing; empty if the checkpoint has none either."""
        if "env" not in self.code:
            return ""
        name = self.code["env"]
        return f"the checkpoint's is code, {name!r}, which is run only if you say so: use --env {name}"


def read_stored(path: str, expected_type: str | None = None) -> Stored:
    """The header and settings of a checkpoint.

    Args:
        path: its folder.
        expected_type: `"Algorithm"` if a policy's checkpoint won't do.

    Raises:
        CheckpointError: if it is missing, damaged or foreign.
    """
    if "://" in path:
        raise CheckpointError(f"{path}: polylib reads checkpoints in local folders: download it first")
    folder = find(path)
    header = read_header(folder, expected_type)
    algo = str(header.get("algorithm"))
    try:
        config_class = get_config_class(algo)
    except UnknownKeyError as error:
        raise CheckpointError(f"{folder} is a checkpoint of {algo!r}: {error}") from None
    document = read_document(folder, "config")
    if not isinstance(document, dict):
        raise CheckpointError(f"checkpoint {folder}: config.json is damaged: it holds no settings")
    values, code = without_code(document)
    try:
        config = config_class().update_from_dict(values, source="checkpoint")
    except PolylibError as error:
        raise CheckpointError(f"checkpoint {folder}: its config.json doesn't fit this polylib: {error}") from None
    defaults = config_class()
    for key in [key for key in config.sources if key in defaults and config[key] == defaults[key]]:
        del config.sources[key]
    return Stored(folder, header, algo, config, code)


def without_code(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings that can be used, and the names of code that stood in others."""
    usable, code = {}, {}
    for key, value in values.items():
        if is_code(value):
            code[key] = str(next(iter(value.values())))
        elif key in _MAY_NAME_CODE and _names_code(value):
            code[key] = ", ".join(value) if isinstance(value, list) else str(value)
        else:
            usable[key] = without_code(value)[0] if isinstance(value, dict) else value
    return usable, code


def _names_code(value: Any) -> bool:
    """Whether using a value would import the module that it names."""
    if isinstance(value, list):
        return any(isinstance(item, str) for item in value)
    return isinstance(value, str) and ":" in value and registered_creator(value) is None
