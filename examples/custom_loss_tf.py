"""A policy gradient with a loss of your own in TensorFlow: as a graph, eagerly (prints fire) or traced.

python examples/custom_loss_tf.py --framework tf2 --eager

Where this file can be imported, `bin/train --algo custom_loss_tf:MyPG --env CartPole-v1` trains it, too.
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
    """Policy gradient with a baseline and an entropy bonus."""
    import tensorflow as tf

    logits, _ = model(train_batch)
    dist = dist_class(logits, model)
    policy.entropy = tf.reduce_mean(dist.entropy())
    policy.policy_loss = -tf.reduce_mean(dist.logp(train_batch["actions"]) * train_batch["advantages"])
    policy.vf_loss = tf.reduce_mean(tf.square(model.value_function() - train_batch["value_targets"]))
    if tf.executing_eagerly():  # a breakpoint works as well
        print(f"loss {float(policy.policy_loss):.3f}, entropy {float(policy.entropy):.3f}")
    return policy.policy_loss + 0.5 * policy.vf_loss - policy.config["entropy_weight"] * policy.entropy


def stats_fn(policy: Any, train_batch: Any) -> dict[str, Any]:
    """Scalars for the results."""
    return {"policy_loss": policy.policy_loss, "vf_loss": policy.vf_loss, "entropy": policy.entropy}


MyPolicy = polylib.build_tf_policy(
    "MyPolicy",
    loss_fn=loss_fn,
    postprocess_fn=postprocess,
    stats_fn=stats_fn,
    get_default_config=lambda: {"lr": 5e-3, "entropy_weight": 0.01, "train_batch_size": 400},
)
MyPG = polylib.build_algorithm("MyPG", policy=MyPolicy, config={"lambda": 0.95})


def main(argv: list[str] | None = None) -> float:
    """Runs the example; returns the last mean reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="tf2", choices=["tf", "tf2"])
    parser.add_argument("--eager", action="store_true", help="tf2 without tracing")
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--batch", type=int, default=400, help="environment steps per iteration")
    args = parser.parse_args(argv)

    config = (
        MyPG.get_default_config()
        .environment("CartPole-v1")
        .framework(args.framework, eager_tracing=not args.eager)
        .rollouts(num_envs_per_worker=4)
        .training(train_batch_size=args.batch, model={"fcnet_hiddens": [32]})
        .debugging(seed=0)
    )
    with config.build() as algo:
        for _ in range(args.iterations):
            result = algo.train()
            stats = result["info"]["learner"]["default_policy"]["learner_stats"]
            print(
                f"{result['timesteps_total']:6d} steps, mean reward {result['episode_reward_mean']:.1f}, "
                f"entropy {stats['entropy']:.3f}"
            )
    return float(result["episode_reward_mean"])


if __name__ == "__main__":
    main()
