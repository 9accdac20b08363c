"""What a checkpoint says of the run that wrote it; its code is never run, and modules that it names aren't imported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.registry import get_config_class
from polylib.checkpoints import CheckpointError, find, read_document, read_header
from polylib.errors import PolylibError, UnknownKeyError
from polylib.policy.checkpoint import config_from_json


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

    def check_model(self, config: AlgorithmConfig) -> None:
        """Raises a CheckpointError if the checkpoint's network is a user's own and `config` doesn't have it."""
        name, model = self.code.get("model.custom_model"), config["model"]
        if name is not None and isinstance(model, dict) and model.get("custom_model") is None:
            raise CheckpointError(
                f"which network? {self.folder} was trained with code, {name!r}, which is run only if you say so: use "
                f"--model {name}"
            )


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
    values, code = config_from_json(read_document(folder, "config", dict))
    try:
        config = config_class().update_from_dict(values, source="checkpoint")
    except PolylibError as error:
        raise CheckpointError(f"checkpoint {folder}: its config.json doesn't fit this polylib: {error}") from None
    defaults = config_class()
    for key in [key for key in config.sources if key in defaults and config[key] == defaults[key]]:
        del config.sources[key]
    return Stored(folder, header, algo, config, code)
