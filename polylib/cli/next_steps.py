"""Commands for people to type next, printed when a run ends."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from polylib.algorithms.options import is_search_space
from polylib.algorithms.registry import spelled_name
from polylib.cli.checkpoints import CheckpointOptions, Saved
from polylib.cli.experiment import Experiment
from polylib.cli.files import MODULE_NAME
from polylib.cli.flags import CommandLine, Flag
from polylib.registry import registered_creator, registered_model

# Flags of an experiment that is resumed: where it runs, not what.
KEPT_FOR_RESUME = ("local-dir", "ray-address", "ray-num-cpus", "ray-num-gpus")


def program(command: str) -> list[str]:
    """How to start a command: `polylib COMMAND` where that is installed, else the script of this checkout."""
    typed = sys.argv[0]
    if shutil.which("polylib") is None and Path(typed).parent.name == "bin":
        if Path(typed).name == "polylib":
            return [typed, command]
        if Path(typed).with_name(command).exists():
            return [str(Path(typed).with_name(command))]
    return ["polylib", command]


def evaluate_line(experiment: Experiment, checkpoint: str) -> str:
    """The command that evaluates a checkpoint of an experiment."""
    words = [*program("evaluate"), checkpoint, "--algo", spelled_name(experiment.config.algo_name)]
    config = experiment.config
    env, model = (config["evaluation_config"] or {}).get("env") or config["env"], config["model"]
    if env is None:  # what was learnt from files may know of none
        words += ["--env", "NAME"]
    own = {"--env": registered_creator(env) or env}
    if not is_search_space(model):
        name = model["custom_model"]
        own["--model"] = registered_model(name) or name
    for flag, code in own.items():
        found = _importable(code, experiment)
        words += [flag, found] if found is not None else []
    return shlex.join(words)


def _importable(code: Any, experiment: Experiment) -> str | None:
    """`module:name` of an environment or a model that a checkpoint alone doesn't bring back."""
    if isinstance(code, str):
        return code if ":" in code else None  # never imported only because a checkpoint names it
    module, name = getattr(code, "__module__", None) or "", getattr(code, "__qualname__", "")
    if module == MODULE_NAME and experiment.file is not None:
        module = Path(experiment.file).stem
    # Lambdas and what stands inside of functions can't be imported.
    return f"{module}:{name}" if name.isidentifier() and module not in ("", "__main__") else None


def resume_line(experiment: Experiment, line: CommandLine, flags: Sequence[Flag], checkpoint: str | None) -> str | None:
    """The command that goes on with an interrupted run; None if there is nothing to go on from.

    Args:
        experiment: what was interrupted.
        line: the command line that started it.
        flags: the command's flags.
        checkpoint: the newest checkpoint of a run without Tune.
    """
    if checkpoint is not None:
        left_out = ("restore", "resume", "experiment-name")
        words = [*line.words, *typed(line, [flag for flag in flags if flag.name not in left_out])]
        return shlex.join([*program("train"), *words, "--restore", checkpoint])
    folder = Path(experiment.folder)
    if not (folder / "tuner.pkl").exists() or not any(folder.glob("experiment_state-*.json")):
        return None
    words = ["file", experiment.file] if experiment.file else []
    words += ["--resume", "-n", experiment.name, *typed(line, [flag for flag in flags if flag.name in KEPT_FOR_RESUME])]
    return shlex.join([*program("train"), *words])


def typed(line: CommandLine, flags: Collection[Flag]) -> list[str]:
    """The flags that were given, as one would type them."""
    words: list[str] = []
    for flag in flags:
        if line.given(flag.name):
            value = line[flag.name]
            switch = [f"--{'' if value else 'no-'}{flag.name}"]
            words += switch if flag.switch else [f"--{flag.name}", str(value)]
    return words


def print_best(experiment: Experiment, options: CheckpointOptions, checkpoints: Sequence[Saved]) -> None:
    """Prints the best checkpoint of a trial, and the command that evaluates it.

    Args:
        experiment: what was run.
        options: say what is best.
        checkpoints: the trial's, oldest first.
    """
    best = options.best(checkpoints)
    if best is not None:
        print(f"  {options.describe(best)}: {best.path}\n  {evaluate_line(experiment, best.path)}", flush=True)
