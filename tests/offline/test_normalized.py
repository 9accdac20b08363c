"""Actions in [-1, 1], which become those of the environment when they are read."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from offline.batches import assert_same

from polylib.errors import ConfigError
from polylib.offline import JsonReader, JsonWriter, TraceFormatError, make_input
from polylib.offline.normalized import to_units
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

BOX = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))


def scaled(actions, space, **columns):
    batch = SampleBatch(actions=actions, **columns)
    to_units(batch, space, "here")
    return batch


def test_a_box_is_scaled_and_what_lies_outside_is_clipped():
    batch = scaled(np.array([[-1, -1], [0, 0], [1, 1], [1.7, -3], [0.5, 0.5]]), BOX)
    assert batch["actions"].dtype == np.float32
    np.testing.assert_array_equal(batch["actions"], [[-2, 0], [0, 5], [2, 10], [2, 0], [1, 7.5]])


def test_densities_follow():
    """Uniform over [-1, 1]^2 has density 1/4; over a range of area 40 it has 1/40."""
    density = np.full(2, 0.25, np.float32)
    batch = scaled(np.zeros((2, 2)), BOX, action_logp=np.log(density), action_prob=density)
    np.testing.assert_allclose(np.exp(batch["action_logp"]), 1 / 40, rtol=1e-6)
    np.testing.assert_allclose(batch["action_prob"], 1 / 40, rtol=1e-6)
    assert batch["action_logp"].dtype == batch["action_prob"].dtype == np.float32
    whole = scaled(np.zeros((1, 2)), BOX, action_logp=np.zeros(1, np.int64))  # as a list of RLlib's may be read
    np.testing.assert_allclose(whole["action_logp"], -np.log(10))


def test_what_has_no_bounds_or_is_no_box_of_floats_stays():
    half = spaces.Box(np.array([-2, -np.inf], np.float32), np.array([2, 1], np.float32))
    np.testing.assert_array_equal(scaled(np.array([[0.5, 7.0]]), half)["actions"], [[1, 7]])
    for space in (spaces.Discrete(3), spaces.Box(0, 9, (1,), np.int32)):
        actions = np.array([1, 2]) if space.shape == () else np.array([[1], [2]])
        assert scaled(actions, space, action_logp=np.zeros(2))["actions"] is actions


def test_nests_are_scaled_part_by_part_flattened_ones_too():
    space = spaces.Dict({"a": BOX, "b": spaces.Tuple((spaces.Discrete(3), spaces.Box(-4, 4, (1,))))})
    nested = {"a": np.array([[1.0, 0.0]]), "b": (np.array([2]), np.array([[0.5]]))}
    batch = scaled(nested, space, action_logp=np.zeros(1))
    np.testing.assert_array_equal(batch["actions"]["a"], [[2, 5]])
    assert batch["actions"]["b"][0].tolist() == [2] and batch["actions"]["b"][1].tolist() == [[2]]
    np.testing.assert_allclose(batch["action_logp"], -np.log(2 * 5 * 4))
    np.testing.assert_array_equal(scaled(np.array([[1.0, 0.0, 2.0, 0.5]]), space)["actions"], [[2, 5, 2, 2]])


def test_previous_actions_too_and_every_policy():
    batch = SampleBatch(actions=np.ones((1, 2)), prev_actions=-np.ones((1, 2)))
    both = MultiAgentBatch({"a": batch, "b": SampleBatch(actions=np.zeros((1, 2)))}, 1)
    to_units(both, BOX, "here")
    assert batch["prev_actions"].tolist() == [[-2, 0]] and both.policy_batches["b"]["actions"].tolist() == [[0, 5]]


@pytest.mark.parametrize("actions", [np.zeros((2, 3)), np.array([["a", "b"]]), {"a": np.zeros(2)}])
def test_actions_that_do_not_fit_name_file_line_and_column(actions):
    with pytest.raises(TraceFormatError, match="here, column 'actions': "):
        scaled(actions, BOX)


def test_a_config_asks_for_it_and_needs_the_space(tmp_path):
    line = {"type": "SampleBatch", "actions": [[0.5], [-1.0]], "action_logp": [0.0, 0.0]}
    (tmp_path / "a.json").write_text(json.dumps(line) + "\n")
    config = {"input": str(tmp_path), "actions_in_input_normalized": True}
    batch = make_input(config, action_space=gym.make("Pendulum-v1").action_space).next()
    assert batch["actions"].tolist() == [[1], [-2]]
    np.testing.assert_allclose(batch["action_logp"], -np.log(2))
    with pytest.raises(ConfigError, match="actions_in_input_normalized=True: scaling them needs an action_space"):
        make_input(config)
    with pytest.raises(TraceFormatError, match="a.json, line 1, column 'actions': its rows have shape"):
        JsonReader(tmp_path, action_space=BOX, actions_normalized=True).next()


def test_a10_with_defaults_actions_are_the_environments_bit_for_bit(tmp_path):
    space = gym.make("Pendulum-v1").action_space
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(100)])
    written = SampleBatch(actions=actions, action_logp=np.full(100, -np.log(4), np.float32))
    with JsonWriter(tmp_path) as writer:
        writer.write(written)
    assert np.abs(actions).max() > 1.5
    assert_same(make_input({"input": str(tmp_path)}, action_space=space).next(), written)
