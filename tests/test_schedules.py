"""Schedules, and what configs may write for them."""

import pickle

import numpy as np
import pytest

from polylib.errors import ConfigError, ConfigTypeError
from polylib.schedules import ConstantSchedule, PiecewiseSchedule, Schedule, make_schedule


def test_constant():
    schedule = ConstantSchedule(3)
    assert [schedule.value(t) for t in (0, 1e9)] == [3.0, 3.0]
    assert schedule(5) == 3.0


def test_piecewise_is_linear_between_points_and_flat_outside():
    schedule = PiecewiseSchedule([(10, 1.0), (20, 3.0), (40, 0.0)])
    assert [schedule(t) for t in (0, 10, 15, 20, 30, 40, 41)] == [1.0, 1.0, 2.0, 3.0, 1.5, 0.0, 0.0]


def test_piecewise_outside_value():
    schedule = PiecewiseSchedule([(10, 1.0), (20, 3.0)], outside_value=-1)
    assert [schedule(t) for t in (9, 10, 20, 21)] == [-1.0, 1.0, 3.0, -1.0]


@pytest.mark.parametrize("seed", range(5))
def test_piecewise_equals_interpolation(seed):
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.uniform(0.1, 5.0, 6))
    values = rng.normal(size=6)
    schedule = PiecewiseSchedule(list(zip(times.tolist(), values.tolist(), strict=True)))
    for t in np.concatenate([rng.uniform(-1, times[-1] + 5, 50), times]):
        assert schedule(float(t)) == pytest.approx(np.interp(t, times, values), abs=1e-12)


def test_make_schedule():
    assert make_schedule(None, "lr_schedule") is None
    assert make_schedule(0.5, "lr_schedule")(7) == 0.5
    assert make_schedule(np.float32(0.5), "lr_schedule")(7) == 0.5
    assert make_schedule([[0, 1.0], [10, 0.0]], "lr_schedule")(5) == 0.5
    assert make_schedule([[0, 1.0]], "lr_schedule")(5) == 1.0
    made = ConstantSchedule(1)
    assert make_schedule(made, "lr_schedule") is made
    assert pickle.loads(pickle.dumps(make_schedule([[0, 1.0], [10, 0.0]], "x"))).value(5) == 0.5


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("0.1", ConfigTypeError, "lr_schedule='0.1'"),
        (True, ConfigTypeError, "lr_schedule=True"),
        ({"a": 1}, ConfigTypeError, "lr_schedule="),
        (float("nan"), ConfigError, "lr_schedule=nan"),
        ([], ConfigError, "lr_schedule is empty"),
        ([0, 1], ConfigError, r"lr_schedule\[0\]=0 is not a \[t, value\] pair"),
        ([[0, 1], [1, 2, 3]], ConfigError, r"lr_schedule\[1\]="),
        ([[0, 1], ["1", 2]], ConfigTypeError, r"lr_schedule\[1\]\[0\]='1'"),
        ([[0, None]], ConfigTypeError, r"lr_schedule\[0\]\[1\]=None"),
        ([[5, 1], [3, 2]], ConfigError, r"lr_schedule\[1\] has t=3 after t=5"),
        ([[5, 1], [5, 2]], ConfigError, r"lr_schedule\[1\] has t=5 after t=5"),
    ],
)
def test_bad_specs_name_the_key(spec, error, says):
    with pytest.raises(error, match=says):
        make_schedule(spec, "lr_schedule")


def test_schedule_is_abstract():
    with pytest.raises(TypeError):
        Schedule()
