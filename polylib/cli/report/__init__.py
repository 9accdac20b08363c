"""`polylib trace PATH --html FILE`: one page with everything in it, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import os
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from polylib.cli.report.encode import episode_data, script_json
from polylib.cli.trace_compare import measures
from polylib.cli.trace_listing import facts, notes_of
from polylib.cli.trace_numbers import exact, short, spread
from polylib.cli.trace_policy import Overlay, PolicyBeside
from polylib.offline.episode_summary import Summary
from polylib.offline.episodes import Episode, EpisodeKey, episodes_of

# What the steps and the images of a page may take together, so that a browser still opens it at once.
STEP_BYTES = 64 << 20
IMAGE_BYTES = 32 << 20
_FOLDER = Path(__file__).parent
_SCRIPTS = ("basics.js", "plots.js", "list.js", "film.js", "lanes.js", "episode.js", "app.js")


class Source(NamedTuple):
    """One folder, or what counts as one.

    Attributes:
        name: as people read it.
        paths: what was given.
        summary: what is in it.
    """

    name: str
    paths: Sequence[str]
    summary: Summary


def write_report(
    path: Path, sources: Sequence[Source], embed: int, beside: PolicyBeside | None = None, policy_id: str | None = None
) -> list[str]:
    """Writes the page; under another name first, so that a page that is there is whole.

    Args:
        path: of the file.
        sources: one, or two to be compared.
        embed: how many episodes of each have their steps in it; if there are more, evenly from the best to the worst.
        beside: a policy.
        policy_id: only its episodes; None: all.

    Returns:
        What isn't in it, in words.

    Raises:
        OSError: it can't be written.
    """
    said: list[str] = []
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    before, after = _template(" and ".join(source.name for source in sources))
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(before)
            described = []
            for place, source in enumerate(sources):
                wanted = _chosen(source.summary, embed)
                if len(wanted) < len(source.summary.episodes):
                    said.append(
                        f"{source.name}: {len(wanted)} of {len(source.summary.episodes)} episodes have their steps in "
                        "the page, from the best return to the worst; the others are listed"
                    )
                keys, agreement = _write_episodes(file, place, source, wanted, beside, policy_id, len(sources))
                if len(keys) < len(wanted):
                    said.append(f"{source.name}: the page is full after {len(keys)} episodes; the others are listed")
                described.append(_describe(source, "AB"[place] if len(sources) > 1 else "", keys, agreement))
            overview = {
                "sources": described,
                "policy": None if beside is None else f"{beside.name} ({beside.framework})",
                "comparison": _comparison(sources) if len(sources) > 1 else [],
                "notes": [*said, *_left_out(sources)],
            }
            file.write(_element("overview", overview))
            file.write(after)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return said


def _comparison(sources: Sequence[Source]) -> list[list[str]]:
    rows = measures([source.summary for source in sources])
    return [[row[0], *(cell.replace("-", "\u2212") for cell in row[1:])] for row in rows]


def _left_out(sources: Sequence[Source]) -> list[str]:
    found = [text for source in sources for text in source.summary.skipped]
    more = [f"{len(found) - 5} more lines were left out"] if len(found) > 5 else []
    return [f"left out: {text}" for text in found[:5]] + more


def _chosen(summary: Summary, embed: int) -> set[EpisodeKey]:
    """The episodes that are embedded: all, or evenly from the best return to the worst."""
    if len(summary.episodes) <= embed:
        return {episode.key for episode in summary.episodes}
    ranked = sorted(summary.episodes, key=lambda e: (math.isnan(e.total_reward), -e.total_reward))
    return {ranked[i].key for i in np.linspace(0, len(ranked) - 1, embed).round().astype(int)}


def _write_episodes(
    file: TextIO,
    place: int,
    source: Source,
    wanted: set[EpisodeKey],
    beside: PolicyBeside | None,
    policy_id: str | None,
    sources: int,
) -> tuple[dict[EpisodeKey, str], dict[EpisodeKey, float] | None]:
    """Writes each episode's data; returns their elements' names, and how often a policy agrees."""
    keys: dict[EpisodeKey, str] = {}
    agreement: dict[EpisodeKey, float] = {}
    images, written = IMAGE_BYTES // sources // max(1, len(wanted)), 0
    # A policy is asked about all episodes: how often it agrees stands in the list.
    among = None if beside is not None else wanted.__contains__
    for episode, overlay in _with_overlay(source, policy_id, among, beside):
        if overlay is not None:
            agreement[episode.key] = float(overlay.agrees.mean())
        if episode.key not in wanted or written > STEP_BYTES // sources:
            continue
        name = f"episode-{place}-{len(keys)}"
        text = _element(name, episode_data(episode, overlay, images))
        written += len(text)
        file.write(text)
        keys[episode.key] = name
    return keys, None if beside is None else agreement


def _with_overlay(
    source: Source, policy_id: str | None, wanted: Any, beside: PolicyBeside | None
) -> Iterator[tuple[Episode, Overlay | None]]:
    for episode in episodes_of(list(source.paths), policy_id, wanted=wanted, on_error=lambda error: None):
        yield episode, None if beside is None else beside.of(episode)


def _describe(
    source: Source, letter: str, keys: dict[EpisodeKey, str], agreement: dict[EpisodeKey, float] | None
) -> dict[str, Any]:
    summary, episodes = source.summary, source.summary.episodes
    found = spread([episode.total_reward for episode in summary.whole])
    lengths = spread([float(episode.length) for episode in summary.whole])
    partly = len(summary.whole) < len(episodes)
    stats = [("mean return", _number(found.get("mean", math.nan)))]
    if found["count"] > 1:
        stats += [
            ("median", _number(found["median"])),
            ("worst to best", f"{_number(found['min'])} to {_number(found['max'])}"),
            ("standard deviation", _number(found["std"])),
        ]
    stats.append(("mean length", _number(lengths["mean"])))
    if agreement is not None:
        agreed = sum(agreement.get(e.key, 0.0) * e.length for e in episodes) / max(1, summary.steps)
        stats.append(("policy agrees", f"{100 * agreed:.0f} %"))
    return {
        "name": source.name,
        "letter": letter,
        "facts": [*facts(summary), *([f"{len(summary.whole)} whole"] if partly else [])],
        "stats": stats,
        "policies": len(summary.policies),
        "agents": summary.several_agents,
        "episodes": {
            "id": [episode.key.label for episode in episodes],
            "policy": [episode.key.policy_id for episode in episodes],
            "agent": [episode.key.agent_index for episode in episodes],
            "length": [episode.length for episode in episodes],
            "return": [exact(episode.total_reward) for episode in episodes],
            "end": [episode.end for episode in episodes],
            "whole": [episode.whole for episode in episodes],
            "notes": [notes_of(episode) for episode in episodes],
            "key": [keys.get(episode.key) for episode in episodes],
            "agrees": None if agreement is None else [agreement.get(episode.key) for episode in episodes],
        },
    }


def _number(value: float) -> str:
    """As the page's own numbers are: with a minus, not a hyphen."""
    return short(value).replace("-", "\u2212")


def _element(name: str, value: Any) -> str:
    return f'<script type="application/json" id="{name}">{script_json(value)}</script>\n'


def _template(title: str) -> tuple[str, str]:
    """The page before and after its data. Of scripts and styles it allows its own alone, by their hashes."""
    style = (_FOLDER / "style.css").read_text(encoding="utf-8")
    script = '"use strict";\n' + "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    page = string.Template((_FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(f"{title} - episodes"),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data="\0",
    )
    before, _, after = page.partition("\0")
    return before, after


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
