"""Learning: SGD, whole iterations, and the time until CartPole is solved."""

from __future__ import annotations

from typing import Any

from peers.protocol import Calls, TimeToReward

from rows.algo import Built, config, start_ray, stop_ray
from rows.spec import Bound, Row

# 31 minibatches of 128 without a remainder, which the three libraries treat differently.
_ROWS = 3968
_BATCH = {"rows": 4000, "minibatch": 128, "epochs": 10}
# Stable-Baselines3's zoo has these for CartPole-v1 (but lets learning rate and clip range fall over a longer run).
ZOO: dict[str, Any] = {
    "rows": 256,
    "minibatch": 256,
    "epochs": 20,
    "lr": 1e-3,
    "gamma": 0.98,
    "lambda": 0.8,
    "clip": 0.2,
    "vf_coeff": 0.5,
    "vf_clip": 1e6,
    "kl_coeff": 0.0,
    "grad_clip": 0.5,
    "hiddens": [64, 64],
}
# RLlib's defaults, but for the learning rate and fewer epochs.
DEFAULTS: dict[str, Any] = {
    "rows": 4000,
    "minibatch": 128,
    "epochs": 10,
    "lr": 3e-4,
    "gamma": 0.99,
    "lambda": 1.0,
    "clip": 0.3,
    "vf_coeff": 1.0,
    "vf_clip": 10.0,
    "kl_coeff": 0.2,
    "grad_clip": None,
    "hiddens": [256, 256],
}
ROWS = [
    Row(
        "sgd",
        "SGD updates of 128 rows",
        "updates/s",
        "rate",
        "sgd",
        {"": {"rows": _ROWS, "minibatch": 128, "epochs": 3}, "tf2": {"epochs": 1}},
        modes=("torch", "tf", "tf2-traced", "tf2"),
        peers={
            "rllib": {
                "torch": Bound(1.6, 2.3),
                "tf": Bound(1.4, 1.8),
                "tf2-traced": Bound(2.2, 3.2),
                "tf2": Bound(1.5, 3),
            },
            "sb3": {"": Bound(None, 2)},
        },
        one_process=True,
    ),
    Row(
        "train-0x1",
        "train() of 4000 steps, 0 workers x 1 env",
        "s",
        "seconds",
        "train",
        {"": {"workers": 0, "envs": 1, **_BATCH}},
        peers={"rllib": {"": Bound(4, 6)}},
        slow=True,
        one_process=True,
    ),
    Row(
        "train-2x8",
        "train() of 4000 steps, 2 workers x 8 envs",
        "s",
        "seconds",
        "train",
        {"": {"workers": 2, "envs": 8, **_BATCH}},
        peers={"rllib": {"": Bound(2.5, 3)}},
        slow=True,
    ),
    Row(
        "reward-450",
        "wall to mean return 450, 8 envs, the zoo's settings",
        "s",
        "seconds",
        "reward",
        {"": {"workers": 0, "envs": 8, "ppo": ZOO}},
        peers={"rllib": {"": Bound(4, 8)}, "sb3": {"": Bound(1.3, 3)}},
        windows=3,
        peer_windows={"rllib": 2},
        slow=True,
        note="All three with the settings that Stable-Baselines3's zoo has for CartPole-v1; a window is a seed.",
    ),
    Row(
        "reward-450-2x8",
        "wall to mean return 450, 2 workers x 8 envs, RLlib's settings",
        "s",
        "seconds",
        "reward",
        {"": {"workers": 2, "envs": 8, "ppo": DEFAULTS}},
        modes=("torch",),
        peers={"rllib": {}},
        windows=3,
        peer_windows={"rllib": 1},
        slow=True,
        note="RLlib's defaults, but for lr 3e-4, 10 epochs and fragments that fill a batch; a window is a seed.",
    ),
]


class SGD(Built):
    """Epochs of minibatch updates on one training batch, as PPO's training step does them."""

    def __init__(self, mode: str, rows: int, minibatch: int, epochs: int) -> None:
        from polylib.algorithms.ppo.loss import standardized
        from polylib.execution.sgd import synchronous_sample, train_minibatches

        super().__init__(mode, 0, 8, train_batch_size=rows)
        policy, rng = self.algo.get_policy(), self.algo.rng
        batch, _ = synchronous_sample(self.algo.workers, rows)
        batch["advantages"] = standardized(batch["advantages"])
        calls = Calls(
            lambda: train_minibatches(policy, batch, minibatch, epochs, rng), epochs * (batch.count // minibatch)
        )
        self.window = calls.window  # type: ignore[method-assign]


class Train(Built):
    """Whole iterations."""

    def __init__(self, mode: str, workers: int, envs: int, rows: int, minibatch: int, epochs: int) -> None:
        super().__init__(
            mode, workers, envs, train_batch_size=rows, sgd_minibatch_size=minibatch, num_sgd_iter=epochs
        )
        self.window = Calls(self.algo.train).window  # type: ignore[method-assign]


class Reward(TimeToReward):
    """Time to a mean return."""

    def __init__(self, mode: str, workers: int, envs: int, ppo: dict[str, Any]) -> None:
        self.config = config(
            mode,
            workers,
            envs,
            **{
                "lr": ppo["lr"],
                "gamma": ppo["gamma"],
                "lambda_": ppo["lambda"],
                "train_batch_size": ppo["rows"],
                "sgd_minibatch_size": ppo["minibatch"],
                "num_sgd_iter": ppo["epochs"],
                "clip_param": ppo["clip"],
                "vf_loss_coeff": ppo["vf_coeff"],
                "vf_clip_param": ppo["vf_clip"],
                "kl_coeff": ppo["kl_coeff"],
                "grad_clip": ppo["grad_clip"],
                "model": {"fcnet_hiddens": ppo["hiddens"]},
            },
        )
        start_ray(workers)

    def start(self, seed: int) -> None:
        self.algo = self.config.copy().debugging(seed=seed).build()

    def iterate(self) -> tuple[float, float]:
        result = self.algo.train()
        mean = result["episode_reward_mean"]
        return (0.0 if mean != mean else mean), result["timesteps_total"]

    def finish(self) -> None:
        self.algo.stop()

    def close(self) -> None:
        stop_ray()
