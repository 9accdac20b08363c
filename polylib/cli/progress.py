"""What a run shows while it works: a line per result, and one per trial at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from polylib.cli.experiment import short_path


class ResultTable:
    """Lines of results under a heading, flushed one by one."""

    def __init__(self) -> None:
        self._width = 0

    def add(self, trial: str, result: Mapping[str, Any], trials: Iterable[str] = ()) -> None:
        """Prints a line; what the result doesn't have (yet) is `-`.

        Args:
            trial: its name.
            result: what `train()` returned.
            trials: all names, for the width of the first column.
        """
        if not self._width:
            self._width = max(len(name) for name in (trial, *trials))
            self._print("trial", "iter", "timesteps", "reward", "length", "time")
        self._print(
            trial,
            _count(result.get("training_iteration")),
            _count(_timesteps(result)),
            *_episodes(result),
            duration(result.get("time_total_s")),
        )

    def _print(self, trial: str, iteration: str, steps: str, reward: str, length: str, time: str) -> None:
        line = f"{trial:<{self._width}}  {iteration:>5}  {steps:>10}  {reward:>9}  {length:>8}  {time:>10}"
        print(line, flush=True)


def summary_line(trial: str, status: str, result: Mapping[str, Any], folder: str) -> str:
    """How a trial ended."""
    return (
        f"{trial}: {status} after {_count(result.get('training_iteration') or 0)} iterations, "
        f"{_count(_timesteps(result) or 0)} timesteps, {duration(result.get('time_total_s') or 0)}; "
        f"{_reward_in_words(result)}; {short_path(folder)}"
    )


def duration(seconds: Any) -> str:
    """`7.1 s`, `12 min 5 s`, `3 h 20 min`."""
    if not _is_number(seconds):
        return "-"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _episodes(result: Mapping[str, Any]) -> tuple[str, str]:
    """Mean reward and length; those of evaluation, marked so, or an estimate, where training runs no episodes."""
    evaluation = result.get("evaluation")
    if _is_number(result.get("episode_reward_mean")) or not isinstance(evaluation, Mapping):
        return number(result.get("episode_reward_mean")), number(result.get("episode_len_mean"))
    estimates = _estimates(result)
    if estimates and not _is_number(evaluation.get("episode_reward_mean")):
        return f"est {number(next(iter(estimates.values())))}", "-"
    return f"ev {number(evaluation.get('episode_reward_mean'))}", number(evaluation.get("episode_len_mean"))


def _estimates(result: Mapping[str, Any]) -> dict[str, Any]:
    """What off-policy estimators say that the policy would earn, by their names."""
    evaluation = result.get("evaluation")
    found = evaluation.get("off_policy_estimator") if isinstance(evaluation, Mapping) else None
    return {name: values.get("v_target") for name, values in (found or {}).items() if isinstance(values, Mapping)}


def _reward_in_words(result: Mapping[str, Any]) -> str:
    reward, _ = _episodes(result)
    told = f"evaluation's reward {reward[3:]}" if reward.startswith("ev ") else f"reward {reward}"
    estimates = ", ".join(f"{name} {number(value)}" for name, value in _estimates(result).items())
    if not estimates:
        return told
    return f"estimated: {estimates}" if reward.startswith("est ") else f"{told}; estimated: {estimates}"


def _timesteps(result: Mapping[str, Any]) -> Any:
    steps = result.get("timesteps_total")
    return result.get("num_env_steps_sampled") if steps is None else steps


def _count(value: Any) -> str:
    return f"{int(value)}" if _is_number(value) else "-"


def number(value: Any) -> str:
    """A number of a result, short; `-` where there is none."""
    if not _is_number(value):
        return "-"
    return f"{value:.4g}" if abs(value) < 1e-2 and value else f"{value:.2f}"


def _is_number(value: Any) -> bool:
    try:
        return not math.isnan(value)
    except TypeError:
        return False
