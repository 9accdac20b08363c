"""Draws RESULTS.png from what report.py passes on stdin. Runs where matplotlib is (see peers/setup.sh)."""

from __future__ import annotations

import json
import sys
from typing import Any

import matplotlib  # type: ignore[import-not-found]

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # type: ignore[import-not-found]

COLORS = {"torch": "#d1495b", "tf": "#edae49", "tf2-traced": "#2e86ab", "tf2": "#8fb8de", "": "#5b6770"}
PEERS = {"rllib": "RLlib", "rllib26": "RLlib 2.6", "sb3": "SB3"}


def draw(points: list[dict[str, Any]], target: str) -> None:
    """A panel for each peer, a group of bars for each row."""
    peers = [peer for peer in PEERS if any(p["peer"] == peer for p in points)]
    groups = {peer: list(dict.fromkeys(p["row"] for p in points if p["peer"] == peer)) for peer in peers}
    heights = [sum(p["peer"] == peer for p in points) + 0.8 * len(groups[peer]) + 2 for peer in peers]
    figure, axes = plt.subplots(
        len(peers), 1, figsize=(11, 0.2 * sum(heights) + 1.2), height_ratios=heights, squeeze=False
    )
    for axis, peer in zip(axes[:, 0], peers, strict=True):
        panel(axis, [p for p in points if p["peer"] == peer], groups[peer])
        axis.set_title(f"Times as fast (memory: as small) as {PEERS[peer]}", loc="left", fontsize=11, fontweight="bold")
    modes = [mode for mode in COLORS if mode and any(p["mode"] == mode for p in points)]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLORS[mode]) for mode in modes]
    labels = list(modes)
    for marker, label in (("|", "must"), ("d", "goal")):
        handles.append(plt.Line2D([], [], color="black", marker=marker, linestyle="", markersize=8))
        labels.append(label)
    axes[0, 0].legend(handles, labels, loc="lower right", fontsize=9, framealpha=1.0)
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def panel(axis: Any, points: list[dict[str, Any]], rows: list[str]) -> None:
    """The bars of one peer, on a logarithmic axis; whiskers are quartiles."""
    y, ticks, labels = 0.0, [], []
    right = max(max(p["high"], p["goal"] or 0, p["must"] or 0) for p in points)
    for row in rows:
        top, group = y, [p for p in points if p["row"] == row]
        for p in group:
            axis.barh(y, p["ratio"], height=0.85, left=0, color=COLORS[p["mode"]], zorder=2)
            axis.plot([p["low"], p["high"]], [y, y], color="black", linewidth=1, alpha=0.6, zorder=3)
            if p["must"]:
                axis.plot([p["must"]] * 2, [y - 0.5, y + 0.5], color="black", linewidth=2, zorder=4)
            if p["goal"]:
                axis.plot(p["goal"], y, "d", color="black", markersize=5, markerfacecolor="white", zorder=4)
            missed = p["verdict"] == "missed"
            text = f"{p['ratio']:.3g}x" + (" missed" if missed else "")
            x = max(p["ratio"], p["high"], p["goal"] or 0, p["must"] or 0)
            color = "#b00020" if missed else "black"
            axis.text(x * 1.06, y, text, va="center", fontsize=8, color=color, zorder=5)
            y += 1
        ticks.append((top + y - 1) / 2)
        labels.append(group[0]["title"])
        y += 0.8
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_yticks(ticks, labels, fontsize=9)
    axis.set_ylim(y - 0.6, -0.9)
    axis.set_xscale("log")
    left = 0.95 * min(0.8, *(min(p["low"], p["ratio"]) for p in points))
    axis.set_xlim(left, right * 1.7)
    marks = [x for x in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if left <= x <= right * 1.7]
    axis.set_xticks(marks, [f"{x:g}x" for x in marks])
    axis.minorticks_off()
    axis.grid(axis="x", color="0.88", zorder=0)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.argv[1])
