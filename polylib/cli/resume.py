"""`--resume`: an interrupted experiment of Tune, found again by its name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.registry import get_config_class
from polylib.checkpoints import HEADER
from polylib.cli.checkpoints import CheckpointOptions
from polylib.cli.experiment import Experiment, local_folder
from polylib.cli.files import read_drafts
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.next_steps import KEPT_FOR_RESUME
from polylib.cli.train_flags import TRAIN_FLAGS
from polylib.cli.values import read_mapping, stop_criteria
from polylib.errors import PolylibError

_ALLOWED = ("resume", "algo", "stop", "experiment-name", *KEPT_FOR_RESUME)
# How Tune writes in its JSON what JSON doesn't have.
_TYPE_KEY = "_type"


def resumed_experiment(line: CommandLine) -> Experiment:
    """The experiment that `--resume -n NAME` goes on with.

    Raises:
        UsageError: if there is none, it is finished, or a flag asks for what can't be changed.
    """
    for flag in TRAIN_FLAGS:
        if line.given(flag.name) and flag.name not in _ALLOWED:
            raise UsageError(
                f"--{flag.name}: an experiment that is resumed keeps its settings: leave the flag out, or start a new "
                "run from a checkpoint with --restore CHECKPOINT"
            )
    name, local_dir = line["experiment-name"], local_folder(line)
    if not name:
        raise UsageError(f"--resume: which experiment? use -n NAME with the name of a folder in {local_dir}")
    if "://" in local_dir:
        raise UsageError(
            f"--resume: it reads local folders; in Python, tune.Tuner.restore('{local_dir}/{name}', ..) does it"
        )
    folder = Path(local_dir, name)
    trials = _trials(folder)
    algo = str(trials[0].get("trainable_name"))
    if line["algo"] not in (None, algo):
        raise UsageError(f"--algo {line['algo']}: {folder} is an experiment of {algo}")
    done = sum(trial.get("status") == "TERMINATED" for trial in trials)
    if done == len(trials):
        raise UsageError(
            f"--resume: experiment {name!r} is finished; --restore CHECKPOINT starts a new run from a checkpoint of it"
        )
    draft, file = None, None
    if line.words:
        file = line.words[-1]
        if len(line.words) != 2 or line.words[0] != "file" or not file.endswith(".py"):
            raise UsageError("--resume: beside flags it takes the experiment's Python file only: train file FILE.py")
        draft = read_drafts(file)[0]
    try:
        config = max((_config(algo, trial) for trial in trials), key=lambda config: int(config["num_workers"]))
    except PolylibError as error:
        raise UsageError(f"--resume: {folder}: {error}") from error
    if draft is not None and config["env"] is None:
        # JSON has only its name.
        config.update_from_dict({"env": draft.config["env"] if "env" in draft.config else None}, source=draft.origin)
    stop = None if line["stop"] is None else stop_criteria(read_mapping(line["stop"], "--stop"), "--stop")
    of = f"{len(trials)} trial{'s' if len(trials) > 1 else ''} of {algo}" + (f", {done} done" if done else "")
    return Experiment(
        config,
        stop or {},
        name,
        local_dir,
        1,
        "",
        module=draft.module if draft else None,
        file=file,
        checkpoints=CheckpointOptions(),
        resumes=True,
        title=f"goes on with {of}",
    )


def _trials(folder: Path) -> list[dict[str, Any]]:
    """What Tune's newest state of an experiment says of its trials."""
    if not folder.is_dir():
        there = sorted(folder.parent.glob("*/tuner.pkl"), key=os.path.getmtime) if folder.parent.is_dir() else []
        hint = f"; the newest ones there: {', '.join(path.parent.name for path in there[:-4:-1])}" if there else ""
        raise UsageError(f"--resume: there is no experiment {str(folder)!r}{hint}")
    states = sorted(folder.glob("experiment_state-*.json"))
    if not states or not (folder / "tuner.pkl").exists():
        found = sorted(folder.glob(f"*/checkpoint_*/{HEADER}"), key=os.path.getmtime)
        hint = f"; --restore {found[-1].parent} goes on from its newest checkpoint" if found else ""
        raise UsageError(f"--resume: {folder} wasn't written by Tune, but perhaps by --local-mode{hint}")
    try:
        trials = [json.loads(trial) for trial, _ in json.loads(states[-1].read_text("utf-8"))["trial_data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--resume: {states[-1]} is damaged: {type(error).__name__}: {error}") from None
    if not trials:
        raise UsageError(f"--resume: {folder} was interrupted before its first trial: start it anew")
    return trials


def _config(algo: str, trial: Mapping[str, Any]) -> AlgorithmConfig:
    """A trial's settings as far as JSON has them, for the resources that it needs."""
    stored = {
        key: value
        for key, value in trial.get("config", {}).items()
        if not isinstance(value, Mapping) or _TYPE_KEY not in value
    }
    return get_config_class(algo)().update_from_dict(stored, source="experiment")
