"""Learning from a replay buffer, end to end: environment steps, replay and updates in one loop."""

from __future__ import annotations

import time
from typing import Any

from peers.protocol import Case

from rows.spec import MODES, Bound, Row

# Most steps of a run are taken with little exploration, that is by the network.
_EPSILON = 0.05
# Environment steps of an iteration; a window is one iteration.
_STEPS = 200
# RLlib's defaults: double, dueling and prioritized, a batch of 32 for every environment step.
_RAINBOWISH = {
    "hiddens": [256, 256],
    "dueling": [256],
    "batch": 32,
    "every": 1,
    "prioritized": True,
    "epsilon": _EPSILON,
}
# Stable-Baselines3's: plain, uniform replay, a batch of 32 for every 4 environment steps.
_PLAIN = {"hiddens": [64, 64], "dueling": [], "batch": 32, "every": 4, "prioritized": False, "epsilon": _EPSILON}
_SAC = {"hiddens": [256, 256], "batch": 256}
ROWS = [
    Row(
        "dqn-rllib",
        "DQN on CartPole-v1, RLlib's defaults (double, dueling, prioritized)",
        "updates/s",
        "rate",
        "dqn",
        {"": {**_RAINBOWISH, "steps": _STEPS}},
        peers={"rllib26": {"": Bound(8)}},
        one_process=True,
        note="One update of 32 rows per environment step, two hidden layers of 256 and heads of 256.",
    ),
    Row(
        "dqn-sb3",
        "DQN on CartPole-v1, Stable-Baselines3's defaults",
        "updates/s",
        "rate",
        "dqn",
        {"": {**_PLAIN, "steps": 4 * _STEPS}},
        peers={"rllib26": {"": Bound(8)}, "sb3": {"": Bound(1.5)}},
        one_process=True,
        note="One update of 32 rows per 4 environment steps, two hidden layers of 64, uniform replay.",
    ),
    Row(
        "sac",
        "SAC on Pendulum-v1",
        "updates/s",
        "rate",
        "sac",
        {"": {**_SAC, "steps": _STEPS}},
        peers={"rllib26": {"": Bound(3)}, "sb3": {"": Bound(1.2)}},
        one_process=True,
        note="One update of 256 rows per environment step, two hidden layers of 256, twin critics.",
    ),
]


class OffPolicy(Case):
    """Iterations after learning has started; what is counted are updates."""

    def __init__(self, config: Any, mode: str, steps: int) -> None:
        framework, traced = MODES[mode]
        self.algo = (
            config.framework(framework, eager_tracing=traced)
            .debugging(seed=0)
            .training(num_steps_sampled_before_learning_starts=500)
            .reporting(min_sample_timesteps_per_iteration=steps, min_time_s_per_iteration=0)
            .build()
        )
        while not self.algo.get_policy().num_updates:
            self.algo.train()

    def window(self, n: int, k: int) -> tuple[float, float]:
        policy = self.algo.get_policy()
        before, start = policy.num_updates, time.perf_counter()
        for _ in range(n):
            self.algo.train()
        return time.perf_counter() - start, policy.num_updates - before

    def close(self) -> None:
        self.algo.stop()


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
        from polylib.algorithms.dqn import DQNConfig

        kind = "MultiAgentPrioritizedReplayBuffer" if prioritized else "MultiAgentReplayBuffer"
        config = (
            DQNConfig()
            .environment("CartPole-v1")
            .rollouts(rollout_fragment_length=every)
            .training(
                model={"fcnet_hiddens": hiddens, "fcnet_activation": "tanh" if dueling else "relu"},
                hiddens=dueling,
                dueling=bool(dueling),
                double_q=bool(dueling),
                train_batch_size=batch,
                training_intensity=None,
                replay_buffer_config={"type": kind, "capacity": 50_000},
            )
            .exploration(exploration_config={"initial_epsilon": epsilon, "final_epsilon": epsilon})
        )
        super().__init__(config, mode, steps)


class SAC(OffPolicy):
    """SAC on Pendulum."""

    def __init__(self, mode: str, hiddens: list[int], batch: int, steps: int) -> None:
        from polylib.algorithms.sac import SACConfig

        nets = {"fcnet_hiddens": hiddens, "fcnet_activation": "relu"}
        config = (
            SACConfig()
            .environment("Pendulum-v1")
            .rollouts(rollout_fragment_length=1)
            .training(q_model_config=nets, policy_model_config=nets, train_batch_size=batch)
        )
        super().__init__(config, mode, steps)
