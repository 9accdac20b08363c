"""Records that are read once and kept, as far as they fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

from polylib.evaluation.remembered import Remembered
from polylib.offline.input_reader import InputReader
from polylib.policy.sample_batch import SampleBatch

RECORDS = [np.arange(5) + 10 * i for i in range(7)]


class Reader(InputReader):
    """Gives arrays instead of batches, and counts them."""

    count = 0

    def __init__(self, loop):
        self.loop, self.place = loop, 0

    def next(self):
        if self.place == len(RECORDS) and not self.loop:
            raise StopIteration
        self.place += 1
        Reader.count += 1
        return RECORDS[(self.place - 1) % len(RECORDS)]

    def get_state(self):
        return {"place": self.place}

    def set_state(self, state):
        self.place = state["place"]
        return True


def make(keep, permute=False, seed=1):
    Reader.count = 0
    return Remembered(Reader, lambda record: SampleBatch(x=record.copy()), keep, seed, permute)


def firsts(found, count):
    return [int(found.next()["x"][0]) // 10 for _ in range(count)]


def test_small_files_are_read_once():
    found = make(1000)
    assert firsts(found, 16) == [0, 1, 2, 3, 4, 5, 6] * 2 + [0, 1] and Reader.count == 7


def test_each_pass_has_an_order_of_its_own():
    found = make(1000, permute=True)
    passes = [firsts(found, 7) for _ in range(4)]
    assert passes[0] == list(range(7)) and all(sorted(order) == list(range(7)) for order in passes)
    assert len(set(map(tuple, passes))) == 4
    assert [firsts(again, 7) for again in [make(1000, permute=True)] for _ in range(4)] == passes
    assert [firsts(again, 7) for again in [make(1000, permute=True, seed=2)] for _ in range(4)] != passes


@pytest.mark.parametrize("keep", [0, 100])
def test_large_ones_are_read_again(keep):
    """100 bytes are two records of 40: nothing is kept."""
    found = make(keep)
    assert firsts(found, 16) == [0, 1, 2, 3, 4, 5, 6] * 2 + [0, 1] and Reader.count == 16
    assert found._kept == []


def test_writing_to_a_record_changes_no_other():
    found = make(1000)
    for _ in range(21):
        found.next()["x"][:] = -1
    assert firsts(found, 7) == list(range(7))


@pytest.mark.parametrize("keep", [0, 100, 1000])
@pytest.mark.parametrize("permute", [True, False])
def test_going_on(keep, permute):
    """From anywhere in the first passes, with another seed at first."""
    unbroken = make(keep, permute)
    states, order = [], []
    for _ in range(24):
        states.append(json.loads(json.dumps(unbroken.get_state())))
        order += firsts(unbroken, 1)
    for place, state in enumerate(states):
        again = make(keep, permute, seed=9)
        firsts(again, 3)
        assert again.set_state(state)
        assert firsts(again, 24 - place) == order[place:], place
        # Back to the beginning, with the same reader.
        assert again.set_state(states[0]) and firsts(again, 24) == order


def test_files_that_have_changed(monkeypatch):
    found = make(1000)
    firsts(found, 9)
    state = found.get_state()
    assert state["memory"] == {"pass": 1, "place": 2, "records": 7}
    monkeypatch.setattr(f"{__name__}.RECORDS", RECORDS[:5])
    other = make(1000)
    assert not other.set_state(state) and firsts(other, 6) == [0, 1, 2, 3, 4, 0]
    assert not make(0).set_state(state)
