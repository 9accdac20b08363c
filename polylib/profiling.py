"""Profiles that people can read: where a run's driver and one of its workers spend their time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polylib.errors import ConfigError


class Profile:
    """Collects samples of the call stack over several stretches of work, with pyinstrument.

    Args:
        name: of the report's files.

    Raises:
        ConfigError: if pyinstrument isn't installed.
    """

    def __init__(self, name: str) -> None:
        try:
            from pyinstrument import Profiler
        except ModuleNotFoundError:
            raise ConfigError(
                "config key 'profile': needs pyinstrument, not installed here: pip install 'polylib[profile]'"
            ) from None
        self.name = name
        self._profiler: Any = Profiler(interval=0.002)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collects while the block runs."""
        self._profiler.start()
        try:
            yield
        finally:
            self._profiler.stop()

    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Writes `profile-<name>.txt` and `.html` into a folder.

        Returns:
            The files; none if nothing was collected.
        """
        if self._profiler.last_session is None:
            return []
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        reports = {".txt": self._profiler.output_text(unicode=True, color=False), ".html": self._profiler.output_html()}
        files = []
        for suffix, text in reports.items():
            files.append(target / f"profile-{self.name}{suffix}")
            files[-1].write_text(text, "utf-8")
        return files
