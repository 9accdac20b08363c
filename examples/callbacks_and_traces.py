"""Measure something of your own per episode, and record episode traces as JSON lines.

python examples/callbacks_and_traces.py --output /tmp/traces
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from polylib.algorithms.ppo import PPOConfig
from polylib.callbacks import DefaultCallbacks
from polylib.offline.json_reader import JsonReader


class PoleAngle(DefaultCallbacks):
    """Reports how far the pole leaned, on average over an episode, as custom metric `angle`."""

    def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
        """Adds a step's angle."""
        angles = episode.user_data.setdefault("angles", [])
        angles.append(abs(float(episode.last_observation_for()[2])))

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        """The episode's mean."""
        angles = episode.user_data["angles"]
        episode.custom_metrics["angle"] = sum(angles) / len(angles)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Runs the example; returns the custom metrics of the last iteration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="a folder for the traces")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1000, help="environment steps per iteration")
    args = parser.parse_args(argv)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .callbacks(PoleAngle)
        .offline_data(output=str(args.output), output_compress_columns=[])
        .training(train_batch_size=args.batch)
    )
    metrics: dict[str, float] = {}
    with config.build() as algo:
        for _ in range(args.iterations):
            metrics = algo.train()["custom_metrics"]
            print(metrics)
    traces = JsonReader(str(args.output)).read_all()
    print(traces)
    return metrics


if __name__ == "__main__":
    main()
