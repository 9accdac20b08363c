"""What `polylib trace --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polylib.cli.trace_listing import Agreement
from polylib.cli.trace_numbers import exact, spread
from polylib.offline.episode_summary import ColumnStats, EpisodeSummary, Summary


def summary_json(
    name: str, summary: Summary, shown: Sequence[EpisodeSummary], agreement: Agreement | None = None
) -> dict[str, Any]:
    """The listing as JSON values; numbers that aren't finite are None."""
    out: dict[str, Any] = {
        "path": name,
        "files": summary.files,
        "records": summary.records,
        "steps": summary.steps,
        "skipped": summary.skipped,
        "whole": sum(e.whole for e in summary.episodes),
        "returns": _spread_json([e.total_reward for e in summary.whole]),
        "lengths": _spread_json([float(e.length) for e in summary.whole]),
        "columns": {policy_id: _columns_json(summary.columns(policy_id)) for policy_id in summary.policies},
        "episodes": [episode_json(episode, agreement) for episode in shown],
    }
    if agreement is not None:
        out["agrees"] = sum(count for count, _ in agreement.values()) / max(1, summary.steps)
    return out


def episode_json(episode: EpisodeSummary, agreement: Agreement | None = None) -> dict[str, Any]:
    """One episode as JSON values."""
    key = episode.key
    out: dict[str, Any] = {
        "episode": key.label,
        "policy": key.policy_id,
        "agent": key.agent_index,
        "length": episode.length,
        "return": exact(episode.total_reward),
        "end": episode.end,
        "gaps": [[start, stop] for start, stop in episode.gaps],
        "duplicates": episode.duplicates,
        "problems": episode.problems(),
        "actions": _actions_json(episode),
        "columns": _columns_json(episode.columns),
    }
    if agreement is not None and key in agreement:
        count, difference = agreement[key]
        out["agrees"] = count / max(1, episode.length)
        if difference is not None:
            out["action_difference"] = exact(difference)
    return out


def _spread_json(values: Sequence[float]) -> dict[str, Any]:
    return {name: exact(value) for name, value in spread(values).items()}


def _columns_json(columns: Sequence[ColumnStats]) -> dict[str, Any]:
    return {
        kind.name: {
            "shape": list(kind.shape),
            "dtype": kind.dtype,
            "low": exact(low),
            "high": exact(high),
            "nan": nans,
            "infinite": infs,
        }
        for kind, low, high, nans, infs in columns
    }


def _actions_json(episode: EpisodeSummary) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for (name, _), taken in episode.choices.items():
        out.setdefault(name, {"counts": []})["counts"].append({str(k): taken[k] for k in sorted(taken)})
    for name, found in episode.ranges.items():
        parts = {"low": found.low, "high": found.high, "mean": found.mean}
        out[name] = {key: [exact(x) for x in values.tolist()] for key, values in parts.items()}
    return out
