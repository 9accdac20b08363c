"""A Keras subclass with BatchNormalization and Dropout: `training` is True in updates only, in every mode.

python examples/custom_keras_batchnorm.py --framework tf
"""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np

from polylib.algorithms.ppo import PPOConfig


class Normalised(keras.Model):
    """The class itself is the factory; polylib adds a value network, since there is one output: logits."""

    def __init__(self, observation_space: Any, action_space: Any, outputs: dict[str, int], units: int = 32) -> None:
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.hidden = keras.layers.Dense(units, activation="tanh", kernel_regularizer="l2")
        self.dropout = keras.layers.Dropout(0.05)
        self.head = keras.layers.Dense(outputs["logits"])

    def call(self, obs: Any, training: bool = False) -> Any:
        """Logits `[N, logits]` of observations `[N, 4]`."""
        x = self.hidden(self.norm(obs, training=training))
        return self.head(self.dropout(x, training=training))


def main(argv: list[str] | None = None) -> np.ndarray:
    """Runs the example; returns the means that batch norm has seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="tf2", choices=("tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2000)
    args = parser.parse_args(argv)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .framework(args.framework)
        .training(train_batch_size=args.batch, num_sgd_iter=10, model={"custom_model": Normalised})
        .debugging(seed=0)
    )
    with config.build() as algo:
        for _ in range(args.iterations):
            print(f"mean reward {algo.train()['episode_reward_mean']:.1f}")
        means = keras.ops.convert_to_numpy(algo.get_policy().model.norm.moving_mean)
    print(f"observations were around {means.round(3)}")
    return means


if __name__ == "__main__":
    main()
