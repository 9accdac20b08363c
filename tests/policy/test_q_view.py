"""`policy.model` of DQN: the guide's way to look at Q values, in every mode."""

from __future__ import annotations

import numpy as np
import pytest
from learners import LSTM, OBS, build, shared
from modes import MODE_PARAMS

from polylib.errors import BatchError

F32 = np.float32
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
ROWS = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(F32)


def arrays(value):
    return np.asarray(value.detach() if hasattr(value, "detach") else value)


@MODES
def test_the_guides_snippets(framework, traced, capsys):
    policy = build((framework, traced), "DQN")
    model = policy.model
    assert len(model.variables()) == 2 * (1 + 2 + 2), "a hidden layer; a hidden layer and an output of each head"
    model_out = model({"obs": ROWS})
    features, state = model_out
    assert tuple(features.shape) == (4, 4) and state == []
    scores, logits, probabilities = map(arrays, model.get_q_value_distributions(model_out))
    assert scores.shape == (4, 3) and logits.shape == probabilities.shape == (4, 3, 1) and (logits == 1).all()
    value = arrays(model.get_state_value(model_out))
    assert value.shape == (4, 1)
    # V + A - mean(A) is what acting goes by.
    expected = policy.compute_actions(ROWS, explore=False).extras["action_dist_inputs"]
    np.testing.assert_allclose(value + scores - scores.mean(1, keepdims=True), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(arrays(model.get_q_values(features)), expected, rtol=1e-5, atol=1e-6)
    capsys.readouterr()
    model.q_value_head.summary()
    model.state_value_head.summary()
    # 4 features, 4 hidden units: 4 * 4 + 4; then 3 actions (4 * 3 + 3), or one value (4 + 1).
    assert capsys.readouterr().out.splitlines() == [
        "Head: advantages",
        "  advantages_hidden_0 (dense, relu): [B, 4], 20 params",
        "  advantages (dense): [B, 3], 15 params",
        "Total params: 35",
        "Head: state_value",
        "  state_value_hidden_0 (dense, relu): [B, 4], 20 params",
        "  state_value (dense): [B, 1], 5 params",
        "Total params: 25",
    ]
    assert len(model.q_value_head.variables()) == 4
    assert list(model.q_value_head.variables(as_dict=True))[0] == "q/001/kernel"
    assert "advantages_hidden_0" in repr(model.q_value_head)
    model.base_model.summary()
    policy.close()


@MODES
def test_distributions_over_returns(framework, traced):
    keys = {"num_atoms": 5, "v_min": -1.0, "v_max": 3.0, "dueling": False, "noisy": True}
    policy = shared((framework, traced), "DQN", OBS, **keys)
    model = policy.model
    model_out = model(ROWS)
    scores, support, logits, again, probabilities = map(arrays, model.get_q_value_distributions(model_out))
    assert support.tolist() == [-1, 0, 1, 2, 3] and logits.shape == (4, 3, 5)
    np.testing.assert_array_equal(logits, again)
    np.testing.assert_allclose(probabilities.sum(2), 1, rtol=1e-5)
    np.testing.assert_allclose(scores, probabilities @ support, rtol=1e-5)
    expected = policy.compute_actions(ROWS, explore=False).extras["action_dist_inputs"]
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6, err_msg="without noise")
    with pytest.raises(BatchError, match="no head for the state's value: dueling=False"):
        model.get_state_value(model_out)
    with pytest.raises(BatchError, match="no such head"):
        model.state_value_head.summary()


def test_states_come_out_too():
    policy = build(("numpy", False), "DQN", OBS, **LSTM)
    features, state = policy.model({"obs": ROWS})
    assert features.shape == (4, 2) and [x.shape for x in state] == [(4, 2), (4, 2)]
    later, _ = policy.model({"obs": ROWS}, state)
    assert not np.array_equal(later, features)


def test_what_isnt_the_last_calls_is_refused():
    model = build(("numpy", False), "DQN", OBS).model
    with pytest.raises(BatchError, match="call model.*first"):
        model.get_q_values(np.zeros((1, 4)))
    old = model({"obs": ROWS})
    model({"obs": ROWS})
    for wrong in (old, old[0], np.zeros((4, 4))):
        with pytest.raises(BatchError, match="of the last call of the model"):
            model.get_q_value_distributions(wrong)
    ppo = build(("numpy", False), "PPO", OBS).model
    out = ppo({"obs": ROWS})
    with pytest.raises(BatchError, match="last call of a DQN model"):
        ppo.get_q_values(out)
    with pytest.raises(BatchError, match="no such head"):
        ppo.q_value_head.summary()
