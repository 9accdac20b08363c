"""PG's loss, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from learners import build, losses_of, spec_of

from polylib.errors import BatchError
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

F32 = np.float32
LN = math.log


def test_loss():
    """Probabilities [1/4, 1/2, 1/4]: -log p R = 3 ln 2 and -1 ln 4, mean (3 ln 2 - 2 ln 2) / 2."""
    spec = spec_of("PG", model={"fcnet_hiddens": []})
    batch = {"actions": [6, 5], "advantages": [3.0, -1.0]}
    found, stats, rows = losses_of(spec, {"policy": {"logits": [0, LN(2), 0]}}, batch)
    assert found == {"default": pytest.approx(0.5 * LN(2))} and rows == {}
    assert stats["policy_loss"] == found["default"]


def test_returns():
    """gamma 0.5, r = [1, 2, 4]: 1 + 0.5 * (2 + 0.5 * 4) = 3, 2 + 2 = 4, 4."""
    batch = SampleBatch(
        obs=np.zeros((3, 3), F32),
        rewards=F32([1, 2, 4]),
        terminateds=np.array([False, False, True]),
        truncateds=np.zeros(3, bool),
    )
    fragment = Fragment(batch, np.array([0]), np.array([3]), np.zeros((1, 3), F32))
    spec = spec_of("PG", gamma=0.5)
    rows = spec.objective_class(spec).postprocess(fragment)
    assert rows["advantages"].tolist() == [3, 4, 4]


def test_there_is_no_value_function():
    policy = build(("numpy", False), "PG")
    assert set(key.split("/")[0] for key in policy.get_weights()) == {"policy"}
    assert len(policy.get_weights()) == 4, "two layers: no head for a value"
    with pytest.raises(BatchError, match="PGObjective has no value function"):
        policy.compute_values(np.zeros((1, 3), F32))
