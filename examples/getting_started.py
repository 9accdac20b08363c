"""Train PPO on CartPole, save it, go on in another framework, and act from the checkpoint without any framework.

python examples/getting_started.py --framework torch --iterations 5
"""

from __future__ import annotations

import argparse
import tempfile

import gymnasium as gym

import polylib
from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo import PPOConfig


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the return of the last episode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default=None, choices=["tf", "tf2", "torch"])
    parser.add_argument("--other", default=None, choices=["tf", "tf2", "torch"], help="the framework to go on in")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4000, help="environment steps per iteration")
    args = parser.parse_args(argv)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .rollouts(num_envs_per_worker=4)
        .training(train_batch_size=args.batch)
        .debugging(seed=0)
    )
    if args.framework:
        config.framework(args.framework)
    with config.build() as algo, tempfile.TemporaryDirectory() as folder:
        for _ in range(args.iterations):
            result = algo.train()
            print(f"{result['timesteps_total']:6d} steps, mean reward {result['episode_reward_mean']:.1f}")
        path = algo.save(f"{folder}/checkpoint").checkpoint.path

        changes = {"framework": args.other} if args.other else {}
        with Algorithm.from_checkpoint(path, config=changes) as other:
            result = other.train()
            print(f"{result['timesteps_total']:6d} steps, mean reward {result['episode_reward_mean']:.1f}, {other}")

        # Plain NumPy from here on: what a robot or a server needs.
        policy = polylib.load_policy(path)
        env = gym.make("CartPole-v1")
        obs, _ = env.reset(seed=0)
        total, done = 0.0, False
        while not done:
            obs, reward, terminated, truncated, _ = env.step(policy.compute_single_action(obs, explore=False))
            total, done = total + float(reward), terminated or truncated
    print(f"one episode: {total:.0f}")
    return total


if __name__ == "__main__":
    main()
