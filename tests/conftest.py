"""What all tests share: a quiet, single-threaded, GPU-less process, one Ray, and a way to hide packages."""

from __future__ import annotations

import os

# TensorFlow, BLAS and Ray read these once, so they are set before anything else is imported.
os.environ.update(
    TF_CPP_MIN_LOG_LEVEL="3",
    TF_NUM_INTRAOP_THREADS="1",
    TF_NUM_INTEROP_THREADS="1",
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    KERAS_BACKEND="tensorflow",
    CUDA_VISIBLE_DEVICES="",
    SDL_VIDEODRIVER="dummy",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    RAY_USAGE_STATS_ENABLED="0",
)

import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any  # noqa: E402

import pytest  # noqa: E402

# What polylib has already built on a package must go with it.
_BUILT_ON = {
    "tensorflow": ("polylib.policy.tf",),
    "keras": ("polylib.policy.tf",),
    "torch": ("polylib.policy.torch",),
}


class _Without:
    """An import finder that doesn't see some packages."""

    def __init__(self, finder: Any, hidden: tuple[str, ...]) -> None:
        self._finder, self._hidden = finder, hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if _inside(name, self._hidden) or not hasattr(self._finder, "find_spec"):
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def _inside(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.fixture
def block_import(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: `block_import("torch")` makes torch look as if it weren't installed, until the test ends.

    `import torch` raises ModuleNotFoundError and `importlib.util.find_spec("torch")` gives None, whether torch had
    been imported before or not.
    """

    def block(*names: str) -> None:
        gone = (*names, *(module for name in names for module in _BUILT_ON.get(name, ())))
        for module in [module for module in sys.modules if _inside(module, gone)]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setattr(sys, "meta_path", [_Without(finder, names) for finder in sys.meta_path])

    return block


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2` a file stays in one process, and all that shares the one Ray with it."""
    files = {str(item.path) for item in items if "ray_session" in getattr(item, "fixturenames", ())}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("ray" if str(item.path) in files else str(item.path.name)))


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray for the whole run: starting it takes seconds."""
    ray = pytest.importorskip("ray")
    # Workers import tests/fakes.py.
    tests = os.path.dirname(__file__)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 1024**2,
    )
    yield
    ray.shutdown()
