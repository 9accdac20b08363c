"""Workers on Ray: the same calls as in one process, and what happens when one of them goes wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fakes import BrokenEnv, MatchEnv, ScriptEnv, small_ppo

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.errors import EnvError, WorkerError
from polylib.evaluation import worker_set as worker_set_module
from polylib.evaluation.worker_set import WorkerSet, start_ray
from polylib.registry import register_env

ROOT = Path(__file__).parents[2]


def run(code, **env):
    """Runs Python code in a fresh process; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", **env},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def worker_set(env=ScriptEnv, mode=("numpy", False), **keys):
    small = {"num_workers": 2, "rollout_fragment_length": 6, "num_cpus_per_worker": 0.5}
    return WorkerSet(small_ppo(env, mode, **{**small, **keys}), PPOObjective)


@pytest.fixture
def placed(ray_session):
    """A function: how many placement groups there are more than at the test's start."""
    import ray

    def now():
        return {name for name, g in ray.util.placement_group_table().items() if g["state"] != "REMOVED"}

    before = now()
    return lambda: len(now() - before)


def test_without_remote_workers_ray_is_not_even_imported():
    code = """
import sys
from fakes import ScriptEnv, small_ppo
from polylib.evaluation.worker_set import WorkerSet
from polylib.algorithms.ppo.loss import PPOObjective
workers = WorkerSet(small_ppo(ScriptEnv, ("numpy", False), rollout_fragment_length=6), PPOObjective)
batches, episodes = workers.sample()
workers.sync_weights(6)
assert workers.foreach_worker(lambda w: w.worker_index) == [0] and workers.num_remote_workers() == 0
workers.stop()
print(batches[0].count, len(episodes), *(name in sys.modules for name in ("ray", "torch", "tensorflow")))
"""
    assert run(code) == "6 2 False False False\n"


def test_the_local_worker_alone():
    workers = worker_set(num_workers=0, num_envs_per_worker=2)
    (batch,), episodes = workers.sample()
    assert batch.count == 12 and len(episodes) == 4
    assert workers.remote_workers() == [] and workers.local_worker().env is not None
    assert workers.foreach_env(lambda env: type(env).__name__) == [["ScriptEnv", "ScriptEnv"]]
    assert workers.foreach_policy(lambda policy, name: name) == ["default_policy"]
    with pytest.raises(WorkerError):
        workers.local_worker().env = workers.local_worker()._sampler = None
        workers.sample()
    workers.stop()


# --- two workers, on one Ray, for everything that leaves them alive


@pytest.fixture(scope="module")
def pair(ray_session):
    workers = worker_set(MatchEnv, ("torch", False), seed=5)
    yield workers
    workers.stop()


def test_spaces_and_policies_come_right(pair):
    local = pair.local_worker()
    assert local.env is None, "with remote workers the local one only learns"
    spaces = pair.foreach_worker(lambda w: [str(w.get_policy().observation_space), str(w.get_policy().action_space)])
    assert spaces == [["Box(0.0, 1.0, (3,), float32)", "Discrete(3, start=5)"]] * 3
    assert pair.num_remote_workers() == len(pair.remote_workers()) == 2
    with pytest.raises(WorkerError, match="create_env_on_local_worker=True"):
        local.sample()


def test_functions_run_where_the_workers_live(pair):
    assert pair.foreach_worker(lambda w: w.worker_index) == [0, 1, 2]
    assert pair.foreach_worker(lambda w: w.worker_index, local_worker=False) == [1, 2]
    assert pair.foreach_worker_with_index(lambda w, i: (w.worker_index, i)) == [(0, 0), (1, 1), (2, 2)]
    assert pair.foreach_worker_with_index(lambda w, i: i, local_worker=False) == [1, 2]
    pids = pair.foreach_worker(lambda w: os.getpid())
    assert pids[0] == os.getpid() and len(set(pids)) == 3
    assert pair.foreach_env(lambda env: env.kind) == [[], ["discrete"], ["discrete"]]
    # The local policy learns in torch, the workers act in NumPy.
    policies = pair.foreach_policy(lambda policy, name: (name, policy.framework))
    assert policies == [("default_policy", "torch"), ("default_policy", "numpy"), ("default_policy", "numpy")]
    import ray

    assert ray.get([w.ping.remote() for w in pair.remote_workers()]) == [1, 2]


def test_workers_use_one_thread(pair):
    import torch

    def threads(worker):
        import torch

        return torch.get_num_threads(), os.environ["TF_NUM_INTRAOP_THREADS"]

    before = torch.get_num_threads()
    assert pair.foreach_worker(threads, local_worker=False) == [(1, "1")] * 2
    assert torch.get_num_threads() == before


def test_samples_come_in_the_workers_order(pair):
    batches, episodes = pair.sample()
    assert [b.count for b in batches] == [6, 6]
    assert [int(b["eps_id"][0]) >> 40 for b in batches] == [1, 2]
    assert not np.array_equal(batches[0]["obs"], batches[1]["obs"]), "workers draw from different streams"
    assert {"advantages", "value_targets", "action_logp"} <= set(batches[0])
    assert episodes == []
    _, episodes = pair.sample()
    assert [e.episode_length for e in episodes] == [10, 10]


def test_weights_are_put_once_and_carry_a_version(pair, monkeypatch):
    import ray

    puts, real = [], ray.put
    monkeypatch.setattr(ray, "put", lambda *args, **kwargs: puts.append(args) or real(*args, **kwargs))
    policy = pair.local_worker().get_policy()
    policy.set_weights({key: np.full_like(w, 0.25) for key, w in policy.get_weights().items()})
    versions = pair.foreach_worker(lambda w: w.weights_version, local_worker=False)
    pair.sync_weights(1234)
    assert len(puts) == 1
    new = pair.foreach_worker(lambda w: (w.weights_version, w.get_policy().global_timestep), local_worker=False)
    assert new == [(version + 1, 1234) for version in versions]
    for weights in pair.foreach_worker(lambda w: w.get_weights()["default_policy"]):
        assert weights and all((w == 0.25).all() for w in weights.values())


def test_a_version_that_a_worker_has_is_ignored(pair):
    def again(worker):
        old = worker.get_weights()["default_policy"]
        other = {"default_policy": {key: w + 1 for key, w in old.items()}}

        def gap():
            return {float((w - old[key]).max()) for key, w in worker.get_weights()["default_policy"].items()}

        worker.set_weights(other, version=worker.weights_version)
        worker.set_weights(other, version=worker.weights_version - 1)
        kept = gap()
        worker.set_weights(other, version=worker.weights_version + 1)
        return kept, gap()

    assert pair.foreach_worker(again, local_worker=False) == [({0.0}, {1.0})] * 2
    pair._version += 1  # as the workers' now is


def test_an_error_in_a_users_function_is_that_error(pair):
    def broken(worker):
        raise KeyError("not here")

    with pytest.raises(KeyError, match="not here"):
        pair.foreach_worker(broken, local_worker=False)

    def broken_env(worker):
        raise EnvError("one line")

    with pytest.raises(EnvError, match="^one line$"):
        pair.foreach_worker(broken_env, local_worker=False)


# --- other sets


def test_an_environment_on_the_local_worker_too(ray_session):
    workers = worker_set(MatchEnv, num_workers=1, create_env_on_local_worker=True, batch_mode="complete_episodes")
    try:
        assert workers.local_worker().sample().count == 10
        batches, episodes = workers.sample()
        assert len(batches) == 1 and int(batches[0]["eps_id"][0]) >> 40 == 1 and len(episodes) == 1
        assert [len(envs) for envs in workers.foreach_env(str)] == [1, 1]
    finally:
        workers.stop()


def test_a_registered_name_works_in_workers(ray_session):
    register_env("only-in-the-driver", lambda config: ScriptEnv({"episodes": [[4, 5, 6]]}))
    workers = worker_set("only-in-the-driver", num_workers=1)
    try:
        (batch,), _ = workers.sample()
        assert batch["obs"][:, 0].tolist() == [4, 5] * 3
    finally:
        workers.stop()


def test_errors_of_remote_environments_arrive_as_one_line(ray_session):
    workers = worker_set(BrokenEnv, num_workers=1, env_config={"fault": "step", "worker": 1})
    try:
        with pytest.raises(EnvError) as caught:
            workers.sample()
        assert str(caught.value) == (
            "environment 'BrokenEnv' raised in step(): RuntimeError: the motor is on fire (worker 1, step 3 of an "
            "episode)"
        )
        assert type(caught.value) is EnvError
        # The worker lives on.
        assert workers.foreach_worker(lambda w: w.worker_index) == [0, 1]
    finally:
        workers.stop()


def test_an_environment_that_cannot_start_remotely(placed):
    start = time.monotonic()
    with pytest.raises(EnvError) as caught:
        worker_set(BrokenEnv, env_config={"fault": "reset", "worker": 1})
    text = str(caught.value)
    assert "'BrokenEnv' raised in reset(): ValueError: no level was found (worker 1)" in text and "\n" not in text
    assert time.monotonic() - start < 60
    assert placed() == 0


def test_a_lost_worker_is_an_error_and_no_hang(ray_session):
    import ray

    workers = worker_set(num_workers=2)
    lost = workers.remote_workers()[1]
    ray.kill(lost)
    deadline = time.monotonic() + 30  # the kill takes a moment, in which calls still arrive
    while time.monotonic() < deadline:
        try:
            ray.get(lost.ping.remote())
        except ray.exceptions.RayActorError:
            break
    for call in (workers.sample, workers.sync_weights, lambda: workers.foreach_worker(lambda w: 1)):
        start = time.monotonic()
        with pytest.raises(WorkerError, match="a rollout worker died") as caught:
            call()
        assert "\n" not in str(caught.value) and time.monotonic() - start < 30
    workers.stop()


def test_a_worker_process_that_exits_is_an_error(ray_session):
    workers = worker_set(num_workers=1)
    try:
        with pytest.raises(WorkerError):
            workers.foreach_worker(lambda w: os._exit(3), local_worker=False)
    finally:
        workers.stop()


def test_workers_are_stopped_and_environments_closed(placed, tmp_path):
    import ray

    class Closing(ScriptEnv):
        def close(self):
            (tmp_path / "closed").write_text("x")

    workers = worker_set(Closing, num_workers=1)
    (tmp_path / "closed").unlink(missing_ok=True)  # the driver's probe
    (actor,) = workers.remote_workers()
    assert placed() == 1
    workers.stop()
    assert (tmp_path / "closed").exists()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.ping.remote(), timeout=30)
    assert workers.remote_workers() == [] and placed() == 0
    workers.stop()


def test_a_dropped_set_gives_its_reservation_back(placed):
    import gc

    workers = worker_set(num_workers=1)
    assert placed() == 1
    del workers
    gc.collect()
    assert placed() == 0


def test_an_error_on_the_local_worker_stops_the_remote_ones(placed, monkeypatch):
    def broken(self, *args, **kwargs):
        raise ValueError("no memory")

    monkeypatch.setattr(worker_set_module.RolloutWorker, "sample", broken)
    monkeypatch.setattr(worker_set_module, "_CLOSE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(worker_set_module.WorkerSet, "_await_workers", broken)
    with pytest.raises(ValueError, match="no memory"):
        worker_set(num_workers=1)
    assert placed() == 0


# --- not enough room


def test_more_workers_than_the_cluster_has_room_for(placed):
    """The cluster was joined, so it isn't ours to enlarge."""
    start = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        worker_set(num_workers=3, num_cpus_per_worker=2, placement_timeout_s=0.5)
    assert time.monotonic() - start < 20
    assert re.fullmatch(
        r"3 workers found no place on the cluster within placement_timeout_s=0.5: they need 6 CPU \(the cluster has 4, "
        r"[0-4] of them free\)\. Lower num_workers or num_cpus_per_worker, or add nodes",
        str(caught.value),
    )
    with pytest.raises(WorkerError, match=r"they need 1 crane \(the cluster has 0, 0 of them free\)"):
        worker_set(num_workers=1, custom_resources_per_worker={"crane": 1}, placement_timeout_s=0.2)
    assert placed() == 0


def test_workers_that_ask_for_nothing(placed):
    workers = worker_set(num_workers=1, num_cpus_per_worker=0)
    assert placed() == 0
    assert workers.sample()[0][0].count == 6
    workers.stop()


def test_a_ray_that_polylib_starts_has_room(monkeypatch, caplog):
    import ray

    asked = {}
    monkeypatch.setattr(ray, "init", lambda **kwargs: asked.update(kwargs))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    start_ray(8.5)
    assert asked["num_cpus"] == 9 and asked["address"] == "local"
    assert len(caplog.records) == 1 and "reserves 8.5 CPUs and the machine has 2" in caplog.text
    caplog.clear()
    start_ray(1)
    assert asked["num_cpus"] == 2 and not caplog.records


def test_it_has_room_for_workers_that_evaluate(monkeypatch):
    import ray

    asked = []

    def stop_here(cpus):
        asked.append(cpus)
        raise WorkerError("far enough")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(worker_set_module, "start_ray", stop_here)
    with pytest.raises(WorkerError, match="far enough"):
        worker_set(num_workers=2, evaluation_num_workers=3, num_cpus_per_worker=2)
    assert asked == [10]


def test_a_cluster_that_cannot_be_joined(monkeypatch):
    import ray

    def refuse(**kwargs):
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(WorkerError, match="can't join the Ray cluster at RAY_ADDRESS=10.0.0.1:6379: nobody there"):
        worker_set(num_workers=1)


def test_workers_act_in_numpy_unless_told_otherwise(ray_session):
    """Plain eager tf2, the mode for debugging, is never swapped for anything."""
    pytest.importorskip("torch")
    workers = worker_set(MatchEnv, ("torch", False), num_workers=1, worker_policy_backend="same")
    try:
        assert workers.foreach_policy(lambda policy, _: policy.framework) == ["torch", "torch"]
        for framework, backend in [
            (("tf2", False), ("tf2", False)),
            (("tf2", True), ("tf2", True)),
            (("torch", False), ("torch", False)),
        ]:
            assert workers._worker_backend(framework) == backend
    finally:
        workers.stop()
    workers.config = small_ppo(MatchEnv)
    assert workers._worker_backend(("tf2", False)) == ("tf2", False)
    for framework in [("tf", False), ("tf2", True), ("torch", False)]:
        assert workers._worker_backend(framework) == ("numpy", False)
