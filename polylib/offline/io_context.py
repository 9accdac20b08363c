"""IOContext: what a user's own reader or writer is told about the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from polylib.errors import ConfigError
from polylib.offline.input_reader import InputReader, SamplerInput
from polylib.offline.json_format import Batch


class IOContext:
    """Where and for whom experience is read or written.

    Args:
        log_dir: The folder of the run's results; None: the current folder.
        config: The algorithm's config, or any mapping of its keys.
        worker_index: 0 for the local worker.
        worker: The rollout worker, if there is one.
        num_workers: How many remote workers read the same input; each takes its own share.
        sampler: Samples a batch from the worker's environments.
        loop: Readers start over at the end, as in training.

    Attributes:
        log_dir: The folder of the run's results.
        config: The algorithm's config.
        worker_index: 0 for the local worker.
        worker: The rollout worker, or None.
        num_workers: How many remote workers read the same input.
        loop: Readers start over at the end.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        config: Mapping[str, Any] | Any = None,
        worker_index: int = 0,
        worker: Any = None,
        *,
        num_workers: int = 0,
        sampler: Callable[[], Batch] | None = None,
        loop: bool = False,
    ) -> None:
        self.log_dir = log_dir or os.getcwd()
        self.config: Any = {} if config is None else config
        self.worker_index, self.worker, self.num_workers = worker_index, worker, num_workers
        self.loop = loop
        self._sampler = sampler

    @property
    def input_config(self) -> dict[str, Any]:
        """The config key `input_config`."""
        return dict(self.config.get("input_config") or {})

    @property
    def output_config(self) -> dict[str, Any]:
        """The config key `output_config`."""
        return dict(self.config.get("output_config") or {})

    @property
    def share(self) -> tuple[int, int]:
        """`(i, n)`: the input is shared by n workers, of which this is the i-th from 1; (0, 0): it isn't shared."""
        return (self.worker_index, self.num_workers) if self.worker_index and self.num_workers else (0, 0)

    @property
    def seed(self) -> int | None:
        """Of the order in which experience is read: `input_config`'s, or else the run's. The same for all workers."""
        seed = self.input_config.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            raise ConfigError(f"input_config: seed={seed!r}: expected an integer >= 0")
        return self.config.get("seed") if seed is None else seed

    def default_sampler_input(self) -> InputReader:
        """A reader that samples from the worker's environments, as `input="sampler"` does.

        Raises:
            ConfigError: The worker has no environment.
        """
        if self._sampler is None:
            raise ConfigError(
                "there is no environment to sample from, which 'sampler' in the config key 'input' stands for: give "
                "the algorithm an env"
            )
        return SamplerInput(self._sampler)
