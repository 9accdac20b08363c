"""A buffer that was written to a checkpoint and read goes on as the one that wasn't."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from execution.replay.streams import assert_same, stream

from polylib.checkpoints import read_arrays, read_document, write_checkpoint
from polylib.errors import ConfigError
from polylib.execution.replay import (
    PrioritizedReplayBuffer,
    Replay,
    ReplayBuffer,
    ReservoirReplayBuffer,
    SequenceReplayBuffer,
)

KINDS: dict[str, Callable[[], Replay]] = {
    "uniform": lambda: ReplayBuffer(37, seed=0),
    "prioritized": lambda: PrioritizedReplayBuffer(37, seed=0),
    "reservoir": lambda: ReservoirReplayBuffer(37, seed=0),
    "sequences": lambda: SequenceReplayBuffer(60, 4, 2, alpha=0.7, seed=0),
    "episodes": lambda: SequenceReplayBuffer(60, None, seed=0),
}


def go_on(buffer: Replay, batches: Any, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    drawn = []
    for batch in itertools.islice(batches, count):
        batch["state_in_0"] = np.arange(len(batch), dtype=np.float32)[:, None]
        buffer.add(batch)
        if len(buffer) >= 4:
            sampled = buffer.sample(4)
            buffer.update_priorities(sampled["batch_indexes"], rng.random(4))
            drawn.append(dict(sampled.items()))
    return drawn


def through_files(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    write_checkpoint(folder, {"type": "test"}, {"replay": state["values"]}, {"replay": state["arrays"]})
    return {"values": read_document(folder, "replay"), "arrays": read_arrays(folder, "replay")}


@pytest.mark.parametrize("image", [5, 33], ids=["small", "shared"])
@pytest.mark.parametrize("after", [0, 1, 3, 25])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_buffer_samples_the_same(kind: str, after: int, image: int, tmp_path: Path) -> None:
    first, second = KINDS[kind](), KINDS[kind]()
    batches = stream(seed=5, n=1 if kind in ("sequences", "episodes") else 3, image=image)
    go_on(first, batches, after, np.random.default_rng(0))
    state = first.get_state(copy=False)
    second.rng.random(3)
    second.set_state(through_files(state, tmp_path / "checkpoint"))
    assert_same(second.get_state()["arrays"], first.get_state()["arrays"])
    assert second.get_state()["values"] == first.get_state()["values"]
    assert len(second) == len(first) and second.size_bytes() == first.size_bytes()
    rest = list(itertools.islice(batches, 15))
    found = go_on(second, iter(rest), 15, np.random.default_rng(1))
    expected = go_on(first, iter(rest), 15, np.random.default_rng(1))
    assert len(found) == len(expected) > 0
    for x, y in zip(found, expected, strict=True):
        assert_same(x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_a_copy(kind: str) -> None:
    buffer = KINDS[kind]()
    batches = stream(seed=5)
    go_on(buffer, batches, 10, np.random.default_rng(0))
    state = buffer.get_state()
    before = {name: x.copy() for name, x in state["arrays"].items()}
    go_on(buffer, batches, 10, np.random.default_rng(0))
    assert_same(state["arrays"], before)


def test_another_kind_or_capacity_is_refused() -> None:
    with pytest.raises(ConfigError, match="stored replay buffer is a PrioritizedReplayBuffer, this one a ReplayBuffer"):
        ReplayBuffer(5).set_state(PrioritizedReplayBuffer(5).get_state())
    with pytest.raises(ConfigError, match="stored replay buffer has capacity 5, this one 6"):
        ReplayBuffer(6).set_state(ReplayBuffer(5).get_state())
