"""Runs through Tune, on the Ray of the test session."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from modes import has

pytestmark = pytest.mark.usefixtures("ray_session")


def argv_of(count, results, config=None, stop='{"training_iteration": 2}'):
    given = json.dumps({"env": "CartPole-v1", **(config or {})})
    return ["train", "--algo", count, "--config", given, "--local-dir", results, "-n", "N", "--stop", stop]


def folders(results):
    return sorted(path.parent for path in Path(results, "N").glob("*/params.json"))


def test_it_writes_what_tune_writes_and_leaves_ray_alone(call, count, results):
    import ray

    outcome = call(*argv_of(count, results))
    assert outcome.status == 0 and outcome.err == ""
    (folder,) = folders(results)
    names = {path.name.partition(".out.")[0] for path in folder.iterdir()}
    assert names >= {"params.json", "result.json", "progress.csv", "events"}
    headline, header, first, second, summary, last, evaluate = outcome.out.splitlines()
    (checkpoint,) = folder.glob("checkpoint*")
    assert checkpoint.name == "checkpoint_000002" and last == f"  last checkpoint: {checkpoint}"
    assert evaluate == f"  polylib evaluate {checkpoint} --algo COUNT"
    assert headline.startswith("COUNT on CartPole-v1, framework ")
    assert header.split()[:2] == ["trial", "iter"]
    assert first.split()[1:5] == ["1", "100", "-", "5.00"] and second.split()[1:5] == ["2", "200", "10.00", "5.00"]
    assert summary.startswith("COUNT_CartPole-v1_") and ": done after 2 iterations" in summary
    assert summary.endswith(str(folder))
    assert ray.is_initialized()


def test_a_grid_and_samples(call, count, results):
    config = {"lr": {"grid_search": [0.1, 0.2]}}
    outcome = call(*argv_of(count, results, config, '{"training_iteration": 1}'), "--num-samples", "2")
    assert outcome.status == 0, outcome.err
    rates = sorted(json.loads((folder / "params.json").read_text())["lr"] for folder in folders(results))
    assert rates == [0.1, 0.1, 0.2, 0.2]
    assert outcome.out.count(": done after 1 iterations") == 4


def test_a_stop_key_that_never_comes(call, count, results):
    outcome = call(*argv_of(count, results, stop='{"episode_reward": 1}'))
    assert outcome.status == 1 and ": stopped after 1 iterations" in outcome.out
    assert outcome.error.startswith("--stop: no key 'episode_reward' in the results")


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("setup", "environment 'x': setup broke"),
        ("step", "environment 'x': step broke"),
        ("setup, a bug", "ZeroDivisionError: division by zero (-vv shows the traceback)"),
        ("step, a bug", "ZeroDivisionError: division by zero (-vv shows the traceback)"),
    ],
)
def test_failures_are_one_line(call, count, results, fail, message):
    outcome = call(*argv_of(count, results, {"env_config": {"fail": fail}}))
    assert outcome.status == 1 and outcome.error == message
    assert "Traceback" not in outcome.out and ": failed after 0 iterations" in outcome.out


def test_one_failure_among_several(call, count, results):
    config = {"env_config": {"fail": {"grid_search": ["", "step"]}}}
    outcome = call(*argv_of(count, results, config))
    assert outcome.status == 1
    assert ": done after 2 iterations" in outcome.out and ": failed after 0 iterations" in outcome.out
    trial, _, message = outcome.error.partition(": ")
    assert trial.startswith("COUNT_CartPole-v1_") and message == "environment 'x': step broke"


def test_a_cluster_without_room(call, count, results):
    outcome = call(*argv_of(count, results, {"num_workers": 7, "placement_timeout_s": 0.5}))
    assert outcome.status == 1
    assert outcome.error.startswith(
        "no room for the run after 0.5 s (config key 'placement_timeout_s'): it needs 8 CPU"
    )
    assert "the cluster has 4" in outcome.error


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_ppo_on_a_users_env(call, results, tmp_path):
    (tmp_path / "exp.py").write_text(
        "import gymnasium\n"
        "from polylib.algorithms.ppo import PPOConfig\n"
        "from polylib.registry import register_env\n"
        "register_env('my own env', lambda env_config: gymnasium.make('CartPole-v1'))\n"
        "config = PPOConfig().environment('my own env').framework('torch')\n"
        "config = config.training(train_batch_size=128, num_sgd_iter=1, model={'fcnet_hiddens': [8]})\n"
        "stop = {'training_iteration': 2}\n"
    )
    outcome = call("train", "file", str(tmp_path / "exp.py"), "--local-dir", results, "-n", "N")
    assert outcome.status == 0, outcome.err
    (folder,) = folders(results)
    last = json.loads((folder / "result.json").read_text().splitlines()[-1])
    assert last["timesteps_total"] == 256


class FakeRay:
    """Notes how Ray is started."""

    def __init__(self):
        self.started = None
        self.util = None

    def is_initialized(self):
        return False

    def init(self, **kwargs):
        self.started = kwargs

    def cluster_resources(self):
        return {"CPU": float(self.started["num_cpus"])}

    def shutdown(self):
        self.ended = True


def start(monkeypatch, count, workers, *flags):
    """Runs up to where Tune would start; gives the fake Ray."""
    from polylib.cli import ray_cluster
    from polylib.cli.experiment import experiments_of
    from polylib.cli.flags import parse
    from polylib.cli.run_options import RunOptions
    from polylib.cli.train_flags import TRAIN_FLAGS

    fake = FakeRay()
    group = SimpleNamespace(wait=lambda timeout: True)
    fake.util = SimpleNamespace(placement_group=lambda *a, **k: group, remove_placement_group=lambda group: None)
    monkeypatch.setattr(ray_cluster, "ray", fake)
    monkeypatch.setattr(ray_cluster, "_cores", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = json.dumps({"env": "CartPole-v1", "num_workers": workers})
    line = parse(["--algo", count, "--config", config, *flags], TRAIN_FLAGS)
    (experiment,) = experiments_of(line)
    with ray_cluster.connected(experiment, RunOptions.of(line, ["/somewhere"])):
        pass
    assert fake.ended
    return fake


@pytest.mark.parametrize(("workers", "cpus"), [(0, 2), (1, 2), (4, 5), ({"grid_search": [1, 6]}, 7)])
def test_a_ray_started_here_has_room_for_the_run(monkeypatch, capsys, count, workers, cpus):
    fake = start(monkeypatch, count, workers)
    assert fake.started["address"] == "local" and fake.started["num_cpus"] == cpus
    assert fake.started["runtime_env"]["env_vars"]["PYTHONPATH"].startswith("/somewhere")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == (cpus > 2)
    if warnings:
        assert warnings[0].startswith(f"polylib train: warning: the run needs {cpus} CPUs and this machine has 2")


def test_as_many_cpus_as_the_flag_says(monkeypatch, count):
    from polylib.cli.flags import UsageError

    fake = start(monkeypatch, count, 2, "--ray-num-cpus", "8", "--ray-num-gpus", "1")
    assert fake.started["num_cpus"] == 8 and fake.started["num_gpus"] == 1
    with pytest.raises(UsageError, match="--ray-num-cpus 2: the run needs 3 CPUs"):
        start(monkeypatch, count, 2, "--ray-num-cpus", "2")


def test_nothing_listens_at_the_address(monkeypatch, count):
    import socket

    from polylib.cli.flags import UsageError

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"--ray-address {address}: no Ray cluster answers there"):
            start(monkeypatch, count, 0, "--ray-address", address)
