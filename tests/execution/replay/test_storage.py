"""The ring against a list, and what it takes in memory."""

from __future__ import annotations

import itertools
import logging

import gymnasium as gym
import numpy as np
import pytest
from execution.replay.streams import Env, Naive, assert_same, fragment_of, stream, transitions

from polylib.errors import BatchError, ConfigError
from polylib.execution.replay import ReplayBuffer, from_spaces
from polylib.execution.replay.storage import LOOKAHEAD, SHARE_ABOVE, Storage
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch, concat_samples


def check_all(storage: Storage, naive: Naive) -> None:
    """Every row that is there is the list's."""
    assert len(storage) == len(naive.rows)
    if not len(storage):
        return
    numbers = np.arange(storage.oldest, storage.added)
    batch = SampleBatch(storage.nested(storage.rows(numbers % storage.capacity)))
    for number, row in zip(numbers.tolist(), batch.rows(), strict=True):
        assert_same(row, naive.row(number), f"row {number}")


@pytest.mark.parametrize("image", [5, 33], ids=["small", "shared"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("capacity", [1, 2, 7, 16, 61])
def test_ring_holds_what_a_list_would(capacity: int, n: int, image: int) -> None:
    for seed, most in enumerate((1, 6, 12)):
        storage, naive = Storage(capacity), Naive(capacity)
        for batch in itertools.islice(stream(seed, envs=4 - seed, n=n, image=image, most=most), 14):
            numbers = storage.append(batch)
            naive.add(batch)
            assert len(numbers) == min(batch.count, capacity) and numbers[-1] == naive.added - 1
            check_all(storage, naive)
        assert (storage._links is not None) == (image == 33)


@pytest.mark.parametrize("capacity", [3, 10, 40])
def test_references_and_side_slots_stay_in_step(capacity: int) -> None:
    """Every reference leads to a later row that is there, every side slot has a user, no other slot is kept."""
    for n, seed in itertools.product((1, 3), range(2)):
        storage = Storage(capacity)
        for batch in itertools.islice(stream(seed, n=n), 60):
            storage.append(batch)
            links = storage._links
            assert links is not None
            numbers = np.arange(storage.oldest, storage.added)
            after = links._after[numbers % capacity]
            assert ((after > numbers) & (after < storage.added) | (after < 0)).all()
            used: dict[int, list[int]] = {}
            for number, slot in zip(numbers[after < 0].tolist(), (-1 - after[after < 0]).tolist(), strict=True):
                used.setdefault(slot, []).append(number)
            assert used == links.users
            assert set(links._free).isdisjoint(used)
            assert len(links._free) + len(used) == len(links._side["obs/camera"])
            assert sorted(links._awaited) == sorted(slot for slots in links._open.values() for slot in slots)
            assert set(links._awaited) <= set(used)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("most", [1, 4])
def test_only_last_observations_take_a_side_slot(n: int, most: int) -> None:
    """As many side slots as there are ended episodes and unfinished ones, however the fragments were cut."""
    storage = Storage(10_000)
    for batch in itertools.islice(stream(seed=3, envs=2, n=n, most=most, black=0.0), 50):
        storage.append(batch)
        assert storage.side_slots == len(np.unique(storage.columns["eps_id"][: len(storage)]))


def test_rows_that_are_handed_over_when_their_n_steps_are_known() -> None:
    """Then what they lead to comes n - 1 batches later, and still is found."""
    env = Env(np.random.default_rng(0), iter(range(9)), 33, longest=1)
    env.length = 50
    batch = transitions(fragment_of(env.steps(40)), n=4)[:30]
    storage, naive = Storage(100), Naive(100)
    for i in range(30):
        storage.append(batch[i : i + 1])
        naive.add(batch[i : i + 1])
        check_all(storage, naive)
    assert storage.side_slots == 4


def test_a_longer_n_than_is_looked_ahead_costs_memory_only() -> None:
    env = Env(np.random.default_rng(0), iter(range(9)), 33, longest=1)
    env.length = 99
    storage, naive = Storage(70), Naive(70)
    for count in (40, 3, 45):
        batch = transitions(fragment_of(env.steps(count)), n=LOOKAHEAD + 5)
        storage.append(batch)
        naive.add(batch)
        check_all(storage, naive)


def test_two_agents_of_one_episode() -> None:
    envs = [Env(np.random.default_rng(seed), iter([7]), 33, longest=1) for seed in (0, 1)]
    storage, naive = Storage(100), Naive(100)
    for env in envs:
        env.length = 100
    for _ in range(5):
        parts = []
        for agent, env in enumerate(envs):
            part = transitions(fragment_of(env.steps(3)), 1)
            part["agent_index"] = np.full(3, agent)
            parts.append(part)
        batch = concat_samples(parts)
        storage.append(batch)
        naive.add(batch)
        check_all(storage, naive)
    assert storage.side_slots == 2


def test_content_decides_not_time() -> None:
    """A `new_obs` that isn't the next row's `obs` (say, a wrapper changed it) is stored as it is."""
    batch = next(stream(0, envs=1, most=1))
    batch = concat_samples([batch] * 6)
    batch["t"] = np.arange(6, dtype=np.int32)
    batch["eps_id"] = np.zeros(6, np.int64)
    batch["terminateds"] = batch["truncateds"] = np.zeros(6, bool)
    batch["new_obs"]["place"] = np.arange(12, dtype=np.float32).reshape(6, 2) + 10
    storage, naive = Storage(6), Naive(6)
    storage.append(batch)
    naive.add(batch)
    check_all(storage, naive)
    assert storage.side_slots == 6


def test_nan_and_negative_zero_survive() -> None:
    obs = np.full((3, 300), np.nan, np.float32)
    obs[1] = -0.0
    batch = SampleBatch(
        obs=obs[:2], new_obs=np.stack([np.zeros(300, np.float32), obs[2]]), eps_id=[1, 1], t=[0, 1],
        terminateds=[False, False],
    )  # fmt: skip
    storage = Storage(4)
    storage.append(batch)
    found = storage.rows(np.arange(2))["new_obs"]
    assert not np.signbit(found[0]).any() and np.isnan(found[1]).all()
    assert storage.side_slots == 2  # 0.0 == -0.0, but other bytes


def test_memory_of_frames() -> None:
    """84 x 84 x 4 bytes of uint8: 28,224 a transition and not twice as much."""
    rng = np.random.default_rng(0)
    rows, episode = 256, 64
    obs = rng.integers(0, 256, (rows, 84, 84, 4), dtype=np.uint8)
    last = rng.integers(0, 256, (rows // episode, 84, 84, 4), dtype=np.uint8)
    ends = np.arange(episode, rows + 1, episode)
    batch = SampleBatch(
        obs=obs,
        actions=np.zeros(rows, np.int64),
        rewards=np.zeros(rows, np.float32),
        terminateds=np.arange(rows) % episode == episode - 1,
        truncateds=np.zeros(rows, bool),
        eps_id=np.arange(rows) // episode,
        t=(np.arange(rows) % episode).astype(np.int32),
    )
    batch = Fragment(batch, ends - episode, ends, last).with_new_obs()
    buffer = ReplayBuffer(rows, seed=0)
    for start in range(0, rows, 50):
        buffer.add(batch[start : start + 50])
    assert buffer.storage.columns["obs"].dtype == np.uint8
    assert buffer.storage.side_slots == rows // episode
    # 8 actions, 4 rewards, 2 flags, 8 eps_id, 4 t, 8 the reference; and an image for each of 4 episodes.
    assert buffer.size_bytes() == rows * (28_224 + 34) + 4 * 28_224
    assert "new_obs" not in buffer.storage.columns
    sampled = buffer.sample(64)
    np.testing.assert_array_equal(sampled["new_obs"], batch["new_obs"][sampled["batch_indexes"]])
    assert sampled["new_obs"].dtype == np.uint8


@pytest.mark.parametrize(("numbers", "shared"), [(SHARE_ABOVE // 4, False), (SHARE_ABOVE // 4 + 1, True)])
def test_from_which_size_on_observations_are_shared(numbers: int, shared: bool) -> None:
    obs = np.zeros((2, numbers), np.float32)
    storage = Storage(4)
    storage.append(SampleBatch(obs=obs, new_obs=obs, eps_id=[0, 0], t=[0, 1]))
    assert ("new_obs" in storage.columns) != shared


def test_without_time_observations_are_stored_twice() -> None:
    obs = np.zeros((2, 999), np.float32)
    storage = Storage(4)
    storage.append(SampleBatch(obs=obs, new_obs=obs))
    assert set(storage.columns) == {"obs", "new_obs"}


def test_tuples_and_dicts_come_back_as_they_were() -> None:
    obs = {"a": (np.arange(3), {"b": np.ones((3, 2), np.float16)}), "c": np.array([True, False, True])}
    storage = Storage(5)
    storage.append(SampleBatch(obs=obs, rewards=[1.0, 2.0, 3.0]))
    assert set(storage.columns) == {"obs/a/0", "obs/a/1/b", "obs/c", "rewards"}
    found = storage.nested(storage.rows(np.array([2, 0])))["obs"]
    assert isinstance(found["a"], tuple)
    assert found["a"][0].tolist() == [2, 0] and found["a"][1]["b"].dtype == np.float16
    assert found["c"].tolist() == [True, True]


def test_columns_from_spaces() -> None:
    space = gym.spaces.Dict({"camera": gym.spaces.Box(0, 255, (40, 40), np.uint8), "n": gym.spaces.Discrete(3)})
    buffer = ReplayBuffer(10)
    assert len(buffer.add(from_spaces(space, gym.spaces.Box(-1, 1, (2,)), ["discounts"]))) == 0
    assert buffer.storage.columns["obs/camera"].dtype == np.uint8
    assert buffer.storage.columns["actions"].shape == (10, 2)
    assert "discounts" in buffer.storage.columns and "new_obs/camera" not in buffer.storage.columns
    with pytest.raises(BatchError, match="no column 'obs'"):
        buffer.add(SampleBatch(rewards=[0.0]))


def test_infos_are_left_out_and_other_objects_refused() -> None:
    storage = Storage(5)
    storage.append(SampleBatch(rewards=[1.0], infos=np.array([{}], object)))
    assert set(storage.columns) == {"rewards"}
    with pytest.raises(BatchError, match=r"column 'who' has dtype <U3: a replay buffer stores numbers only"):
        Storage(5).append(SampleBatch(who=["abc"]))
    with pytest.raises(BatchError, match=r"column 'weights' can't be stored"):
        Storage(5).append(SampleBatch(weights=[1.0]))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (dict(obs=np.zeros((1, 4), np.float32)), "the batch has no column 'rewards', which the first batch"),
        (
            dict(obs=np.zeros((1, 4), np.float32), rewards=[0.0], extra=[0]),
            "the batch has a column 'extra', which the first batch in this replay buffer hadn't",
        ),
        (
            dict(obs=np.zeros((1, 5), np.float32), rewards=[0.0]),
            r"column 'obs' is float32\[5\] a row, but the first batch in this replay buffer had float32\[4\]",
        ),
        (dict(obs=np.zeros((1, 4), complex), rewards=[0.0]), r"column 'obs' is complex128\[4\] a row"),
        (dict(obs={"a": np.zeros((1, 4))}, rewards=[0.0]), r"column 'obs' has the parts \{'a': 'obs/a'\}, but"),
    ],
)
def test_batches_that_do_not_fit_the_first(batch: dict, message: str) -> None:
    storage = Storage(5)
    storage.append(SampleBatch(obs=np.zeros((2, 4), np.float32), rewards=[0.0, 1.0]))
    with pytest.raises(BatchError, match=message):
        storage.append(SampleBatch(batch))
    assert len(storage) == 2


def test_narrower_and_wider_floats_fit() -> None:
    storage = Storage(5)
    storage.append(SampleBatch(rewards=np.float32([1.0])))
    storage.append(SampleBatch(rewards=np.float64([0.1])))
    assert storage.rows(np.arange(2))["rewards"].tolist() == [1.0, float(np.float32(0.1))]


def test_an_empty_batch_changes_nothing() -> None:
    storage = Storage(5)
    assert len(storage.append(SampleBatch())) == 0
    storage.append(SampleBatch(rewards=[1.0]))
    assert len(storage.append(SampleBatch())) == 0
    assert len(storage.append(SampleBatch(rewards=np.zeros(0)))) == 0
    assert len(storage) == 1


def test_another_capacity_is_refused_when_restoring() -> None:
    with pytest.raises(ConfigError, match="the stored replay buffer has capacity 5, this one 6"):
        Storage(6).set_state(Storage(5).get_state())


def test_more_than_the_machine_has_is_said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 1000)
    with caplog.at_level(logging.WARNING):
        Storage(10**6).append(SampleBatch(rewards=[1.0]))
    assert "lower replay_buffer_config['capacity']" in caplog.text


def test_more_rows_than_there_is_memory_for(caplog) -> None:
    """10^15 rows of 8 bytes: 7,450,580.6 GB; a system that refuses to promise that much says so."""
    buffer = ReplayBuffer(10**15)
    with pytest.raises(ConfigError, match=r"'capacity'\]=1000000000000000: its rows would take 7450580.6 GB") as caught:
        buffer.add(SampleBatch(x=np.zeros(1)))
    assert "\n" not in str(caught.value) and "lower it" in str(caught.value)
    assert "will take 7450580.6 GB" in caplog.text
