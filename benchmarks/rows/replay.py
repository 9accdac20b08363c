"""Replay buffers: rows a second, added to and drawn from one that is full."""

from __future__ import annotations

from typing import Any

from peers.protocol import Calls, Case, transitions

from rows.spec import Bound, Row

# What is done, with how many rows at a time.
_ROWS = {"add": 1000, "sample": 256, "update": 256}
_WHAT = {"add": "1,000 rows added", "sample": "256 rows drawn", "update": "256 priorities set"}
ROWS = [
    Row(
        f"replay-{kind}-{what}",
        f"{kind} replay of 1,000,000, {_WHAT[what]}",
        "rows/s",
        "rate",
        "replay",
        {"": {"kind": kind, "what": what, "capacity": 1_000_000, "rows": _ROWS[what]}},
        modes=("",),
        peers={"rllib": {"": bound}},
        one_process=True,
        note=note,
    )
    for kind, what, bound, note in (
        ("uniform", "add", Bound(5), "CartPole transitions; RLlib's ReplayBuffer, without its multi-agent wrapper."),
        ("uniform", "sample", Bound(5), ""),
        ("prioritized", "add", Bound(3), "RLlib's PrioritizedReplayBuffer, without its multi-agent wrapper."),
        ("prioritized", "sample", Bound(3), ""),
        ("prioritized", "update", Bound(3), ""),
    )
]


class Replay(Case):
    """A replay buffer of CartPole transitions that is full."""

    def __init__(self, mode: str, kind: str, what: str, capacity: int, rows: int) -> None:
        import numpy as np

        from polylib.execution.replay import make_replay_buffer
        from polylib.policy.sample_batch import SampleBatch

        name = {"uniform": "ReplayBuffer", "prioritized": "PrioritizedReplayBuffer"}[kind]
        buffer = make_replay_buffer({"type": name, "capacity": capacity}, seed=0)
        filling = SampleBatch(transitions(1000))
        while len(buffer) < capacity:
            buffer.add(filling)
        batch = SampleBatch(transitions(rows))
        indices = buffer.sample(256)["batch_indexes"]
        errors = np.random.default_rng(0).random(256)
        calls: dict[str, Any] = {
            "add": lambda: buffer.add(batch),
            "sample": lambda: buffer.sample(rows),
            "update": lambda: buffer.update_priorities(indices, errors),
        }
        self.window = Calls(calls[what], rows).window  # type: ignore[method-assign]
