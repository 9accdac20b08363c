"""Learning from files, end to end: records are read, decoded, cut to batches and learnt from."""

from __future__ import annotations

import tempfile
import time

from peers.protocol import Case, json_traces

from rows.spec import MODES, Bound, Row

# A hundred lines of 200 rows, over and over.
_FILES = {"lines": 100, "line": 200}
# Updates that aren't timed: torch records one of the first few hundred.
_BEGINNING = 300
_NOTE = "20,000 CartPole rows as plain lists, 200 a line, read over and over; two hidden layers of 256."
ROWS = [
    Row(
        "bc-200",
        "BC from JSON files, 200 rows an update",
        "updates/s",
        "rate",
        "bc",
        {"": {**_FILES, "rows": 200, "updates": 20}},
        peers={"rllib": {"": Bound(3)}},
        one_process=True,
        note=_NOTE + " A fragment of 200 rows is what RLlib learns from unless it is told otherwise.",
    ),
    Row(
        "bc-2000",
        "BC from JSON files, 2000 rows an update",
        "updates/s",
        "rate",
        "bc",
        {"": {**_FILES, "rows": 2000, "updates": 4}},
        peers={"rllib": {"": Bound(3)}},
        one_process=True,
        note=_NOTE + " Here nearly all of the time goes into multiplying matrices.",
    ),
]


class BC(Case):
    """Training steps of behavioural cloning; what is counted are updates."""

    def __init__(self, mode: str, lines: int, line: int, rows: int, updates: int) -> None:
        from polylib.algorithms.bc import BCConfig

        self.folder = tempfile.TemporaryDirectory()
        json_traces(self.folder.name, lines, line)
        framework, traced = MODES[mode]
        self.algo = (
            BCConfig()
            .environment("CartPole-v1")
            .framework(framework, eager_tracing=traced)
            .offline_data(input_=self.folder.name)
            .training(train_batch_size=rows)
            .debugging(seed=0)
            .build()
        )
        self.updates = updates
        for _ in range(_BEGINNING):
            self.algo.training_step()

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        for _ in range(n * self.updates):
            self.algo.training_step()
        return time.perf_counter() - start, n * self.updates

    def close(self) -> None:
        self.algo.stop()
        self.folder.cleanup()
