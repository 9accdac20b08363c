"""What shows only in a process of its own: imports, signals, the debugger, a Ray that the command starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from modes import has

ROOT = Path(__file__).resolve().parents[2]
TRAIN = [sys.executable, str(ROOT / "bin" / "train")]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}

# Command lines that end before anything heavy is needed, and their exit status.
LIGHT = [
    (["train", "--help"], 0),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--print-config"], 0),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--framework", "torch", "--trace"], 2),
    (["train", "--algo", "PPP", "--env", "CartPole-v1"], 2),
    (["train", "--algo", "PPO", "--env", "CartPol-v1"], 2),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--config", '{"lr": 0.1'], 2),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--config", '{"lrr": 0.1}'], 2),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--stop", "3"], 2),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--local-mode", "--config", '{"num_workers": 2}'], 2),
    (["train", "--algo", "PPO", "--env", "CartPole-v1", "--framwork", "tf"], 2),
]


def run(command, cwd, **kwargs):
    return subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False, **kwargs
    )


def test_help_and_usage_errors_import_no_framework_and_no_ray(tmp_path):
    code = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from polylib.cli.main import main\n"
        "statuses = [main(argv) for argv in json.loads(sys.argv[1])]\n"
        "loaded = [name for name in ('tensorflow', 'keras', 'torch', 'ray') if name in sys.modules]\n"
        "print(json.dumps([statuses, loaded]))\n"
    )
    done = run([sys.executable, "-c", code, json.dumps([argv for argv, _ in LIGHT])], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[status for _, status in LIGHT], []]
    errors = done.stderr.splitlines()
    assert len(errors) == sum(status == 2 for _, status in LIGHT)
    assert all(line.startswith("polylib train: error: ") for line in errors)


@pytest.mark.skipif(not has("tf2"), reason="TensorFlow isn't installed")
def test_a_breakpoint_in_the_loss_is_hit_under_eager_tf2(tmp_path):
    (tmp_path / "exp.py").write_text(
        "from polylib.algorithms.ppo import PPOConfig\n"
        "from polylib.algorithms.ppo.loss import PPOObjective\n"
        "losses, seen = PPOObjective.losses, []\n"
        "def with_breakpoint(self, ops, nets, batch, *args, **kwargs):\n"
        "    if not seen:\n"
        "        seen.append(1)\n"
        "        breakpoint()\n"
        "    return losses(self, ops, nets, batch, *args, **kwargs)\n"
        "PPOObjective.losses = with_breakpoint\n"
        "config = PPOConfig().environment('CartPole-v1')\n"
        "config = config.training(train_batch_size=64, sgd_minibatch_size=64, num_sgd_iter=1)\n"
        "stop = {'training_iteration': 1}\n"
    )
    flags = ["--framework", "tf2", "--local-mode", "--local-dir", str(tmp_path / "results")]
    typed = "p 'rows', batch['obs'].numpy().shape\nc\n"
    done = run([*TRAIN, "file", "exp.py", *flags], tmp_path, input=typed)
    assert done.returncode == 0, done.stderr
    assert "framework tf2 (eager)" in done.stdout.splitlines()[0]
    assert "(Pdb) ('rows', (64, 4))" in done.stdout
    assert ": done after 1 iterations" in done.stdout


def interrupted(command, cwd, number):
    """Runs a command as a terminal does and signals all its processes after the first result."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]  # what runs, the heading, the first result
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=120)
    assert "Traceback" not in out + err
    return process.returncode, "".join(lines) + out, err.splitlines()


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_sigterm_without_tune(tmp_path):
    config = '{"train_batch_size": 128, "num_sgd_iter": 1}'
    flags = ["--algo", "PPO", "--env", "CartPole-v1", "--framework", "torch", "--config", config, "-n", "N"]
    command = [*TRAIN, *flags, "--local-mode", "--local-dir", str(tmp_path)]
    status, out, err = interrupted(command, tmp_path, signal.SIGTERM)
    assert out.startswith("PPO on CartPole-v1, framework torch, 0 workers; ")
    assert status == 143 and err[1] == f"polylib train: terminated; results so far in {tmp_path}/N"
    (checkpoint,) = (tmp_path / "N").glob("*/checkpoint_*")
    assert err[2].endswith(f" --local-mode --restore {checkpoint}")
    assert ": interrupted after " in out and f"evaluate {checkpoint} --algo PPO\n" in out


SAVING = """
import time
from ray import tune
from polylib import register_algorithm
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.trainable import TrainableAdapter
from polylib.checkpoints import write_checkpoint

class SavingConfig(AlgorithmConfig):
    algo_name = "SAVING"

class Saving(TrainableAdapter):
    def step(self):
        time.sleep(0.1)
        return {"timesteps_total": 1}

    def save_checkpoint(self, checkpoint_dir):
        write_checkpoint(checkpoint_dir, {"type": "Algorithm", "algorithm": "SAVING"}, {"n": self.iteration}, {})

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": 1}])

register_algorithm("SAVING", SavingConfig, Saving)
config = SavingConfig().environment("CartPole-v1")
"""


def test_ctrl_c_under_tune(tmp_path):
    """The terminal sends it to Ray's processes too: they must live until the checkpoint is written."""
    (tmp_path / "exp.py").write_text(SAVING)
    status, out, err = interrupted([*TRAIN, "file", "exp.py", "--local-dir", ".", "-n", "N"], tmp_path, signal.SIGINT)
    assert status == 130 and err[1] == f"polylib train: interrupted; results so far in {tmp_path}/N"
    (checkpoint,) = (tmp_path / "N").glob("*/checkpoint_*")
    assert f"  last checkpoint: {checkpoint}\n" in out
    assert err[2].endswith("train file exp.py --resume -n N --local-dir .") and len(err) == 3


ALGORITHM = """
from ray import tune
from polylib import register_algorithm
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.errors import EnvError

class MineConfig(AlgorithmConfig):
    algo_name = "MINE"

class Mine(tune.Trainable):
    def step(self):
        if self.config["seed"]:
            raise EnvError("my own mistake")
        return {"timesteps_total": 1}

    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": 1}] * (1 + config["num_workers"]))

register_algorithm("MINE", MineConfig, Mine)
config = MineConfig().environment("CartPole-v1").rollouts(num_workers=200)
config.debugging(seed={"grid_search": [0, 1]})
stop = {"training_iteration": 1}
"""


def test_a_ray_of_its_own_with_more_workers_than_cores(tmp_path):
    (tmp_path / "exp.py").write_text(ALGORITHM)
    done = run([*TRAIN, "file", "exp.py", "--local-dir", "results", "-n", "N"], tmp_path)
    assert done.returncode == 1
    warning, error = done.stderr.splitlines()
    assert warning.startswith("polylib train: warning: the run needs 201 CPUs and this machine has ")
    assert error.startswith("polylib train: error: MINE_CartPole-v1_") and error.endswith(": my own mistake")
    assert ": done after 1 iterations" in done.stdout and ": failed after 0 iterations" in done.stdout
    assert len(list((tmp_path / "results" / "N").glob("*/params.json"))) == 2
