"""Record what PPO does in one framework, then learn from the files in another: behavioural cloning and Q-learning.

python examples/offline.py --traces /tmp/traces --record torch --learn tf
"""

from __future__ import annotations

import argparse
from typing import Any

from polylib.algorithms.bc import BCConfig
from polylib.algorithms.dqn import DQNConfig
from polylib.algorithms.ppo import PPOConfig

ENV = "CartPole-v1"


def record(folder: str, framework: str, reward: float, iterations: int, batch: int) -> float:
    """Trains PPO until its episodes have this mean reward, and writes every step of them; the reward reached."""
    config = (
        PPOConfig()
        .environment(ENV)
        .framework(framework)
        .rollouts(num_envs_per_worker=8)
        .training(lr=3e-4, train_batch_size=batch, num_sgd_iter=10)
        .offline_data(output=folder, output_config={"format": "polylib"})
        .debugging(seed=0)
    )
    reached = 0.0
    with config.build() as algo:
        for _ in range(iterations):
            result = algo.train()
            reached = result["episode_reward_mean"]
            print(f"PPO {result['timesteps_total']:>7} steps, reward {reached:6.1f}")
            if reached >= reward:
                break
    return reached


def learn(config: Any, folder: str, framework: str, reward: float, iterations: int) -> float:
    """Learns from the files, without an environment but for evaluation, which runs greedy episodes; the best reward."""
    config = (
        config.framework(framework)
        .offline_data(input_=folder)
        .evaluation(evaluation_interval=1, evaluation_config={"env": ENV, "explore": False})
        .debugging(seed=0)
    )
    best = 0.0
    with config.build() as algo:
        for _ in range(iterations):
            result = algo.train()
            found = result["evaluation"]["episode_reward_mean"]
            best = max(best, found)
            print(f"{config.algo_name:<4}{result['timesteps_total']:>7} rows read, evaluation's reward {found:6.1f}")
            if best >= reward:
                break
    return best


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns the best reward of each algorithm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    frameworks = ("tf", "tf2", "torch")
    parser.add_argument("--traces", required=True, help="a folder for the traces")
    parser.add_argument("--record", default="torch", choices=frameworks, help="the framework that PPO runs in")
    parser.add_argument("--learn", default="torch", choices=frameworks, help="the framework that BC and DQN run in")
    parser.add_argument("--reward", type=float, default=150.0, help="when each is done")
    parser.add_argument("--iterations", type=int, default=40, help="how many each has at most")
    parser.add_argument("--batch", type=int, default=2000, help="steps of an iteration")
    args = parser.parse_args(argv)

    # PPO goes on a little longer, so that there is something good to learn from.
    ppo = record(args.traces, args.record, 1.4 * args.reward, args.iterations, args.batch)
    bc = BCConfig().training(lr=1e-3).reporting(min_train_timesteps_per_iteration=10 * args.batch)
    dqn = DQNConfig().reporting(min_sample_timesteps_per_iteration=args.batch)
    found = {
        config.algo_name: learn(config, args.traces, args.learn, args.reward, args.iterations) for config in (bc, dqn)
    }
    return {"PPO": ppo, **found}


if __name__ == "__main__":
    main()
