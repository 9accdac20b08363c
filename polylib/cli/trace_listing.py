"""`polylib trace PATH`: a line for each episode, and what they have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from polylib.cli.trace_numbers import percent, short, sparkline, spread, table
from polylib.cli.trace_policy import TOLERANCE
from polylib.offline.episode_summary import ColumnStats, EpisodeSummary, Summary
from polylib.offline.episodes import EpisodeKey

# How many steps agree with a policy, and the mean difference of Box actions.
Agreement = dict[EpisodeKey, tuple[int, float | None]]
_COLUMNS_UP_TO = 3
_CHOICES = 8


def ordered(episodes: Sequence[EpisodeSummary], by: str) -> list[EpisodeSummary]:
    """The episodes in an order of `--sort`; NaN returns come last."""
    if by == "return":
        return sorted(episodes, key=lambda e: (math.isnan(e.total_reward), -e.total_reward))
    if by == "length":
        return sorted(episodes, key=lambda e: -e.length)
    if by == "id":
        return sorted(episodes, key=lambda e: _id_key(e.key))
    return list(episodes)


def _id_key(key: EpisodeKey) -> tuple[Any, ...]:
    number = isinstance(key.eps_id, int)
    return not number, key.eps_id if number else 0, str(key.eps_id), key.run, key.policy_id, key.agent_index


def listing(
    name: str,
    summary: Summary,
    shown: Sequence[EpisodeSummary],
    columns: bool | None = None,
    agreement: Agreement | None = None,
    width: int | None = None,
) -> list[str]:
    """The lines of the whole listing.

    Args:
        name: what was read, as it was given.
        summary: of it.
        shown: the episodes to list, in order.
        columns: list the columns of each of them; None: if they are few.
        agreement: with a policy.
        width: of the terminal; None: lines may be of any length.
    """
    lines = [headline(name, summary)]
    if shown:
        lines += ["", *_episodes(summary, shown, agreement, width)]
        if columns or (columns is None and len(summary.episodes) <= _COLUMNS_UP_TO):
            for episode in shown:
                lines += ["", f"columns of episode {where(episode.key, summary)}"]
                lines += column_table(episode.columns, width)
    left = len(summary.episodes) - len(shown)
    if left:
        lines += ["", f"... and {left} more episode{'s' * (left > 1)}"]
    lines += ["", *_totals(summary, agreement)]
    if len(summary.episodes) == 1 and shown and columns is not False:
        return lines  # what its columns hold stands above
    for policy_id in summary.policies:
        of = "" if len(summary.policies) == 1 else f" of policy {policy_id}"
        lines += ["", f"columns{of}, all episodes", *column_table(summary.columns(policy_id), width)]
    return lines


def headline(name: str, summary: Summary) -> str:
    """What was read, in one line."""
    return f"{name}: {', '.join(facts(summary))}"


def facts(summary: Summary) -> list[str]:
    """How many files, records, episodes and steps, and which policies if several."""
    parts = [
        *([_count(summary.files, "file")] if summary.files else []),
        _count(summary.records, "record"),
        _count(len(summary.episodes), "episode"),
        _count(summary.steps, "step"),
    ]
    if len(summary.policies) > 1:
        parts.insert(-2, f"policies {', '.join(summary.policies)}")
    return parts


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def where(key: EpisodeKey, summary: Summary) -> str:
    """An episode's id, with policy and agent where there are several."""
    text = key.label
    if len(summary.policies) > 1:
        text += f", policy {key.policy_id}"
    return text + (f", agent {key.agent_index}" if summary.several_agents else "")


def _episodes(
    summary: Summary, shown: Sequence[EpisodeSummary], agreement: Agreement | None, width: int | None
) -> list[str]:
    heads, align = ["episode"], "<"
    if len(summary.policies) > 1:
        heads, align = [*heads, "policy"], align + "<"
    if summary.several_agents:
        heads, align = [*heads, "agent"], align + ">"
    heads, align = [*heads, "length", "return", "end", "actions"], align + ">><<"
    if agreement is not None:
        heads, align = [*heads, "agrees"], align + ">"
    heads, align = [*heads, "notes"], align + "<"
    rows = [heads]
    for episode in shown:
        row = [episode.key.label]
        if len(summary.policies) > 1:
            row.append(episode.key.policy_id)
        if summary.several_agents:
            row.append(str(episode.key.agent_index))
        row += [str(episode.length), short(episode.total_reward), episode.end or "open", actions_text(episode)]
        if agreement is not None:
            row.append(percent(agreement.get(episode.key, (0, None))[0], episode.length))
        rows.append([*row, "; ".join(notes_of(episode))])
    return table(rows, align, width)


def notes_of(episode: EpisodeSummary) -> list[str]:
    """What is wrong with an episode; that it has no end stands in a column of its own."""
    return [problem for problem in episode.problems() if problem != "no end"]


def actions_text(episode: EpisodeSummary) -> str:
    """How often each action was taken; the ranges of others."""
    parts = []
    several = len(episode.choices) > 1
    for (_, part), taken in episode.choices.items():
        parts.append((f"[{part}] " if several else "") + _choices_text(taken, episode.length))
    for found in episode.ranges.values():
        pairs = list(zip(found.low.tolist(), found.high.tolist(), strict=True))
        ranges = [f"{short(low)}..{short(high)}" for low, high in pairs[:4]]
        parts.append("  ".join(ranges) + (f"  (+{len(pairs) - 4})" if len(pairs) > 4 else ""))
    return "  ".join(parts) or "-"


def _choices_text(taken: Counter[int], length: int) -> str:
    if len(taken) <= _CHOICES:
        return "  ".join(f"{action}: {percent(taken[action], length)}" for action in sorted(taken))
    most = ", ".join(f"{action}: {percent(count, length)}" for action, count in taken.most_common(3))
    return f"{len(taken)} different, {most}"


def column_table(columns: Sequence[ColumnStats], width: int | None = None) -> list[str]:
    """A line for each column."""
    rows = [["  column", "shape", "dtype", "from", "to", "NaN", "infinite"]]
    for kind, low, high, nans, infs in columns:
        shape = f"[{', '.join(map(str, kind.shape))}]"
        found = [str(nans) if nans else "", str(infs) if infs else ""]
        rows.append([f"  {kind.name}", shape, kind.dtype, short(low), short(high), *found])
    if not any(row[5] or row[6] for row in rows[1:]):
        rows = [row[:5] for row in rows]
    return table(rows, "<<<>>>>"[: len(rows[0])], width)


def _totals(summary: Summary, agreement: Agreement | None) -> list[str]:
    returns = [episode.total_reward for episode in summary.whole]
    lengths = [float(episode.length) for episode in summary.whole]
    rows = [["", "mean", "std", "min", "25 %", "median", "75 %", "max", "distribution"]]
    for name, values in (("return", returns), ("length", lengths)):
        found = spread(values)
        if found["count"]:
            line = sparkline(values, found["min"], found["max"])
            keys = ("mean", "std", "min", "q25", "median", "q75", "max")
            rows.append([name, *(short(found[key]) for key in keys), f"{line}"])
    lines = table(rows, "<>>>>>>><")
    if len(summary.whole) < len(summary.episodes):
        lines.append(f"        of the {_count(len(summary.whole), 'whole episode')}")
    ends = Counter(episode.end or "open" for episode in summary.episodes)
    lines.append("ends    " + ", ".join(f"{count} {name}" for name, count in ends.most_common()))
    troubled = sum(bool(notes_of(episode)) for episode in summary.episodes)
    if troubled:
        lines.append(f"notes   {troubled} of {len(summary.episodes)} episodes have some")
    if agreement:
        steps, agreed = sum(e.length for e in summary.episodes), sum(n for n, _ in agreement.values())
        text = f"policy  agrees at {agreed} of {steps} steps, {percent(agreed, steps)}"
        apart = [(d, e.length) for e in summary.episodes for d in [agreement.get(e.key, (0, None))[1]] if d is not None]
        if apart:
            mean = sum(d * n for d, n in apart) / sum(n for _, n in apart)
            text += f" (to {TOLERANCE:.0%} of the space's width; mean difference {short(mean)})"
        lines.append(text)
    return lines
