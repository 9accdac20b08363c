"""DQN with a Keras model of your own that returns the values of all actions; nothing of polylib's goes on top of it.

python examples/custom_keras_q_network.py --framework tf
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

from polylib.algorithms.dqn import DQNConfig


def main(argv: list[str] | None = None) -> np.ndarray:
    """Runs the example; returns the values of both actions at the start of an episode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="tf", choices=("tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1000, help="environment steps per iteration")
    args = parser.parse_args(argv)

    # One copy of it learns, a second one is the target network; this one stays as it is.
    q_network = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(2),
        ]
    )
    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .framework(args.framework)
        .training(
            model={"custom_model": q_network},
            # Without these the model would be the part below: what it returns would go through DQN's heads.
            hiddens=[],
            dueling=False,
            lr=1e-3,
            n_step=3,
            train_batch_size=64,
            num_steps_sampled_before_learning_starts=min(args.steps // 2, 500),
        )
        .exploration(exploration_config={"epsilon_timesteps": 3000})
        .reporting(min_sample_timesteps_per_iteration=args.steps)
        .debugging(seed=0)
    )
    with config.build() as algo:
        for _ in range(args.iterations):
            print(f"mean reward {algo.train()['episode_reward_mean']:.1f}")
        model = algo.get_policy().model  # the learning copy
        model.summary()
        q_values = model.get_q_values(model({"obs": np.zeros((1, 4), np.float32)}))
    values = np.asarray(q_values)[0]
    print(f"upright and at rest, left and right are worth {values.round(1)}")
    return values


if __name__ == "__main__":
    main()
