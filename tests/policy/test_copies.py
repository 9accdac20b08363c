"""Copies and pickles of policies learn on as the policy itself would."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from learners import CHOICE, OBS, build, random_rows
from modes import MODE_PARAMS


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_a_copy_goes_on_from_where_the_policy_was(framework, traced):
    policy = build((framework, traced), "DQN", OBS, CHOICE)
    batch = random_rows(policy.spec, 8)
    policy.learn_on_batch(batch)
    before = policy.get_weights()
    copies = [copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))]
    for other in copies:
        other.learn_on_batch(batch)
    assert all(np.array_equal(x, before[key]) for key, x in policy.get_weights().items())  # it has memory of its own
    policy.learn_on_batch(batch)
    after = policy.get_weights()
    assert not np.array_equal(after["q/000/kernel"], before["q/000/kernel"])
    drawn = policy.compute_actions(batch["obs"]).actions
    for other in copies:
        assert all(np.array_equal(x, after[key]) for key, x in other.get_weights().items())
        np.testing.assert_array_equal(other.compute_actions(batch["obs"]).actions, drawn)
