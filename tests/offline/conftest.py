"""What the tests of traces share."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent / "data" / "rllib_json"


@pytest.fixture(params=sorted(folder.name for folder in DATA.iterdir() if folder.is_dir()))
def rllib_folder(request: pytest.FixtureRequest) -> Path:
    """Each folder of traces that RLlib wrote."""
    return DATA / request.param
