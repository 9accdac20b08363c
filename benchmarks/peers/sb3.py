"""Stable-Baselines3's PPO, DQN and SAC, timed for bench.py. Runs in an environment of its own, made by setup.sh."""

from __future__ import annotations

import time
from typing import Any

from protocol import Calls, Case, ImportTime, TimeToReward, serve

ENV = "CartPole-v1"


def make(envs: int, n_steps: int, minibatch: int, epochs: int, hiddens: list[int], **settings: Any) -> Any:
    """PPO with two separate branches, ready to collect rollouts."""
    import torch
    from stable_baselines3 import PPO  # type: ignore[import-not-found]
    from stable_baselines3.common.env_util import make_vec_env  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    return PPO(
        "MlpPolicy",
        make_vec_env(ENV, n_envs=envs, seed=settings.get("seed", 0)),
        n_steps=n_steps,
        batch_size=minibatch,
        n_epochs=epochs,
        policy_kwargs={"net_arch": {"pi": hiddens, "vf": hiddens}},
        device="cpu",
        **settings,
    )


def ready(model: Any) -> Any:
    """What `learn()` does before its loop; returns the callback that rollouts take."""
    _, callback = model._setup_learn(10**9)
    callback.on_training_start({}, {})
    return callback


class Act(Case):
    """Actions with their log-probabilities (and values, which its forward pass always computes)."""

    def __init__(self, mode: str, batch: int) -> None:
        import numpy as np
        import torch

        policy = make(1, 128, 128, 1, [256, 256]).policy
        obs = np.random.default_rng(0).uniform(-0.05, 0.05, (batch, 4)).astype(np.float32)
        obs = obs[0] if batch == 1 else obs

        def call() -> Any:
            with torch.no_grad():
                actions, _, log_prob = policy(policy.obs_to_tensor(obs)[0])
            return actions.numpy(), log_prob.numpy()

        self.window = Calls(call).window  # type: ignore[method-assign]


class Sample(Case):
    """Collecting rollouts, advantages included."""

    def __init__(self, mode: str, envs: int, steps: int) -> None:
        self.model = make(envs, steps // envs, 128, 1, [256, 256])
        self.callback = ready(self.model)

    def window(self, n: int, k: int) -> tuple[float, float]:
        model, before = self.model, self.model.num_timesteps
        start = time.perf_counter()
        for _ in range(n):
            model.collect_rollouts(model.env, self.callback, model.rollout_buffer, model.n_steps)
        return time.perf_counter() - start, model.num_timesteps - before


class SGD(Case):
    """Epochs of minibatch updates on one rollout."""

    def __init__(self, mode: str, rows: int, minibatch: int, epochs: int) -> None:
        self.model = make(8, rows // 8, minibatch, epochs, [256, 256])
        callback = ready(self.model)
        self.model.collect_rollouts(self.model.env, callback, self.model.rollout_buffer, self.model.n_steps)
        self.window = Calls(self.model.train, epochs * (rows // minibatch)).window  # type: ignore[method-assign]


class Reward(TimeToReward):
    """Time to a mean return, by the loop of its `learn()` without its logging."""

    def __init__(self, mode: str, workers: int, envs: int, ppo: dict[str, Any]) -> None:
        self.envs, self.ppo = envs, ppo

    def start(self, seed: int) -> None:
        ppo = self.ppo
        self.model = make(
            self.envs,
            ppo["rows"] // self.envs,
            ppo["minibatch"],
            ppo["epochs"],
            ppo["hiddens"],
            learning_rate=ppo["lr"],
            gamma=ppo["gamma"],
            gae_lambda=ppo["lambda"],
            clip_range=ppo["clip"],
            vf_coef=ppo["vf_coeff"],
            max_grad_norm=ppo["grad_clip"],
            seed=seed,
        )
        self.callback = ready(self.model)

    def iterate(self) -> tuple[float, float]:
        model = self.model
        model.collect_rollouts(model.env, self.callback, model.rollout_buffer, model.n_steps)
        model.train()
        returns = [episode["r"] for episode in model.ep_info_buffer]
        return sum(returns) / max(1, len(returns)), model.num_timesteps


class OffPolicy(Case):
    """The loop of `learn()` without its logging, once learning has started; what is counted are updates."""

    def __init__(self, model: Any, steps: int) -> None:
        self.model, self.steps = model, steps
        self.callback = ready(model)
        while not model._n_updates:
            self._round()

    def _round(self) -> int:
        model = self.model
        done = model.collect_rollouts(
            model.env,
            train_freq=model.train_freq,
            action_noise=model.action_noise,
            callback=self.callback,
            learning_starts=model.learning_starts,
            replay_buffer=model.replay_buffer,
            log_interval=None,
        )
        if model.num_timesteps > model.learning_starts:
            model.train(batch_size=model.batch_size, gradient_steps=1)
        return int(done.episode_timesteps)

    def window(self, n: int, k: int) -> tuple[float, float]:
        before, start = self.model._n_updates, time.perf_counter()
        for _ in range(n):
            steps = 0
            while steps < self.steps:
                steps += self._round()
        return time.perf_counter() - start, self.model._n_updates - before


def dqn(
    mode: str,
    hiddens: list[int],
    dueling: list[int],
    batch: int,
    every: int,
    prioritized: bool,
    epsilon: float,
    steps: int,
) -> Case:
    """DQN on CartPole; it has neither dueling heads nor prioritized replay."""
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy",
        ENV,
        learning_starts=500,
        buffer_size=50_000,
        batch_size=batch,
        train_freq=every,
        target_update_interval=500,
        exploration_initial_eps=epsilon,
        exploration_final_eps=epsilon,
        policy_kwargs={"net_arch": hiddens},
        device="cpu",
        seed=0,
    )
    return OffPolicy(model, steps)


def sac(mode: str, hiddens: list[int], batch: int, steps: int) -> Case:
    """SAC on Pendulum."""
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC(
        "MlpPolicy",
        "Pendulum-v1",
        learning_starts=500,
        batch_size=batch,
        train_freq=1,
        policy_kwargs={"net_arch": hiddens},
        device="cpu",
        seed=0,
    )
    return OffPolicy(model, steps)


def imports(mode: str) -> Case:
    return ImportTime("from stable_baselines3 import PPO")


if __name__ == "__main__":
    serve({"act": Act, "sample": Sample, "sgd": SGD, "reward": Reward, "import": imports, "dqn": dqn, "sac": sac})
