"""What the windows say: lines for the terminal, RESULTS.md, and the picture."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import compare
from rows.spec import Row
from rows.table import ROWS
from servers import NAMES, peers_folder

BY_NAME = {row.name: row for row in ROWS}
ORDER = {row.name: i for i, row in enumerate(ROWS)}


# --- the file of results


def load(path: Path, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """The results so far; those of another machine are left behind."""
    new = new or {"machine": {}, "versions": {}, "entries": []}
    if not path.exists():
        return new
    old = json.loads(path.read_text())
    if new["machine"] and old["machine"] != new["machine"]:
        print(f"{path.name} is of another machine: starting anew", file=sys.stderr)
        return new
    old["entries"] = [entry for entry in old["entries"] if entry["row"] in BY_NAME]
    return old


def put(results: dict[str, Any], entry: dict[str, Any]) -> None:
    """Puts an entry in the place of the older one."""
    others = [e for e in results["entries"] if (e["row"], e["mode"]) != (entry["row"], entry["mode"])]
    results["entries"] = sorted([*others, entry], key=lambda e: ORDER[e["row"]])


def save(results: dict[str, Any], path: Path) -> None:
    """Writes the results, a line for each entry, with four digits."""
    entries = []
    for entry in results["entries"]:
        rounded = {key: _rounded(entry[key]) for key in ("figures", "cpu")}
        entries.append("  " + json.dumps({**entry, **rounded}))
    head = {key: value for key, value in results.items() if key != "entries"}
    text = json.dumps(head, indent=1)[:-2] + ',\n "entries": [\n' + ",\n".join(entries) + "\n ]\n}\n"
    path.write_text(text)


def _rounded(figures: dict[str, list[float]]) -> dict[str, list[float]]:
    return {side: [float(f"{x:.4g}") for x in values] for side, values in figures.items()}


# --- what a row says


def comparisons(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each peer of a row (and for an absolute bound): figures, ratios, bounds and the verdict."""
    row: Row = BY_NAME[entry["row"]]
    ours = entry["figures"].get("polylib")
    if row.limit is not None and ours:
        value = statistics.median(ours)
        must, goal = row.limit.must, row.limit.goal
        verdict = _verdict(-value, None if must is None else -must, None if goal is None else -goal)
        yield {"peer": None, "value": value, "must": must, "goal": goal, "verdict": verdict}
    for peer in row.peers:
        theirs = entry["figures"].get(peer)
        if not ours or not theirs:
            continue
        found = compare(row, ours, theirs)
        cpu = entry["cpu"]
        of_cpu = compare(row, cpu["polylib"], cpu[peer])["of_medians"] if peer in cpu and "polylib" in cpu else None
        bound = row.bound(peer, entry["mode"])
        yield {
            "peer": peer,
            **found,
            "of_cpu": of_cpu,
            "must": bound.must,
            "goal": bound.goal,
            "verdict": _verdict(found["ratio"], bound.must, bound.goal, of_cpu),
        }


def _verdict(value: float, must: float | None, goal: float | None, of_cpu: float | None = None) -> str:
    if must is not None and value < must:
        # The clock runs on while others have the core, and more often does for a process that never waits.
        return "missed" if of_cpu is None or of_cpu < must else "met (CPU)"
    if goal is not None:
        return "goal" if value >= goal else ("met" if must is not None else "below goal")
    return "met" if must is not None else ""


def verdicts(entry: dict[str, Any]) -> list[str]:
    """The verdicts of a row; a row that polylib failed is missed."""
    return [c["verdict"] for c in comparisons(entry)] + ["missed"] * ("polylib" in entry["errors"])


def amount(value: float, unit: str) -> str:
    """A figure with its unit."""
    return f"{value:,.0f} {unit}" if value >= 99.95 else f"{value:.3g} {unit}"


def _figure(row: Row, values: list[float]) -> str:
    """The median, and the best window of a latency."""
    best = f" (best {amount(min(values), '').strip()})" if row.kind == "latency" else ""
    return amount(statistics.median(values), row.unit) + best


def times(value: float) -> str:
    """A ratio."""
    return f"{value:.0f}x" if value >= 99.5 else f"{value:.1f}x" if value >= 9.95 else f"{value:.2f}x"


def _bounds(must: float | None, goal: float | None, suffix: str) -> str:
    parts = [f"{word} {x:g}{suffix}" for word, x in (("must", must), ("goal", goal)) if x is not None]
    return ", ".join(parts) or "no bound"


def lines(entry: dict[str, Any]) -> list[str]:
    """A row for the terminal."""
    row: Row = BY_NAME[entry["row"]]
    out = []
    head = f"{entry['row']:20} {entry['mode']:10}"
    own = {side: _figure(row, values) for side, values in entry["figures"].items()}
    figures = ", ".join(f"{NAMES[side]} {text}" for side, text in own.items())
    out.append(f"{head} {figures}   [{entry['took_s']:.0f} s, others {entry['others']:.1f} cores]")
    for c in comparisons(entry):
        if c["peer"] is None:
            out.append(f"{'':31} {_bounds(c['must'], c['goal'], ' ' + row.unit)}: {c['verdict']}")
            continue
        spread = f"medians {times(c['of_medians'])}, best {times(c['of_best'])}, {times(c['low'])}-{times(c['high'])}"
        spread += f", CPU {times(c['of_cpu'])}" if c["of_cpu"] else ""
        bounds = _bounds(c["must"], c["goal"], "x")
        out.append(f"{'':31} {times(c['ratio'])} {NAMES[c['peer']]} ({spread}); {bounds}: {c['verdict'] or '-'}")
    out += [f"{'':31} FAILED {error}" for error in entry["errors"].values()]
    return out


# --- RESULTS.md and the picture

_HEAD = """# polylib beside RLlib and Stable-Baselines3

Written by `make bench`; [results.json](results.json) has every window. Windows of all sides were timed in turn on the
same machine, each side on one thread (RLlib's TensorFlow sessions, too, which have 2 and 8 by default), PPO on
CartPole-v1 with two separate 2x256 tanh branches where a row doesn't say otherwise. Figures are medians, for a
latency with the best window. "Times faster" is the ratio of the medians (for a latency the smaller one of that and of
the ratio of the best windows); in brackets the quartiles of the ratios of windows timed next to each other. "must"
and "goal" are the bounds that polylib holds itself to. "CPU" is the ratio of CPU times, which a busy machine disturbs
less ("met (CPU)": by it, not by the clock); "load" is how many cores others kept busy meanwhile.
"""


def write(results: dict[str, Any], folder: Path) -> int:
    """Writes RESULTS.md and RESULTS.png."""
    (folder / "RESULTS.md").write_text(markdown(results))
    python = peers_folder() / "plot" / "bin" / "python"
    points = [
        {"row": entry["row"], "title": BY_NAME[entry["row"]].title, "mode": entry["mode"], **c}
        for entry in results["entries"]
        for c in comparisons(entry)
        if c["peer"] is not None
    ]
    if not python.exists():
        print("no picture: benchmarks/peers/setup.sh plot makes an environment with matplotlib", file=sys.stderr)
        return 0
    script, target = folder / "plot.py", folder / "RESULTS.png"
    return subprocess.run([str(python), str(script), str(target)], input=json.dumps(points), text=True).returncode


def markdown(results: dict[str, Any]) -> str:
    """The table."""
    machine, entries = results["machine"], results["entries"]
    out = [_HEAD]
    if machine:
        out.append(f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory']}, {machine['system']}.\n")
    for side, found in results["versions"].items():
        listed = ", ".join(f"{name} {version}" for name, version in found.items() if name != side)
        out.append(f"* {NAMES[side]}: {listed}")
    if entries:
        by_date = sorted(entries, key=lambda entry: entry["date"])
        first, last = by_date[0], by_date[-1]
        days = list(dict.fromkeys((first["date"][:10], last["date"][:10])))
        commits = {entry["commit"] for entry in entries}
        at = last["commit"] if len(commits) == 1 else f"{first['commit']} to {last['commit']}"
        plus = " (+: with changes not committed then)" if any(c.endswith("+") for c in commits) else ""
        out.append(f"* {' to '.join(days)}, polylib at {at}{plus}\n")
    judged = [c["verdict"] for entry in entries for c in comparisons(entry) if c["must"] is not None]
    met = sum(verdict != "missed" for verdict in judged)
    aimed = [c["verdict"] for entry in entries for c in comparisons(entry) if c["goal"] is not None]
    out.append(f"**{met} of {len(judged)} musts met, {aimed.count('goal')} of {len(aimed)} goals reached.**\n")
    out.append("![How many times as fast as its peers polylib is](RESULTS.png)\n")
    out.append("| | mode | polylib | peer | times faster | CPU | must | goal | | load |")
    out.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    last = ""
    for entry in entries:
        row: Row = BY_NAME[entry["row"]]
        for line in _table_lines(row, entry):
            title = f"{row.title} (`{row.name}`)" if row.name != last else ""
            out.append(f"| {title} {line}")
            last = row.name
    notes = [f"* `{row.name}`: {row.note}" for row in ROWS if row.note and any(e["row"] == row.name for e in entries)]
    return "\n".join([*out, "", *notes]) + "\n"


def _table_lines(row: Row, entry: dict[str, Any]) -> Iterator[str]:
    own = {side: _figure(row, values) for side, values in entry["figures"].items()}
    ours = own.get("polylib", "failed")
    start = f"| {entry['mode']} | {ours} |"
    any_line = False
    for c in comparisons(entry):
        any_line = True
        suffix = " " + row.unit if c["peer"] is None else "x"
        bounds = " | ".join("" if x is None else f"{x:g}{suffix}" for x in (c["must"], c["goal"]))
        verdict = "**missed**" if c["verdict"] == "missed" else c["verdict"]
        if c["peer"] is None:
            yield f"{start} | | | {bounds} | {verdict} | {entry['others']:.1f} |"
            continue
        peer = f"{NAMES[c['peer']]} {own[c['peer']]}"
        ratio = f"{times(c['ratio'])} ({times(c['low'])}-{times(c['high'])})"
        cpu = times(c["of_cpu"]) if c["of_cpu"] else ""
        yield f"{start} {peer} | {ratio} | {cpu} | {bounds} | {verdict} | {entry['others']:.1f} |"
    if not any_line:
        yield f"{start} | | | | | {'; '.join(entry['errors'].values())} | {entry['others']:.1f} |"
