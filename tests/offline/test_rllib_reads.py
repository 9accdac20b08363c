"""RLlib's own reader on traces that polylib wrote. Needs RLlib, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from offline.batches import cartpole

from polylib.offline import JsonReader, JsonWriter
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

PYTHON = os.environ.get("POLYLIB_RLLIB_PYTHON")
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "read_traces.py"

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="POLYLIB_RLLIB_PYTHON doesn't name the Python of an environment with ray[rllib] and lz4"
)


def pendulum(rows: int) -> SampleBatch:
    env = gym.make("Pendulum-v1")
    env.action_space.seed(0)
    obs = [env.reset(seed=0)[0]]
    actions, rewards = [], []
    for _ in range(rows):
        actions.append(env.action_space.sample())
        step = env.step(actions[-1])
        obs.append(step[0])
        rewards.append(np.float32(step[1]))
    return SampleBatch(
        obs=np.stack(obs[:-1]), new_obs=np.stack(obs[1:]), actions=np.stack(actions), rewards=np.array(rewards)
    )


def test_rllib_reads_lists_to_the_same_values(tmp_path):
    rng = np.random.default_rng(0)
    batches = [
        *(cartpole(50, eps_id=i) for i in range(4)),
        pendulum(30),
        MultiAgentBatch({"p0": cartpole(5), "p1": cartpole(3)}, 6),
        SampleBatch(obs=rng.integers(0, 256, (3, 84, 84, 4), dtype=np.uint8), infos=np.array([{}, {"a": 1}, {}])),
    ]
    spaces = (gym.make("CartPole-v1").observation_space, gym.make("CartPole-v1").action_space)
    with JsonWriter(tmp_path / "traces", compress_columns=[], max_file_size=30_000, spaces=spaces) as writer:
        for batch in batches:
            writer.write(batch)
    command = [str(PYTHON), str(SCRIPT), "read", str(tmp_path / "traces"), str(tmp_path / "read.npz")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    ours = list(JsonReader(sorted(map(str, (tmp_path / "traces").iterdir()))))
    with np.load(tmp_path / "read.npz", allow_pickle=True) as theirs:
        assert theirs["counts"].tolist() == [batch.env_steps() for batch in ours]
        seen = {"counts"}
        for i, batch in enumerate(ours):
            for policy_id, columns in batch.as_multi_agent().policy_batches.items():
                for name, column in columns.items():
                    key = f"{i}/{policy_id}/{name}"
                    seen.add(key)
                    # In float64: not merely the nearest float32.
                    np.testing.assert_array_equal(theirs[key], column, key)
        assert seen == set(theirs.files)
