"""The same logs through Open Bandit Pipeline, SCOPE-RL and RLlib: benchmarks/peers/ope.py made logs and figures."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from tabular import TablePolicy

from polylib.offline.estimators import TabularQ
from polylib.offline.estimators.registry import ESTIMATORS
from polylib.policy.sample_batch import SampleBatch

FOLDER = Path(__file__).parents[2] / "data" / "ope"
FIGURES = json.loads((FOLDER / "figures.json").read_text())
GAMMA = 0.95

# RLlib's weighted importance sampling divides by the mean weight of the episodes that reach a step and by the number
# of all: where episodes differ in length its estimates don't converge to the value, so they aren't compared.
COMPARED = [
    (peer, log, name)
    for peer, found in FIGURES.items()
    for log in found
    if log != "version"
    for name in found[log]
    if (log, name) != ("uneven", "wpdis")
]


@pytest.fixture(scope="module")
def logs():
    with np.load(FOLDER / "logs.npz") as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize(("peer", "log", "name"), COMPARED, ids=lambda x: x)
def test_figures(logs, peer, log, name):
    policy = TablePolicy(logs["target"])
    policy.observation_space, policy.action_space = gym.spaces.Discrete(4), gym.spaces.Discrete(3)
    short, _, suffix = name.partition("_")
    settings = {"epsilon_greedy": 0.3} if suffix == "epsilon" else {}
    if short == "wdr":
        short, settings = "dr", {"normalize_weights": True}
    if short.startswith("d"):
        settings["q_model"] = TabularQ(logs["q"])
    batch = SampleBatch({key.split("/")[1]: x for key, x in logs.items() if key.startswith(f"{log}/")})
    batch["action_prob"] = logs["behavior"][batch["obs"], batch["actions"]]
    found = ESTIMATORS[short](policy, GAMMA, resamples=0, **settings).estimate(batch, log != "bandit")
    expected = FIGURES[peer][log][name]
    if not isinstance(expected, dict):
        expected = {"v_target": expected}
    for key, value in expected.items():  # RLlib's are float32
        assert found[key] == pytest.approx(value, rel=1e-6 if peer != "rllib" else 1e-5), key
