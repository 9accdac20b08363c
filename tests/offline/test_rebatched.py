"""Records cut and joined: to so many rows, to whole episodes, in random order."""

from __future__ import annotations

import json

import numpy as np
import pytest
from offline.batches import assert_same, cartpole
from offline.readers import Given

from polylib.errors import BatchError, ConfigError
from polylib.offline import Rebatched, ShuffledInput, TraceFormatError
from polylib.offline import whole_episodes as module
from polylib.offline.whole_episodes import WholeEpisodes
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch, concat_samples


def numbered(*rows: int) -> list[SampleBatch]:
    """Records of so many rows each, whose rows are numbered through."""
    ends = np.cumsum(rows)
    return [
        SampleBatch(x=np.arange(end - n, end), y=np.arange(end - n, end) * 2.0)
        for n, end in zip(rows, ends, strict=True)
    ]


def values(reader, name: str = "x") -> list[list[int]]:
    return [batch[name].tolist() for batch in reader]


# --- so many rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("records", [(10,), (3, 1, 4, 2), (1,) * 10, (4, 0, 6), (7, 3)])
@pytest.mark.parametrize("rows", [1, 3, 4, 10, 12])
def test_batches_have_exactly_so_many_rows_and_every_row_comes_once(records, rows):
    found = values(Rebatched(Given(numbered(*records)), rows))
    assert sum(found, []) == list(range(10))
    assert all(len(batch) == rows for batch in found[:-1]) and 0 < len(found[-1]) <= rows


def test_all_columns_are_cut_alike_nested_ones_too():
    records = [SampleBatch(obs={"a": np.arange(n), "b": (np.ones((n, 2)) * np.arange(n)[:, None],)}) for n in (3, 5)]
    first, second = Rebatched(Given(records), 4)
    assert first["obs"]["a"].tolist() == [0, 1, 2, 0] and second["obs"]["b"][0][:, 1].tolist() == [1, 2, 3, 4]


def test_a_record_of_the_right_size_is_handed_on_without_a_copy():
    (record,) = numbered(4)
    assert Rebatched(Given([record]), 4).next() is record
    assert np.shares_memory(Rebatched(Given([record]), 2).next()["x"], record["x"])


def test_columns_that_not_all_records_have_are_left_out_with_one_warning(caplog):
    records = [SampleBatch(x=np.arange(2), a=np.ones(2)), SampleBatch(x=np.arange(2, 4), b=np.ones(2))] * 3
    found = list(Rebatched(Given(records), 4))
    assert [list(batch) for batch in found] == [["x"]] * 3
    assert len(caplog.records) == 1 and "left out: a, b;" in caplog.text


def test_records_that_have_nothing_in_common_or_do_not_fit_name_the_column():
    with pytest.raises(BatchError, match="Column 'x' is in batch 0 but missing in batch 1"):
        Rebatched(Given([SampleBatch(x=np.zeros(1)), SampleBatch(y=np.zeros(1))]), 2).next()
    with pytest.raises(BatchError, match="Column 'x' can't be concatenated"):
        Rebatched(Given([SampleBatch(x=np.zeros((1, 2))), SampleBatch(x=np.zeros((1, 3)))]), 2).next()


def test_batches_of_several_agents_are_joined_to_at_least_so_many_steps():
    def record(first):
        return MultiAgentBatch({"a": cartpole(3, eps_id=first), "b": cartpole(2, eps_id=first)}, 3)

    one, two = Rebatched(Given([record(i) for i in range(3)]), 5)
    assert (one.count, two.count) == (6, 3)
    assert one.policy_batches["b"]["eps_id"].tolist() == [0, 0, 1, 1]


def test_no_rows_are_refused():
    with pytest.raises(ConfigError, match="batches of 0 rows: expected at least 1"):
        Rebatched(Given([]), 0)


# --- whole episodes ---------------------------------------------------------------------------------------------------


def pieces(*spec: tuple[int, int, int, bool]) -> SampleBatch:
    """A record of pieces `(eps_id, first t, rows, whether it ends)`, one after another."""
    parts = []
    for eps_id, first, rows, ends in spec:
        part = cartpole(rows, first, eps_id)
        part["terminateds"] = (np.arange(rows) == rows - 1) & ends
        parts.append(part)
    return concat_samples(parts)


def seen(batches) -> list[tuple[int, list[int]]]:
    return [(int(batch["eps_id"][0]), batch["t"].tolist()) for batch in batches]


def test_episodes_are_put_together_over_records():
    records = [
        pieces((1, 0, 3, False), (2, 0, 2, True), (3, 0, 1, False)),
        pieces((1, 3, 2, True), (3, 1, 2, False)),
        pieces((4, 0, 2, True), (3, 3, 1, True), (5, 0, 2, False)),
    ]
    expected = [(2, [0, 1]), (1, [0, 1, 2, 3, 4]), (4, [0, 1]), (3, [0, 1, 2, 3]), (5, [0, 1])]
    assert seen(WholeEpisodes(Given(records))) == expected
    both, rest = Rebatched(Given([records[0], records[1][:2]]), 7, complete_episodes=True)
    assert seen(both.split_by_episode()) == [(2, [0, 1]), (1, [0, 1, 2, 3, 4])] and seen([rest]) == [(3, [0])]
    np.testing.assert_array_equal(both["obs"][2:7], concat_samples([records[0][:3], records[1][:2]])["obs"])


def test_batches_have_whole_episodes_and_at_least_so_many_rows():
    records = [pieces(*((i, 0, 3, True) for i in range(j, j + 4))) for j in (0, 4)]
    found = list(Rebatched(Given(records), 7, complete_episodes=True))
    assert [len(batch) for batch in found] == [9, 9, 6]
    assert sum((batch["eps_id"].tolist() for batch in found), []) == np.repeat(np.arange(8), 3).tolist()


def test_an_episode_that_starts_anew_is_another_one():
    """As when an input without ends is read again and again."""
    records = [pieces((1, 0, 3, False)), pieces((1, 0, 3, False)), pieces((1, 3, 1, True))]
    assert seen(WholeEpisodes(Given(records))) == [(1, [0, 1, 2]), (1, [0, 1, 2, 3])]


def test_rows_that_are_missing_inside_of_a_record_cut_an_episode():
    assert seen(WholeEpisodes(Given([pieces((1, 0, 2, False), (1, 3, 2, True))]))) == [(1, [0, 1]), (1, [3, 4])]


@pytest.mark.parametrize("kind", [object, str])
def test_agents_in_turns_and_ids_that_are_text(kind):
    records = [
        SampleBatch(
            eps_id=np.array(["one", "one", "two"], kind),
            agent_index=np.array([0, 1, 0]),
            terminateds=np.array([first > 1, first > 1, False]),
            x=np.arange(first, first + 3),
        )
        for first in (0, 3)
    ]
    assert values(WholeEpisodes(Given(records))) == [[0, 3], [1, 4], [2, 5]]


def test_without_ids_the_ends_separate_episodes():
    records = [SampleBatch(x=np.arange(i, i + 3), dones=np.array(ends)) for i, ends in ((0, [0, 1, 0]), (3, [0, 1, 1]))]
    assert values(WholeEpisodes(Given(records))) == [[0, 1], [2, 3, 4], [5]]
    with pytest.raises(TraceFormatError, match="whole episodes need the column 'eps_id', or .*: the record has x"):
        WholeEpisodes(Given([SampleBatch(x=np.zeros(1))])).next()


def test_an_end_inside_one_id_is_an_end():
    batch = SampleBatch(eps_id=np.zeros(4, int), truncateds=np.array([False, True, False, True]), x=np.arange(4))
    assert values(WholeEpisodes(Given([batch]))) == [[0, 1], [2, 3]]


def test_a_log_without_ends_does_not_fill_the_memory(monkeypatch, caplog):
    monkeypatch.setattr(module, "MAX_OPEN_ROWS", 10)
    reader = WholeEpisodes(Given([pieces((i, 0, 2, False)) for i in range(50)]))
    assert [eps_id for eps_id, _ in seen(reader.next() for _ in range(40))] == list(range(40))
    assert reader._joiner.bytes <= pieces((0, 0, 10, False)).size_bytes()
    assert len(caplog.records) == 1 and "episodes of the input don't end" in caplog.text


def test_batches_of_several_agents_are_handed_on():
    record = MultiAgentBatch({"a": cartpole(3)}, 3)
    assert list(WholeEpisodes(Given([record]))) == [record]


# --- in random order --------------------------------------------------------------------------------------------------


def test_rows_are_shuffled_as_far_as_the_buffer_reaches():
    shuffled = ShuffledInput(Given(numbered(*[10] * 10)), 40, seed=0)
    found = values(shuffled)
    assert [len(block) for block in found] == [40, 40, 20]
    assert [sorted(block) for block in found] == [list(range(a, b)) for a, b in ((0, 40), (40, 80), (80, 100))]
    assert all(block != sorted(block) for block in found)
    assert found == values(ShuffledInput(Given(numbered(*[10] * 10)), 40, seed=0))
    assert found != values(ShuffledInput(Given(numbered(*[10] * 10)), 40, seed=1))


def test_columns_stay_together():
    for batch in ShuffledInput(Given(numbered(5, 5, 5)), 7):
        assert (batch["y"] == batch["x"] * 2).all()
    record = MultiAgentBatch({"a": cartpole(30), "b": cartpole(20)}, 30)
    (batch,) = ShuffledInput(Given([record]), 5, seed=0)
    for name, before in record.policy_batches.items():
        order = np.argsort(batch.policy_batches[name]["t"])
        assert (order != np.arange(len(order))).any()
        assert_same(batch.policy_batches[name].take(order), before)


def test_what_was_given_is_not_changed():
    (record,) = numbered(50)
    ShuffledInput(Given([record]), 5, seed=0).next()
    assert record["x"].tolist() == list(range(50))


def test_whole_batches_are_shuffled_too():
    found = values(ShuffledInput(Given(numbered(*[3] * 20)), 30, seed=0, rows=False))
    assert all(len(batch) == 3 and batch == list(range(batch[0], batch[0] + 3)) for batch in found)
    firsts = [batch[0] for batch in found]
    assert sorted(firsts[:10]) == list(range(0, 30, 3)) and sorted(firsts[10:]) == list(range(30, 60, 3))
    assert firsts[:10] != sorted(firsts[:10])


def test_a_buffer_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="shuffle_buffer_size=0"):
        ShuffledInput(Given([]), 0)


# --- going on ---------------------------------------------------------------------------------------------------------


CHAINS = {
    "rows": lambda reader: Rebatched(reader, 4),
    "episodes": lambda reader: Rebatched(reader, 7, complete_episodes=True),
    "shuffled rows": lambda reader: Rebatched(ShuffledInput(reader, 9, seed=1), 4),
    "shuffled episodes": lambda reader: Rebatched(
        ShuffledInput(WholeEpisodes(reader), 15, seed=1, rows=False), 7, complete_episodes=True
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_a_restored_chain_goes_on_with_the_very_next_row(case):
    records = [
        pieces((1, 0, 3, False), (2, 0, 2, True), (3, 0, 1, False)),
        pieces((1, 3, 2, True), (3, 1, 2, False)),
        *(pieces((i, 0, 3, True), (i + 100, 0, 4, True)) for i in range(10, 17)),
        pieces((4, 0, 2, True), (3, 3, 1, True), (5, 0, 2, False)),
    ]
    expected = list(CHAINS[case](Given(records)))
    assert len(expected) > 4 and sum(map(len, expected)) == sum(map(len, records))
    for stop in range(len(expected)):
        first, second = CHAINS[case](Given(records)), CHAINS[case](Given(records))
        for _ in range(stop):
            first.next()
        state = json.loads(json.dumps(first.get_state()))
        assert second.set_state(state)
        rest = list(second)
        assert len(rest) == len(expected) - stop
        for ours, theirs in zip(rest, expected[stop:], strict=True):
            assert_same(ours, theirs)


@pytest.mark.parametrize("case", CHAINS)
def test_a_chain_over_a_reader_without_a_state_has_none(case):
    class Stateless(Given):
        def get_state(self):
            return None

    chain = CHAINS[case](Stateless([pieces((i, 0, 5, True)) for i in range(5)]))
    chain.next()
    assert chain.get_state() is None and not chain.set_state(None)
