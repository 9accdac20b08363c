"""Ctrl-C and SIGTERM during a run: the first one is taken at the end of the iteration, the second one at once."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

_TAKEN = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run was ended by a signal.

    Attributes:
        signum: the signal.
        checkpoint: the newest checkpoint of a run without Tune.
    """

    def __init__(self, signum: int = signal.SIGINT, checkpoint: str | None = None) -> None:
        super().__init__()
        self.signum, self.checkpoint = int(signum), checkpoint


def exit_status(error: KeyboardInterrupt) -> int:
    """130 after Ctrl-C, 143 after SIGTERM, as shells have it."""
    return 128 + (error.signum if isinstance(error, Interrupted) else signal.SIGINT)


def said(error: KeyboardInterrupt) -> str:
    """`interrupted` or `terminated`."""
    return "terminated" if exit_status(error) == 128 + signal.SIGTERM else "interrupted"


class Interruption:
    """Takes signals inside a `with` block (of the main thread; elsewhere Python allows no handlers).

    Attributes:
        signum: the signal that came, or None.
        patient: whether the first one only sets `signum`, for whoever trains to look at; else it raises `Interrupted`.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.patient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            # Ray Tune takes SIGUSR1, and never gives it back.
            self._before = {signum: signal.getsignal(signum) for signum in (*_TAKEN, signal.SIGUSR1)}
            for signum in _TAKEN:
                signal.signal(signum, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            # None: a handler that wasn't installed from Python.
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _take(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None or not self.patient:
            self.signum = signum
            raise Interrupted(signum)
        self.signum = signum
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        print(
            f"polylib train: {name}: stopping after this iteration, with a checkpoint; once more stops at once",
            file=sys.stderr,
            flush=True,
        )

    def __reduce__(self) -> Any:
        # Tune pickles what holds it; handlers belong to a process.
        return Interruption, ()
