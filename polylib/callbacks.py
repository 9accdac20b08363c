"""Callbacks: what users hook into training. RLlib's names and keyword arguments.

Only hooks that a class overrides are ever called, so a run without per-step callbacks pays nothing for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from polylib.errors import ConfigTypeError, PolylibError

HOOKS = (
    "on_algorithm_init",
    "on_checkpoint_loaded",
    "on_workers_recreated",
    "on_sub_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_postprocess_trajectory",
    "on_sample_end",
    "on_learn_on_batch",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
)
EPISODE_HOOKS = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class CallbackError(PolylibError, RuntimeError):
    """A callback raised; the message names its class and hook."""


class DefaultCallbacks:
    """Base of users' callbacks: override what you need. An instance lives in each worker and one in the algorithm.

    Every hook gets keyword arguments only and should take `**kwargs`, so that new ones can be added.
    """

    def on_algorithm_init(self, *, algorithm: Any, **kwargs: Any) -> None:
        """The algorithm was built."""

    def on_checkpoint_loaded(self, *, algorithm: Any, **kwargs: Any) -> None:
        """The algorithm was restored from a checkpoint."""

    def on_workers_recreated(
        self, *, algorithm: Any, worker_set: Any, worker_ids: Sequence[int], is_evaluation: bool, **kwargs: Any
    ) -> None:
        """Lost workers were replaced."""

    def on_sub_environment_created(
        self, *, worker: Any, sub_environment: Any, env_context: Any, env_index: int | None = None, **kwargs: Any
    ) -> None:
        """A worker made one of its environments."""

    def on_episode_created(
        self, *, worker: Any, base_env: Any, policies: Any, env_index: int, episode: Any, **kwargs: Any
    ) -> None:
        """An episode is about to begin: its environment is reset next."""

    def on_episode_start(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode's environment was reset."""

    def on_episode_step(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode made a step."""

    def on_episode_end(
        self, *, worker: Any, base_env: Any, policies: Any, episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode ended. What stands in `episode.custom_metrics` now goes into the results."""

    def on_postprocess_trajectory(
        self,
        *,
        worker: Any,
        episode: Any,
        agent_id: Any,
        policy_id: str,
        policies: Any,
        postprocessed_batch: Any,
        original_batches: Any,
        **kwargs: Any,
    ) -> None:
        """A fragment was postprocessed; `postprocessed_batch` may be changed in place."""

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """A worker's `sample()` is done; `samples` may be changed in place."""

    def on_learn_on_batch(self, *, policy: Any, train_batch: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """A policy is about to learn; what is put into `result` goes into the learner's results."""

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """An iteration is done; `result` may be changed in place."""

    def on_evaluate_start(self, *, algorithm: Any, **kwargs: Any) -> None:
        """Evaluation begins."""

    def on_evaluate_end(self, *, algorithm: Any, evaluation_metrics: dict[str, Any], **kwargs: Any) -> None:
        """Evaluation is done; `evaluation_metrics` may be changed in place."""


class Callbacks:
    """The callbacks of one place (a worker, the algorithm): calls each hook of each instance that overrides it.

    Args:
        instances: of users' classes.
    """

    def __init__(self, instances: Sequence[DefaultCallbacks] = ()) -> None:
        self.instances = list(instances)
        self._overriding = {
            hook: [c for c in self.instances if getattr(type(c), hook) is not getattr(DefaultCallbacks, hook)]
            for hook in HOOKS
        }

    def has(self, *hooks: str) -> bool:
        """Whether anybody overrides one of these hooks."""
        return any(self._overriding[hook] for hook in hooks)

    def call(self, hook: str, **kwargs: Any) -> None:
        """Calls a hook.

        Raises:
            CallbackError: naming the class and the hook that raised.
        """
        for instance in self._overriding[hook]:
            try:
                getattr(instance, hook)(**kwargs)
            except Exception as error:
                raise CallbackError(
                    f"callback {type(instance).__name__}.{hook} raised {type(error).__name__}: {error}"
                ) from error


def callback_classes(value: Any) -> list[type[DefaultCallbacks]]:
    """The classes behind the config's `callbacks`: None, a class, `"module:Class"`, or a list of these.

    Raises:
        ConfigTypeError: naming what is none of them.
    """
    if value is None:
        return []
    if isinstance(value, list | tuple):
        return [cls for item in value for cls in callback_classes(item)]
    if isinstance(value, str):
        module, _, name = value.partition(":")
        try:
            value = getattr(importlib.import_module(module), name)
        except Exception as error:  # whatever a user's module raises
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigTypeError(f"config key 'callbacks': can't import {value!r} as 'module:Class': {text}") from None
    if not (isinstance(value, type) and issubclass(value, DefaultCallbacks)):
        raise ConfigTypeError(
            f"config key 'callbacks': got {value!r}, expected a subclass of polylib.callbacks.DefaultCallbacks, its "
            "'module:Class', or a list of them"
        )
    return [value]


def make_callbacks(value: Any) -> Callbacks:
    """New instances of the config's `callbacks`.

    Raises:
        ConfigTypeError: naming what is no callbacks class.
        CallbackError: naming a class that can't be instantiated.
    """
    instances = []
    for cls in callback_classes(value):
        try:
            instances.append(cls())
        except Exception as error:
            raise CallbackError(f"callback {cls.__name__}() raised {type(error).__name__}: {error}") from error
    return Callbacks(instances)
