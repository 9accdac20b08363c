"""The table of columns: complete, and resolvable for every space that a batch can hold as one array."""

import gymnasium as gym
import numpy as np
import pytest

from polylib.errors import BatchError
from polylib.policy import columns
from polylib.policy.columns import COLUMNS, column_table, resolve
from polylib.policy.sample_batch import SampleBatch

BOX = gym.spaces.Box(-2.0, 2.0, (2, 3), np.float32)
DISCRETE = gym.spaces.Discrete(4)


def test_every_name_on_sample_batch_is_a_column():
    names = {v for k, v in vars(SampleBatch).items() if k.isupper()}
    assert names == set(COLUMNS)
    assert all(name == column.name for name, column in COLUMNS.items())
    assert all(getattr(columns, k) == v for k, v in vars(SampleBatch).items() if k.isupper() and k != "CUR_OBS")


@pytest.mark.parametrize(
    ("name", "obs_space", "action_space", "shape", "dtype"),
    [
        ("obs", BOX, DISCRETE, (2, 3), np.float32),
        ("new_obs", gym.spaces.Box(0, 255, (4, 4, 3), np.uint8), DISCRETE, (4, 4, 3), np.uint8),
        ("obs", gym.spaces.Box(-1, 1, (5,), np.float64), DISCRETE, (5,), np.float32),
        ("obs", DISCRETE, DISCRETE, (), np.int64),
        ("obs", gym.spaces.MultiBinary(6), DISCRETE, (6,), np.int8),
        ("actions", BOX, DISCRETE, (), np.int64),
        ("actions", BOX, gym.spaces.MultiDiscrete([2, 3]), (2,), np.int64),
        ("actions", DISCRETE, BOX, (2, 3), np.float32),
        ("action_raw", DISCRETE, BOX, (6,), np.float32),
        ("action_dist_inputs", BOX, DISCRETE, (7,), np.float32),
        ("action_mask", BOX, DISCRETE, (7,), np.bool_),
        ("rewards", BOX, DISCRETE, (), np.float32),
        ("eps_id", BOX, DISCRETE, (), np.int64),
        ("t", BOX, DISCRETE, (), np.int32),
        ("terminateds", BOX, DISCRETE, (), np.bool_),
    ],
)
def test_resolve(name, obs_space, action_space, shape, dtype):
    assert resolve(name, obs_space, action_space, 7) == (shape, np.dtype(dtype))


def test_a_column_of_resolved_shape_holds_samples_of_its_space():
    for space in (BOX, DISCRETE, gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(3)):
        shape, dtype = resolve("actions", BOX, space, 1)
        column = np.zeros((2, *shape), dtype)
        column[1] = space.sample()
        assert space.contains(column[1])


def test_unknown_column_offers_the_nearest():
    with pytest.raises(BatchError, match="'action_logps'.*'action_logp'"):
        resolve("action_logps", BOX, DISCRETE, 1)


def test_nested_space_is_refused_by_name():
    with pytest.raises(BatchError, match="'obs'.*observation space Dict"):
        resolve("obs", gym.spaces.Dict({"a": BOX}), DISCRETE, 1)
    assert resolve("rewards", gym.spaces.Dict({"a": BOX}), DISCRETE, 1) == ((), np.float32)


def test_table_has_one_line_for_each_column():
    lines = column_table().splitlines()
    assert len(lines) == len(COLUMNS) + 2
    assert lines[2].startswith("| `obs` | [B, *obs] | of the space |")
    assert all(line.count("|") == 5 for line in lines)
