"""The thin adapter between algorithms and Ray Tune; with `worker_set.py` the only place that imports Ray."""

from __future__ import annotations

import logging
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.train.constants import DEFAULT_STORAGE_PATH
from ray.tune.registry import ENV_CREATOR, RLLIB_INPUT, RLLIB_MODEL, TRAINABLE_CLASS, _global_registry
from ray.tune.tune import _Config

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.evaluation import evaluation_config
from polylib.algorithms.registry import algorithm_names, algorithm_target, get_config_class, load_target
from polylib.checkpoints import CheckpointError, checkpoint_folder
from polylib.errors import PolylibError
from polylib.models.finished_keras import portable
from polylib.registry import EnvCreator, add_env_store, add_input_store, add_model_store

logger = logging.getLogger(__name__)

# Tune takes a param_space that is a dict or has `to_dict`, if the class is known to it.
_Config.register(AlgorithmConfig)


class TrainableAdapter(tune.Trainable):
    """`tune.Trainable` without what polylib doesn't want of it.

    No folder in ~/ray_results for an algorithm that isn't run by Tune, and no checkpoint path that unpickles files.
    """

    _logdir: str | None

    def _setup_logdir(self) -> None:
        if self._storage:
            # Workers look for users' modules and files where the run was started.
            os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
            super()._setup_logdir()

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """A bundle for the trial's own process, and one per worker that samples or evaluates."""
        values = cls.get_default_config().update_from_dict(
            {k: v for k, v in dict(config).items() if not k.startswith("__")}
        )
        bundles = [{"CPU": values["num_cpus_for_local_worker"]}]
        for part in (values, evaluation_config(values) if values["evaluation_interval"] else None):
            if part is not None:
                worker = {"CPU": part["num_cpus_per_worker"], **part["custom_resources_per_worker"]}
                bundles += [worker] * part["num_workers"]
        return tune.PlacementGroupFactory(bundles, strategy=values["placement_strategy"])

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """The algorithm's config with its defaults."""
        raise NotImplementedError

    def run_folder(self) -> str:
        """The run's folder: Tune's, or one in ~/ray_results that is made when something is first written to it."""
        if self._storage is not None and self._storage.storage_filesystem.type_name == "local":
            return str(self._storage.trial_fs_path)  # the working directory is elsewhere, and goes with Ray's session
        if self._logdir is None:
            stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
            self._logdir = str(Path(DEFAULT_STORAGE_PATH) / f"{type(self).__name__}_{stamp}_{os.getpid()}")
        return self._logdir

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Writes a checkpoint.

        Args:
            checkpoint_dir: the folder; by default one per iteration, in the run's folder or in ~/ray_results.

        Returns:
            Tune's result: `.checkpoint.path` is the folder, `.metrics` the last result.

        Raises:
            CheckpointError: if the folder can't be written.
        """
        if checkpoint_dir is None and not self._storage:
            checkpoint_dir = str(Path(self.run_folder()) / f"checkpoint_{self.iteration:06d}")
        if self._storage:
            # Tune would count checkpoints. It adds 1 first.
            self._storage.current_checkpoint_index = self._folder_number() - 1
        try:
            return super().save(None if checkpoint_dir is None else str(checkpoint_dir))
        except OSError as error:  # Tune makes the folder, and copies it
            where = checkpoint_dir or self._storage.trial_fs_path
            raise CheckpointError(f"can't write checkpoint {where}: {error.strerror or error}") from error

    def _folder_number(self) -> int:
        """The iteration; a later number where that one is taken (population-based training goes back and forth)."""
        storage, number = self._storage, self.iteration
        while True:
            path = f"{storage.trial_fs_path}/{storage._make_checkpoint_dir_name(number)}"
            if not storage.storage_filesystem.get_file_info(path).type:
                return number
            number += 1

    def restore(self, checkpoint_path: Any) -> None:
        """Goes on from a checkpoint.

        Ray's own `restore` would unpickle a `_dict_checkpoint.pkl` that lies in the folder; this never does.

        Args:
            checkpoint_path: a folder, or what `save()` returned, or a Tune checkpoint.

        Raises:
            CheckpointError: if it is missing, damaged, or of another algorithm or other spaces.
        """
        source = getattr(checkpoint_path, "checkpoint", checkpoint_path)
        if isinstance(source, tune.Checkpoint):
            with source.as_directory() as folder:
                self.load_checkpoint(folder)
        else:
            self.load_checkpoint(checkpoint_folder(checkpoint_path))
        self._restored = True
        self._time_since_restore, self._iterations_since_restore, self._timesteps_since_restore = 0.0, 0, 0


class _ByName:
    """Unpickles as the class that `"module:Class"` names, so that Tune can know an algorithm that isn't loaded yet."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __reduce__(self) -> Any:
        return load_target, (self._target,)


class _TuneModels:
    """Models in Tune's registry, beside the environments."""

    def put(self, name: str, model: Any) -> None:
        """Makes a name known to trials."""
        try:
            _global_registry.register(RLLIB_MODEL, name, portable(model))
        except Exception as error:
            logger.warning("model %r is known in this process only, since it can't be pickled: %s", name, error)

    def find(self, name: str) -> Any:
        """What the driver registered under a name."""
        return _global_registry.get(RLLIB_MODEL, name) if _global_registry.contains(RLLIB_MODEL, name) else None


class _TuneInputs:
    """Creators of readers in Tune's registry."""

    def put(self, name: str, creator: Any) -> None:
        """Makes a name known to trials."""
        try:
            _global_registry.register(RLLIB_INPUT, name, creator)
        except Exception as error:
            logger.warning("input %r is known in this process only, since it can't be pickled: %s", name, error)

    def find(self, name: str) -> Any:
        """What the driver registered under a name."""
        return _global_registry.get(RLLIB_INPUT, name) if _global_registry.contains(RLLIB_INPUT, name) else None


class _TuneEnvs:
    """Environments in Tune's registry, which a cluster's processes share: the names in trials' configs."""

    def put(self, name: str, creator: EnvCreator) -> None:
        """Makes a name known to trials."""
        try:
            tune.register_env(name, creator)
        except Exception as error:
            logger.warning("environment %r is known in this process only, since it can't be pickled: %s", name, error)

    def find(self, name: str) -> EnvCreator | None:
        """What the driver registered under a name."""
        known = _global_registry.contains(ENV_CREATOR, name)
        return _global_registry.get(ENV_CREATOR, name) if known else None


def register_trainables() -> None:
    """Tells Tune every algorithm's name, so that it doesn't go looking for one in RLlib."""
    for name in algorithm_names():
        target = algorithm_target(name)
        if isinstance(target, str):
            _global_registry.register(TRAINABLE_CLASS, name, _ByName(target))
        else:
            tune.register_trainable(name, target)


def _share_names() -> None:
    """Shares names with Tune's registry; the driver registers algorithms for all of its processes."""
    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:
        register_trainables()
    add_env_store(_TUNE_ENVS)
    add_model_store(_TUNE_MODELS)
    add_input_store(_TUNE_INPUTS)


_TUNE_ENVS, _TUNE_MODELS, _TUNE_INPUTS = _TuneEnvs(), _TuneModels(), _TuneInputs()
_share_names()
# A Ray that is started later begins with an empty registry.
ray._private.worker._post_init_hooks.append(_share_names)


def original_error(error: BaseException) -> BaseException:
    """The polylib error behind Ray's and Tune's wrappers, or `error` itself."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        if isinstance(current, PolylibError):
            return current
        seen.add(id(current))
        waiting += [current.__cause__, getattr(current, "cause", None)]
    return error


__all__ = ["TrainableAdapter", "get_config_class", "original_error", "register_trainables"]
