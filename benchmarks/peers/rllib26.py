"""RLlib 2.6, the last whose DQN and SAC can be built in all frameworks, timed for bench.py."""

from __future__ import annotations

import os
import time
from typing import Any

from protocol import ONE_THREAD, Case, serve


class OffPolicy(Case):
    """Iterations after learning has started; what is counted are updates."""

    def __init__(self, config: Any, mode: str, steps: int) -> None:
        import ray

        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=256 * 1024**2,
        )
        if mode == "torch":
            import torch

            torch.set_num_threads(1)
        framework, traced = ("tf2", True) if mode == "tf2-traced" else (mode, False)
        if framework == "tf2":
            from ray.rllib.utils.framework import try_import_tf

            tf1, _, _ = try_import_tf()
            tf1.enable_eager_execution()
        self.algo = (
            config.framework(framework, eager_tracing=traced, **ONE_THREAD)
            .resources(num_gpus=0)
            .debugging(log_level="ERROR", seed=0)
            .training(num_steps_sampled_before_learning_starts=500)
            .reporting(min_sample_timesteps_per_iteration=steps, min_time_s_per_iteration=0)
            .build()
        )
        while self.algo._counters["num_env_steps_sampled"] < 500 + steps:
            self.algo.train()

    def window(self, n: int, k: int) -> tuple[float, float]:
        counters, start = self.algo._counters, time.perf_counter()
        before = counters["num_env_steps_trained"]
        for _ in range(n):
            self.algo.train()
        spent = time.perf_counter() - start
        return spent, (counters["num_env_steps_trained"] - before) / self.algo.config.train_batch_size

    def close(self) -> None:
        import ray

        self.algo.stop()
        ray.shutdown()


class DQN(OffPolicy):
    """DQN on CartPole."""

    def __init__(
        self,
        mode: str,
        hiddens: list[int],
        dueling: list[int],
        batch: int,
        every: int,
        prioritized: bool,
        epsilon: float,
        steps: int,
    ) -> None:
        from ray.rllib.algorithms.dqn import DQNConfig

        kind = "MultiAgentPrioritizedReplayBuffer" if prioritized else "MultiAgentReplayBuffer"
        config = DQNConfig()
        replay = {**config.replay_buffer_config, "type": kind, "capacity": 50_000}
        config = (
            config.environment("CartPole-v1")
            .rollouts(num_rollout_workers=0, rollout_fragment_length=every)
            .training(
                model={"fcnet_hiddens": hiddens, "fcnet_activation": "tanh" if dueling else "relu"},
                hiddens=dueling,
                dueling=bool(dueling),
                double_q=bool(dueling),
                train_batch_size=batch,
                training_intensity=None if every == 1 else batch / every,
                replay_buffer_config=replay,
            )
            .exploration(
                exploration_config={"type": "EpsilonGreedy", "initial_epsilon": epsilon, "final_epsilon": epsilon}
            )
        )
        super().__init__(config, mode, steps)


class SAC(OffPolicy):
    """SAC on Pendulum."""

    def __init__(self, mode: str, hiddens: list[int], batch: int, steps: int) -> None:
        from ray.rllib.algorithms.sac import SACConfig

        nets = {"fcnet_hiddens": hiddens, "fcnet_activation": "relu"}
        config = (
            SACConfig()
            .environment("Pendulum-v1")
            .rollouts(num_rollout_workers=0, rollout_fragment_length=1)
            .training(q_model_config=nets, policy_model_config=nets, train_batch_size=batch)
        )
        super().__init__(config, mode, steps)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    serve({"dqn": DQN, "sac": SAC})
