"""Try learning rates with Ray Tune and pick the best checkpoint.

python examples/tune_sweep.py --iterations 5
"""

from __future__ import annotations

import argparse

from ray import tune

from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.ppo import PPOConfig


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the best trial's learning rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4000, help="environment steps per iteration")
    parser.add_argument("--storage", default=None, help="where results go; default: ~/ray_results")
    args = parser.parse_args(argv)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(lr=tune.grid_search([1e-3, 1e-4]), train_batch_size=args.batch)
    )
    results = tune.Tuner(
        "PPO",
        param_space=config,
        run_config=tune.RunConfig(
            storage_path=args.storage,
            stop={"training_iteration": args.iterations},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
        ),
    ).fit()
    best = results.get_best_result(metric="episode_reward_mean", mode="max")
    lr, reward = (best.config or {})["lr"], (best.metrics or {})["episode_reward_mean"]
    print(f"best: lr {lr}, mean reward {reward:.1f}, {best.checkpoint}")
    with Algorithm.from_checkpoint(best.checkpoint) as algo:
        print(f"evaluation: {algo.evaluate()['episode_reward_mean']:.1f}")
    return float(lr)


if __name__ == "__main__":
    main()
