"""An episode as the page's data: lanes over time in groups, films, infos."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from polylib.cli.report.images import film, is_image
from polylib.cli.trace_choices import Choices, choices, choices_of, probability_taken
from polylib.cli.trace_policy import Overlay
from polylib.cli.trace_steps import plain_text
from polylib.offline.episodes import Columns, Episode
from polylib.policy import columns as c

# Of one episode: more components of an observation, or of other columns, aren't in the page.
MAX_COMPONENTS = 512
_MAX_OTHERS = 128
_MAX_INFO_BYTES = 1 << 21
# What tells rows apart, or repeats other columns a step earlier or later.
_LEFT_OUT = frozenset(
    (c.EPS_ID, c.ENV_ID, c.UNROLL_ID, c.AGENT_INDEX, c.T, c.NEXT_OBS, c.PREV_ACTIONS, c.PREV_REWARDS, c.INFOS)
)
_SHOWN = frozenset((c.REWARDS, c.VF_PREDS, c.VALUE_TARGETS, c.ADVANTAGES, c.OBS, c.ACTIONS))

Lane = dict[str, Any]


def episode_data(episode: Episode, overlay: Overlay | None, image_budget: int) -> dict[str, Any]:
    """What the page needs to show an episode.

    Args:
        episode: its columns.
        overlay: a policy's actions beside it, or None.
        image_budget: bytes that its images may take.
    """
    notes = list(episode.notes)
    contiguous = bool((np.diff(episode.t) == 1).all())
    images = {name: column for name, column in episode.columns.items() if _whole(name) == c.OBS and is_image(column)}
    groups = [
        _group("Rewards", _rewards(episode)),
        _group("Values", _values(episode, overlay)),
        _group("Actions", _actions(episode, overlay)),
        _group("Observations", _observations(episode.columns, images, notes)),
        {**_group("Other columns", _others(episode.columns, notes)), "folded": True},
    ]
    if c.OBS not in map(_whole, episode.columns):
        notes.append("no observations were recorded")
    return {
        "rows": len(episode),
        "start": int(episode.t[0]),
        "t": None if contiguous else _packed(episode.t),
        "notes": notes,
        "groups": [group for group in groups if group["lanes"]],
        "images": [_film(name, column, image_budget // len(images)) for name, column in images.items()],
        "infos": _infos(episode.columns),
    }


def _whole(name: str) -> str:
    return name.partition("/")[0]


def _group(name: str, lanes: list[Lane]) -> dict[str, Any]:
    return {"name": name, "lanes": lanes, "folded": False}


def _lane(kind: str, *series: tuple[str, np.ndarray], **more: Any) -> Lane:
    return {"kind": kind, "series": [{"name": name, "values": _packed(values)} for name, values in series], **more}


def _packed(values: np.ndarray) -> dict[str, str]:
    """Numbers as base64; the page reads few kinds."""
    kind = "f4"
    if values.dtype.kind == "b" or values.dtype == np.uint8:
        kind = "u1"
    elif values.dtype.kind in "iu":
        # int32 where they fit; beyond, float64 has them to 2 ** 53.
        kind = "i4" if not values.size or max(abs(int(values.min())), abs(int(values.max()))) < 1 << 31 else "f8"
    with np.errstate(over="ignore"):
        data = np.ascontiguousarray(values, np.dtype(kind).newbyteorder("<")).tobytes()
    return {kind: base64.b64encode(data).decode()}


def _numbers(columns: Columns, name: str) -> np.ndarray | None:
    """A column with one number a row `[B]`, or None."""
    column = columns.get(name)
    if column is None or column.dtype.kind not in "biuf" or column.size != len(column):
        return None
    return column.reshape(len(column))


def _rewards(episode: Episode) -> list[Lane]:
    rewards = _numbers(episode.columns, c.REWARDS)
    if rewards is None:
        return []
    so_far = np.cumsum(np.nan_to_num(rewards.astype(np.float64)))
    return [_lane("area", ("reward", rewards)), _lane("line", ("return so far", so_far))]


def _values(episode: Episode, overlay: Overlay | None) -> list[Lane]:
    lanes = []
    named = (("value", c.VF_PREDS), ("value target", c.VALUE_TARGETS))
    series = [(label, values) for label, name in named if (values := _numbers(episode.columns, name)) is not None]
    if series:
        lanes.append(_lane("line", *series, tall=True))
    if overlay is not None and overlay.values is not None:
        lanes.append(_lane("line", ("its value", overlay.values), colour="second"))
    advantages = _numbers(episode.columns, c.ADVANTAGES)
    return [*lanes, _lane("line", ("advantage", advantages))] if advantages is not None else lanes


def _actions(episode: Episode, overlay: Overlay | None) -> list[Lane]:
    columns, found = episode.columns, choices_of(episode.columns)
    lanes: list[Lane] = []
    if found is not None:
        lanes.append(_choice_lane("action (score)" if found.scores else "action", found))
    if overlay is not None and c.ACTIONS in overlay.actions and overlay.dist_inputs is not None:
        mine = choices(overlay.actions[c.ACTIONS], overlay.dist_inputs, overlay.logp)
        if mine is not None:
            lanes.append({**_choice_lane("policy now", mine), "colour": "second"})
    mapped = bool(lanes)
    names = [name for name, column in columns.items() if _whole(name) == c.ACTIONS and column.dtype.kind in "biuf"]
    for name in names:
        if found is None or (overlay is not None and not mapped):
            lanes += _action_lanes(name, columns[name], None if overlay is None else overlay.actions.get(name))
    if overlay is not None:
        lanes.append(_lane("flags", ("policy agrees", overlay.agrees)))
    probability = probability_taken(columns)
    if probability is not None and (found is None or found.scores):
        discrete = bool(names) and columns[names[0]].dtype.kind != "f"
        lanes.append(_lane("line", ("probability" if discrete else "density of action", probability)))
    if overlay is not None and overlay.taken is not None:
        what = "p(action)" if _is_discrete(columns) else "density"
        lanes.append(_lane("line", (what, overlay.taken), colour="second"))
    return lanes


def _is_discrete(columns: Columns) -> bool:
    return all(column.dtype.kind != "f" for name, column in columns.items() if _whole(name) == c.ACTIONS)


def _choice_lane(name: str, found: Choices) -> Lane:
    return _lane(
        "choices",
        (name, found.taken.astype(np.int32)),
        shades=_packed(found.values.astype(np.float32)),
        count=found.values.shape[1],
        first=found.first,
        scores=found.scores,
    )


def _action_lanes(name: str, column: np.ndarray, policy: np.ndarray | None) -> list[Lane]:
    rows = len(column)
    flat = column.reshape(rows, -1)
    other = None if policy is None else policy.reshape(rows, -1)
    kind = "line" if column.dtype.kind == "f" else "steps"
    lanes = []
    for i in range(min(flat.shape[1], _MAX_OTHERS)):
        label = name if column.ndim == 1 else f"{name}[{i}]"
        series = [(label, flat[:, i])]
        if other is not None and other.shape == flat.shape:
            series.append(("policy now", other[:, i]))
        lanes.append(_lane(kind, *series))
    return lanes


def _observations(columns: Columns, images: Columns, notes: list[str]) -> list[Lane]:
    lanes: list[Lane] = []
    for name, column in columns.items():
        if _whole(name) == c.OBS and name not in images:
            lanes += _components(name, column, MAX_COMPONENTS - len(lanes), notes)
    return lanes


def _others(columns: Columns, notes: list[str]) -> list[Lane]:
    lanes: list[Lane] = []
    for name, column in columns.items():
        if _whole(name) in _LEFT_OUT or _whole(name) in _SHOWN or is_image(column):
            continue
        lanes += _components(name, column, _MAX_OTHERS - len(lanes), notes)
    return lanes


def _components(name: str, column: np.ndarray, room: int, notes: list[str]) -> list[Lane]:
    if column.dtype.kind not in "biuf" or not column.size:
        return []
    flat = column.reshape(len(column), -1)
    if flat.shape[1] > room:
        notes.append(f"{name}: {max(room, 0)} of its {flat.shape[1]} components are in this page")
    kind = "line" if column.dtype.kind == "f" else "steps"
    labels = [name] if column.ndim == 1 else [
        f"{name}[{', '.join(map(str, place))}]" for place in list(np.ndindex(column.shape[1:]))[: max(room, 0)]
    ]
    return [_lane(kind, (label, flat[:, i])) for i, label in enumerate(labels[: max(room, 0)])]


def _film(name: str, column: np.ndarray, budget: int) -> dict[str, Any]:
    found = film(name, column, budget)
    return {**found, "index": _packed(found["index"])}


def _infos(columns: Columns) -> dict[str, Any] | None:
    """The different infos, and which one belongs to each step; None where all are empty."""
    column = columns.get(c.INFOS)
    if column is None:
        return None
    known: dict[str, int] = {}
    index, size = np.empty(len(column), np.int32), 0
    for row, value in enumerate(column.tolist()):
        text = plain_text(value)
        if text not in known:
            size += len(text)
            if size > _MAX_INFO_BYTES:
                index[row] = -1
                continue
            known[text] = len(known)
        index[row] = known[text]
    if set(known) <= {"{}", "null"} and (index >= 0).all():
        return None
    left = int((index < 0).sum())
    note = f"The infos of {left} steps aren't in this page: it has {_MAX_INFO_BYTES >> 10} kB of them." if left else ""
    return {"values": list(known), "index": _packed(index), "note": note}


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
