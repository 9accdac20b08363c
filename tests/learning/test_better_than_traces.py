"""Policies learnt from recorded experience are better than what was recorded. Minutes: run with `make learn`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from modes import has

_PATH = Path(__file__).parents[2] / "benchmarks" / "offline_learning.py"
_SPEC = importlib.util.spec_from_file_location("offline_learning", _PATH)
offline_learning = importlib.util.module_from_spec(_SPEC)
sys.modules["offline_learning"] = offline_learning  # dataclasses look their module up
_SPEC.loader.exec_module(offline_learning)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    offline_learning.write_traces(folder, "tf")
    return folder


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has("tf"), reason="no package for tf")
@pytest.mark.parametrize("algo", ["CQL", "CRR", "IQL"])
def test_mixed_pendulum_traces(traces, algo):
    """Far better than the traces' mean, and as good as the better half of them, or better still."""
    run = offline_learning.learn(algo, "tf", 0, traces)
    assert -1000 < run.traces < -500, run
    assert run.learnt > run.traces + 300 and run.learnt > run.better - 50, run


# --- the script, in no time


@pytest.mark.skipif(not has("torch"), reason="no package for torch")
def test_a_run_and_its_row(tmp_path):
    folder = tmp_path / "traces"
    offline_learning.write_traces(folder, "torch", episodes=4, steps=200)
    returns = offline_learning.returns_in(folder)
    assert returns.shape == (4,) and np.all(returns < 0) and len(set(returns)) == 4
    runs = [offline_learning.learn(algo, "torch", 0, folder, 3) for algo in ("CQL", "CRR", "IQL")]
    for run in runs:
        assert run.traces == pytest.approx(returns.mean()) and run.better == pytest.approx(returns[2:].mean())
        assert -2000 < run.learnt < 0 and run.seconds > 0
    table = tmp_path / "OFFLINE_LEARNING.md"
    offline_learning.write(runs, table)
    offline_learning.write(runs[:1], table)
    lines = table.read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[-3:]] == ["| CQL", "| CRR", "| IQL"]
    assert all(line.count(" | ") == offline_learning.COLUMNS.count(" | ") for line in lines[-3:])
