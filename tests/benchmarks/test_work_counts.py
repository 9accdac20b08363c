"""Guards speed by counting work instead of time: Python calls, traces, bytes. Bounds are what is needed today + 20 %.

When one of these fails, something does more work per step than before: `sys.setprofile` as in `count_calls` shows what.
When the code has become leaner, put the new counts into the tables. Timing is the business of benchmarks/bench.py.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from modes import MODE_PARAMS, mode_id

from polylib.algorithms.dqn import DQN, DQNConfig
from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.evaluation.rollout_worker import RolloutWorker
from polylib.execution.sgd import train_minibatches

SLACK = 1.2
STEPS = 64
MINIBATCH = 16
# Python calls of one step of CartPole-v1, by the number of environments in a worker; Gymnasium's own calls are in it.
CALLS_PER_STEP = {
    "tf": {1: 52, 8: 148},
    "tf2": {1: 698, 8: 806},
    "tf2-traced": {1: 53, 8: 160},
    "torch": {1: 52, 8: 160},
    "numpy": {1: 52, 8: 159},
}
# Python calls of `compute_single_action`.
CALLS_PER_ACTION = {"tf": 25, "tf2": 660, "tf2-traced": 25, "torch": 25, "numpy": 25}
# Python calls of one update, where there is anything per update at all: tf and traced tf2 do all updates in one call.
CALLS_PER_UPDATE = {"tf": 0.5, "tf2": 6895, "tf2-traced": 0.5, "torch": 181}
# Python calls of one step of DQN on CartPole-v1 with all that surrounds it but the update, by the steps of a fragment:
# acting through the network, storing the row, drawing a batch of 32 and setting priorities.
CALLS_PER_REPLAYED_STEP = {
    "tf": {1: 231, 4: 107},
    "tf2": {1: 1551, 4: 1429},
    "tf2-traced": {1: 343, 4: 135},
    "torch": {1: 229, 4: 107},
}
# The same where the action is a random one.
CALLS_PER_RANDOM_STEP = {1: 207, 4: 86}
# Most bytes that NumPy holds at a time, as a multiple of the batch's own.
PEAK_OF_SAMPLING = 3.2
PEAK_OF_LEARNING = {"tf": 0.3, "tf2": 2.95, "tf2-traced": 1.33, "torch": 0.67}

Mode = tuple[str, bool]
Workers = Callable[..., RolloutWorker]
MODES_AND_NUMPY = [*MODE_PARAMS, pytest.param("numpy", False, id="numpy")]


def name_of(framework: str, traced: bool) -> str:
    return "numpy" if framework == "numpy" else mode_id(framework, traced)


def make_worker(mode: Mode, envs: int = 1, steps: int = STEPS) -> RolloutWorker:
    framework, traced = mode
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .framework(None if framework == "numpy" else framework, eager_tracing=traced)
        .rollouts(num_envs_per_worker=envs, rollout_fragment_length=steps)
        .training(train_batch_size=envs * steps, sgd_minibatch_size=MINIBATCH, model={"fcnet_hiddens": [8]})
        .debugging(seed=0)
    )
    return RolloutWorker(config, PPOObjective, mode)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Workers by mode and number of environments, made at their first use: building and tracing take seconds."""
    made: dict[Any, RolloutWorker] = {}

    def get(mode: Mode, envs: int = 1) -> RolloutWorker:
        if (mode, envs) not in made:
            made[mode, envs] = make_worker(mode, envs)
            made[mode, envs].sample()  # compiles what is needed
        return made[mode, envs]

    yield get
    for worker in made.values():
        worker.stop()


def count_calls(function: Callable[[], Any]) -> int:
    """How many Python functions run meanwhile."""
    calls = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    gc.collect()
    gc.disable()  # finalizers would be counted, too
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def peak_bytes(function: Callable[[], Any]) -> int:
    """The most memory that NumPy and Python take meanwhile."""
    gc.collect()
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check(count: float, bound: float, what: str) -> None:
    assert count <= SLACK * bound, f"{what}: {count:.4g} now, {bound:.4g} when this was written"


@pytest.mark.parametrize("envs", [1, 8])
@pytest.mark.parametrize(("framework", "traced"), MODES_AND_NUMPY)
def test_python_calls_per_sampled_step(workers: Workers, framework: str, traced: bool, envs: int) -> None:
    worker, name = workers((framework, traced), envs), name_of(framework, traced)
    # Steps of all environments together, so that 8 of them may cost what one does, and what Gymnasium needs for each.
    count = count_calls(worker.sample) / STEPS
    check(count, CALLS_PER_STEP[name][envs], f"Python calls per step of {envs} env(s), {name}")


def make_dqn(mode: Mode, steps: int) -> DQN:
    framework, traced = mode
    algo = DQN(
        DQNConfig()
        .environment("CartPole-v1")
        .framework(framework, eager_tracing=traced)
        .rollouts(rollout_fragment_length=steps)
        .training(
            model={"fcnet_hiddens": [8]},
            hiddens=[8],
            train_batch_size=32,
            training_intensity=None,
            num_steps_sampled_before_learning_starts=64,
        )
        .reporting(min_sample_timesteps_per_iteration=64, min_time_s_per_iteration=0)
        .debugging(seed=0)
    )
    algo.train()
    policy: Any = algo.get_policy()
    batch = algo.replay.sample(32)
    info = policy.learn_on_batch(batch)
    policy.learn_on_batch = lambda batch: policy._weights_changed() or info  # all but the update itself
    policy.objective.scheduled = lambda timestep: {}
    return algo


def count_per_step(algo: DQN, epsilon: float, rounds: int = 48) -> float:
    algo.get_policy().set_coefficients(epsilon=epsilon)
    algo.training_step()
    steps = algo.config["rollout_fragment_length"]
    return count_calls(lambda: [algo.training_step() for _ in range(rounds)]) / (rounds * steps)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_python_calls_per_replayed_step(framework: str, traced: bool, steps: int) -> None:
    """Episodes' ends are in it: every ten to twenty steps, as the pole falls."""
    with make_dqn((framework, traced), steps) as algo:
        name = mode_id(framework, traced)
        bound = CALLS_PER_REPLAYED_STEP[name][steps]
        check(count_per_step(algo, 0.0), bound, f"Python calls per step, fragments of {steps}, {name}")
        if framework == "torch":
            count = count_per_step(algo, 1.0)
            check(count, CALLS_PER_RANDOM_STEP[steps], f"Python calls per random step, fragments of {steps}")


@pytest.mark.parametrize(("framework", "traced"), MODES_AND_NUMPY)
def test_python_calls_per_action(workers: Workers, framework: str, traced: bool) -> None:
    policy, name = workers((framework, traced)).get_policy(), name_of(framework, traced)
    obs = np.zeros(4, np.float32)
    policy.compute_single_action(obs)
    count = count_calls(lambda: [policy.compute_single_action(obs) for _ in range(10)]) / 10
    check(count, CALLS_PER_ACTION[name], f"Python calls per action, {name}")


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_python_calls_per_update(workers: Workers, framework: str, traced: bool) -> None:
    worker, name = workers((framework, traced)), name_of(framework, traced)
    policy, batch, rng = worker.get_policy(), worker.sample(), np.random.default_rng(0)
    train_minibatches(policy, batch, MINIBATCH, 1, rng)
    few = count_calls(lambda: train_minibatches(policy, batch, MINIBATCH, 1, rng))
    many = count_calls(lambda: train_minibatches(policy, batch, MINIBATCH, 3, rng))
    per_update = (many - few) / (2 * STEPS / MINIBATCH)
    check(per_update, CALLS_PER_UPDATE[name], f"Python calls per update, {name}")


def test_peak_memory_of_sampling() -> None:
    worker = make_worker(("numpy", False), envs=8, steps=500)
    size = sum(column.nbytes for column in worker.sample().values())
    check(peak_bytes(worker.sample) / size, PEAK_OF_SAMPLING, "bytes while sampling, as a multiple of the batch's")
    worker.stop()


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_peak_memory_of_learning(workers: Workers, framework: str, traced: bool) -> None:
    # Tensors of the frameworks aren't counted, copies that feed them are.
    policy, name = workers((framework, traced)).get_policy(), name_of(framework, traced)
    batch, rng = workers((framework, traced), 8).sample(), np.random.default_rng(0)
    size = sum(column.nbytes for column in batch.values())
    rows = batch.count // 4
    train_minibatches(policy, batch, rows, 1, rng)
    peak = peak_bytes(lambda: train_minibatches(policy, batch, rows, 1, rng))
    check(peak / size, PEAK_OF_LEARNING[name], f"bytes while learning, as a multiple of the batch's, {name}")


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_nothing_is_traced_twice(workers: Workers, framework: str, traced: bool) -> None:
    """Other batch sizes, coefficients and weights are data."""
    worker = workers((framework, traced))
    policy, batch, rng = worker.get_policy(), worker.sample(), np.random.default_rng(0)

    def use() -> None:
        for size in (1, 3, 8):
            policy.compute_actions(np.zeros((size, 4), np.float32))
            policy.compute_values(np.zeros((size, 4), np.float32))
        for rows in (STEPS, STEPS // 2 + 1):
            train_minibatches(policy, batch.slice(0, rows), MINIBATCH, 2, rng)
        policy.set_coefficients(lr=policy.coefficients["lr"] * 0.9, kl_coeff=0.3)
        policy.set_weights(policy.get_weights())

    use()
    graph = getattr(policy, "graph", None)
    before = len(graph.get_operations()) if graph is not None else 0
    traces = dict(getattr(policy, "traces", {}))
    use()
    assert not graph or len(graph.get_operations()) == before, "a call adds operations to the graph"
    assert dict(getattr(policy, "traces", {})) == traces
    assert all(count == 1 for count in traces.values()), traces
