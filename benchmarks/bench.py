"""polylib beside Ray RLlib's old stack and Stable-Baselines3, timed in the same minutes on the same machine.

    make bench                       every row; writes benchmarks/RESULTS.md, results.json and RESULTS.png
    make bench ROW=act-1             one row, or all whose names begin so (ROW=act,sgd: several); updates the same files
    make bench BENCH_ARGS=--quick    fewer windows, without the rows that take minutes; prints only
    make bench BENCH_ARGS=--list     the rows

benchmarks/peers/setup.sh makes the peers' virtual environments. Windows of all sides are timed in turn (A B C A B C
...), on one thread each.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import report
from measure import Load, fresh, interleave
from rows.spec import Row
from rows.table import ROWS
from servers import ENVIRONMENT, HERE, NAMES, Server, is_there, python_of

RESULTS = HERE / "results.json"


class Bench:
    """One run over rows and modes.

    Args:
        peers: the peers to compare with.
        quick: fewer windows.
        logs: where the processes' output goes.
    """

    def __init__(self, peers: list[str], quick: bool, logs: Path) -> None:
        self.peers, self.quick, self.logs = peers, quick, logs
        self.servers: dict[tuple[str, str], Server] = {}
        self.versions: dict[str, dict[str, str]] = {}

    def run(self, row: Row, mode: str) -> dict[str, Any]:
        """Times a row in a mode."""
        # Plain eager TensorFlow is for debugging: Stable-Baselines3 has nothing to set beside it.
        peers = [peer for peer in row.peers if not (peer == "sb3" and mode == "tf2")]
        sides = ["polylib", *(peer for peer in peers if peer in self.peers)]
        windows = functools.partial(self._windows, row)
        start = time.time()
        with Load() as load:
            if row.fresh:
                figures, cpu, errors = fresh(row, mode, sides, self._start, windows)
            else:
                figures, cpu, errors = interleave(row, mode, sides, functools.partial(self._server, mode), windows)
        return self._entry(row, mode, figures, errors, load.others, start, cpu)

    def run_traces(self, rows: list[Row]) -> list[dict[str, Any]]:
        """Times writing and reading of the same traces, which are two rows."""
        from rows.traces import measure

        start = time.time()
        peer = str(python_of("rllib")) if "rllib" in self.peers else None
        errors: dict[str, str] = {}
        rates: dict[str, dict[str, list[float]]] = {}
        with Load() as load:
            try:
                rates = measure(rows[0].settings[""]["name"], peer, self._windows(rows[0], "polylib"))
            except SystemExit as error:  # what traces.py does when the peer fails
                errors["rllib"] = str(error)
        entries = []
        for row in rows:
            figures = rates.get(row.name.rsplit("-", 1)[-1], {})
            entries.append(self._entry(row, "", figures, errors, load.others, start))
        return entries

    def _entry(
        self,
        row: Row,
        mode: str,
        figures: dict[str, list[float]],
        errors: dict[str, str],
        others: float,
        start: float,
        cpu: dict[str, list[float]] | None = None,
    ) -> dict[str, Any]:
        return {
            "row": row.name,
            "mode": mode,
            "figures": {side: values for side, values in figures.items() if values},
            "cpu": {side: values for side, values in (cpu or {}).items() if values},
            "errors": errors,
            "others": round(others, 2),
            "took_s": round(time.time() - start, 1),
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "commit": commit(),
        }

    def _windows(self, row: Row, side: str) -> int:
        count = min(row.windows, row.peer_windows.get(side, row.windows))
        return min(count, 5 if row.kind == "latency" else 2) if self.quick else count

    def _start(self, side: str) -> Server:
        server = Server(side, self.logs / f"{side}.log")
        self.versions.setdefault(side, server.ask(do="versions"))
        return server

    def _server(self, mode: str, side: str) -> Server:
        if (mode, side) not in self.servers:
            self.servers[mode, side] = self._start(side)
        return self.servers[mode, side]

    def stop(self) -> None:
        """Ends all processes."""
        for server in self.servers.values():
            server.stop()
        self.servers.clear()


def commit() -> str:
    """The commit that is checked out, with a + if polylib has changes."""
    git = ["git", "-C", str(HERE.parent)]
    try:
        name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--short", "polylib"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def machine() -> dict[str, Any]:
    """What it ran on."""
    model, memory = platform.processor(), ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), model)
        memory = f"{int(Path('/proc/meminfo').read_text().split()[1]) / 2**20:.0f} GB"
    except OSError:
        pass
    return {"cpu": model, "cores": os.cpu_count(), "memory": memory, "system": platform.platform()}


def chosen(names: str | None, quick: bool) -> list[Row]:
    """The rows asked for."""
    if not names:
        return [row for row in ROWS if not (quick and row.slow)]
    prefixes = [name.strip() for name in names.split(",")]
    exact = [row for row in ROWS if row.name in prefixes]
    others = [prefix for prefix in prefixes if prefix not in {row.name for row in exact}]
    found = [row for row in ROWS if row in exact or any(row.name.startswith(prefix) for prefix in others)]
    for prefix in others:
        if not any(row.name.startswith(prefix) for row in ROWS):
            raise SystemExit(f"no row {prefix!r}; there are {', '.join(row.name for row in ROWS)}")
    return found


def main() -> int:
    """Runs what the command line asks for; 1 if a bound that must be kept isn't."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", help="names of rows, or how they begin, divided by commas (default: all)")
    parser.add_argument("--mode", action="append", help="torch, tf, tf2-traced or tf2; may be repeated (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer windows, no slow rows; prints, writes nothing")
    parser.add_argument("--alone", action="store_true", help="polylib alone, without peers; writes nothing")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--report", action="store_true", help="write the report and the picture anew, time nothing")
    arguments = parser.parse_args()
    if arguments.list:
        for row in ROWS:
            print(f"{row.name:22} {row.title}")
        return 0
    if arguments.report:
        return report.write(report.load(RESULTS), HERE)
    rows = chosen(arguments.row, arguments.quick)
    wanted = {} if arguments.alone else {peer: is_there(peer) for row in rows for peer in row.peers}
    for peer in [peer for peer, there in wanted.items() if not there]:
        print(f"{NAMES[peer]} isn't set up, rows go without it: benchmarks/peers/setup.sh {peer}", file=sys.stderr)
    results: dict[str, Any] = {"machine": machine(), "versions": {}, "entries": []}
    keep = not (arguments.quick or arguments.alone)
    if keep:
        results = report.load(RESULTS, results)
    # Rows that run in this process (traces) are to have one thread, too.
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, str(HERE.parent))
    with tempfile.TemporaryDirectory(prefix="polylib-bench-") as folder:
        logs = Path(os.environ.get("POLYLIB_BENCH_LOGS") or folder)
        bench = Bench([peer for peer, there in wanted.items() if there], arguments.quick, logs)
        new: list[dict[str, Any]] = []
        try:
            for entry in _run_all(bench, rows, arguments.mode):
                new.append(entry)
                print("\n".join(report.lines(entry)), flush=True)
                if keep:  # read again: somebody else may be timing other rows
                    results = report.load(RESULTS, results)
                results["versions"].update(bench.versions)
                report.put(results, entry)
                if keep:
                    report.save(results, RESULTS)
        finally:
            bench.stop()
            if keep and new:
                report.write(results, HERE)
    return int(any(verdict == "missed" for entry in new for verdict in report.verdicts(entry)))


def _run_all(bench: Bench, rows: list[Row], only: list[str] | None) -> Iterator[dict[str, Any]]:
    """Entries, mode by mode: the processes of a mode serve all its rows."""
    modes = list(dict.fromkeys(mode for row in rows for mode in row.modes))
    for mode in modes:
        if only and mode and mode not in only:
            continue
        done: set[str] = set()
        for row in rows:
            if mode not in row.modes or row.name in done:
                continue
            if row.case == "traces":
                same = [other for other in rows if other.settings == row.settings and other.case == "traces"]
                entries = bench.run_traces(same)
            else:
                entries = [bench.run(row, mode)]
            done.update(entry["row"] for entry in entries)
            yield from entries
        bench.stop()


if __name__ == "__main__":
    sys.exit(main())
