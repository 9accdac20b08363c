"""PPO's own traces teach others: DQN and BC reach 150 on CartPole from them, in every mode. Minutes: `make learn`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from modes import FAST_MODES, MODES, has, mode_id

_PATH = Path(__file__).parents[2] / "examples" / "offline.py"
_SPEC = importlib.util.spec_from_file_location("example_offline", _PATH)
offline = importlib.util.module_from_spec(_SPEC)
sys.modules["example_offline"] = offline
_SPEC.loader.exec_module(offline)

AVAILABLE = [mode for mode in FAST_MODES if has(mode[0])]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A folder by framework, recorded when it is first asked for."""
    made = {}

    def recorded(framework):
        if framework not in made:
            made[framework] = str(tmp_path_factory.mktemp(framework))
            assert offline.record(made[framework], framework, 210.0, 40, 2000) >= 210
        return made[framework]

    return recorded


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("algo", ["BC", "DQN"])
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(mode, id=mode_id(*mode), marks=pytest.mark.skipif(not has(mode[0]), reason="no package"))
        for mode in MODES
    ],
)
def test_learnt_from_what_another_framework_wrote(traces, mode, algo):
    other = next((framework for framework, _ in AVAILABLE if framework[:2] != mode[0][:2]), mode[0])
    config = {
        "BC": lambda: offline.BCConfig().training(lr=1e-3).reporting(min_train_timesteps_per_iteration=20_000),
        "DQN": lambda: offline.DQNConfig().reporting(min_sample_timesteps_per_iteration=2000),
    }[algo]()
    config.framework(mode[0], eager_tracing=mode[1])
    assert offline.learn(config, traces(other), mode[0], 150.0, 40) >= 150
