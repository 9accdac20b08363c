"""The process that a run starts in: threads, logs and warnings, set before a framework or Ray is imported."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from polylib.threads import limit_threads

_ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray hides the GPUs from actors that reserve none, and warns that it will stop doing so.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Paths in a config are relative to where the command was typed, not to a trial's folder.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Tune would take Ctrl-C for itself and wait for the iteration to end.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune's newer output prints its tables even when it is told to be silent.
    "RAY_AIR_NEW_OUTPUT": "0",
}


@contextmanager
def prepared(verbosity: int) -> Iterator[None]:
    """Makes this process, and those that it starts, single-threaded and quiet.

    Args:
        verbosity: 0: errors only; 1: polylib's INFO; 2: everything.
    """
    limit_threads(1)
    wanted = {
        **_ENVIRONMENT,
        "TF_CPP_MIN_LOG_LEVEL": "0" if verbosity > 1 else "3",
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "1" if verbosity > 1 else "0",
    }
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    logger, ray_logger = logging.getLogger("polylib"), logging.getLogger("ray")
    levels = logger.level, ray_logger.level
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    if verbosity:
        logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)
        logger.addHandler(handler)
    ray_logger.setLevel(ray_log_level(verbosity))
    try:
        with warnings.catch_warnings():
            if not verbosity:
                warnings.simplefilter("ignore")
                warnings.filterwarnings("default", module=r"polylib\b")
                # Tune leaves the files of interrupted trials open, having flushed them.
                warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        logger.removeHandler(handler)
        logger.setLevel(levels[0])
        ray_logger.setLevel(levels[1])


def ray_log_level(verbosity: int) -> int:
    """The least severe line that Ray and Tune may log: their tracebacks of failed trials are for `-vv`."""
    return (logging.CRITICAL, logging.CRITICAL, logging.INFO)[verbosity]


def import_tensorboard() -> None:
    """Imports tensorboardX, which would import torch if it can: 0.8 s and 190 MB for tensors that nobody logs."""
    hide = "torch" not in sys.modules and "tensorboardX" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("tensorboardX")
    finally:
        if hide:
            del sys.modules["torch"]


def import_quietly(packages: Sequence[str]) -> None:
    """Imports packages without what their C++ writes to stderr meanwhile, unless the import fails.

    TensorFlow says there, whatever TF_CPP_MIN_LOG_LEVEL is, which CPU instructions it found and that it found no GPU.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            for package in packages:
                importlib.import_module(package)
        except BaseException:
            said.seek(0)
            os.write(stderr, said.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextmanager
def importable(folders: list[str]) -> Iterator[None]:
    """Python modules in `folders` can be imported for a while, as with `python -m`."""
    added = [folder for folder in folders if folder not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for folder in added:
            if folder in sys.path:
                sys.path.remove(folder)
