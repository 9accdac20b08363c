"""Ray RLlib's old stack, timed for bench.py. Runs in an environment of its own, made by setup.sh."""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from typing import Any

from protocol import (
    ONE_THREAD,
    Calls,
    Case,
    ImportTime,
    Memory,
    TimeToReward,
    json_traces,
    resident_mb,
    serve,
    transitions,
)

ENV = "CartPole-v1"


def config(mode: str, workers: int = 0, envs: int = 1, env: str = ENV, **training: Any) -> Any:
    """PPO on CartPole in one of the four modes, everything else as RLlib sets it."""
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.utils.framework import try_import_tf

    if mode == "torch":
        import torch

        torch.set_num_threads(1)
    tf1, _, _ = try_import_tf()
    if mode.startswith("tf2") and not tf1.executing_eagerly():
        tf1.enable_eager_execution()
    framework, eager_tracing = ("tf2", mode == "tf2-traced") if mode.startswith("tf2") else (mode, False)
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
        .environment(env)
        .framework(framework, eager_tracing=eager_tracing, **ONE_THREAD)
        .env_runners(num_env_runners=workers, num_envs_per_env_runner=envs, rollout_fragment_length="auto")
        .resources(num_gpus=0)
        .debugging(log_level="ERROR", seed=0)
        .training(**training)
    )


def start_ray(workers: int) -> None:
    import ray

    # "local": not a cluster that somebody else runs on this machine.
    ray.init(
        address="local",
        num_cpus=max(2, workers + 1),
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 1024**2,
    )


class Algorithm(Case):
    """A case that needs a built algorithm."""

    def __init__(self, mode: str, workers: int = 0, envs: int = 1, **training: Any) -> None:
        start_ray(workers)
        self.algo = config(mode, workers, envs, **training).build_algo()
        self.worker = self.algo.env_runner
        self.policy = self.algo.get_policy()

    def close(self) -> None:
        import ray

        self.algo.stop()
        ray.shutdown()


class Act(Algorithm):
    """Actions with their log-probabilities; one observation, or a batch of them."""

    def __init__(self, mode: str, batch: int) -> None:
        import numpy as np

        super().__init__(mode, train_batch_size=128, minibatch_size=128)
        obs = np.random.default_rng(0).uniform(-0.05, 0.05, (batch, 4)).astype(np.float32)
        if batch == 1:
            self.calls = Calls(lambda: self.policy.compute_single_action(obs[0], explore=True))
        else:
            self.calls = Calls(lambda: self.policy.compute_actions(obs, explore=True))
        self.window = self.calls.window  # type: ignore[method-assign]


class Sample(Algorithm):
    """Sampling and postprocessing in this process."""

    def __init__(self, mode: str, envs: int, steps: int) -> None:
        super().__init__(mode, envs=envs, train_batch_size=steps, minibatch_size=128)

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        steps = sum(self.worker.sample().env_steps() for _ in range(n))
        return time.perf_counter() - start, steps


class SampleWorkers(Algorithm):
    """Sampling by remote workers, until there is a training batch."""

    def __init__(self, mode: str, workers: int, envs: int, steps: int) -> None:
        super().__init__(mode, workers, envs, train_batch_size=steps, minibatch_size=128)
        self.steps = steps

    def window(self, n: int, k: int) -> tuple[float, float]:
        from ray.rllib.execution.rollout_ops import synchronous_parallel_sample

        start, steps = time.perf_counter(), 0
        for _ in range(n):
            batch = synchronous_parallel_sample(worker_set=self.algo.env_runner_group, max_env_steps=self.steps)
            steps += batch.env_steps()
        return time.perf_counter() - start, steps


class SGD(Algorithm):
    """Epochs of minibatch updates on one training batch, as PPO's training step does them."""

    def __init__(self, mode: str, rows: int, minibatch: int, epochs: int, **training: Any) -> None:
        from ray.rllib.execution.rollout_ops import standardize_fields, synchronous_parallel_sample

        super().__init__(mode, envs=8, train_batch_size=rows, minibatch_size=minibatch, num_epochs=epochs, **training)
        batch = synchronous_parallel_sample(worker_set=self.algo.env_runner_group, max_env_steps=rows)
        self.batch = standardize_fields(batch.as_multi_agent(), ["advantages"])
        self.updates = epochs * (batch.env_steps() // minibatch)

    def window(self, n: int, k: int) -> tuple[float, float]:
        from ray.rllib.execution.train_ops import multi_gpu_train_one_step, train_one_step

        train = train_one_step if self.algo.config.simple_optimizer else multi_gpu_train_one_step
        start = time.perf_counter()
        for _ in range(n):
            train(self.algo, self.batch)
        return time.perf_counter() - start, n * self.updates


def settings_of(name: str) -> dict[str, Any]:
    """Settings of a network with memory, or for pictures."""
    if name == "lstm":
        return {"model": {"use_lstm": True, "lstm_cell_size": 256, "max_seq_len": 20}}
    from pixels import PIXELS, Pixels
    from ray.tune import register_env

    register_env(PIXELS, Pixels)
    return {"env": PIXELS}


class NetworkSample(Sample):
    """`Sample` with another network."""

    def __init__(self, mode: str, network: str, envs: int, steps: int) -> None:
        Algorithm.__init__(
            self, mode, envs=envs, train_batch_size=steps, minibatch_size=128, **settings_of(network)
        )


class NetworkSGD(SGD):
    """`SGD` with another network, counting rows."""

    def __init__(self, mode: str, network: str, rows: int, minibatch: int, epochs: int) -> None:
        super().__init__(mode, rows, minibatch, epochs, **settings_of(network))
        self.updates = epochs * self.batch.env_steps()


class Train(Algorithm):
    """Whole iterations."""

    def __init__(self, mode: str, workers: int, envs: int, rows: int, minibatch: int, epochs: int) -> None:
        super().__init__(mode, workers, envs, train_batch_size=rows, minibatch_size=minibatch, num_epochs=epochs)
        self.window = Calls(self.algo.train).window  # type: ignore[method-assign]


def worker_mb(worker: Any) -> float:
    """The memory of a remote worker's process: its code runs there, where this file can't be imported."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmRSS"))


class DriverMemory(Memory, Algorithm):
    """Of the process that learns."""

    def __init__(self, mode: str, workers: int) -> None:
        Algorithm.__init__(self, mode, workers, train_batch_size=1000, minibatch_size=128, num_epochs=1)

    def use(self) -> float:
        self.algo.train()
        return resident_mb()


class WorkerMemory(DriverMemory):
    """Of a remote worker, the mean of all."""

    def use(self) -> float:
        import cloudpickle  # type: ignore[import-untyped]

        self.algo.train()
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        found = self.algo.env_runner_group.foreach_env_runner(worker_mb, local_env_runner=False)
        return sum(found) / len(found)


class Build(Case):
    """Building with remote workers, in a process that has imported RLlib and started Ray."""

    def __init__(self, mode: str, workers: int) -> None:
        start_ray(workers)
        self.config = config(mode, workers)

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        self.algo = self.config.build_algo()
        return time.perf_counter() - start, 1.0

    def close(self) -> None:
        import ray

        self.algo.stop()
        ray.shutdown()


class Reward(TimeToReward):
    """Time to a mean return."""

    def __init__(self, mode: str, workers: int, envs: int, ppo: dict[str, Any]) -> None:
        self.mode, self.workers, self.envs = mode, workers, envs
        self.training: dict[str, Any] = {
            "lr": ppo["lr"],
            "gamma": ppo["gamma"],
            "lambda_": ppo["lambda"],
            "train_batch_size": ppo["rows"],
            "minibatch_size": ppo["minibatch"],
            "num_epochs": ppo["epochs"],
            "clip_param": ppo["clip"],
            "vf_loss_coeff": ppo["vf_coeff"],
            "vf_clip_param": ppo["vf_clip"],
            "kl_coeff": ppo["kl_coeff"],
            "grad_clip": ppo["grad_clip"],
            "model": {"fcnet_hiddens": ppo["hiddens"]},
        }
        start_ray(workers)

    def start(self, seed: int) -> None:
        self.algo = config(self.mode, self.workers, self.envs, **self.training).debugging(seed=seed).build_algo()

    def iterate(self) -> tuple[float, float]:
        result = self.algo.train()
        mean = result["env_runners"]["episode_reward_mean"]
        return (0.0 if mean != mean else mean), result["num_env_steps_sampled_lifetime"]

    def finish(self) -> None:
        self.algo.stop()

    def close(self) -> None:
        import ray

        ray.shutdown()


@functools.cache
def replay_buffer(kind: str, capacity: int) -> Any:
    """A full buffer; its rows are the same thousand objects over and over, which spares it memory and cache misses."""
    from ray.rllib.policy.sample_batch import SampleBatch
    from ray.rllib.utils.replay_buffers import PrioritizedReplayBuffer, ReplayBuffer

    buffer = PrioritizedReplayBuffer(capacity, alpha=0.6) if kind == "prioritized" else ReplayBuffer(capacity)
    rows = SampleBatch(transitions(1000)).timeslices(1)
    for _ in range(capacity // len(rows)):
        for row in rows:
            buffer._add_single_batch(row)
    return buffer


class Replay(Case):
    """A replay buffer of CartPole transitions that is full."""

    def __init__(self, mode: str, kind: str, what: str, capacity: int, rows: int) -> None:
        import numpy as np
        from ray.rllib.policy.sample_batch import SampleBatch

        buffer = replay_buffer(kind, capacity)
        batch = SampleBatch(transitions(rows))
        settings = {"beta": 0.4} if kind == "prioritized" else {}
        if what == "add":
            call = lambda: buffer.add(batch)  # noqa: E731
        elif what == "sample":
            call = lambda: buffer.sample(rows, **settings)  # noqa: E731
        else:
            indices = buffer.sample(rows, **settings)["batch_indexes"]
            priorities = np.random.default_rng(0).random(rows) + 1e-6
            call = lambda: buffer.update_priorities(indices, priorities)  # noqa: E731
        self.window = Calls(call, rows).window  # type: ignore[method-assign]


class BC(Case):
    """Training steps of behavioural cloning; what is counted are updates."""

    def __init__(self, mode: str, lines: int, line: int, rows: int, updates: int) -> None:
        from ray.rllib.algorithms.bc import BCConfig

        self.folder = tempfile.TemporaryDirectory()
        json_traces(self.folder.name, lines, line)
        start_ray(0)
        framework = config(mode)  # sets threads and eager execution, too
        self.algo = (
            BCConfig()
            .api_stack(enable_rl_module_and_learner=False, enable_env_runner_and_connector_v2=False)
            .environment("CartPole-v1")
            .framework(framework.framework_str, eager_tracing=framework.eager_tracing, **ONE_THREAD)
            .offline_data(input_=self.folder.name)
            .env_runners(num_env_runners=0, rollout_fragment_length=rows)
            .training(train_batch_size=rows)
            .resources(num_gpus=0)
            .debugging(log_level="ERROR", seed=0)
            .build_algo()
        )
        self.updates = updates

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(n * self.updates):
            self.algo.training_step()
        return time.perf_counter() - start, n * self.updates

    def close(self) -> None:
        import ray

        self.algo.stop()
        ray.shutdown()
        self.folder.cleanup()


def imports(mode: str) -> Case:
    return ImportTime("from ray.rllib.algorithms.ppo import PPOConfig")


if __name__ == "__main__":
    serve(
        {
            "act": Act,
            "sample": Sample,
            "sample_workers": SampleWorkers,
            "sgd": SGD,
            "network_sample": NetworkSample,
            "network_sgd": NetworkSGD,
            "replay": Replay,
            "train": Train,
            "build": Build,
            "bc": BC,
            "driver_memory": DriverMemory,
            "worker_memory": WorkerMemory,
            "reward": Reward,
            "import": imports,
        }
    )
