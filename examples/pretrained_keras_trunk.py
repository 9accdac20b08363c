"""A trunk that was trained before, loaded from a file and frozen, under heads that polylib trains.

python examples/pretrained_keras_trunk.py --framework tf
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import keras
import numpy as np

from polylib.algorithms.ppo import PPOConfig


def trunk() -> keras.Model:
    """Features of CartPole's observations."""
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(32, activation="relu")]
    )


def pretrain(path: Path) -> None:
    """Learns to predict the next observation from this one, on random play, and saves the trunk's weights."""
    keras.utils.set_random_seed(0)
    env = gym.make("CartPole-v1")
    env.action_space.seed(0)
    rows, obs = [], env.reset(seed=0)[0]
    for _ in range(500):
        following, _, terminated, truncated, _ = env.step(env.action_space.sample())
        rows.append((obs, following))
        obs = env.reset()[0] if terminated or truncated else following
    features = trunk()
    model = keras.Sequential([features, keras.layers.Dense(4)])
    model.compile("adam", "mse")
    before, after = map(np.stack, zip(*rows, strict=True))
    model.fit(before, after, epochs=5, verbose=0)
    features.save_weights(path)


def with_frozen_trunk(observation_space: Any, action_space: Any, outputs: dict[str, int], path: str) -> keras.Model:
    """Weights that are loaded here stay, and reach every worker; frozen ones don't change by a bit."""
    features = trunk()
    features.load_weights(path)
    features.trainable = False
    inputs = keras.Input(observation_space.shape)
    x = keras.layers.Concatenate()([features(inputs), inputs])
    x = keras.layers.Dense(32, activation="tanh")(x)
    return keras.Model(inputs, {name: keras.layers.Dense(width)(x) for name, width in outputs.items()})


def main(argv: list[str] | None = None) -> bool:
    """Runs the example; returns whether the trunk is as it was loaded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="tf2", choices=("tf", "tf2"))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2000)
    args = parser.parse_args(argv)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trunk.weights.h5"
        pretrain(path)
        model = {"custom_model": with_frozen_trunk, "custom_model_config": {"path": str(path)}}
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .framework(args.framework)
            .training(train_batch_size=args.batch, num_sgd_iter=10, model=model)
            .debugging(seed=0)
        )
        with config.build() as algo:
            loaded = algo.get_weights()["default_policy"]
            for _ in range(args.iterations):
                print(f"mean reward {algo.train()['episode_reward_mean']:.1f}")
            weights = algo.get_weights()["default_policy"]
    same = {key: bool(np.array_equal(loaded[key], value)) for key, value in weights.items()}
    print(f"unchanged: {', '.join(key for key, kept in same.items() if kept)}")
    return same["policy/000/kernel"] and same["policy/001/kernel"] and not same["policy/002/kernel"]


if __name__ == "__main__":
    main()
