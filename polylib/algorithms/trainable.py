"""The thin adapter between algorithms and Ray Tune; with `worker_set.py` the only place that imports Ray."""

from __future__ import annotations

import os
from typing import Any

from ray import tune
from ray.tune.tune import _Config

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.registry import algorithm_names, get_algorithm_class, get_config_class
from polylib.errors import NotBuiltError, PolylibError

# Tune takes a param_space that is a dict or has `to_dict`, if the class is known to it.
_Config.register(AlgorithmConfig)


class TrainableAdapter(tune.Trainable):
    """`tune.Trainable` without what polylib doesn't want of it.

    No folder in ~/ray_results for an algorithm that isn't run by Tune, and no checkpoint path that unpickles files.
    """

    def _setup_logdir(self) -> None:
        if self._storage:
            # Workers look for users' modules and files where the run was started.
            os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
            super()._setup_logdir()

    @classmethod
    def default_resource_request(cls, config: Any) -> Any:
        """A bundle for the trial's own process and one per rollout worker."""
        values = cls.get_default_config().update_from_dict(
            {k: v for k, v in dict(config).items() if not k.startswith("__")}
        )
        worker = {"CPU": values["num_cpus_per_worker"], **values["custom_resources_per_worker"]}
        bundles = [{"CPU": values["num_cpus_for_local_worker"]}] + [worker] * values["num_workers"]
        return tune.PlacementGroupFactory(bundles, strategy=values["placement_strategy"])

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """The algorithm's config with its defaults."""
        raise NotImplementedError

    def save(self, checkpoint_dir: str | None = None) -> Any:
        """Not in this version."""
        raise NotBuiltError("this version of polylib has no checkpoints yet; get_weights() and set_weights() work")

    def restore(self, checkpoint_path: Any) -> None:
        """Not in this version; Ray's own restore would unpickle files, so it is never called."""
        raise NotBuiltError("this version of polylib has no checkpoints yet; get_weights() and set_weights() work")

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        """Not in this version."""
        self.save()

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Not in this version."""
        self.restore(checkpoint)


def register_trainables() -> None:
    """Tells Tune every algorithm's name, so that it doesn't go looking for one in RLlib."""
    for name in algorithm_names():
        tune.register_trainable(name, get_algorithm_class(name))


def original_error(error: BaseException) -> BaseException:
    """The polylib error behind Ray's and Tune's wrappers, or `error` itself."""
    seen: list[BaseException | None] = [error]
    while seen:
        current = seen.pop()
        if current is None:
            continue
        if isinstance(current, PolylibError):
            return current
        seen += [current.__cause__, getattr(current, "cause", None)]
    return error


__all__ = ["TrainableAdapter", "get_config_class", "original_error", "register_trainables"]
