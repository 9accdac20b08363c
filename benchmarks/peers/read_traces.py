"""RLlib's own reader and writer of JSON traces, for comparison. Runs in an environment with ray[rllib] and lz4.

`read_traces.py read FOLDER OUT.npz` reads every line and keeps the columns in OUT.npz as `line/policy/column`;
`read_traces.py speed FOLDER` times batches that lie there as npz files, for benchmarks/traces.py.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from ray.rllib.offline.json_reader import JsonReader
from ray.rllib.offline.json_writer import JsonWriter
from ray.rllib.policy.sample_batch import SampleBatch


def read(folder: str, out: str) -> None:
    reader = JsonReader(sorted(glob.glob(os.path.join(folder, "*.json"))))
    found: dict[str, np.ndarray] = {}
    counts = []
    for i, batch in enumerate(reader.read_all_files()):
        multi = batch.as_multi_agent()
        counts.append(multi.count)
        for policy_id, columns in multi.policy_batches.items():
            for name, column in columns.items():
                found[f"{i}/{policy_id}/{name}"] = np.asarray(column)
    np.savez(out, counts=np.array(counts, np.int64), **found)


def window(batch: SampleBatch, times: int, compress: list[str], folder: str) -> tuple[float, float]:
    start = time.perf_counter()
    writer = JsonWriter(folder, max_file_size=1 << 40, compress_columns=compress)
    for _ in range(times):
        # Its own writer wraps batches in this layout, too.
        writer.write(batch.as_multi_agent())
    written = time.perf_counter()
    reader = JsonReader(folder)
    rows = sum(reader.next().count for _ in range(times))
    end = time.perf_counter()
    if rows != times * batch.count:
        raise SystemExit(f"read {rows} rows of {times * batch.count}")
    return rows / (written - start), rows / (end - written)


def speed(folder: str) -> None:
    batches = {}
    for line in sys.stdin:
        name, times, compress = json.loads(line)
        if name not in batches:
            with np.load(os.path.join(folder, f"{name}.npz")) as columns:
                batches[name] = SampleBatch({key: columns[key] for key in columns.files})
        target = os.path.join(folder, "theirs")
        rates = window(batches[name], times, compress, target)
        shutil.rmtree(target)
        print("RATES", json.dumps(rates), flush=True)


if __name__ == "__main__":
    {"read": read, "speed": speed}[sys.argv[1]](*sys.argv[2:])
