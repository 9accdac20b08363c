"""The processes that time things: polylib's own, and the peers' in their virtual environments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = {
    "polylib": HERE / "ours.py",
    "rllib": HERE / "peers" / "rllib.py",
    "rllib26": HERE / "peers" / "rllib26.py",
    "sb3": HERE / "peers" / "sb3.py",
}
NAMES = {"polylib": "polylib", "rllib": "RLlib", "rllib26": "RLlib 2.6", "sb3": "SB3"}

# One thread for everybody: on a shared machine more of them wait for each other.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "SDL_VIDEODRIVER": "dummy",
    "PYTHONWARNINGS": "ignore",
    "RAY_DEDUP_LOGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# RLlib's TensorFlow code is written for Keras 2.
OWN_ENVIRONMENT = {"rllib": {"TF_USE_LEGACY_KERAS": "1"}, "polylib": {"KERAS_BACKEND": "tensorflow"}}


def peers_folder() -> Path:
    """Where setup.sh puts the peers' virtual environments."""
    return Path(os.environ.get("POLYLIB_PEERS") or Path.home() / ".cache" / "polylib-peers")


def python_of(side: str) -> Path:
    """The Python of a side."""
    return Path(sys.executable) if side == "polylib" else peers_folder() / side / "bin" / "python"


def is_there(side: str) -> bool:
    """Whether a peer's environment is complete."""
    return side == "polylib" or (peers_folder() / side / ".complete").exists()


class ServerError(Exception):
    """A window could not be timed."""


class Server:
    """A process that serves the cases of one side.

    Args:
        side: "polylib" or a peer.
        log: where what it prints goes.
    """

    def __init__(self, side: str, log: Path) -> None:
        self.side, self.log = side, log
        self._stderr = log.open("ab")
        # Workers that Ray starts import polylib from where this process would.
        paths = [str(HERE.parent), str(HERE)] if side == "polylib" else []
        env = {**os.environ, **ENVIRONMENT, **OWN_ENVIRONMENT.get(side, {}), "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            [str(python_of(side)), str(SCRIPTS[side])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=env,
            cwd=log.parent,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer.

        Raises:
            ServerError: if the case failed or the process ended.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise ServerError("no pipes")
        try:
            print(json.dumps(request), file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ServerError(f"{NAMES[self.side]}'s process ended (see {self.log})")
        answer = json.loads(line)
        if "error" in answer:
            raise ServerError(f"{NAMES[self.side]}: {answer['error']} (see {self.log})")
        return answer

    def window(self, case: str, n: int, k: int) -> tuple[float, float, float]:
        """Seconds, units and CPU seconds of one window."""
        answer = self.ask(do="window", case=case, n=n, k=k)
        return answer["seconds"], answer["count"], answer["cpu"]

    def stop(self) -> None:
        """Closes stdin, on which the process ends by itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()
