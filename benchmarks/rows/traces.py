"""JSON traces: rows or frames a second, written and read back. benchmarks/traces.py has the batches and the windows."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rows.spec import Bound, Row

# Name of the row, what traces.py calls it, title, unit, bounds of writing and of reading.
_TABLE = [
    ("lists", "cartpole, lists", "CartPole, plain lists", "rows/s", Bound(10, 20), Bound(3, 5)),
    ("base64", "cartpole, base64", "CartPole, base64 (RLlib: lz4)", "rows/s", Bound(8, 15), Bound(5, 6)),
    ("frames-random", "frames random, lz4", "random frames, lz4", "frames/s", Bound(2), Bound(1)),
    ("frames-drawn", "frames compressible, lz4", "compressible frames, lz4", "frames/s", Bound(2), Bound(1)),
    ("frames-lists", "frames random, lists", "random frames, plain lists", "frames/s", Bound(5, 10), Bound(1, 1.4)),
    ("frames-base64", "frames random, base64", "random frames, base64", "frames/s", Bound(50, 100), Bound(50, 100)),
]
ROWS = [
    Row(
        f"traces-{name}-{what}",
        f"JSON, {title}, {'written' if what == 'write' else 'read'}",
        unit,
        "rate",
        "traces",
        {"": {"name": case}},
        modes=("",),
        peers={"rllib": {"": bound}},
    )
    for name, case, title, unit, *bounds in _TABLE
    for what, bound in zip(("write", "read"), bounds, strict=True)
]


def measure(case: str, rllib: str | None, windows: int) -> dict[str, dict[str, list[float]]]:
    """Rates by what was done ("write", "read") and by side, windows of both sides in turn.

    Args:
        case: a name that traces.py knows.
        rllib: the Python of RLlib's environment; None: polylib alone.
        windows: of each side, after one that isn't counted.
    """
    import traces

    batch, times, settings = traces.CASES[case]
    # RLlib has no base64 without lz4: for frames its lists stand beside ours, else what it packs by default.
    compress = settings.get("compress_columns", [] if "frames" in case else traces.PACKED["compress_columns"])
    rates: dict[str, dict[str, list[float]]] = {"write": {}, "read": {}}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        peer = traces.Peer(rllib, root) if rllib else None
        try:
            for k in range(windows + 1):
                found = {"polylib": traces.window(batch, times, settings, root / "ours")}
                shutil.rmtree(root / "ours")
                if peer:
                    found["rllib"] = peer.window(case, max(1, times // 10), compress)
                for side, pair in found.items():
                    for what, rate in zip(rates, pair, strict=True):
                        if k:
                            rates[what].setdefault(side, []).append(rate)
        finally:
            if peer:
                peer.process.kill()
                peer.process.wait()
    return rates
