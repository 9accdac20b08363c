"""How to run: with which Ray, or without; checked before Ray is imported."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from polylib.algorithms.options import is_search_space
from polylib.cli.experiment import Experiment
from polylib.cli.flags import CommandLine, UsageError


@dataclass(frozen=True)
class RunOptions:
    """What the command line says of the way to run.

    Attributes:
        local_mode: in this process, without Ray.
        address: a Ray cluster to join; None: Ray is started here.
        num_cpus: CPUs of a Ray started here.
        num_gpus: GPUs of a Ray started here.
        verbosity: the count of `-v`.
        python_path: folders that workers import from.
    """

    local_mode: bool = False
    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    verbosity: int = 0
    python_path: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, line: CommandLine, python_path: list[str]) -> RunOptions:
        """The options in a command line.

        Raises:
            UsageError: if they contradict each other.
        """
        local = bool(line["local-mode"])
        address = line["ray-address"] or (None if local else os.environ.get("RAY_ADDRESS")) or None
        for flag in ("ray-address", "ray-num-cpus", "ray-num-gpus"):
            if local and line.given(flag):
                raise UsageError(f"--{flag}: --local-mode runs without Ray; leave one of them out")
            if address not in (None, "local") and flag != "ray-address" and line.given(flag):
                raise UsageError(f"--{flag}: a cluster that is joined ({address}) has its own; leave the flag out")
        if local and line["resume"]:
            raise UsageError(
                "--resume is for experiments of Tune; what --local-mode wrote goes on with --restore CHECKPOINT"
            )
        return cls(
            local,
            None if address == "local" else address,
            line["ray-num-cpus"],
            line["ray-num-gpus"],
            line.verbosity,
            python_path,
        )

    def check(self, experiment: Experiment) -> None:
        """Raises a UsageError if an experiment can't be run in this way."""
        if not self.local_mode:
            return
        config = experiment.config
        values = {**config.to_dict(), **{f"model.{key}": value for key, value in config["model"].items()}}
        for key, value in values.items():
            if is_search_space(value):
                raise UsageError(f"--local-mode runs one trial, and config key {key!r} is a search over several")
        if experiment.num_samples > 1:
            raise UsageError(f"--local-mode runs one trial, and --num-samples says {experiment.num_samples}")
        if config["num_workers"] > 0:
            raise UsageError(
                f"--local-mode runs without Ray, and config key 'num_workers' is {config['num_workers']}: set it to 0 "
                "(num_envs_per_worker may be more than 1)"
            )
        if "://" in experiment.local_dir:
            raise UsageError(f"--local-dir {experiment.local_dir}: --local-mode writes to local folders only")
