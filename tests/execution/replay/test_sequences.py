"""SequenceReplayBuffer: where episodes are cut, and what sampled sequences hold."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from execution.replay.streams import assert_same, stream
from scipy import stats

from polylib.errors import BatchError, ConfigError
from polylib.execution.replay import SequenceReplayBuffer, sequence_priorities
from polylib.policy.sample_batch import SampleBatch
from polylib.policy.sequences import cut


def steps(episode: int, times: range, done: bool = False, state: bool = True) -> SampleBatch:
    """Steps whose columns say which they are: x is 100 * episode + t, the state 1000 more."""
    x = np.float32([100 * episode + t for t in times])
    batch = SampleBatch(
        obs=x[:, None],
        actions=np.arange(len(x)),
        terminateds=np.append(np.zeros(len(x) - 1, bool), done),
        truncateds=np.zeros(len(x), bool),
        eps_id=np.full(len(x), episode),
        t=np.array(times, np.int32),
    )
    if state:
        batch["state_in_0"] = np.stack([x + 1000] * 2, 1)
    return batch


def stored(buffer: SequenceReplayBuffer) -> list[tuple[list[int], int]]:
    """All sequences that are there: their steps, and how many of them are burn-in."""
    table = buffer._table[np.arange(buffer._oldest, buffer._added) % len(buffer._table)]
    columns = buffer.storage.columns["obs"][:, 0].astype(int)
    return [(columns[np.arange(first, first + n) % buffer.capacity].tolist(), burn) for first, n, burn in table]


def test_an_episode_is_cut_and_burn_in_repeated() -> None:
    buffer = SequenceReplayBuffer(100, sequence_length=4, burn_in=2)
    assert buffer.add(steps(1, range(0, 9), done=True)).tolist() == [0, 1, 2]
    assert stored(buffer) == [
        ([100, 101, 102, 103], 0),
        ([102, 103, 104, 105, 106, 107], 2),
        ([106, 107, 108], 2),
    ]


def test_burn_in_longer_than_a_sequence() -> None:
    buffer = SequenceReplayBuffer(100, sequence_length=2, burn_in=3)
    buffer.add(steps(0, range(0, 7), done=True))
    assert stored(buffer) == [([0, 1], 0), ([0, 1, 2, 3], 2), ([1, 2, 3, 4, 5], 3), ([3, 4, 5, 6], 3)]


def test_steps_of_interleaved_episodes_are_held_back() -> None:
    buffer = SequenceReplayBuffer(100, sequence_length=3)
    for t in range(5):
        for episode in (1, 2):
            buffer.add(steps(episode, range(t, t + 1), done=(episode, t) == (2, 4)))
    assert stored(buffer) == [([100, 101, 102], 0), ([200, 201, 202], 0), ([203, 204], 0)]
    assert buffer._open.keys() == {(1, 0)}
    buffer.add(steps(1, range(5, 7)))
    assert stored(buffer)[3] == ([103, 104, 105], 0)


def test_no_sequence_crosses_an_end_or_a_gap() -> None:
    buffer = SequenceReplayBuffer(100, sequence_length=4)
    buffer.add(steps(1, range(0, 3)))
    buffer.add(steps(1, range(5, 7)))  # 3 and 4 were lost
    assert stored(buffer) == [([100, 101, 102], 0)]
    buffer.add(steps(1, range(7, 9), done=True).concat(steps(2, range(0, 1), done=True)))
    assert stored(buffer)[1:] == [([105, 106, 107, 108], 0), ([200], 0)]
    # An environment that reuses its episode's id still ends where it says so.
    first, second = steps(3, range(0, 2), done=True), steps(3, range(2, 4), done=True)
    buffer.add(first.concat(second))
    assert stored(buffer)[3:] == [([300, 301], 0), ([302, 303], 0)]


def test_whole_episodes() -> None:
    buffer = SequenceReplayBuffer(20, sequence_length=None)
    buffer.add(steps(1, range(0, 5)))
    assert len(buffer) == 0
    buffer.add(steps(2, range(3, 6), done=True))  # its start was missed
    buffer.add(steps(1, range(5, 7), done=True))
    buffer.add(steps(4, range(0, 2), done=True))
    assert stored(buffer) == [(list(range(100, 107)), 0), ([400, 401], 0)]
    sampled = buffer.sample(2, rng=np.random.default_rng(1))
    assert sampled["obs"].shape[:2] == (2, int(sampled["seq_lens"].max()))
    with pytest.raises(BatchError, match="an episode of 21 steps doesn't fit into a replay buffer of 20"):
        buffer.add(steps(5, range(0, 21), done=True))


@pytest.mark.parametrize("zero", [True, False])
def test_a_sample_by_hand(zero: bool) -> None:
    buffer = SequenceReplayBuffer(100, sequence_length=3, burn_in=1, zero_init_states=zero, seed=0)
    buffer.add(steps(1, range(0, 5), done=True))
    sampled = buffer.sample(2, rng=np.random.default_rng(1))
    assert isinstance(sampled, SampleBatch) and len(sampled) == 2
    for row in sampled.rows():
        first = row["batch_indexes"] == 0
        # Padded with the last step: [0, 1, 2] + one, and burn-in 2 before [3, 4] + one.
        assert row["obs"][:, 0].tolist() == ([100, 101, 102, 102] if first else [102, 103, 104, 104])
        assert (row["seq_lens"], row["burn_in"]) == ((3, 0) if first else (3, 1))
        state = 0 if zero else 1100 if first else 1102
        assert row["state_in_0"].tolist() == [state, state]
    assert sampled["seq_lens"].dtype == np.int32 and sampled["weights"].tolist() == [1, 1]


def test_rows_as_a_policy_takes_them() -> None:
    buffer = SequenceReplayBuffer(100, sequence_length=3, burn_in=2, zero_init_states=False, seed=0)
    for episode in range(4):
        buffer.add(steps(episode, range(0, 7), done=True))
    rows = buffer.sample_rows(6)
    lengths = rows["seq_lens"]
    count = int(lengths.sum())
    assert len(rows["obs"]) == len(rows["weights"]) == len(rows["burn_in"]) == count
    firsts, found = cut(rows, count, 5)
    np.testing.assert_array_equal(found, lengths)
    np.testing.assert_array_equal(rows["state_in_0"][:, 0], rows["obs"][firsts, 0] + 1000)
    for first, n in zip(firsts.tolist(), lengths.tolist(), strict=True):
        x = rows["obs"][first : first + n, 0]
        np.testing.assert_array_equal(np.diff(x), 1)  # no episode's end inside
        burn = rows["burn_in"][first : first + n]
        assert burn.sum() == (0 if x[0] % 100 == 0 else 2) and burn[: int(burn.sum())].all()


@pytest.mark.parametrize("image", [5, 33], ids=["small", "shared"])
@pytest.mark.parametrize(("capacity", "length", "burn_in"), [(9, 3, 2), (40, 4, 0), (300, 5, 5), (30, None, 0)])
def test_every_sequence_is_of_its_episode(capacity: int, length: int | None, burn_in: int, image: int) -> None:
    """Against all rows ever added, while the ring is overwritten."""
    buffer = SequenceReplayBuffer(capacity, length, burn_in, alpha=0.5, seed=0)
    rng = np.random.default_rng(0)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for batch in itertools.islice(stream(seed=capacity, image=image), 40):
        rows |= {(int(row["eps_id"]), int(row["t"])): row for row in batch.copy().rows()}
        buffer.add(batch)
        if not len(buffer):
            continue
        ids = np.arange(buffer._oldest, buffer._added)
        table = buffer._table[ids % len(buffer._table)]
        assert (table[:, 0] >= buffer.storage.oldest).all()
        assert (table[:, 0] + table[:, 1] <= buffer.storage.added).all()
        assert np.count_nonzero(buffer._tree.values) == len(buffer)
        sampled = buffer.sample(min(len(buffer), 4))
        buffer.update_priorities(sampled["batch_indexes"], rng.random(len(sampled)))
        for sequence in sampled.rows():
            n = int(sequence["seq_lens"])
            assert n - sequence["burn_in"] <= (length or capacity) and sequence["burn_in"] <= burn_in
            for t in range(len(sequence["t"])):
                got = {name: sequence[name] for name in batch}
                got = {k: {p: x[t] for p, x in v.items()} if isinstance(v, dict) else v[t] for k, v in got.items()}
                assert_same(got, rows[int(sequence["eps_id"][0]), int(sequence["t"][0]) + min(t, n - 1)])


def test_sequences_come_in_proportion_to_their_priority() -> None:
    buffer = SequenceReplayBuffer(500, sequence_length=2, alpha=1.0, beta=1.0, eps=1e-9, seed=0)
    for episode in range(100):  # the table grows on the way
        buffer.add(steps(episode, range(0, 2), done=True))
    priorities = np.random.default_rng(1).random(100) + 0.5
    buffer.update_priorities(np.arange(100), priorities)
    counts = np.zeros(100)
    for _ in range(300):
        sampled = buffer.sample(50)
        counts += np.bincount(sampled["batch_indexes"], minlength=100)
        expected = priorities.min() / priorities[sampled["batch_indexes"]]
        np.testing.assert_allclose(sampled["weights"], expected, rtol=1e-5)
    assert stats.chisquare(counts, priorities / priorities.sum() * counts.sum()).pvalue > 0.01
    # Those that the ring overwrote are passed over.
    for episode in range(100, 300):
        buffer.add(steps(episode, range(0, 2), done=True))
    assert len(buffer) == 250
    before = buffer._tree.values.copy()
    buffer.update_priorities([0, 49], [7.0, 7.0])
    np.testing.assert_array_equal(buffer._tree.values, before)
    buffer.update_priorities([50], [7.0])
    assert buffer._tree.values[50 % len(buffer._table)] == pytest.approx(7)


def test_priorities_of_sequences_by_hand() -> None:
    # |errors| 1, 3, 2 | 4, 0; with the first row burn-in 3, 2 | 4, 0: 0.9 * 3 + 0.1 * 2.5 and 0.9 * 4 + 0.1 * 2.
    found = sequence_priorities(np.array([1, -3, 2, 4, 0]), np.array([3, 2]), np.array([True, *[False] * 4]))
    np.testing.assert_allclose(found, [2.95, 3.8])
    np.testing.assert_allclose(sequence_priorities([1, 3], [2], eta=0.5), [2.5])
    with pytest.raises(BatchError, match="seq_lens add up to 3 rows"):
        sequence_priorities([1, 3], [3])


def test_episodes_that_nobody_continues_are_let_go() -> None:
    buffer = SequenceReplayBuffer(10, sequence_length=4)
    for episode in range(50):
        buffer.add(steps(episode, range(0, 3)))
    assert sum(x.count for x in buffer._open.values()) <= 10
    assert list(buffer._open) == [(47, 0), (48, 0), (49, 0)]


def test_mistakes() -> None:
    buffer = SequenceReplayBuffer(20, sequence_length=4)
    with pytest.raises(BatchError, match="no column 'eps_id', by which a replay buffer finds sequences"):
        buffer.add(SampleBatch(obs=[1], t=[0]))
    with pytest.raises(BatchError, match=r"sample\(1\): the replay buffer is empty; add 1 sequences or more"):
        buffer.sample(1)
    buffer.add(steps(0, range(0, 8)))
    with pytest.raises(BatchError, match="has no column 'state_in_0', which the first batch in this replay buffer had"):
        buffer.add(steps(0, range(8, 9), state=False))
    wrong = steps(0, range(8, 9))
    wrong["state_in_0"] = np.zeros((1, 3))
    with pytest.raises(BatchError, match=r"column 'state_in_0' is \[3\] a row, in the first batch it was \[2\]"):
        buffer.add(wrong)
    with pytest.raises(BatchError, match="replay_zero_init_states=False: the batch has no column 'state_in_0'"):
        SequenceReplayBuffer(20, 4, zero_init_states=False).add(steps(0, range(0, 2), state=False))
    for settings, message in (
        ({"sequence_length": 0}, "replay_sequence_length=0"),
        ({"burn_in": -1}, "replay_burn_in=-1"),
        ({"sequence_length": None, "burn_in": 2}, "replay_burn_in=2: expected steps, at least 0, and 0 for whole"),
        ({"sequence_length": 18, "burn_in": 3}, r"capacity=20 holds no sequence of 18 \+ 3 steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            SequenceReplayBuffer(20, **settings)  # type: ignore[arg-type]
