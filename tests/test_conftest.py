"""The fixtures that other tests rely on."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from modes import FAST_MODES, MODE_IDS, MODES, mode_id


def test_a_blocked_package_looks_absent(block_import):
    import yaml

    block_import("yaml")
    assert importlib.util.find_spec("yaml") is None
    with pytest.raises(ModuleNotFoundError, match="yaml"):
        import yaml.nodes  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="No module named 'yaml'"):
        importlib.import_module("yaml")
    assert importlib.util.find_spec("numpy") is not None
    assert yaml is not None


def test_blocking_ends_with_the_test():
    """Runs after the test above, and finds the module that was there before."""
    import yaml

    assert sys.modules["yaml"] is yaml
    assert importlib.util.find_spec("yaml") is not None
    assert not any(type(finder).__name__ == "_Without" for finder in sys.meta_path)


def test_modes_have_ids():
    assert [mode_id(*mode) for mode in MODES] == MODE_IDS == ["tf", "tf2", "tf2-traced", "torch"]
    assert ("tf2", False) not in FAST_MODES and len(FAST_MODES) == 3
