"""Windows of all sides in turn, and what follows from them."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rows.spec import Row
from servers import Server, ServerError

_TICK = os.sysconf("SC_CLK_TCK")
Figures = dict[str, list[float]]  # by side, a figure for each window


def interleave(
    row: Row, mode: str, sides: Sequence[str], server: Callable[[str], Server], windows: Callable[[str], int]
) -> tuple[Figures, Figures, dict[str, str]]:
    """Times a row in a mode on several sides, one window of each after the other.

    Args:
        row: what to time.
        mode: in which mode.
        sides: polylib first.
        server: the running process of a side.
        windows: how many of a side.

    Returns:
        Figures in the row's unit by side, the same by CPU time for rows in one process, and what went wrong by side.
    """
    figures: Figures = {side: [] for side in sides}
    cpu: Figures = {side: [] for side in sides}
    errors: dict[str, str] = {}
    repeats: dict[str, int] = {}
    for side in sides:
        with _noting(errors, side):
            server(side).ask(do="open", case=row.case, settings=row.case_settings(mode))
            repeats[side] = _repeats(row, server(side))
    for k in range(max(map(windows, sides))):
        for side in sides:
            if side in errors or k >= windows(side):
                continue
            with _noting(errors, side):
                seconds, count, cpu_s = server(side).window(row.case, repeats[side], k)
                figures[side].append(figure(row, seconds, count))
                if row.one_process:
                    cpu[side].append(figure(row, cpu_s, count))
    for side in repeats:
        with _noting(errors, side):
            server(side).ask(do="close", case=row.case)
    return figures, cpu, errors


def fresh(
    row: Row, mode: str, sides: Sequence[str], start: Callable[[str], Server], windows: Callable[[str], int]
) -> tuple[Figures, Figures, dict[str, str]]:
    """The same with a new process for every window."""
    figures: Figures = {side: [] for side in sides}
    errors: dict[str, str] = {}
    for k in range(max(map(windows, sides))):
        for side in sides:
            if side in errors or k >= windows(side):
                continue
            server = start(side)
            with _noting(errors, side):
                server.ask(do="open", case=row.case, settings=row.case_settings(mode))
                figures[side].append(figure(row, *server.window(row.case, 1, k)[:2]))
                server.ask(do="close", case=row.case)
            server.stop()
    return figures, {}, errors


@contextlib.contextmanager
def _noting(errors: dict[str, str], side: str) -> Iterator[None]:
    if side in errors:
        yield
        return
    try:
        yield
    except ServerError as error:
        errors[side] = str(error)


def _repeats(row: Row, server: Server) -> int:
    """How often the work fits into a window; warms up on the way."""
    if row.case in ("reward", "import"):  # a window is one run, and the first is as good as any
        return 1
    if row.kind == "latency":
        for _ in range(3):
            server.window(row.case, 3, 0)
    best = min(server.window(row.case, 1, 0)[0] for _ in range(2 if row.kind != "seconds" else 1))
    return max(1, math.ceil(row.window_s / max(best, 1e-6)))


def figure(row: Row, seconds: float, count: float) -> float:
    """A window's figure in the row's unit."""
    if row.kind == "rate":
        return count / seconds
    if row.kind == "latency":
        return seconds / count * 1e6
    return seconds if row.case == "reward" else seconds / count


def compare(row: Row, ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """How many times as fast polylib is.

    Returns:
        `ratio` (what the bounds are held against), `of_medians`, `of_best`, and `low` and `high`: the quartiles of the
        ratios of windows that were timed one after the other.
    """
    if row.lower_is_better:
        paired = [b / a for a, b in zip(ours, theirs, strict=False)]
        medians = statistics.median(theirs) / statistics.median(ours)
        best = min(theirs) / min(ours)
    else:
        paired = [a / b for a, b in zip(ours, theirs, strict=False)]
        medians = statistics.median(ours) / statistics.median(theirs)
        best = max(ours) / max(theirs)
    low, high = quartiles(paired)
    # A latency must keep its bound by both: its best windows say what it costs, its medians what it is like.
    ratio = min(medians, best) if row.kind == "latency" else medians
    return {"ratio": ratio, "of_medians": medians, "of_best": best, "low": low, "high": high}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; the values themselves if there are fewer than two."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


class Load:
    """How many cores others kept busy meanwhile.

    Attributes:
        others: cores, after the block.
    """

    others = 0.0

    def __enter__(self) -> Load:
        self._busy, self._own, self._start = _busy_s(), _own_s(), time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        wall = time.perf_counter() - self._start
        self.others = max(0.0, (_busy_s() - self._busy - (_own_s() - self._own)) / wall)


def _busy_s() -> float:
    """CPU seconds of the whole machine."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(x) for x in file.readline().split()[1:9]]
    except OSError:
        return 0.0
    return (sum(ticks) - ticks[3] - ticks[4]) / _TICK


def _own_s() -> float:
    """CPU seconds of this process and its descendants, those included that have ended and were waited for."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for name in filter(str.isdigit, _proc()):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(name))
        spent[int(name)] = sum(int(x) for x in fields[11:15]) / _TICK
    total, waiting = 0.0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        total += spent.get(pid, 0.0)
        waiting += parents.get(pid, [])
    return total


def _proc() -> list[str]:
    try:
        return os.listdir("/proc")
    except OSError:
        return []
