"""IOContext: what a user's own reader or writer is told about the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


class IOContext:
    """Where and for whom experience is read or written.

    Args:
        log_dir: The folder of the run's results; None: the current folder.
        config: The algorithm's config, or any mapping of its keys.
        worker_index: 0 for the local worker.

    Attributes:
        log_dir: The folder of the run's results.
        config: The algorithm's config.
        worker_index: 0 for the local worker.
    """

    def __init__(
        self, log_dir: str | None = None, config: Mapping[str, Any] | Any = None, worker_index: int = 0
    ) -> None:
        self.log_dir = log_dir or os.getcwd()
        self.config: Any = {} if config is None else config
        self.worker_index = worker_index

    @property
    def input_config(self) -> dict[str, Any]:
        """The config key `input_config`."""
        return dict(self.config.get("input_config") or {})

    @property
    def output_config(self) -> dict[str, Any]:
        """The config key `output_config`."""
        return dict(self.config.get("output_config") or {})
