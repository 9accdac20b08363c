"""Calls the command line in this process, and an algorithm that only counts."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from polylib.algorithms import registry
from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.cli.main import main


@dataclass
class Outcome:
    """What a call of the command line did."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line on stderr, which is an error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        match = re.match(r"polylib \w+: error: ", lines[0])
        assert match, self.err
        return lines[0][match.end() :]

    @property
    def notes(self) -> list[str]:
        """The notes on stderr."""
        return [line.partition(": note: ")[2] for line in self.err.splitlines() if ": note: " in line]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`call("train", "--algo", ...)` gives the exit status and what was printed."""

    def call(*argv: str) -> Outcome:
        capsys.readouterr()
        status = main(list(argv))
        printed = capsys.readouterr()
        return Outcome(status, printed.out, printed.err)

    return call


@pytest.fixture
def results(tmp_path: Path) -> str:
    """A folder for `--local-dir`."""
    return str(tmp_path / "results")


class CountingConfig(AlgorithmConfig):
    algo_name = "COUNT"


class TfOnlyConfig(AlgorithmConfig):
    algo_name = "TFONLY"
    supported_frameworks = ("tf", "tf2")


def counting_class() -> type:
    """Made in a function, so that Ray sends it by value: workers don't know the tests."""
    from ray import tune

    from polylib.algorithms.trainable import TrainableAdapter

    class Counting(TrainableAdapter):
        """Counts; its checkpoints hold the number. Keys of `env_config`: sleep, fail, signal (in iteration `at`)."""

        def setup(self, config):
            self.n = 0
            self._fail("setup")

        def step(self):
            self.n += 1
            self._fail("step")
            settings = self.config["env_config"]
            time.sleep(settings.get("sleep", 0.0))
            if self.n == settings.get("at"):
                for number in settings["signals"]:
                    signal.raise_signal(number)
            return {
                "episode_reward_mean": 10.0 * (self.n - 1) if self.n > 1 else float("nan"),
                "episode_len_mean": 5.0,
                "timesteps_total": 100 * self.n,
                "info": {"learner": {"kl": 0.1 * self.n, "zigzag": [5, 3, 9, 1, 7][self.n % 5]}},
                "hist_stats": {"episode_reward": [1, 2]},
                **({"evaluation": {"score": 100 - self.n}} if self.n == 2 else {}),
            }

        def save_checkpoint(self, checkpoint_dir):
            from polylib.checkpoints import write_checkpoint

            values = {"env": "CartPole-v1", "env_config": dict(self.config["env_config"]), "lr": self.config["lr"]}
            header = {"type": "Algorithm", "algorithm": "COUNT", "framework": "torch"}
            write_checkpoint(checkpoint_dir, header, {"n": self.n, "config": values}, {})

        def load_checkpoint(self, checkpoint):
            from pathlib import Path

            from polylib.checkpoints import read_document

            self.n = self._iteration = read_document(Path(checkpoint), "n")

        def _fail(self, where):
            from polylib.errors import EnvError

            fail = self.config["env_config"].get("fail")
            if fail == where:
                raise EnvError(f"environment 'x': {where} broke")
            if fail == f"{where}, a bug":
                raise ZeroDivisionError("division by zero")

        @classmethod
        def default_resource_request(cls, config):
            return tune.PlacementGroupFactory([{"CPU": 1}] * (1 + config["num_workers"]))

    return Counting


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an algorithm that needs no framework: 10 of reward more in each iteration."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register_algorithm("COUNT", CountingConfig, counting_class())
    return "COUNT"


@pytest.fixture
def tf_only(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an algorithm without a torch backend."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register_algorithm("TFONLY", TfOnlyConfig, "nowhere:TfOnly")
    return "TFONLY"
