"""Action distributions of your own: one over `ops` for every framework, one of the framework's own library.

python examples/custom_action_dist.py --kind ops --framework tf2
python examples/custom_action_dist.py --kind library --framework torch
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.algorithms.ppo import PPOConfig
from polylib.models.distributions import Distribution, framework_distribution


class Target(gym.Env[Any, Any]):
    """The reward is minus the distance of the action from the observation."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, config: Any = None) -> None:
        self.t = 0

    def _draw(self) -> Any:
        self.target = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.target

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new target."""
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The next target; an episode has ten."""
        reward = -float(np.abs(action - self.target).sum())
        self.t += 1
        return self._draw(), reward, False, self.t == 10, {}


class Laplace(Distribution):
    """A Laplace distribution around the network's output, its scale fixed: written once, for every framework.

    Noise comes from the host, so that a seed gives the same actions everywhere.

    Args:
        space: of actions.
    """

    scale = 0.2

    def __init__(self, space: gym.Space[Any]) -> None:
        self.inputs_size = self.noise_size = self.raw_size = int(np.prod(space.shape or ()))

    def noise(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Standard Laplace numbers."""
        return rng.laplace(size=(batch_size, self.noise_size)).astype(np.float32)

    def sample(self, ops: Any, inputs: Any, noise: Any) -> tuple[Any, Any]:
        """Actions inside the space, and the samples before clipping, which likelihoods are of."""
        raw = inputs + self.scale * noise
        return ops.clip(raw, -1.0, 1.0), raw

    def logp(self, ops: Any, inputs: Any, actions: Any, raw: Any = None) -> Any:
        """Log-density `[B]`."""
        x = actions if raw is None else raw
        return ops.sum(-ops.abs(x - inputs) / self.scale - math.log(2.0 * self.scale), -1)

    def entropy(self, ops: Any, inputs: Any) -> Any:
        """`log(2 e b)` in each dimension."""
        return ops.sum(ops.zeros_like(inputs) + (1.0 + math.log(2.0 * self.scale)), -1)

    def kl(self, ops: Any, inputs: Any, other: Any) -> Any:
        """`exp(-d) + d - 1` for means that are d scales apart, in each dimension."""
        distance = ops.abs(inputs - other) / self.scale
        return ops.sum(ops.exp(-distance) + distance - 1.0, -1)


def library_distribution(framework: str) -> Any:
    """A Gaussian with a bounded scale, of torch or of TensorFlow Probability (pip install tensorflow-probability)."""
    if framework == "torch":
        import torch

        def make(inputs: Any) -> Any:
            return torch.distributions.Normal(inputs[:, :1], 0.1 + 0.3 * torch.sigmoid(inputs[:, 1:]))

    else:
        import tensorflow as tf
        import tensorflow_probability as tfp

        def make(inputs: Any) -> Any:
            return tfp.distributions.Normal(inputs[:, :1], 0.1 + 0.3 * tf.sigmoid(inputs[:, 1:]))

    return framework_distribution(make, inputs_size=2)


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the last mean reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="ops", choices=["ops", "library"])
    parser.add_argument("--framework", default="torch", choices=["tf", "tf2", "torch"])
    parser.add_argument("--iterations", type=int, default=8)
    args = parser.parse_args(argv)

    dist = Laplace if args.kind == "ops" else library_distribution(args.framework)
    config = (
        PPOConfig()
        .environment(Target)
        .framework(args.framework)
        .rollouts(num_envs_per_worker=8)
        .training(
            lr=3e-3,
            gamma=0.0,
            train_batch_size=400,
            sgd_minibatch_size=100,
            num_sgd_iter=8,
            model={"fcnet_hiddens": [32], "custom_action_dist": dist},
        )
        .debugging(seed=0)
    )
    with config.build() as algo:
        for _ in range(args.iterations):
            result = algo.train()
            print(f"{result['timesteps_total']:6d} steps, mean reward {result['episode_reward_mean']:.1f}")
        action = algo.compute_single_action(np.array([0.5], np.float32), explore=False)
        print(f"at a target of 0.5 it acts {action[0]:.2f}")
    return float(result["episode_reward_mean"])


if __name__ == "__main__":
    main()
