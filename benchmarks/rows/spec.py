"""What a row of the table is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The four modes by the names used here, as (framework, traced).
MODES: dict[str, tuple[str, bool]] = {
    "torch": ("torch", False),
    "tf": ("tf", False),
    "tf2-traced": ("tf2", True),
    "tf2": ("tf2", False),
}
FAST = ("torch", "tf", "tf2-traced")


@dataclass(frozen=True)
class Bound:
    """How many times as fast as a peer polylib must be, and what is aimed at; None where nothing is set."""

    must: float | None = None
    goal: float | None = None


@dataclass(frozen=True)
class Row:
    """One thing that is timed on both sides.

    Attributes:
        name: for `ROW=...`.
        title: what it is.
        unit: of the figures: "us", "s", or something per second.
        kind: "latency" (many short windows), "rate", "seconds" (lower is better, a window is one run) or "size".
        case: what the servers call it.
        settings: of the case, by mode; under "" those for all modes.
        modes: in which it is timed; "" is a row that knows no modes.
        peers: what it is compared with, with their bounds by mode ("" for all modes).
        limit: (must, goal) of polylib's own figure, for rows with an absolute bound.
        windows: how many, at least.
        peer_windows: fewer for peers that take long.
        window_s: work is repeated until a window takes about this long; 0: once.
        fresh: whether every window needs a new process.
        slow: left out by `--quick`.
        one_process: whether the work is done in one process, so that its CPU time says the same as a clock would on a
            machine without anybody else.
        note: a sentence for the report.
    """

    name: str
    title: str
    unit: str
    kind: str
    case: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    modes: tuple[str, ...] = FAST
    peers: Mapping[str, Mapping[str, Bound]] = field(default_factory=dict)
    limit: Bound | None = None
    windows: int = 5
    peer_windows: Mapping[str, int] = field(default_factory=dict)
    window_s: float = 0.4
    fresh: bool = False
    slow: bool = False
    one_process: bool = False
    note: str = ""

    def case_settings(self, mode: str) -> dict[str, Any]:
        """The settings of the case in a mode."""
        return {"mode": mode, **self.settings.get("", {}), **self.settings.get(mode, {})}

    def bound(self, peer: str, mode: str) -> Bound:
        """The bound against a peer in a mode."""
        bounds = self.peers[peer]
        return bounds.get(mode, bounds.get("" if mode in FAST or mode == "" else "none", Bound()))

    @property
    def lower_is_better(self) -> bool:
        """Whether the figure is a time."""
        return self.kind != "rate"
