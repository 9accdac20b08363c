"""MARWIL's loss term by term, with the numbers worked out in the comments; returns, and the running mean c^2."""

from __future__ import annotations

import math

import numpy as np
import pytest
from learners import CHOICE, OBS, TORQUE, losses_of, small_config, spec_of

from polylib.errors import ConfigError
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

F32 = np.float32
LN, E = math.log, math.exp
LINEAR = {"model": {"fcnet_hiddens": []}}
# Probabilities [1/4, 1/2, 1/4]; a value of 2.
GIVEN = {"policy": {"logits": [0, LN(2), 0], "value": [2]}}
#: Advantages 3 and -1, whose squares have the mean 5: c^2 = 3 + (5 - 3) / 2 = 4.
BATCH = {"actions": [6, 5], "value_targets": [5.0, 1.0]}
NORM = {"moving_average_sqd_adv_norm_start": 3.0, "moving_average_sqd_adv_norm_update_rate": 0.5}


def loss(batch, action_space=CHOICE, given=GIVEN, **config):
    found, stats, rows = losses_of(spec_of("MARWIL", action_space=action_space, **LINEAR, **config), given, batch)
    assert set(found) == {"default"} and rows == {}
    return found["default"], stats


def test_all_terms():
    """Weights e^(3/2) and e^(-1/2) of ln 2 and ln 4; half the mean square is 2.5."""
    total, stats = loss(BATCH, **NORM, vf_coeff=0.4)
    policy_loss = (E(1.5) * LN(2) + E(-0.5) * LN(4)) / 2
    assert stats["moving_average_sqd_adv_norm"] == pytest.approx(4.0) and stats["sqd_adv"] == pytest.approx(5.0)
    assert stats["policy_loss"] == pytest.approx(policy_loss) and stats["vf_loss"] == pytest.approx(2.5)
    assert stats["mean_weight"] == pytest.approx((E(1.5) + E(-0.5)) / 2)
    # Advantages deviate from their mean as returns do: nothing is explained.
    assert stats["vf_explained_var"] == pytest.approx(0.0)
    assert total == pytest.approx(policy_loss + 0.4 * 2.5)


def test_beta_scales_the_exponent():
    """Half of 3/2 and of -1/2; at 0 all rows count the same, and no value is learnt."""
    total, _ = loss(BATCH, **NORM, beta=0.5, vf_coeff=0.0)
    assert total == pytest.approx((E(0.75) * LN(2) + E(-0.25) * LN(4)) / 2)
    total, stats = loss(BATCH, given={"policy": {"logits": GIVEN["policy"]["logits"]}}, beta=0.0)
    assert total == pytest.approx(1.5 * LN(2)) and set(stats) == {"policy_loss"}


def test_a_weight_stays_finite():
    """1000 standard deviations better: e^20 instead of an infinity."""
    total, _ = loss({"actions": [6], "value_targets": [2002.0]}, **{**NORM, NORMS[0]: 4.0, NORMS[1]: 0.0}, vf_coeff=0.0)
    assert total == pytest.approx(E(20) * LN(2))


NORMS = ("moving_average_sqd_adv_norm_start", "moving_average_sqd_adv_norm_update_rate")


def test_densities_are_those_of_logged_actions():
    """Torques on [-2, 2] and [0, 1], means 0 and stds e^-1 in [-1, 1]: actions [1, 1/2] are 1/2 and 0 there.

    log N(1/2) = -e^2 / 8 + 1 - log sqrt(2 pi); log N(0) = 1 - log sqrt(2 pi); less log 2 and log 1/2 for the ranges,
    which cancel. What the recording policy sampled before clipping (`action_raw`) is nothing to this one.
    """
    given = {"policy": {"logits": [0, 0, -1, -1], "value": [2]}}
    batch = {"actions": F32([[1.0, 0.5]]), "value_targets": [4.0], "action_raw": F32([[7.0, 7.0]])}
    logp = -E(2) / 8 + 2 - LN(2 * math.pi)
    keys = {**NORM, NORMS[0]: 4.0, NORMS[1]: 0.0, "vf_coeff": 0.0}
    total, _ = loss(batch, TORQUE, given, **keys)
    assert total == pytest.approx(-E(1) * logp, rel=1e-6)
    # The sum of the log standard deviations is -2.
    total, _ = loss(batch, TORQUE, given, **keys, bc_logstd_coeff=0.3)
    assert total == pytest.approx(-E(1) * (logp + 0.3 * -2), rel=1e-6)


def test_the_running_mean_moves_in_small_steps():
    """1e-8 of 1e4 - 100 at a time: ten thousand of them add up to 0.99, which float32 would lose."""
    spec = spec_of("MARWIL")
    objective = spec.objective_class(spec)
    c = objective.coefficients()
    for _ in range(10_000):
        c.update(objective.adapted(c, {"sqd_adv": 1e4}))
    assert c["sqd_adv_norm"] + c["sqd_adv_norm_rest"] == pytest.approx(100 + 0.99, abs=1e-3)
    assert all(value == F32(value) for value in c.values())


def fragment():
    """gamma 0.5: two steps to an end, and two to a cut beyond which the value is 8; values 2 everywhere."""
    batch = SampleBatch(
        obs=np.zeros((4, 3), F32),
        rewards=F32([1, 1, 1, 1]),
        vf_preds=F32([2, 2, 2, 2]),
        terminateds=np.array([False, True, False, False]),
        truncateds=np.zeros(4, bool),
    )
    return Fragment(batch, np.array([0, 2]), np.array([2, 4]), np.zeros((2, 3), F32), F32([0, 8]))


@pytest.mark.parametrize(
    ("keys", "targets"),
    [
        # Returns: 1 + 1/2, 1; 1 + (1 + 8/2) / 2, 1 + 8/2.
        ({}, [1.5, 1, 3.5, 5]),
        ({"use_gae": False, "lambda": 0.0}, [1.5, 1, 3.5, 5]),
        # lambda 0: one reward and half the next value.
        ({"lambda": 0.0}, [2, 1, 2, 5]),
        # lambda 1/2: V + delta + delta' / 4; deltas: 0, -1; 0, 3.
        ({"lambda": 0.5}, [2 - 0.25, 1, 2 + 0.75, 5]),
    ],
)
def test_returns(keys, targets):
    spec = spec_of("MARWIL", gamma=0.5, **keys)
    objective = spec.objective_class(spec)
    assert objective.looks_ahead and objective.needs_row_values == ("lambda" in keys and keys.get("use_gae", True))
    assert objective.postprocess(fragment())["value_targets"] == pytest.approx(targets)


def test_without_beta_nothing_is_postprocessed():
    spec = spec_of("MARWIL", beta=0.0)
    objective = spec.objective_class(spec)
    assert not (objective.looks_ahead or objective.needs_values or objective.needs_row_values)
    given = fragment()
    assert objective.postprocess(given) is given.batch and "value_targets" not in given.batch


def test_keys_that_dont_go_together():
    with pytest.raises(ConfigError, match="'postprocess_inputs': with beta=1 returns have to be computed"):
        small_config("MARWIL", postprocess_inputs=False).validate()
    small_config("MARWIL", postprocess_inputs=False, beta=0).validate()
    with pytest.raises(ConfigError, match="'beta': got 2, expected a number in "):
        small_config("MARWIL", beta=2)
    spec = spec_of("MARWIL", OBS, CHOICE, bc_logstd_coeff=0.1)
    with pytest.raises(ConfigError, match=r"'bc_logstd_coeff': actions of Discrete\(3, start=5\) have no standard"):
        spec.objective_class(spec)
