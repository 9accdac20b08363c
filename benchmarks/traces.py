"""Rows per second of writing and reading traces, for CartPole-like rows and for 84x84x4 frames.

    python benchmarks/traces.py                          polylib alone
    python benchmarks/traces.py --rllib PYTHON           the same batches through RLlib too, window by window in turn
    python benchmarks/traces.py --large 5                memory and speed over 5 GB of lists, beside the disk's own

PYTHON is that of a virtual environment with `torch==2.13.0 "ray[rllib]==2.60.0" lz4`. Every figure is the median of
the windows. Files go to a temporary folder (`--folder`), so the disk's own speed is part of what is measured.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from peers.protocol import resident_mb

from polylib.offline import JsonReader, JsonWriter
from polylib.policy.sample_batch import SampleBatch

PEER = Path(__file__).parent / "peers" / "read_traces.py"


def scalars(rows: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    ends = np.arange(rows) % 50 == 49
    return {
        "actions": rng.integers(0, 2, rows),
        "rewards": np.ones(rows, np.float32),
        "terminateds": ends,
        "truncateds": np.zeros(rows, bool),
        "eps_id": (1 << 40) + np.cumsum(ends),
        "unroll_id": np.zeros(rows, np.int64),
        "t": (np.arange(rows) % 50).astype(np.int32),
        "action_logp": rng.standard_normal(rows).astype(np.float32),
        "action_dist_inputs": rng.standard_normal((rows, 2)).astype(np.float32),
    }


def cartpole(rows: int) -> SampleBatch:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, 4)).astype(np.float32)
    return SampleBatch({"obs": obs[:-1], "new_obs": obs[1:], **scalars(rows, rng)})


def frames(rows: int, compressible: bool) -> SampleBatch:
    rng = np.random.default_rng(0)
    obs = rng.integers(0, 256, (rows + 1, 84, 84, 4), dtype=np.uint8)
    if compressible:  # a few rectangles, as games draw them
        obs[:] = 0
        for frame in obs:
            for y, x, color in rng.integers(0, 60, (12, 3)):
                frame[y : y + 12, x : x + 12] = 4 * color
    return SampleBatch({"obs": obs[:-1], "new_obs": obs[1:], **scalars(rows, rng)})


# Name: the batch, how often it is written in a window, the writer's settings.
PACKED = {"compress_columns": ["obs", "new_obs"]}
PLAIN: dict[str, Any] = {"compress_columns": []}
RAW: dict[str, Any] = {"format": "polylib"}
CASES = {
    "cartpole, lists": (cartpole(200), 400, PLAIN),
    "cartpole, obs as lz4": (cartpole(200), 400, PACKED),
    "cartpole, base64": (cartpole(200), 400, RAW),
    "cartpole x1000, lists": (cartpole(1000), 80, PLAIN),
    "cartpole x1000, base64": (cartpole(1000), 80, RAW),
    "frames random, lz4": (frames(64, False), 2, PACKED),
    "frames compressible, lz4": (frames(64, True), 2, PACKED),
    "frames random, lists": (frames(8, False), 1, PLAIN),
    "frames random, base64": (frames(64, False), 2, RAW),
}


def window(batch: SampleBatch, times: int, settings: dict[str, Any], folder: Path) -> tuple[float, float]:
    """Rows a second of writing and of reading."""
    start = time.perf_counter()
    with JsonWriter(folder, max_file_size=1 << 40, **settings) as writer:
        for _ in range(times):
            writer.write(batch)
    written = time.perf_counter()
    rows = sum(len(read) for read in JsonReader(folder))
    end = time.perf_counter()
    if rows != times * len(batch):
        raise SystemExit(f"read {rows} rows of {times * len(batch)}")
    return rows / (written - start), rows / (end - written)


class Peer:
    """RLlib's writer and reader in a process of its own, which does one window when told to."""

    def __init__(self, python: str, folder: Path) -> None:
        for name, (batch, _, _) in CASES.items():
            np.savez(folder / f"{name}.npz", **dict(batch.items()))
        self.process = subprocess.Popen(
            [python, str(PEER), "speed", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def window(self, name: str, times: int, compress: list[str]) -> tuple[float, float]:
        to, answers = self.process.stdin, self.process.stdout
        if to is None or answers is None:
            raise SystemExit("the peer has no pipes")
        print(json.dumps([name, times, compress]), file=to, flush=True)
        for line in answers:
            if line.startswith("RATES "):
                write, read = json.loads(line.removeprefix("RATES "))
                return write, read
        raise SystemExit("the peer's process ended")


def report(name: str, ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> str:
    line = f"{name:26}"
    for i, what in enumerate(("write", "read")):
        rate = statistics.median(pair[i] for pair in ours)
        line += f"  {what} {rate:11,.0f}/s"
        if theirs:
            other = statistics.median(pair[i] for pair in theirs)
            line += f" (RLlib {other:9,.0f}, {rate / other:6.1f}x)"
    return line


def cold(files: list[Path]) -> None:
    """Has the system forget what it keeps of files, so that the disk is read."""
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def large(folder: Path, size: float) -> None:
    """Prints speed and memory over a folder of `size` GB."""
    batch, _, settings = CASES["cartpole x1000, lists"]
    with JsonWriter(folder, max_file_size=256_000_000, **settings) as writer:
        writer.write(batch)
        line = sum(file.stat().st_size for file in folder.iterdir())
        for _ in range(int(size * 1e9 / line)):
            writer.write(batch)
    files = sorted(folder.iterdir())
    total = sum(file.stat().st_size for file in files)
    for what in ("disk", "page cache"):
        if what == "disk":
            cold(files)
        start = time.perf_counter()
        for file in files:
            with file.open("rb", buffering=0) as opened:
                while opened.read(1 << 20):
                    continue
        print(f"bytes from the {what:10}  {total / (time.perf_counter() - start) / 1e6:9,.0f} MB/s", flush=True)
    for what in ("disk", "page cache"):
        if what == "disk":
            cold(files)
        start, cpu, rows, sizes = time.perf_counter(), time.process_time(), 0, []
        for i, read in enumerate(JsonReader(folder)):
            rows += len(read)
            if i % 500 == 0:
                sizes.append(resident_mb())
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        print(
            f"rows from the {what:10}  {total / seconds / 1e6:9,.0f} MB/s  {rows / seconds:9,.0f} rows/s  "
            f"{rows / cpu:9,.0f} rows/CPU s  "
            f"memory {sizes[0]:.0f} MB, {min(sizes[1:]):.0f} to {max(sizes[1:]):.0f} later",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rllib", metavar="PYTHON", help="the Python of an environment with ray[rllib]")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    parser.add_argument("--large", type=float, metavar="GB", help="one folder of that size, and nothing else")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        root = Path(name)
        if arguments.large:
            return large(root, arguments.large)
        peer = Peer(arguments.rllib, root) if arguments.rllib else None
        for case, (batch, times, settings) in CASES.items():
            if arguments.only not in case:
                continue
            ours, theirs = [], []
            for i in range(arguments.windows):
                ours.append(window(batch, times, settings, root / "ours"))
                shutil.rmtree(root / "ours")
                if peer and i < 5:
                    # RLlib has no base64 without lz4: for frames its lists stand beside ours, else what it packs by
                    # default.
                    compress = settings.get("compress_columns", [] if "frames" in case else PACKED["compress_columns"])
                    theirs.append(peer.window(case, max(1, times // 10), compress))
            print(report(case, ours, theirs), flush=True)
        if peer:
            peer.process.kill()


if __name__ == "__main__":
    sys.exit(main())
