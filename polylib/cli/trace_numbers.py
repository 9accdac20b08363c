"""Numbers and tables of `polylib trace`, for people and for programs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = ".:-=+*#@"


def short(value: Any) -> str:
    """A number in few characters: `-` for NaN, `-0.0213`, `1.2e+09`, `17`."""
    number = float(value)
    if math.isnan(number):
        return "-"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if number.is_integer() and abs(number) < 1e7:
        return str(int(number))
    return f"{number:.4g}"


def printable(line: str) -> str:
    """A line without characters that would do something to a terminal: text in traces may hold any."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def exact(value: Any) -> Any:
    """A number as JSON has it; None for what isn't finite."""
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def percent(part: float, whole: float) -> str:
    """`46 %`."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def table(rows: Sequence[Sequence[str]], align: str, width: int | None = None, gap: str = "  ") -> list[str]:
    """Lines of text in columns.

    Args:
        rows: cells; the first row is the heading.
        align: `<` or `>` for each column.
        width: longer lines are cut, with an ellipsis; None: they aren't.
        gap: what stands between columns.
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    lines = []
    for row in rows:
        cells = [f"{cell:{side}{size}}" for cell, side, size in zip(row, align, widths, strict=True)]
        line = gap.join(cells).rstrip()
        lines.append(line if width is None or len(line) <= width else line[: width - 1] + "…")
    return lines


def sparkline(values: Sequence[float], low: float, high: float, bins: int | None = None) -> str:
    """How values are distributed from `low` to `high`, a character a bin; None: as many bins as the values fill."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    bins = bins or min(24, max(6, math.ceil(2 * math.sqrt(len(finite)))))
    # In units in which no difference is too large or too small for a bin.
    unit = max(1.0, abs(low), abs(high))
    first, last = low / unit, high / unit
    bounds = (first, last) if last - first > 1e-9 else (first - 0.5, last + 0.5)
    counts, _ = np.histogram(np.array(finite) / unit, bins, bounds)
    blocks = _BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else _PLAIN
    top = int(counts.max())
    return "".join(blocks[min(7, math.ceil(8 * n / top) - 1)] if n else " " for n in counts.tolist())


def spread(values: Sequence[float]) -> dict[str, float]:
    """Count, mean, standard deviation and error, smallest, quartiles and largest of what is finite."""
    finite = np.array([value for value in values if math.isfinite(value)], np.float64)
    if not finite.size:
        return {"count": 0}
    quartiles = np.percentile(finite, [25, 50, 75])
    deviation = float(finite.std(ddof=1)) if finite.size > 1 else math.nan
    return {
        "count": int(finite.size),
        "mean": float(finite.mean()),
        "std": deviation,
        "error": deviation / math.sqrt(finite.size),
        "min": float(finite.min()),
        "q25": float(quartiles[0]),
        "median": float(quartiles[1]),
        "q75": float(quartiles[2]),
        "max": float(finite.max()),
    }
