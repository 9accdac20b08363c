"""When a run writes checkpoints, which of them it keeps, and which one is best."""

from __future__ import annotations

import math
import numbers
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.stopping import flatten, require_keys

_MIN = "min-"


@dataclass(frozen=True)
class Saved:
    """A checkpoint.

    Attributes:
        path: its folder.
        result: the result of the iteration after which it was written.
    """

    path: str
    result: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointOptions:
    """What the command line and files say about checkpoints.

    Attributes:
        frequency: iterations between checkpoints; 0: none.
        at_end: write one when the run ends.
        keep: how many stay; None: all.
        score: the result key that says which are best; None: the newest are.
        lowest: whether the smallest score is best.
        possible: whether the algorithm can be saved.
    """

    frequency: int = 0
    at_end: bool = True
    keep: int | None = None
    score: str | None = None
    lowest: bool = False
    possible: bool = True

    @classmethod
    def of(cls, line: CommandLine, of_file: Mapping[str, Any]) -> CheckpointOptions:
        """The options in a command line and, where it is silent, in an experiment's file (by the flags' names).

        Raises:
            UsageError: if the score has no name.
        """

        def value(flag: str) -> Any:
            return line[flag] if line.given(flag) else of_file.get(flag, line[flag])

        score = value("checkpoint-score-attr")
        lowest = score is not None and score.startswith(_MIN)
        score = score.removeprefix(_MIN) if lowest else score
        if score == "":
            raise UsageError("--checkpoint-score-attr: expected a key of the results, such as episode_reward_mean")
        return cls(
            value("checkpoint-freq"), value("checkpoint-at-end"), value("keep-checkpoints-num"), score, lowest
        )

    def for_algorithm(self, algorithm_class: type, unable: type) -> CheckpointOptions:
        """These options for an algorithm, of which some (users' own) can't be saved.

        Args:
            algorithm_class: the algorithm.
            unable: a class whose `save_checkpoint` only raises.

        Raises:
            UsageError: if it can't be saved and `--checkpoint-freq` says it should.
        """
        if getattr(algorithm_class, "save_checkpoint", None) is not getattr(unable, "save_checkpoint", None):
            return self
        if self.frequency:
            raise UsageError(f"--checkpoint-freq: {algorithm_class.__name__} can't be saved (no save_checkpoint())")
        return replace(self, at_end=False, possible=False)

    def due(self, iteration: int, done: bool) -> bool:
        """Whether a checkpoint is to be written after an iteration."""
        return (done and self.at_end) or bool(self.frequency and iteration % self.frequency == 0)

    def check(self, result: Mapping[str, Any]) -> None:
        """Raises a `ResultKeyError` if the score isn't in the results."""
        if self.score is not None:
            consequence = "so no checkpoint would be better than another"
            require_keys([self.score], flatten(result), "--checkpoint-score-attr", consequence)

    def rank(self, result: Mapping[str, Any]) -> tuple[bool, float]:
        """A key to sort by, best last; results without a score (or with NaN) come first."""
        value = None if self.score is None else score_of(result, self.score)
        if value is None:
            return False, 0.0
        return True, -value if self.lowest else value

    def best(self, checkpoints: Iterable[Saved]) -> Saved | None:
        """The best checkpoint; the newest one of equals.

        Args:
            checkpoints: in the order in which they were written.
        """
        ranked = sorted(checkpoints, key=lambda checkpoint: self.rank(checkpoint.result))
        return ranked[-1] if ranked else None

    def describe(self, checkpoint: Saved) -> str:
        """`last checkpoint`, or `best checkpoint (episode_reward_mean 150.3)`."""
        value = None if self.score is None else score_of(checkpoint.result, self.score)
        return "last checkpoint" if value is None else f"best checkpoint ({self.score} {value:.6g})"


def score_of(result: Mapping[str, Any], key: str) -> float | None:
    """The number at a key with slashes; None if it isn't there or is NaN."""
    value = flatten(result).get(key)
    if not isinstance(value, numbers.Real) or math.isnan(value):
        return None
    return float(value)


class KeptCheckpoints:
    """The checkpoints of a run without Tune, which does the same for its own.

    Args:
        folder: the trial's.
        options: how often, and how many.

    Attributes:
        saved: those that are there, oldest first.
    """

    def __init__(self, folder: str, options: CheckpointOptions) -> None:
        self._folder, self._options = Path(folder), options
        self.saved: list[Saved] = []

    @property
    def last(self) -> str | None:
        """The newest one's folder."""
        return self.saved[-1].path if self.saved else None

    def save(self, algorithm: Any, result: Mapping[str, Any]) -> None:
        """Writes a checkpoint, named after its iteration, and removes what is too much.

        Raises:
            CheckpointError: if it can't be written; the others are still there then.
        """
        path = str(self._folder / f"checkpoint_{result['training_iteration']:06d}")
        if path == self.last:
            return
        algorithm.save(path)
        self.saved.append(Saved(path, result))
        if self._options.keep is None:
            return
        ranked = sorted(self.saved, key=lambda checkpoint: self._options.rank(checkpoint.result))
        for checkpoint in ranked[: -self._options.keep]:
            if checkpoint.path != self.last:  # what the run would go on from
                self.saved.remove(checkpoint)
                shutil.rmtree(checkpoint.path, ignore_errors=True)
