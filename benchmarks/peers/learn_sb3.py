"""How many environment steps Stable-Baselines3 needs for the tasks of learning.py, at the settings of its zoo.

    ~/.cache/polylib-peers/sb3/bin/python benchmarks/peers/learn_sb3.py --task dqn-acrobot --seeds 0 1 2

Prints a row for each seed: task, seed, steps (empty if the bound wasn't reached), mean reward, seconds. A run ends when
the mean reward of the last 20 training episodes reaches the bound, or after so many steps. One thread. What it prints
is copied into the tasks of learning.py (`peer`).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

LAST = 20


@dataclass(frozen=True)
class Task:
    """What is to be learned, and by what.

    Attributes:
        algo: a class of stable_baselines3.
        env: a Gymnasium id.
        bound: the mean reward.
        steps: environment steps at most.
        settings: of the zoo.
        envs: how many environments.
        decays: whether the learning rate, and PPO's clip range, fall to 0 over `decays` steps.
        noise: standard deviation of the noise on actions.
    """

    algo: str
    env: str
    bound: float
    steps: int
    settings: dict[str, Any]
    envs: int = 1
    decays: int = 0
    noise: float = 0.0


def _arch(*sizes: int) -> dict[str, Any]:
    return {"net_arch": list(sizes)}


_CARTPOLE = {
    "n_steps": 32,
    "batch_size": 256,
    "n_epochs": 20,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "ent_coef": 0.0,
    "learning_rate": 1e-3,
    "clip_range": 0.2,
}
_PENDULUM = {
    "n_steps": 1024,
    "n_epochs": 10,
    "gae_lambda": 0.95,
    "gamma": 0.9,
    "ent_coef": 0.0,
    "learning_rate": 1e-3,
    "clip_range": 0.2,
    "use_sde": True,
    "sde_sample_freq": 4,
}
_LANDER = {"n_steps": 1024, "batch_size": 64, "n_epochs": 4, "gae_lambda": 0.98, "gamma": 0.999, "ent_coef": 0.01}
_DQN_CARTPOLE = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "policy_kwargs": _arch(256, 256),
}
# How far epsilon falls, and over how many steps; the class takes the share of all steps.
_DQN_CARTPOLE_EPSILON = (0.04, 8000)
_ACROBOT = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "policy_kwargs": _arch(256, 256),
}
_ACROBOT_EPSILON = (0.1, 12_000)
_MOUNTAIN_CAR = {
    "learning_rate": 4e-3,
    "batch_size": 128,
    "buffer_size": 10_000,
    "learning_starts": 1000,
    "gamma": 0.98,
    "target_update_interval": 600,
    "train_freq": 16,
    "gradient_steps": 8,
    "policy_kwargs": _arch(256, 256),
}
_MOUNTAIN_CAR_EPSILON = (0.07, 24_000)
_TD3 = {
    "gamma": 0.98,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "train_freq": 1,
    "gradient_steps": 1,
    "learning_rate": 1e-3,
    "policy_kwargs": _arch(400, 300),
}
TASKS = {
    "ppo-cartpole-450": Task("PPO", "CartPole-v1", 450.0, 150_000, _CARTPOLE, envs=8, decays=100_000),
    "a2c-cartpole-450": Task("A2C", "CartPole-v1", 450.0, 300_000, {"ent_coef": 0.0}, envs=8),
    "dqn-cartpole-450": Task("DQN", "CartPole-v1", 450.0, 60_000, _DQN_CARTPOLE),
    "sac-pendulum": Task("SAC", "Pendulum-v1", -250.0, 30_000, {"learning_rate": 1e-3}),
    "td3-pendulum": Task("TD3", "Pendulum-v1", -250.0, 40_000, _TD3, noise=0.1),
    "ppo-pendulum-250": Task("PPO", "Pendulum-v1", -250.0, 150_000, _PENDULUM, envs=4),
    "ppo-lunarlander": Task("PPO", "LunarLander-v3", 200.0, 1_000_000, _LANDER, envs=16),
    "dqn-mountaincar": Task("DQN", "MountainCar-v0", -110.0, 120_000, _MOUNTAIN_CAR),
    "dqn-acrobot": Task("DQN", "Acrobot-v1", -100.0, 100_000, _ACROBOT),
}
EPSILONS = {
    "dqn-cartpole-450": _DQN_CARTPOLE_EPSILON,
    "dqn-mountaincar": _MOUNTAIN_CAR_EPSILON,
    "dqn-acrobot": _ACROBOT_EPSILON,
}


def learn(name: str, seed: int, steps: int | None = None) -> tuple[int | None, float, float]:
    """Steps until the bound (None: not reached), the last mean reward, seconds of training."""
    import numpy as np
    import stable_baselines3 as sb3  # type: ignore[import-not-found]
    import torch
    from stable_baselines3.common.callbacks import BaseCallback  # type: ignore[import-not-found]
    from stable_baselines3.common.env_util import make_vec_env  # type: ignore[import-not-found]
    from stable_baselines3.common.noise import NormalActionNoise  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    task = TASKS[name]
    steps = task.steps if steps is None else steps
    settings = dict(task.settings)

    def falling(start: float) -> Any:
        # The class says which share of `steps` is left.
        return lambda left: start * max(0.0, 1.0 - (1.0 - left) * steps / task.decays)

    if task.decays:
        settings |= {key: falling(settings[key]) for key in ("learning_rate", "clip_range")}
    if name in EPSILONS:
        final, over = EPSILONS[name]
        settings |= {"exploration_final_eps": final, "exploration_fraction": over / steps}
    env = make_vec_env(task.env, n_envs=task.envs, seed=seed)
    if task.noise:
        size = env.action_space.shape
        settings["action_noise"] = NormalActionNoise(np.zeros(size), np.full(size, task.noise))
    model = getattr(sb3, task.algo)("MlpPolicy", env, seed=seed, device="cpu", stats_window_size=LAST, **settings)

    class Stop(BaseCallback):
        reached: int | None = None

        def _on_step(self) -> bool:
            if len(model.ep_info_buffer) == LAST and mean() >= task.bound:
                self.reached = self.num_timesteps
                return False
            return True

    def mean() -> float:
        returns = [episode["r"] for episode in model.ep_info_buffer]
        return float(sum(returns) / len(returns)) if returns else float("nan")

    stop = Stop()
    start = time.perf_counter()
    model.learn(steps, callback=stop)
    return stop.reached, mean(), time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="at most so many")
    args = parser.parse_args()
    for seed in args.seeds:
        reached, reward, seconds = learn(args.task, seed, args.steps)
        print(f"{args.task} | {seed} | {reached or ''} | {reward:.1f} | {seconds:.1f}", flush=True)


if __name__ == "__main__":
    main()
