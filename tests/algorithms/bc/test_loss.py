"""BC's loss, with the numbers worked out in the comments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from learners import CHOICE, OBS, losses_of, small_config, spec_of

from polylib.errors import ConfigError

LN = math.log


def test_the_likelihood_of_actions():
    """Probabilities [1/4, 1/2, 1/4] of the actions 6, 5, 5: (ln 2 + ln 4 + ln 4) / 3."""
    spec = spec_of("BC", model={"fcnet_hiddens": []})
    given = {"policy": {"logits": [0, LN(2), 0]}}
    found, stats, rows = losses_of(spec, given, {"actions": [6, 5, 5]})
    assert found["default"] == stats["policy_loss"] == pytest.approx(5 / 3 * LN(2)) and rows == {}
    # The second of three is forbidden: [1/2, 1/2].
    mask = {"action_mask": np.array([[True, False, True]])}
    found, _, _ = losses_of(spec, given, {"actions": [5], **mask})
    assert found["default"] == pytest.approx(LN(2))


def test_it_has_no_value_function():
    spec = spec_of("BC", OBS, CHOICE)
    objective = spec.objective_class(spec)
    assert list(objective.networks()["policy"].outputs) == ["logits"]
    assert objective.columns == ("obs", "actions") and not objective.looks_ahead


def test_beta_is_0():
    with pytest.raises(ConfigError, match="'beta': BC is MARWIL with beta=0, got 0.5; use MARWIL"):
        small_config("BC", beta=0.5, postprocess_inputs=True).validate()
