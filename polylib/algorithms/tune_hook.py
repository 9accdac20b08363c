"""Makes algorithm names known to Ray Tune once both are there, without importing Ray for people who don't use it.

`tune.Tuner("PPO")` has to work after nothing but `from polylib import PPOConfig`. Importing Ray for that would cost
everybody a second, so `polylib.algorithms.trainable`, which does the registering, is imported now if Ray Tune is loaded
already, and else right after somebody imports Ray Tune.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

logger = logging.getLogger(__name__)

_TUNE = "ray.tune"


def install() -> None:
    """Registers the names, now or when Ray Tune is imported; calling it again changes nothing."""
    if _TUNE in sys.modules:
        _register()
    elif not any(isinstance(finder, _TuneFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TuneFinder())


def _register() -> None:
    try:
        importlib.import_module("polylib.algorithms.trainable")
    except ImportError as error:  # a Ray that polylib doesn't know must not break other people's import of it
        logger.warning("Ray Tune doesn't know polylib's algorithms by name: %s", error)


class _TuneFinder(MetaPathFinder):
    """Finds nothing by itself; adds `_register` to what runs when Ray Tune is imported."""

    def __init__(self) -> None:
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders give for Ray Tune, with a loader that goes on to register."""
        if fullname != _TUNE or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    """Loads a module as `inner` does, then registers."""

    def __init__(self, inner: Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As `inner` does."""
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As `inner` does; the module looks as if nobody else had been there."""
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        _register()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
