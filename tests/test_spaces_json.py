"""Spaces as JSON: every kind comes back equal, to the last bit; everything else is a clear error."""

from __future__ import annotations

import json
from collections import OrderedDict

import gymnasium as gym
import numpy as np
import pytest

from polylib.errors import PolylibError
from polylib.spaces_json import space_from_json, space_to_json
from polylib.utils.spaces import Simplex

S = gym.spaces
INF, F32 = np.inf, np.float32

SPACES = {
    "box": S.Box(-1.0, 1.0, (3,)),
    "box scalar": S.Box(0.1, 0.7, ()),
    "box without entries": S.Box(0.0, 1.0, (0,)),
    "box 3d": S.Box(-0.1, 0.3, (2, 3, 4)),
    "box unbounded": S.Box(-INF, INF, (2,)),
    "box half bounded": S.Box(F32([-INF, 0]), F32([1, INF])),
    "box bounds per dimension": S.Box(F32(np.arange(6)).reshape(2, 3), F32(np.arange(6) + 0.1).reshape(2, 3)),
    "box one row of bounds": S.Box(F32([[1, 2]]), F32([[3, 3]])),
    "box float64": S.Box(np.array([0.1, 1 / 3]), np.array([0.2, 1e300]), dtype=np.float64),
    "box float16": S.Box(-0.1, 0.1, (2,), np.float16),
    "box largest float32": S.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,)),
    "box uint8": S.Box(0, 255, (4, 4, 3), np.uint8),
    "box int8 per dimension": S.Box(np.array([-128, 3]), np.array([0, 127]), dtype=np.int8),
    "box int64": S.Box(-(2**62), 2**62 + 1, (2,), np.int64),
    "box bool": S.Box(0, 1, (2,), np.bool_),
    "discrete": S.Discrete(5),
    "discrete start": S.Discrete(3, start=-2),
    "discrete int32": S.Discrete(3, start=1, dtype=np.int32),
    "multidiscrete": S.MultiDiscrete([3, 2]),
    "multidiscrete start": S.MultiDiscrete([3, 2], start=[5, -7]),
    "multidiscrete 2d": S.MultiDiscrete([[3, 2], [1, 4]], start=[[0, 1], [2, 3]]),
    "multidiscrete int8": S.MultiDiscrete([3, 2], dtype=np.int8),
    "multibinary": S.MultiBinary(4),
    "multibinary list": S.MultiBinary([4]),
    "multibinary 2d": S.MultiBinary([2, 3]),
    "simplex": Simplex((3,)),
    "simplex 2d": Simplex((2, 3), [1, 2.5, 0.1], np.float64),
    "tuple": S.Tuple((S.Discrete(2), S.Box(0, 1, (2,)))),
    "empty tuple": S.Tuple(()),
    "dict": S.Dict({"z": S.Discrete(2), "a": S.Box(0, 1, (2,))}),
    "nested": S.Dict({"a": S.Tuple([S.Dict({"b": S.MultiBinary(2)})]), "c": S.Discrete(2, start=1)}),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_round_trip(space):
    text = json.dumps(space_to_json(space), allow_nan=False)
    read = space_from_json(json.loads(text))
    assert read == space and type(read) is type(space)
    assert (read.shape, read.dtype) == (space.shape, space.dtype)
    space.seed(1)
    read.seed(1)
    for _ in range(3):
        sample = space.sample()
        assert read.contains(sample)
        assert repr(read.sample()) == repr(sample)
    if isinstance(space, S.Box):  # equal means close there
        for bound in ("low", "high"):
            np.testing.assert_array_equal(getattr(read, bound), getattr(space, bound))
            assert getattr(read, bound).dtype == space.dtype and getattr(read, bound).flags.writeable


def test_the_order_of_keys_is_kept():
    """Flattening follows it, so a network's inputs would be permuted."""
    space = S.Dict(OrderedDict([("z", S.Discrete(2)), ("a", S.Box(0, 1, (2,))), ("m", S.Discrete(3))]))
    assert list(space_from_json(json.loads(json.dumps(space_to_json(space))))) == ["z", "a", "m"]


def test_uniform_bounds_are_one_number():
    data = space_to_json(S.Box(0, 255, (84, 84, 4), np.uint8))
    assert (data["low"], data["high"]) == (0, 255)
    assert space_to_json(S.Box(-INF, INF, (3,)))["low"] == "-inf"


class OwnSpace(gym.Space):
    """Nobody else knows it."""

    def __repr__(self):
        return "OwnSpace()"


@pytest.mark.parametrize("space", [S.Text(3), S.Sequence(S.Discrete(2)), OwnSpace(), S.Tuple([OwnSpace()])], ids=repr)
def test_unknown_kinds(space):
    with pytest.raises(PolylibError, match="can't be written to a checkpoint: .* isn't known"):
        space_to_json(space)


def test_keys_that_are_no_text():
    with pytest.raises(PolylibError, match="its keys must be text"):
        space_to_json(S.Dict({1: S.Discrete(2)}))


BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": 0, "high": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        3,
        "Box",
        {},
        {"type": None},
        {"type": ["Box"]},
        {"type": "Sphere"},
        {"type": "Box"},
        {**BOX, "shape": 2},
        {**BOX, "shape": [-2]},
        {**BOX, "shape": ["2"]},
        {**BOX, "shape": [10**9, 10**9]},
        {**BOX, "shape": [10**12]},
        {**BOX, "dtype": "float33"},
        {**BOX, "dtype": "object"},
        {**BOX, "dtype": None},
        {**BOX, "low": [0, 1, 2]},
        {**BOX, "low": "minus"},
        {**BOX, "low": None},
        {**BOX, "low": {}},
        {**BOX, "low": 2},
        {**BOX, "dtype": "uint8", "high": 300},
        {**BOX, "dtype": "uint8", "high": "inf"},
        {"type": "Discrete"},
        {"type": "Discrete", "n": 3},
        {"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"},
        {"type": "Discrete", "n": "3", "start": 0, "dtype": "int64"},
        {"type": "Discrete", "n": 3, "start": 0, "dtype": "float32"},
        {"type": "MultiDiscrete", "nvec": [3, 0], "start": [0, 0], "dtype": "int64"},
        {"type": "MultiDiscrete", "nvec": [3, 2], "start": [0], "dtype": "int64"},
        {"type": "MultiDiscrete", "nvec": [3, 2**70], "start": [0, 0], "dtype": "int64"},
        {"type": "MultiBinary", "n": 0},
        {"type": "MultiBinary", "n": "2"},
        {"type": "Simplex", "shape": [3], "dtype": "float32"},
        {"type": "Simplex", "shape": [3], "concentration": [1, 2], "dtype": "float32"},
        {"type": "Simplex", "shape": [3], "concentration": [1, 2, -1], "dtype": "float32"},
        {"type": "Simplex", "shape": ["3"], "concentration": [1, 2, 3], "dtype": "float32"},
        {"type": "Simplex", "shape": [3], "concentration": [1, 2, 3], "dtype": "int64"},
        {"type": "Dict", "spaces": [1]},
        {"type": "Dict", "spaces": {"a": {"type": "Sphere"}}},
        {"type": "Tuple", "spaces": 3},
        {"type": "Tuple", "spaces": [None]},
    ],
    ids=lambda data: repr(data)[:60],
)
def test_bad_data(data):
    with pytest.raises(PolylibError, match="not a space: ") as caught:
        space_from_json(data)
    assert "\n" not in str(caught.value)


def test_an_error_about_much_data_is_short():
    with pytest.raises(PolylibError) as caught:
        space_from_json({**BOX, "low": list(range(10_000))})
    assert len(str(caught.value)) < 500
