"""The four modes, for tests that run in each of them.

    @pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)

A mode whose framework isn't installed is skipped, with the reason.
"""

from __future__ import annotations

import importlib.util

import pytest

MODES = [("tf", False), ("tf2", False), ("tf2", True), ("torch", False)]
MODE_IDS = ["tf", "tf2", "tf2-traced", "torch"]
# Plain eager tf2 exists for debugging; tests that train leave it out.
FAST_MODES = [mode for mode in MODES if mode != ("tf2", False)]


def mode_id(framework: str, traced: bool) -> str:
    """The name of a mode in test ids."""
    return MODE_IDS[MODES.index((framework, traced))]


def has(framework: str) -> bool:
    """Whether the package behind a framework's name is installed; imports nothing."""
    return importlib.util.find_spec("torch" if framework == "torch" else "tensorflow") is not None


def mode_params(modes: list[tuple[str, bool]]) -> list:
    """`modes` for `pytest.mark.parametrize`, with ids and skips."""
    return [
        pytest.param(
            framework,
            traced,
            id=mode_id(framework, traced),
            marks=pytest.mark.skipif(not has(framework), reason=f"the package for {framework!r} isn't installed"),
        )
        for framework, traced in modes
    ]


MODE_PARAMS = mode_params(MODES)
FAST_MODE_PARAMS = mode_params(FAST_MODES)
