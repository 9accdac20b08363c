"""Train a functional Keras model of your own, in any of the TensorFlow modes.

python examples/custom_keras_model.py --framework tf
"""

from __future__ import annotations

import argparse
from typing import Any

import keras

from polylib.algorithms.ppo import PPOConfig


def my_net(observation_space: Any, action_space: Any, outputs: dict[str, int], units: int = 64) -> keras.Model:
    """A shared trunk with a head for each output; `outputs` is `{"logits": 2, "value": 1}` for CartPole."""
    x = inputs = keras.Input(observation_space.shape)
    for _ in range(2):
        x = keras.layers.Dense(units, activation="tanh")(x)
    return keras.Model(inputs, {name: keras.layers.Dense(width, name=name)(x) for name, width in outputs.items()})


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the last mean reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="tf2", choices=("tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2000)
    args = parser.parse_args(argv)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .framework(args.framework)
        .training(
            train_batch_size=args.batch,
            num_sgd_iter=10,
            model={"custom_model": my_net, "custom_model_config": {"units": 32}},
        )
        .debugging(seed=0)
    )
    with config.build() as algo:
        algo.get_policy().model.summary()
        for _ in range(args.iterations):
            reward = float(algo.train()["episode_reward_mean"])
            print(f"mean reward {reward:.1f}")
    return reward


if __name__ == "__main__":
    main()
