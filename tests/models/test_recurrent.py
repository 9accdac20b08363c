"""LSTM, GRU and attention: by hand, in every backend, step by step and as sequences."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from networks import FRAMEWORKS, built, call, gradients, make_weights
from policies import BOX

from polylib.algorithms.ppo.config import PPOConfig
from polylib.errors import ConfigError
from polylib.models.default_networks import actor_critic
from polylib.models.networks import NetworkSpec
from polylib.models.recurrent import gru, lstm
from polylib.policy import numpy_ops
from polylib.policy.testing import sample_space

F32, F64 = np.float32, np.float64
S = gym.spaces
SETTINGS = {
    "lstm": {"use_lstm": True, "lstm_cell_size": 3},
    "gru": {"use_gru": True, "lstm_cell_size": 3},
    "attention": {
        "use_attention": True,
        "attention_num_transformer_units": 2,
        "attention_dim": 3,
        "attention_num_heads": 2,
        "attention_head_dim": 2,
        "attention_memory_inference": 4,
        "attention_memory_training": 4,
        "attention_position_wise_mlp_dim": 2,
    },
}
KINDS = list(SETTINGS)


def config(**keys) -> dict:
    return {**PPOConfig()["model"], "fcnet_hiddens": [4], **keys}


def make(kind: str, action_space: gym.Space | None = None, logits: int = 2, **keys) -> NetworkSpec:
    return actor_critic("policy", BOX, logits, config(**SETTINGS[kind], **keys), action_space or S.Discrete(2))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# --- by hand


def test_an_lstm_by_hand():
    """One cell, two steps of one number: gates i, f, c, o in this order."""
    kernel, recurrent, bias = [0.5, -1.0, 2.0, 1.0], [1.0, 0.5, -1.0, 0.25], [0.1, 0.2, 0.3, -0.4]
    h, c, expected = 0.2, -0.5, []
    for x in (1.0, -2.0):
        i, f, g, o = (w * x + u * h + b for w, u, b in zip(kernel, recurrent, bias, strict=True))
        c = sigmoid(f) * c + sigmoid(i) * math.tanh(g)
        h = sigmoid(o) * math.tanh(c)
        expected.append(h)
    weights = F64([kernel]), F64([recurrent]), F64(bias)
    out, states = lstm(numpy_ops, F64([[1], [-2]]), (F64([[0.2]]), F64([[-0.5]])), weights, 2)
    assert out.ravel() == pytest.approx(expected) and out.shape == (2, 1)
    assert states[0].ravel() == pytest.approx([h]) and states[1].ravel() == pytest.approx([c])


def test_a_gru_by_hand():
    """One cell, two steps: gates z, r, h; the reset gate multiplies the state's product and its bias."""
    kernel, recurrent = [0.5, -1.0, 2.0], [1.0, 0.5, -1.0]
    of_input, of_state = [0.1, 0.2, 0.3], [-0.1, 0.4, 0.6]
    h, expected = 0.2, []
    for x in (1.0, -2.0):
        a = [w * x + b for w, b in zip(kernel, of_input, strict=True)]
        s = [u * h + b for u, b in zip(recurrent, of_state, strict=True)]
        z, r = sigmoid(a[0] + s[0]), sigmoid(a[1] + s[1])
        h = z * h + (1 - z) * math.tanh(a[2] + r * s[2])
        expected.append(h)
    weights = F64([kernel]), F64([recurrent]), F64([of_input, of_state])
    out, states = gru(numpy_ops, F64([[1], [-2]]), (F64([[0.2]]),), weights, 2)
    assert out.ravel() == pytest.approx(expected) and states[0].ravel() == pytest.approx([h])


def test_sequences_are_rows_one_sequence_after_another():
    """Two sequences of two steps: each sees its own state only."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 8)), rng.standard_normal((2, 8)), rng.standard_normal(8)
    x, h, c = rng.standard_normal((4, 2)), rng.standard_normal((2, 2)), rng.standard_normal((2, 2))
    both, states = lstm(numpy_ops, x, (h, c), weights, 2)
    for i in range(2):
        alone, after = lstm(numpy_ops, x[2 * i : 2 * i + 2], (h[i : i + 1], c[i : i + 1]), weights, 2)
        np.testing.assert_allclose(both[2 * i : 2 * i + 2], alone)
        np.testing.assert_allclose(states[0][i], after[0][0])


# --- first weights


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights(kind):
    """The LSTM's forget gate starts open, the GTrXL's gates start shut, recurrent kernels are orthogonal."""
    spec = make(kind)
    weights = spec.initial_weights(np.random.default_rng(0))
    layer = next(layer for layer in spec.layers if layer.kind in ("lstm", "gru", "gtrxl"))
    found = dict(zip(layer.leaves(), (weights[key] for key in spec.weight_keys()[layer.name]), strict=True))
    if kind == "lstm":
        assert found["bias"].tolist() == [0] * 3 + [1] * 3 + [0] * 6
    if kind == "gru":
        assert not found["bias"].any() and found["bias"].shape == (2, 9)
    if kind == "attention":
        assert (found["gate_bias"] == 2).all() and (found["mlp_gate_bias"] == 2).all()
        assert (found["norm_scale"] == 1).all() and not found["norm_offset"].any()
        assert found["content_bias"].shape == (2, 2)
    else:
        r = found["recurrent_kernel"]
        np.testing.assert_allclose(r @ r.T, np.eye(3), atol=1e-6)


# --- backends


def inputs_of(spec: NetworkSpec, sequences: int, time: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    inputs = {"obs": sample_space(BOX, sequences * time, seed)}
    for i, shape in enumerate(spec.state):
        inputs[f"state_{i}"] = rng.standard_normal((sequences, *shape)).astype(F32)
    return inputs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", [*FRAMEWORKS, "keras_model"])
def test_one_step_is_numpys(framework, kind):
    """In Keras' own call too: `policy.model` computes what the policy computes."""
    spec = make(kind)
    weights, inputs = make_weights(spec), inputs_of(spec, 5, 1)
    expected, found = call("numpy", spec, weights, inputs), call(framework, spec, weights, inputs)
    states = [f"state_out_{i}" for i in range(len(spec.state))]
    assert set(found) == {"logits", "value", *states}
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sequences_and_their_gradients_are_numpys(framework, kind):
    """Against central differences in float64; padded rows don't count."""
    spec = make(kind)
    mask = np.array([[True] * 5, [True, True, False, False, False]])
    weights, inputs = make_weights(spec), {**inputs_of(spec, 2, 5), "seq_mask": mask}
    expected, found = call("numpy", spec, weights, inputs), call(framework, spec, weights, inputs)
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=2e-5, atol=2e-6, err_msg=name)
    names = ("logits", "value")
    slopes = gradients(framework, spec, weights, inputs, names, mask.ravel())
    for key, x in gradients("numpy", spec, weights, inputs, names, mask.ravel()).items():
        assert np.abs(x).max() > 1e-6, f"{key} takes part"
        # Layer norm over three numbers multiplies float32's rounding.
        atol = 1e-4 if kind == "attention" else 1e-5
        np.testing.assert_allclose(slopes[key], x, rtol=1e-4, atol=atol, err_msg=key)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
def test_a_sequence_is_its_steps_one_by_one(framework, kind):
    """From zeros, for longer than attention looks back, and with the states after the last step."""
    spec, time = make(kind), 11
    weights, inputs = make_weights(spec), inputs_of(spec, 3, time)
    for i in range(len(spec.state)):
        inputs[f"state_{i}"][0] = 0
    whole = call(framework, spec, weights, {**inputs, "seq_mask": np.ones((3, time), bool)})
    states = {f"state_{i}": inputs[f"state_{i}"] for i in range(len(spec.state))}
    rows = inputs["obs"].reshape(3, time, -1)
    network = spec, weights
    for t in range(time):
        out = call(framework, *network, {"obs": np.ascontiguousarray(rows[:, t]), **states})
        states = {f"state_{i}": out[f"state_out_{i}"] for i in range(len(spec.state))}
        for name in ("logits", "value"):
            expected = whole[name].reshape(3, time, -1)[:, t]
            np.testing.assert_allclose(out[name], expected, rtol=1e-5, atol=1e-6, err_msg=f"{name}, step {t}")
    for i in range(len(spec.state)):
        np.testing.assert_allclose(whole[f"state_out_{i}"], states[f"state_{i}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
def test_padded_steps_change_nothing(framework, kind):
    """Other numbers behind a sequence's end: the same outputs and gradients of what is real."""
    spec = make(kind)
    weights = make_weights(spec)
    mask = np.array([[True, True, True, False], [True, False, False, False]])
    inputs = {**inputs_of(spec, 2, 4), "seq_mask": mask}
    other = {**inputs, "obs": np.where(mask.reshape(-1, 1), inputs["obs"], F32(7))}
    real = mask.ravel()
    first, second = (call(framework, spec, weights, x) for x in (inputs, other))
    for name in ("logits", "value"):
        np.testing.assert_array_equal(first[name][real], second[name][real])
        assert not np.array_equal(first[name][~real], second[name][~real])
    if framework != "numpy":
        slopes = [gradients(framework, spec, weights, x, ("logits", "value"), real) for x in (inputs, other)]
        for key, x in slopes[0].items():
            np.testing.assert_allclose(slopes[1][key], x, rtol=1e-6, atol=1e-7, err_msg=key)


# --- what else the layer sees


@pytest.mark.parametrize("kind", KINDS)
def test_previous_actions_and_rewards_go_into_the_layer(kind):
    """Discrete one-hot from its start, Box as it is, nested ones side by side."""
    which = "attention_use_n_prev" if kind == "attention" else "lstm_use_prev"
    suffix = "s" if kind == "attention" else ""
    keys = {f"{which}_action{suffix}": 1, f"{which}_reward{suffix}": 1}
    space = S.Dict({"move": S.Discrete(3, start=5), "push": S.Tuple([S.Box(-1, 1, (2, 1), F32), S.MultiBinary(2)])})
    spec = make(kind, space, 9, **keys)
    assert {name: shape for name, (shape, _) in spec.inputs.items()} == {
        "obs": (3,),
        "prev_actions/move": (),
        "prev_actions/push/0": (2, 1),
        "prev_actions/push/1": (2,),
        "prev_rewards": (),
    }
    layer = next(layer for layer in spec.layers if layer.name in (kind, "attention_embedding"))
    assert layer.fan_in == 4 + 3 + 2 + 2 + 1
    concat = next(x for x in spec.layers if x.name == "recurrent_input")
    inputs = {
        **inputs_of(spec, 2, 1),
        "prev_actions/move": np.array([5, 7]),
        "prev_actions/push/0": F32([[[0.5], [-0.5]], [[1], [2]]]),
        "prev_actions/push/1": np.array([[1, 0], [0, 1]], np.int8),
        "prev_rewards": F32([3, -4]),
    }
    weights = make_weights(spec)
    cut = NetworkSpec("policy", spec.inputs, spec.layers, {"seen": concat.name})
    seen = call("numpy", cut, weights, inputs)["seen"]
    assert seen[0, 4:].tolist() == [1, 0, 0, 0.5, -0.5, 1, 0, 3]
    assert seen[1, 4:].tolist() == [0, 0, 1, 1, 2, 0, 1, -4]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_previous_actions_are_encoded_alike(framework):
    spec = make("lstm", S.MultiDiscrete([3, 2], start=[5, 7]), 5, lstm_use_prev_action=True, lstm_use_prev_reward=True)
    weights = make_weights(spec)
    inputs = {
        **inputs_of(spec, 3, 1),
        "prev_actions": np.array([[5, 7], [7, 8], [6, 7]]),
        "prev_rewards": F32([1, 2, 3]),
    }
    expected = call("numpy", spec, weights, inputs)
    for name, x in call(framework, spec, weights, inputs).items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=1e-6)


# --- errors


def test_two_wrappers_exclude_each_other():
    with pytest.raises(ConfigError, match="'use_lstm' and 'use_attention' exclude each other"):
        make("lstm", use_attention=True)


def test_attention_remembers_in_training_what_it_remembers_in_acting():
    with pytest.raises(ConfigError, match="'attention_memory_training' is 7 and attention_memory_inference 4"):
        actor_critic("policy", BOX, 2, config(**{**SETTINGS["attention"], "attention_memory_training": 7}))


@pytest.mark.parametrize("key", ["attention_use_n_prev_actions", "attention_use_n_prev_rewards"])
def test_attention_sees_one_previous_step(key):
    with pytest.raises(ConfigError, match=rf"{key}.*expected one of 0, 1"):
        PPOConfig().training(model={key: 4})


def test_networks_with_state_share_all_but_the_heads():
    spec = make("lstm", vf_share_layers=False)
    assert [layer.name for layer in spec.layers] == ["hidden_0", "lstm", "logits", "value"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_users_view_of_the_model(framework, capsys):
    """Each layer is there under its name."""
    network = built(framework, make("attention"), make_weights(make("attention")))
    if framework == "keras":
        network.model.summary()
        text = capsys.readouterr().out
    else:
        text = repr(network)
    for name in ("hidden_0", "gtrxl_0", "gtrxl_1", "logits", "value"):
        assert name in text
