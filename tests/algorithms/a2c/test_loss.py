"""A2C's loss term by term, with the numbers worked out in the comments; microbatches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from backends import needs_torch
from learners import CHOICE, OBS, build, losses_of, random_rows, spec_of

from polylib.errors import ConfigError
from polylib.execution.sgd import learn_in_microbatches
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

F32 = np.float32
LN = math.log
LINEAR = {"model": {"fcnet_hiddens": []}}
# Probabilities [1/4, 1/2, 1/4]; a value of 2.
GIVEN = {"policy": {"logits": [0, LN(2), 0], "value": [2]}}
ENTROPY = 0.5 * LN(4) + 0.5 * LN(2)


def loss(batch, **config):
    found, stats, rows = losses_of(spec_of("A2C", **LINEAR, **config), GIVEN, batch)
    assert set(found) == {"default"} and rows == {}
    return found["default"], stats


def test_all_terms():
    """Policy: -log p A = ln 2 * 3 and ln 4 * -1, mean (3 ln 2 - 2 ln 2) / 2. Value: (2 - 5)^2 / 2 and (2 - 1)^2 / 2.

    0.5 * (4.5 + 0.5) / 2 = 1.25; entropy ln 4 / 2 + ln 2 / 2, weighed with 0.1.
    """
    batch = {"actions": [6, 5], "advantages": [3.0, -1.0], "value_targets": [5.0, 1.0]}
    total, stats = loss(batch, vf_loss_coeff=0.5, entropy_coeff=0.1)
    assert stats["policy_loss"] == pytest.approx(0.5 * LN(2))
    assert stats["vf_loss"] == pytest.approx(2.5) and stats["policy_entropy"] == pytest.approx(ENTROPY)
    assert total == pytest.approx(0.5 * LN(2) + 1.25 - 0.1 * ENTROPY)
    # Without a critic values aren't learnt.
    total, _ = loss(batch, use_critic=False, use_gae=False, entropy_coeff=0.0)
    assert total == pytest.approx(0.5 * LN(2))


def test_masked_actions_have_no_probability():
    """The second of three is forbidden: [1/2, 1/2]."""
    batch = {"actions": [5], "advantages": [1.0], "value_targets": [2.0]}
    total, _ = loss({**batch, "action_mask": np.array([[True, False, True]])}, entropy_coeff=0.1)
    assert total == pytest.approx(LN(2) - 0.1 * LN(2))


@pytest.mark.parametrize(
    ("keys", "advantages", "targets"),
    [
        # lambda 1: returns 1 + 0.5 * (1 + 0.5 * 8) and 1 + 0.5 * 8, less the values.
        ({"lambda": 1.0}, [3.5 - 2, 5 - 4], [3.5, 5]),
        # lambda 0: one step each: 1 + 0.5 * 4 - 2 and 1 + 0.5 * 8 - 4; targets are the values plus that.
        ({"lambda": 0.0}, [1, 1], [3, 5]),
        # Without GAE: returns of what was sampled and the last value, less the values.
        ({"use_gae": False}, [3.5 - 2, 5 - 4], [3.5, 5]),
        ({"use_gae": False, "use_critic": False}, [3.5, 5], [3.5, 5]),
    ],
)
def test_returns_and_advantages(keys, advantages, targets):
    """gamma 0.5, r = [1, 1], values [2, 4], cut where the value is 8."""
    batch = SampleBatch(
        obs=np.zeros((2, 3), F32),
        rewards=F32([1, 1]),
        vf_preds=F32([2, 4]),
        terminateds=np.zeros(2, bool),
        truncateds=np.zeros(2, bool),
    )
    fragment = Fragment(batch, np.array([0]), np.array([2]), np.zeros((1, 3), F32), F32([8]))
    spec = spec_of("A2C", gamma=0.5, **keys)
    rows = spec.objective_class(spec).postprocess(fragment)
    if not (keys.get("use_critic", True)):
        # Nothing predicts what comes after the cut, but what was predicted there is used.
        assert rows["advantages"] == pytest.approx(rows["value_targets"])
        return
    assert rows["advantages"] == pytest.approx(advantages) and rows["value_targets"] == pytest.approx(targets)


def test_schedules():
    spec = spec_of("A2C", lr=[[0, 0.1], [100, 0.0]], entropy_coeff_schedule=[[0, 1.0], [10, 0.0]])
    found = spec.objective_class(spec).scheduled(5)
    assert found == {"lr": pytest.approx(0.095), "entropy_coeff": pytest.approx(0.5)}


@needs_torch
def test_microbatches_are_one_step_along_their_mean():
    """Parts of 5, 5 and 2 rows, none of them clipped: the same update as of all 12 rows at once."""
    keys = {"lr": 1e-2, "grad_clip": None}
    whole, parts = (build(("torch", False), "A2C", OBS, CHOICE, **keys) for _ in range(2))
    batch = SampleBatch(random_rows(whole.spec, 12))
    stats = learn_in_microbatches(whole, batch)
    found = learn_in_microbatches(parts, batch, 5)
    for key, w in whole.get_weights().items():
        np.testing.assert_allclose(parts.get_weights()[key], w, rtol=1e-5, atol=1e-6, err_msg=key)
    assert parts.num_updates == whole.num_updates == 1
    for name in ("total_loss", "policy_loss", "vf_loss", "policy_entropy"):
        assert found[name] == pytest.approx(stats[name], rel=1e-5), name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"microbatch_size": 300}, "'microbatch_size': 300 rows are more than train_batch_size=200"),
        ({"use_critic": False}, "'use_gae': GAE needs the value function; set use_critic=True or use_gae=False"),
    ],
)
def test_keys_that_dont_go_together(keys, message):
    from learners import small_config

    with pytest.raises(ConfigError, match=message):
        small_config("A2C", **keys).validate()
