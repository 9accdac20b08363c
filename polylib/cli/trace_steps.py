"""`polylib trace PATH --episode ID`: one episode, step by step."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from polylib.cli.trace_choices import probability_taken
from polylib.cli.trace_numbers import exact, percent, short, table
from polylib.cli.trace_policy import Overlay
from polylib.offline.episodes import Columns, Episode
from polylib.policy import columns as c

# More numbers than this in a row are described, not written.
_MAX_NUMBERS = 12
_INDENT = " " * 4


def steps_of(episode: Episode, first: int | None, last: int | None) -> np.ndarray:
    """The rows whose steps are in `--from` and `--to`."""
    inside = np.ones(len(episode), np.bool_)
    if first is not None:
        inside &= episode.t >= first
    if last is not None:
        inside &= episode.t <= last
    return np.flatnonzero(inside)


def step_table(episode: Episode, rows: np.ndarray, overlay: Overlay | None, width: int | None) -> list[str]:
    """A line for each step: action, probability, reward, value, observation."""
    columns, heads, align = episode.columns, ["t", "action"], ">>"
    probability, policy = probability_taken(columns), None if overlay is None else _policy_actions(overlay)
    returns = np.cumsum(_numbers(columns, c.REWARDS, len(episode)))
    cells = [[str(t) for t in episode.t[rows]], [_action(columns, row) for row in rows]]

    def add(head: str, values: np.ndarray | None, side: str = ">") -> None:
        nonlocal align
        if values is not None:
            heads.append(head)
            cells.append([short(value) for value in values[rows].tolist()])
            align += side

    discrete = c.ACTIONS in columns and columns[c.ACTIONS].dtype.kind in "biu"
    add("prob" if discrete else "density", probability)
    if policy is not None and overlay is not None:
        heads.append("policy")
        cells.append([policy[row] + ("" if overlay.agrees[row] else " *") for row in rows])
        align += "<"
        add("its prob of action" if discrete else "its density", overlay.taken)
    if c.REWARDS in columns:
        add("reward", _numbers(columns, c.REWARDS, len(episode)))
        add("return", returns)
    for head, name in (("value", c.VF_PREDS), ("advantage", c.ADVANTAGES)):
        if name in columns:
            add(head, _numbers(columns, name, len(episode)))
    heads.append("observation")
    cells.append([_observation(columns, row) for row in rows])
    return table([heads, *map(list, zip(*cells, strict=True))], align + "<", width)


def full_steps(episode: Episode, rows: np.ndarray, overlay: Overlay | None) -> Iterator[str]:
    """Every column of each step."""
    policy = None if overlay is None else _policy_actions(overlay)
    for row in rows:
        yield f"t = {episode.t[row]}"
        width = max(map(len, episode.columns), default=0)
        for name, column in episode.columns.items():
            yield f"{_INDENT}{name:<{width}}  {_value(column[row])}"
        if policy is not None and overlay is not None:
            agrees = "the same" if overlay.agrees[row] else "another"
            yield f"{_INDENT}{'policy now':<{width}}  {policy[row]} ({agrees})"


def step_header(episode: Episode, overlay: Overlay | None, text: str) -> list[str]:
    """What stands above the steps."""
    total = short(episode.total_reward)
    lines = [f"episode {text}: {len(episode)} steps, return {total}, {episode.end or 'no end recorded'}"]
    if overlay is not None:
        agreed = int(overlay.agrees.sum())
        line = f"the policy agrees at {agreed} of {len(episode)} steps, {percent(agreed, len(episode))}"
        lines.append(line + ("; * marks where it doesn't" if agreed < len(episode) else ""))
    return lines


def steps_json(episode: Episode, rows: np.ndarray, overlay: Overlay | None) -> list[dict[str, Any]]:
    """The steps as JSON values; numbers that aren't finite are None."""
    out = []
    for row in rows:
        step: dict[str, Any] = {"t": int(episode.t[row])}
        step.update({name: _plain(column[row]) for name, column in episode.columns.items() if name != c.T})
        if overlay is not None:
            actions = {name: _plain(values[row]) for name, values in overlay.actions.items()}
            step["policy"] = {**actions, "agrees": bool(overlay.agrees[row])}
            if overlay.taken is not None:
                step["policy"]["probability"] = exact(overlay.taken[row])
        out.append(step)
    return out


def plain_text(value: Any) -> str:
    """A value of a column of objects as JSON text, whatever it holds."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _policy_actions(overlay: Overlay) -> list[str]:
    rows = len(overlay.agrees)
    return [" ".join(_value(values[row]) for values in overlay.actions.values()) for row in range(rows)]


def _numbers(columns: Columns, name: str, rows: int) -> np.ndarray:
    column = columns.get(name)
    if column is None or column.dtype.kind not in "biuf" or column.size != rows:
        return np.full(rows, np.nan)
    return column.reshape(rows).astype(np.float64)


def _action(columns: Columns, row: int) -> str:
    parts = [_value(column[row]) for name, column in columns.items() if name.partition("/")[0] == c.ACTIONS]
    return " ".join(parts) or "-"


def _observation(columns: Columns, row: int) -> str:
    parts = []
    for name, column in columns.items():
        whole, slash, part = name.partition("/")
        if whole == c.OBS:
            parts.append((f"{part}: " if slash else "") + _value(column[row]))
    return "  ".join(parts) or "-"


def _value(value: Any) -> str:
    array = np.asarray(value)
    if array.dtype.kind == "O" or isinstance(value, dict | str):
        return plain_text(value)
    if array.dtype.kind not in "biuf":
        return str(value)
    if not array.ndim:
        return str(bool(array)).lower() if array.dtype.kind == "b" else short(array)
    if array.size <= _MAX_NUMBERS:
        return "[" + " ".join(short(x) for x in array.ravel().tolist()) + "]"
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    ranged = f" {short(finite.min())}..{short(finite.max())}" if finite.size else ""
    return f"{array.dtype} {list(array.shape)}{ranged}"
