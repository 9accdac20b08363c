"""`polylib trace --compare A B`: two folders side by side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from polylib.cli.trace_listing import Agreement, headline
from polylib.cli.trace_numbers import short, sparkline, spread, table
from polylib.offline.episode_summary import ColumnStats, Summary

_CHOICES = 16


def comparison(
    names: Sequence[str], summaries: Sequence[Summary], agreements: Sequence[Agreement | None] = (None, None)
) -> list[str]:
    """Two folders side by side: counts, returns, lengths, ends, actions and columns.

    Args:
        names: of the two, as they were given.
        summaries: of them.
        agreements: of a policy with each, or None.
    """
    a, b = summaries
    heads = ["", "A", "B", "B - A"]
    rows = measures(summaries, agreements)
    lines = [f"A  {headline(names[0], a)}", f"B  {headline(names[1], b)}", "", *table([heads, *rows], "<>>>")]
    spreads = [spread(_values(summary, "return")) for summary in summaries]
    known = [found for found in spreads if found["count"]]
    if known:
        low, high = min(found["min"] for found in known), max(found["max"] for found in known)
        lines.append("")
        for letter, summary in zip("AB", summaries, strict=True):
            line = sparkline(_values(summary, "return"), low, high, 24)
            lines.append(f"returns of {letter}  {short(low)} |{line:<24}| {short(high)}")
    return [*lines, *_column_differences(a, b)]


def measures(summaries: Sequence[Summary], agreements: Sequence[Agreement | None] = (None, None)) -> list[list[str]]:
    """Rows of name, A, B and the difference."""
    rows: list[list[str]] = []

    def add(name: str, values: Sequence[float], unit: str = "") -> None:
        a, b = values
        less = b - a
        difference = "" if math.isnan(less) else "0" if not less else "+" * (less > 0) + short(less) + unit
        rows.append([name, short(a) + unit, short(b) + unit, difference])

    add("episodes", [len(summary.episodes) for summary in summaries])
    add("steps", [summary.steps for summary in summaries])
    for name in ("return", "length"):
        spreads = [spread(_values(summary, name)) for summary in summaries]
        for key in ("mean", "error", "median", "min", "max"):
            label = "standard error" if key == "error" else key
            add(f"{name} {label}", [found.get(key, math.nan) for found in spreads])
    for end in ("terminated", "truncated", None):
        shares = [_percent(sum(e.end == end for e in s.episodes), len(s.episodes)) for s in summaries]
        if any(shares):
            add(end or "open", shares, " %")
    for action in _actions(summaries):
        add(f"action {_action_name(action, summaries)}", [_frequency(s, action) for s in summaries], " %")
    agreed = [None if found is None else sum(n for n, _ in found.values()) for found in agreements]
    if agreed[0] is not None and agreed[1] is not None:
        add("policy agrees", [_percent(n or 0, s.steps) for n, s in zip(agreed, summaries, strict=True)], " %")
    return rows


def _values(summary: Summary, name: str) -> list[float]:
    return [e.total_reward if name == "return" else float(e.length) for e in summary.whole]


def _percent(part: float, whole: float) -> float:
    return round(100 * part / max(1, whole), 1)


def _actions(summaries: Sequence[Summary]) -> list[tuple[str, int, int]]:
    episodes = [episode for summary in summaries for episode in summary.episodes]
    found = {(*part, action) for e in episodes for part, taken in e.choices.items() for action in taken}
    return sorted(found) if len(found) <= _CHOICES else []


def _action_name(action: tuple[str, int, int], summaries: Sequence[Summary]) -> str:
    several = any(len(e.choices) > 1 for s in summaries for e in s.episodes)
    return f"{action[0]}[{action[1]}] = {action[2]}" if several else str(action[2])


def _frequency(summary: Summary, action: tuple[str, int, int]) -> float:
    taken = sum(e.choices.get(action[:2], Counter())[action[2]] for e in summary.episodes)
    return _percent(taken, summary.steps)


def _column_differences(a: Summary, b: Summary) -> list[str]:
    lines = []
    for policy_id in sorted({*a.policies, *b.policies}):
        one, other = ({stats.kind.name: stats for stats in s.columns(policy_id)} for s in (a, b))
        of = "" if len({*a.policies, *b.policies}) == 1 else f" of policy {policy_id}"
        for letter, only in (("A", one.keys() - other.keys()), ("B", other.keys() - one.keys())):
            if only:
                lines.append(f"columns{of} only in {letter}: {', '.join(sorted(only))}")
        rows = [["  column", "A", "B"]]
        for name in one:
            if name in other and one[name] != other[name]:
                rows.append([f"  {name}", *(_column_text(x[name], one[name], other[name]) for x in (one, other))])
        if len(rows) > 1:
            lines += ["", f"columns{of} that differ", *table(rows, "<<<")]
    return lines


def _column_text(stats: ColumnStats, one: ColumnStats, other: ColumnStats) -> str:
    text = f"{short(stats.low)}..{short(stats.high)}"
    if one.kind != other.kind:
        text = f"{stats.kind.dtype} [{', '.join(map(str, stats.kind.shape))}] {text}"
    return text + (f", {stats.nans} NaN" if stats.nans else "")
