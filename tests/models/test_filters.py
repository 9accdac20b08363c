"""Observation filters: numbers by hand, one pass against many, hand-overs between workers; clipping of rewards."""

from __future__ import annotations

import math
import sys
import threading
import warnings

import gymnasium as gym
import numpy as np
import pytest

from polylib.errors import BatchError, ConfigError, ConfigTypeError, WeightsError
from polylib.models.filters import (
    ConcurrentMeanStdFilter,
    Filter,
    MeanStdFilter,
    NoFilter,
    check_clip_rewards,
    check_filter_name,
    clip_rewards,
    make_filter,
)

S = gym.spaces
F32 = np.float32
INF = np.inf
MEAN_STD = ["MeanStdFilter", "ConcurrentMeanStdFilter"]
# From the definition, not from the library.
EPSILON = 1e-8


def box(*shape: int, dtype=np.float64) -> gym.spaces.Box:
    return S.Box(-INF, INF, shape, dtype)


def feed(made: Filter, rows, update: bool = True) -> np.ndarray:
    """Rows [B, ...] in one call."""
    return made({"obs": np.asarray(rows)}, update)["obs"]


def expected_of(seen: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The definition, over all rows seen at once."""
    return (x - seen.mean(0)) / (seen.std(0, ddof=1) + EPSILON)


def assert_same_state(a, b, rtol=1e-10):
    assert a.keys() == b.keys()
    for column in a:
        assert a[column]["count"] == b[column]["count"]
        for key in ("mean", "m2"):
            np.testing.assert_allclose(a[column][key], b[column][key], rtol=rtol, atol=1e-10)


# --- by name


def test_filters_by_name():
    assert type(make_filter("NoFilter", box(2))) is NoFilter
    assert type(make_filter("MeanStdFilter", box(2))) is MeanStdFilter
    assert type(make_filter("ConcurrentMeanStdFilter", box(2))) is ConcurrentMeanStdFilter
    assert make_filter("NoFilter", box(2)).identity is True
    assert make_filter("MeanStdFilter", box(2)).identity is False


def test_an_unknown_name():
    with pytest.raises(ConfigError, match=r"'observation_filter' is 'MeanStdFiltr', .*Did you mean 'MeanStdFilter'\?"):
        make_filter("MeanStdFiltr", box(2))
    with pytest.raises(ConfigTypeError, match=r"'observation_filter' is None \(NoneType\), expected one of 'NoFilter'"):
        check_filter_name(None)
    with pytest.raises(ConfigError, match="clip .* is 0, expected a number > 0"):
        MeanStdFilter(box(2), clip=0)


def test_no_filter():
    made = make_filter("NoFilter", box(2))
    flat = {"obs": np.ones((3, 2))}
    done = made(flat)
    assert done is not flat and done["obs"] is flat["obs"]
    assert made.get_state() == made.pop_delta() == {}
    made.merge({})
    made.set_state({})
    with pytest.raises(WeightsError, match=r"of columns \['obs'\], expected \[\] for NoFilter"):
        made.set_state(make_filter("MeanStdFilter", box(2)).get_state())


# --- numbers


@pytest.mark.parametrize("name", MEAN_STD)
def test_row_by_row_by_hand(name):
    """One element, 1, 3, 8: each row counts before it is normalised."""
    made = make_filter(name, box(1))
    assert feed(made, [[1.0]]).tolist() == [[0]]
    # 1, 3: mean 2, variance (1 + 1) / 1, so (3 - 2) / sqrt 2
    assert feed(made, [[3.0]]) == pytest.approx(1 / math.sqrt(2), rel=1e-6)
    # 1, 3, 8: mean 4, variance (9 + 1 + 16) / 2 = 13, so (8 - 4) / sqrt 13
    done = feed(made, [[8.0]])
    assert done == pytest.approx(4 / math.sqrt(13), rel=1e-6)
    assert done.dtype == F32 and done.shape == (1, 1)
    state = made.get_state()["obs"]
    assert (state["count"], state["mean"].tolist(), state["m2"].tolist()) == (3, [4], [26])
    assert state["mean"].dtype == state["m2"].dtype == np.float64
    # Without counting: the same statistics, any number of times.
    for _ in range(2):
        assert feed(made, [[4.0], [17.0]], update=False) == pytest.approx(np.array([[0], [13 / math.sqrt(13)]]))
    assert made.get_state()["obs"]["count"] == 3


def test_a_batch_by_hand():
    """All rows count before the first is normalised."""
    done = feed(MeanStdFilter(box(2)), [[1.0, 10.0], [3.0, 10.0], [8.0, 40.0]])
    # first as above; second: mean 20, variance (100 + 100 + 400) / 2 = 300
    a, b = math.sqrt(13), math.sqrt(300)
    np.testing.assert_allclose(done, [[-3 / a, -10 / b], [-1 / a, -10 / b], [4 / a, 20 / b]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes", [[1] * 300, [300], [1, 1, 7, 1, 90, 200]], ids=["rows", "batch", "mixed"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)], ids=str)
def test_running_is_the_same_as_all_at_once(sizes, shape, dtype):
    rng = np.random.default_rng(1)
    rows = (1000 + 3 * rng.standard_normal((300, *shape))).astype(dtype)
    made, start = MeanStdFilter(box(*shape, dtype=dtype)), 0
    for size in sizes:
        end = start + size
        done = feed(made, rows[start:end])
        if end > 1:
            seen = rows[:end].astype(np.float64)
            np.testing.assert_allclose(done, expected_of(seen, seen[start:end]), rtol=1e-5, atol=1e-6)
        start = end
    state, exact = made.get_state()["obs"], rows.astype(np.float64)
    assert state["count"] == 300
    np.testing.assert_allclose(state["mean"], exact.mean(0), rtol=1e-13)
    np.testing.assert_allclose(state["m2"], ((exact - exact.mean(0)) ** 2).sum(0), rtol=1e-10)
    fresh = rows[:5].astype(np.float64)
    np.testing.assert_allclose(feed(made, rows[:5], False), expected_of(exact, fresh), rtol=1e-5, atol=1e-6)
    mean, scale = made.affine()["obs"]
    np.testing.assert_allclose((rows - mean) * scale, expected_of(exact, exact), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("size", [1, 50])
def test_a_large_offset_costs_no_digits(size):
    """Sums of squares would lose all of the variance at 1e9."""
    made = MeanStdFilter(box(1))
    rows = 1e9 + np.random.default_rng(0).standard_normal((1000, 1))
    for i in range(0, 1000, size):
        feed(made, rows[i : i + size])
    state = made.get_state()["obs"]
    assert state["m2"] / 999 == pytest.approx(rows.var(axis=0, ddof=1), rel=1e-6)


@pytest.mark.parametrize("size", [1, 7])
def test_the_smallest_deviations_count(size):
    """The epsilon is added to the deviation, not put under the root."""
    made = MeanStdFilter(box(1))
    rows = 1e-7 * np.random.default_rng(0).standard_normal((70, 1))
    for i in range(0, 70, size):
        done = feed(made, rows[i : i + size])
    np.testing.assert_allclose(done, expected_of(rows, rows[-size:]), rtol=1e-5, atol=1e-6)


def test_without_statistics_nothing_changes():
    made = MeanStdFilter(box(2))
    done = feed(made, [[3.0, -4.0]], update=False)
    assert done.tolist() == [[3, -4]] and done.dtype == F32


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("value", [0.0, 0.1, 1e5 / 3])
def test_what_never_varied_is_centred(size, value):
    """Rounding mustn't make a deviation out of nothing, which would be multiplied by 1e8."""
    made = MeanStdFilter(box(2))
    rows = np.tile([[value, 1.0]], (100, 1))
    rows[:, 1] += np.arange(100)
    for i in range(0, 100, size):
        done = feed(made, rows[i : i + size])
        assert done[:, 0].tolist() == [0] * size
    assert made.get_state()["obs"]["m2"][0] == 0
    assert feed(made, [[value + 0.5, 1.0]], update=False)[0, 0] == F32(value + 0.5 - value)


def test_no_clipping_unless_asked_for():
    rows = np.array([[0.0], [1.0], [-1.0]])
    plain, clipped = MeanStdFilter(box(1)), MeanStdFilter(box(1), clip=2.5)
    for made in (plain, clipped):
        feed(made, rows)
    # mean 0, deviation 1
    assert feed(plain, [[100.0], [-3.0]], False) == pytest.approx(np.array([[100], [-3]]))
    assert feed(clipped, [[100.0], [-3.0], [2.0]], False) == pytest.approx(np.array([[2.5], [-2.5], [2]]))
    tight = MeanStdFilter(box(1), clip=0.5)
    feed(tight, [[1.0]])
    # 1 / sqrt 2, as above
    assert feed(tight, [[3.0]]).tolist() == [[0.5]]


def test_the_input_stays_as_it_is():
    made = MeanStdFilter(box(2))
    rows = np.random.default_rng(0).standard_normal((4, 2))
    flat, before = {"obs": rows, "more": np.zeros(4)}, rows.copy()
    first = made(flat)
    assert flat["obs"] is rows and first["more"] is flat["more"]
    np.testing.assert_array_equal(rows, before)
    kept, single = first["obs"].copy(), feed(made, rows[:1])
    kept_single = single.copy()
    for update in (True, False):
        feed(made, rows[1:2], update)
        feed(made, rows, update)
    np.testing.assert_array_equal(first["obs"], kept)
    np.testing.assert_array_equal(single, kept_single)


def test_an_empty_batch():
    made = MeanStdFilter(box(2))
    assert feed(made, np.zeros((0, 2))).shape == (0, 2)
    assert made.get_state()["obs"]["count"] == 0


def test_only_parts_of_floats_are_normalised():
    space = S.Dict(
        action_mask=S.Box(0, 1, (3,)),
        arm=S.Tuple([box(2), S.MultiBinary(2)]),
        camera=S.Box(0, 255, (4, 4, 3), np.uint8),
        counter=S.Box(0, 9, (1,), np.int32),
        kind=S.Discrete(3),
    )
    made = make_filter("MeanStdFilter", space)
    assert isinstance(made, MeanStdFilter) and made.columns == ("obs/arm/0",)
    rng = np.random.default_rng(0)
    flat = {
        "obs/action_mask": np.ones((5, 3), F32),
        "obs/arm/0": rng.standard_normal((5, 2)),
        "obs/arm/1": np.ones((5, 2), np.int8),
        "obs/camera": np.full((5, 4, 4, 3), 9, np.uint8),
        "obs/counter": np.ones((5, 1), np.int32),
        "obs/kind": np.arange(5),
    }
    done = made(flat)
    assert list(done) == list(flat)
    assert all(done[column] is flat[column] for column in flat if column != "obs/arm/0")
    arm = flat["obs/arm/0"]
    np.testing.assert_allclose(done["obs/arm/0"], expected_of(arm, arm), rtol=1e-5, atol=1e-6)
    # A part called action_mask elsewhere than at the top is one like others.
    inner = MeanStdFilter(S.Dict(a=S.Dict(action_mask=S.Box(0, 1, (3,)))))
    assert inner.columns == ("obs/a/action_mask",)


def test_columns_that_do_not_fit():
    made = MeanStdFilter(S.Dict(a=box(2)))
    with pytest.raises(BatchError, match=r"observations lack column 'obs/a', expected 'obs/a'"):
        made({"obs": np.zeros((1, 2))})
    for update in (True, False):
        with pytest.raises(BatchError, match=r"column 'obs/a' has shape \[1, 3\], expected \['B', 2\]"):
            made({"obs/a": np.zeros((1, 3))}, update)
    with pytest.raises(BatchError, match=r"has shape \[\], expected \['B'\]"):
        MeanStdFilter(box())({"obs": np.float64(1)})


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("bad", [np.nan, INF, -INF, 1e200])
def test_rows_that_are_not_finite_do_not_count(size, bad):
    """Nor do numbers whose squares aren't."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((8, 2))
    made, clean = MeanStdFilter(box(2)), MeanStdFilter(box(2))
    feed(clean, np.delete(rows, 5, axis=0))
    rows[5, 1] = bad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # 1e200 doesn't fit into float32, which NumPy says.
        warnings.filterwarnings("ignore", "overflow")
        done = np.concatenate([feed(made, rows[i : i + size]) for i in range(0, 8, size)])
    assert_same_state(made.get_state(), clean.get_state())
    assert_same_state(made.pop_delta(), clean.pop_delta())
    # It stays where it was, for others to find.
    assert np.isfinite(np.delete(done, 5, axis=0)).all() and np.isfinite(done[5, 0])
    if math.isnan(bad):
        assert math.isnan(done[5, 1])
    else:
        assert done[5, 1] == math.copysign(INF, bad)


@pytest.mark.parametrize("size", [1, 4])
def test_a_first_row_that_is_not_finite(size):
    made = MeanStdFilter(box(1))
    rows = np.array([[np.nan], [2.0], [4.0], [6.0]])
    for i in range(0, 4, size):
        done = feed(made, rows[i : i + size])
    state = made.get_state()["obs"]
    # 2, 4, 6: mean 4, squares 4 + 0 + 4
    assert (state["count"], state["mean"].tolist(), state["m2"].tolist()) == (3, [4], [8])
    assert done[-1, 0] == 1


# --- hand-overs


@pytest.mark.parametrize("name", MEAN_STD)
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_merged_over_workers_is_one_pass_over_all(name, order):
    """Three workers of different data and rates, two rounds."""
    space = S.Dict(a=box(3), b=box())
    rng = np.random.default_rng(3)
    driver, workers = make_filter(name, space), [make_filter(name, space) for _ in range(3)]
    seen = []
    for _ in range(2):
        for i in range(3):
            for size in (1, 5, 1, 20 * i + 1):
                a, b = 10.0 * i + rng.standard_normal((size, 3)), 100 + 0.1 * rng.standard_normal(size)
                seen.append((a, b))
                workers[i]({"obs/a": a, "obs/b": b})
        deltas = [worker.pop_delta() for worker in workers]
        for i in order:
            driver.merge(deltas[i])
        for worker in workers:
            worker.set_state(driver.get_state())
    once = make_filter(name, space)
    once({"obs/a": np.concatenate([a for a, _ in seen]), "obs/b": np.concatenate([b for _, b in seen])})
    for made in (driver, *workers):
        assert_same_state(made.get_state(), once.get_state())


def test_the_delta_by_hand():
    made, driver = MeanStdFilter(box(1)), MeanStdFilter(box(1))
    feed(made, [[1.0]])
    feed(made, [[3.0]])
    first = made.pop_delta()["obs"]
    assert (first["count"], first["mean"].tolist(), first["m2"].tolist()) == (2, [2], [2])
    driver.merge({"obs": first})
    feed(made, [[8.0], [10.0]])
    second = made.pop_delta()["obs"]
    assert (second["count"], second["mean"].tolist(), second["m2"].tolist()) == (2, [9], [2])
    assert made.pop_delta()["obs"]["count"] == 0
    # Popping changes no statistics: 1, 3, 8, 10 have mean 5.5, squares 20.25 + 6.25 + 6.25 + 20.25
    state = made.get_state()["obs"]
    assert (state["count"], state["mean"].tolist(), state["m2"].tolist()) == (4, [5.5], [53])
    driver.merge({"obs": second})
    assert_same_state(driver.get_state(), made.get_state())
    # What was merged is others', and not sent on.
    assert driver.pop_delta()["obs"]["count"] == 0


def test_an_empty_delta_changes_nothing():
    made, other = MeanStdFilter(box(2)), MeanStdFilter(box(2))
    made.merge(other.pop_delta())
    assert made.get_state()["obs"]["count"] == 0
    feed(made, np.random.default_rng(0).standard_normal((9, 2)))
    before = made.get_state()
    made.merge(other.pop_delta())
    assert_same_state(made.get_state(), before, rtol=0)


def test_state_round_trip_is_exact():
    space = S.Dict(a=box(2, 2), b=box())
    rng = np.random.default_rng(0)
    made, other = MeanStdFilter(space), ConcurrentMeanStdFilter(space)
    for _ in range(5):
        made({"obs/a": rng.standard_normal((3, 2, 2)), "obs/b": rng.standard_normal(3)})
    state = made.get_state()
    assert type(state["obs/a"]["count"]) is int
    other({"obs/a": np.ones((1, 2, 2)), "obs/b": np.ones(1)})
    other.set_state(state)
    again = other.get_state()
    for column in ("obs/a", "obs/b"):
        assert again[column]["count"] == 15
        for key in ("mean", "m2"):
            np.testing.assert_array_equal(again[column][key], state[column][key])
            assert again[column][key].shape == space[column[4:]].shape
    assert other.pop_delta()["obs/a"]["count"] == 0
    probe = {"obs/a": rng.standard_normal((3, 2, 2)), "obs/b": rng.standard_normal(3)}
    for column in probe:
        np.testing.assert_array_equal(other(probe, False)[column], made(probe, False)[column])
    # Copies: changing them changes nothing.
    state["obs/a"]["mean"][:] = 99
    assert_same_state(made.get_state(), again, rtol=0)
    assert_same_state(other.get_state(), again, rtol=0)


def test_a_new_state_is_used_at_once():
    made = MeanStdFilter(box(1))
    feed(made, [[0.0], [2.0]])
    feed(made, [[0.0]], update=False)
    # mean 10, variance 8 / 2
    made.set_state({"obs": {"count": 3, "mean": np.array([10.0]), "m2": np.array([8.0])}})
    assert feed(made, [[14.0]], update=False) == pytest.approx(2)
    # and so is a merged one: 1 and 1 make count 5, mean 10 + (5 - 10) 2 / 5 = 8
    made.merge({"obs": {"count": 2, "mean": [5.0], "m2": [0.0]}})
    # squares 8 + 0 + 25 * 3 * 2 / 5 = 38, variance 38 / 4
    assert feed(made, [[9.0]], update=False) == pytest.approx(1 / math.sqrt(9.5))


def test_rows_sampled_while_the_state_was_on_its_way():
    driver, worker, once = (MeanStdFilter(box(1)) for _ in range(3))
    a, b = np.array([[1.0], [3.0]]), np.array([[8.0], [10.0], [20.0]])
    feed(worker, a)
    driver.merge(worker.pop_delta())
    feed(worker, b)
    worker.set_state(driver.get_state(), keep_delta=True)
    feed(once, np.concatenate([a, b]))
    assert_same_state(worker.get_state(), once.get_state())
    driver.merge(worker.pop_delta())
    assert_same_state(driver.get_state(), once.get_state())
    # Without it they are gone.
    feed(worker, b)
    worker.set_state(driver.get_state())
    assert worker.get_state()["obs"]["count"] == 5 and worker.pop_delta()["obs"]["count"] == 0


GOOD = {"count": 2, "mean": np.zeros(2), "m2": np.ones(2)}
BAD_STATES = {
    "columns": ({"obs/b": GOOD}, r"of columns \['obs/b'\], expected \['obs'\] for MeanStdFilter"),
    "shape": ({"obs": {**GOOD, "mean": np.zeros(3)}}, r"'obs': mean has shape \[3\], expected \[2\]"),
    "key": ({"obs": {"count": 1}}, r"'obs': expected a dict of count, mean and m2 \(KeyError"),
    "text": ({"obs": {**GOOD, "m2": "x"}}, r"'obs': expected a dict of count, mean and m2 \(ValueError"),
    "nan": ({"obs": {**GOOD, "mean": np.array([0, np.nan])}}, r"'obs': count 2, mean and m2 must be finite"),
    "negative": ({"obs": {**GOOD, "m2": np.array([0, -1])}}, r"count and m2 not negative"),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_statistics_that_do_not_fit(case):
    state, message = BAD_STATES[case]
    made = MeanStdFilter(box(2))
    feed(made, [[1.0, 2.0], [3.0, 5.0]])
    before = made.get_state()
    for take in (made.set_state, made.merge):
        with pytest.raises(WeightsError, match=message):
            take(state)
    assert_same_state(made.get_state(), before, rtol=0)


def test_many_threads_lose_no_row():
    made = ConcurrentMeanStdFilter(box(3))
    rows = np.random.default_rng(0).standard_normal((4, 400, 3))
    popped, failures = [], []

    def work(mine):
        try:
            for i in range(400):
                feed(made, mine[i : i + 1])
                if i % 50 == 0:
                    popped.append(made.pop_delta())
        except Exception as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(mine,)) for mine in rows]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    once, driver = MeanStdFilter(box(3)), MeanStdFilter(box(3))
    feed(once, rows.reshape(-1, 3))
    assert_same_state(made.get_state(), once.get_state())
    for delta in [*popped, made.pop_delta()]:
        driver.merge(delta)
    assert_same_state(driver.get_state(), once.get_state())


# --- rewards


def test_clip_rewards():
    rewards = F32([-3, -0.5, 0, 0.25, 7])
    assert clip_rewards(rewards, None) is rewards and clip_rewards(rewards, False) is rewards
    assert clip_rewards(rewards, True).tolist() == [-1, -1, 0, 1, 1]
    assert clip_rewards(rewards, 1).tolist() == [-1, -0.5, 0, 0.25, 1]
    assert clip_rewards(rewards, 0.25).tolist() == [-0.25, -0.25, 0, 0.25, 0.25]
    for how in (True, 1, 0.25, np.float64(0.25)):
        assert clip_rewards(rewards, how).dtype == F32
    assert rewards.tolist() == [-3, -0.5, 0, 0.25, 7]
    assert np.isnan(clip_rewards(F32([np.nan]), True)).all() and np.isnan(clip_rewards(F32([np.nan]), 1.0)).all()


@pytest.mark.parametrize("how", [0, -1.0, INF, np.nan])
def test_a_wrong_limit(how):
    with pytest.raises(ConfigError, match=r"'clip_rewards' is .*, expected True \(signs\), a number > 0"):
        clip_rewards(np.zeros(2, F32), how)


def test_a_limit_of_another_type():
    with pytest.raises(ConfigTypeError, match=r"'clip_rewards' is 'sign' \(str\), expected True"):
        check_clip_rewards("sign")
    for how in (None, True, False, 1, 0.5):
        check_clip_rewards(how)
