"""Train on an environment of your own, on rollout workers if you like, with episodes to judge it by.

python examples/custom_env.py --num-workers 2
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium as gym
import numpy as np

from polylib import register_env
from polylib.algorithms.ppo import PPOConfig


class Corridor(gym.Env[Any, Any]):
    """Walk right to the end: -0.1 for a step, 1 at the end. Observation: the position."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.length = int(config.get("length", 5))
        self.observation_space = gym.spaces.Discrete(self.length + 1)
        self.action_space = gym.spaces.Discrete(2)
        self.position = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Back to the left end."""
        super().reset(seed=seed)
        self.position = 0
        return self.position, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """One step left (0) or right (1)."""
        self.position = int(np.clip(self.position + (1 if action == 1 else -1), 0, self.length))
        done = self.position == self.length
        return self.position, 1.0 if done else -0.1, done, False, {}


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the mean reward of the evaluation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args(argv)

    register_env("corridor", lambda config: gym.wrappers.TimeLimit(Corridor(config), 100))
    config = (
        PPOConfig()
        .environment("corridor", env_config={"length": 5})
        .rollouts(num_workers=args.num_workers)
        .training(train_batch_size=1000, num_sgd_iter=10, lr=1e-3, model={"fcnet_hiddens": [32]})
        .evaluation(evaluation_duration=5, evaluation_config={"explore": False})
        .debugging(seed=0)
    )
    with config.build() as algo:
        for _ in range(args.iterations):
            print(f"mean reward {algo.train()['episode_reward_mean']:.2f}")
        reward = algo.evaluate()["episode_reward_mean"]
    print(f"evaluation: {reward:.2f} (best possible: 0.60)")
    return float(reward)


if __name__ == "__main__":
    main()
