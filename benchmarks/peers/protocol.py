"""How bench.py talks to a process that times things: a JSON object a line, over stdin and stdout.

The process serves named cases. bench.py opens one, asks for windows (a stretch of work that is timed here, in the
process itself) and closes it; while one side works the other waits for its next line, so that both sides can be timed
in turn within the same minute. Standard library only, since this runs in the virtual environments of the peers too.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

_PACKAGES = ("polylib", "ray", "stable-baselines3", "torch", "tensorflow", "keras", "tf-keras", "numpy", "gymnasium")

#: RLlib's TensorFlow sessions take 2 threads in workers and 8 beside them by default.
_SESSION = {"intra_op_parallelism_threads": 1, "inter_op_parallelism_threads": 1}
ONE_THREAD = {"tf_session_args": _SESSION, "local_tf_session_args": _SESSION}


class Case:
    """Something to time. Subclasses prepare it in `__init__`, which takes the row's settings and isn't timed."""

    def window(self, n: int, k: int) -> tuple[float, float]:
        """Does the work n times; returns its seconds and how many units (calls, steps, updates) that was.

        Args:
            n: how often.
            k: the number of the window, from 0; a seed for those that need one.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Frees what the case holds."""


class Calls(Case):
    """Times `call()`."""

    def __init__(self, call: Callable[[], Any], units: float = 1.0) -> None:
        self.call, self.units = call, units

    def window(self, n: int, k: int) -> tuple[float, float]:
        call = self.call
        start = time.perf_counter()
        for _ in range(n):
            call()
        return time.perf_counter() - start, n * self.units


class ImportTime(Case):
    """Times a statement in a fresh interpreter.

    Args:
        statement: what is imported.
        absent: modules that must not have been loaded by it.
    """

    def __init__(self, statement: str, absent: tuple[str, ...] = ()) -> None:
        self.code = (
            f"import sys, time; start = time.perf_counter(); {statement}; spent = time.perf_counter() - start; "
            f"loaded = [name for name in {absent!r} if name in sys.modules]; "
            "print('TOOK', spent, *loaded)"
        )

    def window(self, n: int, k: int) -> tuple[float, float]:
        done = subprocess.run(
            [sys.executable, "-c", self.code], stdout=subprocess.PIPE, text=True, check=True, timeout=600
        )
        words = done.stdout.split("TOOK ")[-1].split()
        if words[1:]:
            raise RuntimeError(f"the import loads {', '.join(words[1:])}")
        return float(words[0]), 1.0


def resident_mb() -> float:
    """The memory that this process holds now, shared libraries included."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Memory(Case):
    """Memory after sampling and learning once; a "second" is a megabyte here.

    Subclasses write `use()`.
    """

    def use(self) -> float:
        """Trains; returns the megabytes."""
        raise NotImplementedError

    def window(self, n: int, k: int) -> tuple[float, float]:
        return self.use(), 1.0


def transitions(rows: int) -> dict[str, Any]:
    """Columns of CartPole transitions in episodes of 50 steps, as a replay buffer gets them."""
    import numpy as np

    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, 4)).astype(np.float32)
    steps = np.arange(rows)
    return {
        "obs": obs[:-1],
        "new_obs": obs[1:],
        "actions": rng.integers(0, 2, rows),
        "rewards": np.ones(rows, np.float32),
        "terminateds": steps % 50 == 49,
        "truncateds": np.zeros(rows, np.bool_),
        "eps_id": steps // 50,
        "t": (steps % 50).astype(np.int32),
    }


def json_traces(folder: str, lines: int, rows: int) -> None:
    """A file of such transitions as JSON lines, plain lists, in the layout that RLlib writes and polylib reads."""
    columns = {name: column.tolist() for name, column in transitions(lines * rows).items()}
    with open(os.path.join(folder, "output-0.json"), "w") as file:
        for start in range(0, lines * rows, rows):
            record = {name: column[start : start + rows] for name, column in columns.items()}
            file.write(json.dumps({"type": "SampleBatch", **record}) + "\n")


class TimeToReward(Case):
    """Trains until the mean return of the last 100 training episodes is `goal`; a window is one training.

    Subclasses write `start(seed)`, `iterate()` and `finish()`.
    """

    goal = 450.0
    limit_s = 400.0

    def start(self, seed: int) -> None:
        """Builds the algorithm; not timed, since building has a row of its own."""
        raise NotImplementedError

    def iterate(self) -> tuple[float, float]:
        """Trains once; returns the mean return and the environment steps so far."""
        raise NotImplementedError

    def finish(self) -> None:
        """Stops the algorithm."""

    def window(self, n: int, k: int) -> tuple[float, float]:
        self.start(seed=k)
        try:
            begin = time.perf_counter()
            while True:
                reward, steps = self.iterate()
                spent = time.perf_counter() - begin
                if reward >= self.goal:
                    return spent, steps
                if spent > self.limit_s:
                    raise RuntimeError(f"mean return {reward:.0f} after {steps:.0f} steps and {spent:.0f} s")
        finally:
            self.finish()


def versions() -> dict[str, str]:
    """Of Python and of the packages that matter, as installed; imports none of them."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def serve(cases: Mapping[str, Callable[..., Case]]) -> None:
    """Answers bench.py until it closes stdin.

    Args:
        cases: what makes each case, called with the settings as keyword arguments.
    """
    # Libraries print to stdout as they please: answers get a descriptor of their own, stdout goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    opened: dict[str, Case] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = _answer(request, cases, opened)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
    for case in opened.values():
        case.close()


def _answer(
    request: dict[str, Any], cases: Mapping[str, Callable[..., Case]], opened: dict[str, Case]
) -> dict[str, Any]:
    do, case = request["do"], request.get("case", "")
    if do == "versions":
        return versions()
    if do == "open":
        opened[case] = cases[case](**request["settings"])
        return {}
    if do == "window":
        start = time.process_time()
        seconds, count = opened[case].window(request["n"], request["k"])
        return {"seconds": seconds, "count": count, "cpu": time.process_time() - start}
    if do == "close":
        opened.pop(case).close()
        return {}
    raise ValueError(f"unknown request {do!r}")
