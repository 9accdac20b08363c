"""Train a torch module of your own, with batch norm and an auxiliary loss, and export it for a program without polylib.

python examples/custom_torch_model.py --export served
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

from polylib.algorithms.ppo import PPOConfig


class MyNet(nn.Module):
    """A shared trunk with a head for each output; `outputs` is `{"logits": 2, "value": 1}` for CartPole."""

    def __init__(self, observation_space: Any, action_space: Any, outputs: dict[str, int], units: int = 64) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(observation_space.shape[0], units),
            nn.BatchNorm1d(units),
            nn.Tanh(),
            nn.Linear(units, units),
            nn.Tanh(),
        )
        self.heads = nn.ModuleDict({name: nn.Linear(units, width) for name, width in outputs.items()})

    def forward(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits `[N, 2]` and values `[N, 1]` of observations `[N, 4]`."""
        x = self.trunk(obs)
        return {name: head(x) for name, head in self.heads.items()}

    def losses(self) -> list[torch.Tensor]:
        """Added to the loss: weights of the policy's head stay small."""
        return [1e-4 * self.heads["logits"].weight.square().sum()]


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the last mean reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2000)
    parser.add_argument("--export", help="a folder for the trained network as TorchScript")
    args = parser.parse_args(argv)

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .framework("torch")
        .training(
            train_batch_size=args.batch,
            num_sgd_iter=10,
            model={"custom_model": MyNet, "custom_model_config": {"units": 32}},
        )
        .debugging(seed=0)
    )
    with config.build() as algo:
        print(algo.get_policy().model)  # a MyNet
        for _ in range(args.iterations):
            reward = float(algo.train()["episode_reward_mean"])
            print(f"mean reward {reward:.1f}")
        if args.export:
            path = algo.export_policy_model(args.export, format="torchscript")
            actions = torch.jit.load(path)({"obs": torch.zeros(3, 4)})["actions"]
            print(f"{path} acts without polylib: {actions.tolist()}")
    return reward


if __name__ == "__main__":
    main()
