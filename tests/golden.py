"""Golden checkpoints: written once by each framework, and never again for the same version of the format.

`python tests/golden.py` writes those of this version; a newer format gets a folder of its own beside them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from fakes import MatchEnv, small_ppo

FOLDER = Path(__file__).parent / "data" / "golden"
_OBS = 5


def frozen_config(env: Any, framework: str) -> Any:
    """A run in which everything moves that can."""
    return small_ppo(
        env,
        (framework, framework == "tf2"),
        seed=7,
        num_envs_per_worker=2,
        train_batch_size=32,
        sgd_minibatch_size=8,
        lr=[[0, 0.01], [1000, 0.001]],
        entropy_coeff=0.01,
        kl_target=1e-3,
        grad_clip=1.0,
        model={"fcnet_hiddens": [4]},
    )


def observations(env: Any = None) -> np.ndarray:
    """Fixed observations `[5, k]` of an environment; of CartPole by default."""
    size = 4 if env is None else gym.spaces.flatdim(env.observation_space)
    return np.sin(np.arange(_OBS * size, dtype=np.float32)).reshape(_OBS, size) * 0.5


def golden_batch(policy: Any) -> dict[str, np.ndarray]:
    """A batch of 16 rows to learn from, that no policy has sampled."""
    rng = np.random.default_rng(5)
    size, space = 16, policy.action_space
    inputs = rng.standard_normal((size, policy.objective.dist.inputs_size), np.float32)
    return {
        "obs": rng.standard_normal((size, *policy.observation_space.shape), np.float32),
        "actions": space.start + rng.integers(space.n, size=size),
        "action_dist_inputs": inputs,
        "action_logp": np.full(size, -1.0, np.float32),
        "advantages": rng.standard_normal(size, np.float32),
        "value_targets": rng.standard_normal(size, np.float32),
    }


def described(policy: Any) -> dict[str, np.ndarray]:
    """What CartPole's policy says about fixed observations, and its optimizer's state."""
    logits = policy.compute_actions(observations(), explore=False).extras["action_dist_inputs"]
    optimizer = {f"optimizer/{key}": value for key, value in policy.get_state()["optimizer"].items()}
    return {"logits": logits, "values": policy.compute_values(observations()), **optimizer}


def expected_of(framework: str) -> dict[str, np.ndarray]:
    """What the policy of a golden checkpoint said when it was written."""
    return dict(np.load(FOLDER / framework / "expected.npz"))


def write(framework: str) -> None:
    """Writes the checkpoint of a framework, after two iterations, and what comes next."""
    folder = FOLDER / framework
    shutil.rmtree(folder, ignore_errors=True)
    algo = frozen_config(MatchEnv, framework).build()
    for _ in range(2):
        algo.train()
    algo.save(folder / "checkpoint")
    policy, obs = algo.get_policy(), observations(MatchEnv())
    expected = {
        "logits": policy.compute_actions(obs, explore=False).extras["action_dist_inputs"],
        "values": policy.compute_values(obs),
        "sampled": policy.compute_actions(obs, explore=True).actions,
    }
    algo.restore(folder / "checkpoint")
    expected["reward"] = algo.train()["episode_reward_mean"]
    expected.update({f"next/{key}": value for key, value in policy.get_weights().items()})
    np.savez(folder / "expected.npz", **expected)
    algo.stop()


if __name__ == "__main__":
    for name in sys.argv[1:] or ("tf", "tf2", "torch"):
        write(name)
