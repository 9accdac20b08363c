"""A policy gradient with a loss, an optimizer and gradients of your own in torch.

python examples/custom_loss_torch.py --iterations 20

Where this file can be imported, `bin/train --algo custom_loss_torch:MyTorchPG --env CartPole-v1` trains it, too.
"""

from __future__ import annotations

import argparse
from typing import Any

import polylib
from polylib.evaluation.postprocessing import compute_advantages


def postprocess(policy: Any, batch: Any, other_agent_batches: Any = None, episode: Any = None) -> Any:
    """Adds `advantages` and `value_targets` to a trajectory; NumPy."""
    config = policy.config
    return compute_advantages(batch, batch["values_bootstrapped"][-1], config["gamma"], config["lambda"])


def loss_fn(policy: Any, model: Any, dist_class: Any, train_batch: Any) -> Any:
    """Policy gradient with a baseline."""
    logits, _ = model(train_batch)
    logp = dist_class(logits, model).logp(train_batch["actions"])
    policy.policy_loss = -(logp * train_batch["advantages"]).mean()
    policy.vf_loss = (model.value_function() - train_batch["value_targets"]).square().mean()
    return policy.policy_loss + 0.5 * policy.vf_loss


def stats_fn(policy: Any, train_batch: Any) -> dict[str, Any]:
    """Scalars for the results."""
    return {"policy_loss": policy.policy_loss, "vf_loss": policy.vf_loss}


def optimizer_fn(policy: Any, config: dict[str, Any]) -> Any:
    """Any torch optimizer; its state goes into checkpoints."""
    import torch

    return torch.optim.RMSprop(policy.model.parameters(), lr=config["lr"])


def compute_gradients_fn(policy: Any, optimizer: Any, loss: Any) -> list[tuple[Any, Any]]:
    """Each gradient clipped by value."""
    return [(gradient.clamp(-1.0, 1.0), variable) for gradient, variable in optimizer.compute_gradients(loss)]


MyTorchPolicy = polylib.build_torch_policy(
    "MyTorchPolicy",
    loss_fn=loss_fn,
    postprocess_fn=postprocess,
    stats_fn=stats_fn,
    optimizer_fn=optimizer_fn,
    compute_gradients_fn=compute_gradients_fn,
    get_default_config=lambda: {"lr": 3e-3, "train_batch_size": 400},
)
MyTorchPG = polylib.build_algorithm("MyTorchPG", policy=MyTorchPolicy, config={"lambda": 0.95})


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the last mean reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--batch", type=int, default=400, help="environment steps per iteration")
    args = parser.parse_args(argv)

    config = (
        MyTorchPG.get_default_config()
        .environment("CartPole-v1")
        .rollouts(num_envs_per_worker=4)
        .training(train_batch_size=args.batch, model={"fcnet_hiddens": [32]})
        .debugging(seed=0)
    )
    with config.build() as algo:
        for _ in range(args.iterations):
            result = algo.train()
            print(f"{result['timesteps_total']:6d} steps, mean reward {result['episode_reward_mean']:.1f}")
    return float(result["episode_reward_mean"])


if __name__ == "__main__":
    main()
