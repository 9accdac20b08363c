"""Networks from descriptions: layout, first weights, and the same outputs in every backend."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_tf, needs_torch
from modes import MODE_PARAMS
from policies import BOX, DISCRETE, TORQUE, make

from polylib.errors import EnvError
from polylib.models.default_networks import actor_critic, encode
from polylib.models.networks import NetworkSpec, batch_dtype
from polylib.models.numpy_network import ACTIVATIONS, NumpyNetwork
from polylib.policy.testing import sample_space

S = gym.spaces
F32 = np.float32
NAMES = [*ACTIVATIONS, None]


def model(hiddens=(8,), activation="tanh", share=False) -> dict:
    return {"fcnet_hiddens": list(hiddens), "fcnet_activation": activation, "vf_share_layers": share}


def keras_network(spec: NetworkSpec):
    from polylib.policy.tf.models import KerasNetwork

    return KerasNetwork(spec)


def torch_network(spec: NetworkSpec):
    from polylib.policy.torch.models import TorchNetwork

    return TorchNetwork(spec)


def run_keras(spec, weights, obs, outputs=None):
    network = keras_network(spec)
    for key, value in weights.items():
        network.variables[key].assign(value)
    return {name: x.numpy() for name, x in network({"obs": obs}, outputs).items()}


def run_torch(spec, weights, obs, outputs=None):
    import torch

    network = torch_network(spec)
    with torch.no_grad():
        for key, value in weights.items():
            network.variables()[key].copy_(torch.from_numpy(value.T.copy()))
        return {name: x.numpy() for name, x in network({"obs": torch.from_numpy(obs)}, outputs).items()}


BACKENDS = [pytest.param(run_keras, id="keras", marks=needs_tf), pytest.param(run_torch, id="torch", marks=needs_torch)]


# --- layout


def test_weights_are_numbered_in_creation_order():
    """Policy branch, its head, value branch, its head."""
    spec = actor_critic("policy", BOX, 5, model((8, 7)))
    assert {key: w.shape for key, w in spec.initial_weights(np.random.default_rng(0)).items()} == {
        "policy/000/kernel": (3, 8),
        "policy/000/bias": (8,),
        "policy/001/kernel": (8, 7),
        "policy/001/bias": (7,),
        "policy/002/kernel": (7, 5),
        "policy/002/bias": (5,),
        "policy/003/kernel": (3, 8),
        "policy/003/bias": (8,),
        "policy/004/kernel": (8, 7),
        "policy/004/bias": (7,),
        "policy/005/kernel": (7, 1),
        "policy/005/bias": (1,),
    }


def test_shared_layers_leave_out_the_value_branch():
    spec = actor_critic("policy", BOX, 5, model((8, 7), share=True))
    shapes = [w.shape for w in spec.initial_weights(np.random.default_rng(0)).values()]
    assert shapes == [(3, 8), (8,), (8, 7), (7,), (7, 5), (5,), (7, 1), (1,)]
    value = spec.needed(("value",))
    assert [layer.name for layer in value] == ["hidden_0", "hidden_1", "value"]
    assert [layer.name for layer in spec.needed(("logits",))] == ["hidden_0", "hidden_1", "logits"]


def test_no_hidden_layers():
    """Linear heads on the observation."""
    spec = actor_critic("policy", BOX, 2, model(()))
    assert [layer.source for layer in spec.layers] == ["obs", "obs"]


@pytest.mark.parametrize(
    ("hiddens", "share", "count"),
    [
        # 4 * 256 + 256 = 1280, 256 * 256 + 256 = 65792, heads 256 * 2 + 2 = 514 and 257
        ((256, 256), False, 2 * (1280 + 65792) + 514 + 257),
        ((256, 256), True, 1280 + 65792 + 514 + 257),
        ((), False, 4 * 2 + 2 + 5),
    ],
)
def test_parameter_counts(hiddens, share, count):
    """CartPole's network: 4 numbers in, 2 logits out."""
    spec = actor_critic("policy", S.Box(-1, 1, (4,), np.float32), 2, model(hiddens, share=share))
    weights = spec.initial_weights(np.random.default_rng(0))
    assert sum(w.size for w in weights.values()) == count


# --- first weights


def test_columns_of_kernels_have_length_one_and_heads_a_hundredth():
    spec = actor_critic("policy", BOX, 4, model((16, 8)))
    weights = spec.initial_weights(np.random.default_rng(0))
    gains = {"logits": 0.01, "value": 0.01}
    for name, (kernel, bias) in spec.weight_keys().items():
        lengths = np.sqrt(np.square(weights[kernel]).sum(0))
        assert lengths == pytest.approx(np.full(weights[kernel].shape[1], gains.get(name, 1.0)), rel=1e-6), name
        assert not weights[bias].any(), name
        assert weights[kernel].dtype == weights[bias].dtype == F32, name
    assert abs(np.corrcoef(weights["policy/001/kernel"].T)[0, 1]) < 0.9, "columns point different ways"


def test_first_weights_follow_the_generator():
    spec = actor_critic("policy", BOX, 4, model())
    first, again, other = (spec.initial_weights(np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first["policy/000/kernel"], other["policy/000/kernel"])
    assert not np.array_equal(first["policy/000/kernel"], first["policy/002/kernel"]), "branches start apart"


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_every_mode_starts_with_these_weights(framework, traced, share):
    policy = make((framework, traced), seed=5, share=share, hiddens=(8, 7))
    from polylib.policy.policy import random_stream

    expected = policy.network_specs["policy"].initial_weights(random_stream(5, 0))
    found = policy.get_weights()
    assert list(found) == list(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
    policy.close()


def test_the_first_policy_is_nearly_uniform_and_the_first_values_nearly_zero():
    spec = actor_critic("policy", BOX, 3, model((256, 256)))
    network = NumpyNetwork(spec, spec.initial_weights(np.random.default_rng(0)))
    out = network({"obs": np.random.default_rng(1).uniform(-1, 1, (50, 3)).astype(F32)})
    assert np.abs(out["logits"]).max() < 0.05 and np.abs(out["value"]).max() < 0.05


# --- outputs


def test_a_network_by_hand():
    """obs [1, -1] through tanh(x @ [[1], [2]] + 0.5) = tanh(-0.5), then logits [3 h + 1] and value [-2 h]."""
    spec = actor_critic("net", S.Box(-1, 1, (2,), np.float32), 1, model((1,), share=True))
    weights = {
        "net/000/kernel": F32([[1], [2]]),
        "net/000/bias": F32([0.5]),
        "net/001/kernel": F32([[3]]),
        "net/001/bias": F32([1]),
        "net/002/kernel": F32([[-2]]),
        "net/002/bias": F32([0]),
    }
    h = math.tanh(-0.5)
    out = NumpyNetwork(spec, weights)({"obs": F32([[1, -1]])})
    assert out["logits"][0] == pytest.approx([3 * h + 1])
    assert out["value"][0] == pytest.approx([-2 * h])


OBS_SPACES = {
    "vector": BOX,
    "matrix": S.Box(-3, 3, (2, 4), np.float32),
    "pixels": S.Box(0, 255, (2, 3, 2), np.uint8),
    "one_hot": S.Discrete(5, start=-2),
    "scalar": S.Box(-1, 1, (), np.float32),
    "int32": S.Box(-5, 5, (3,), np.int32),
    "float64": S.Box(-1, 1, (3,), np.float64),
}


@pytest.mark.parametrize("space", OBS_SPACES.values(), ids=OBS_SPACES)
@pytest.mark.parametrize("run", BACKENDS)
def test_observations_are_encoded_alike(run, space):
    spec = actor_critic("policy", space, 4, model((8,)))
    weights = spec.initial_weights(np.random.default_rng(0))
    obs = sample_space(space, 6, 0).astype(batch_dtype(space))
    expected = NumpyNetwork(spec, weights)({"obs": obs})
    found = run(spec, weights, obs)
    assert set(found) == {"logits", "value"}
    for name, units in (("logits", 4), ("value", 1)):
        assert found[name].shape == (6, units) and found[name].dtype == F32
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("run", BACKENDS)
def test_activations_agree(run, activation):
    """Far from 0 too, where approximations differ."""
    spec = actor_critic("policy", BOX, 4, model((8,), activation or "linear"))
    rng = np.random.default_rng(0)
    weights = {key: 2 * rng.standard_normal(w.shape).astype(F32) for key, w in spec.initial_weights(rng).items()}
    obs = 3 * rng.standard_normal((20, 3)).astype(F32)
    expected = NumpyNetwork(spec, weights)({"obs": obs})
    for name, x in run(spec, weights, obs).items():
        np.testing.assert_allclose(x, expected[name], rtol=2e-5, atol=2e-5, err_msg=name)


def test_activations_by_hand():
    x = F32([-2, 0, 1.5])
    erf = [math.erf(v / math.sqrt(2)) for v in x]
    expected = {
        "tanh": [math.tanh(v) for v in x],
        "relu": [0, 0, 1.5],
        "elu": [math.exp(-2) - 1, 0, 1.5],
        "silu": [v / (1 + math.exp(-v)) for v in x],
        "swish": [v / (1 + math.exp(-v)) for v in x],
        "gelu": [v * (1 + e) / 2 for v, e in zip(x, erf, strict=True)],
        "sigmoid": [1 / (1 + math.exp(-v)) for v in x],
        "softplus": [math.log(1 + math.exp(v)) for v in x],
    }
    assert set(expected) == set(ACTIVATIONS)
    for name, values in expected.items():
        y = ACTIVATIONS[name](x)
        assert y == pytest.approx(values, rel=1e-5, abs=1e-6), name
        assert y.dtype == F32 and ACTIVATIONS[name](x.astype(np.float64)).dtype == np.float64, name


@pytest.mark.parametrize("run", BACKENDS)
@pytest.mark.parametrize("outputs", [("logits",), ("value",), ("value", "logits")])
def test_only_what_is_asked_for(run, outputs):
    spec = actor_critic("policy", BOX, 4, model())
    weights = spec.initial_weights(np.random.default_rng(0))
    obs = sample_space(BOX, 3, 0)
    found, whole = run(spec, weights, obs, outputs), run(spec, weights, obs)
    assert tuple(found) == outputs
    for name in outputs:
        np.testing.assert_allclose(found[name], whole[name], rtol=1e-6, atol=1e-7)
    numpy = NumpyNetwork(spec, weights)({"obs": obs}, outputs)
    assert tuple(numpy) == outputs


def test_numpy_runs_in_the_weights_dtype():
    """float64 weights make a float64 oracle of it."""
    for space in OBS_SPACES.values():
        spec = actor_critic("policy", space, 4, model())
        weights = {k: w.astype(np.float64) for k, w in spec.initial_weights(np.random.default_rng(0)).items()}
        obs = sample_space(space, 3, 0)
        out = NumpyNetwork(spec, weights)({"obs": obs.astype(np.float64) if obs.dtype == F32 else obs})
        assert out["logits"].dtype == out["value"].dtype == np.float64, space


# --- spaces


@pytest.mark.parametrize(
    "space",
    [S.Text(3), S.Sequence(S.Discrete(2)), S.Graph(S.Box(-1, 1, (2,)), None)],
    ids=lambda space: type(space).__name__,
)
def test_unsupported_observation_spaces(space):
    with pytest.raises(EnvError, match="observation space .* of 'obs' isn't supported: expected Box, Discrete, Multi"):
        encode(space)


@pytest.mark.parametrize(
    ("space", "width", "kinds"),
    [
        (BOX, 3, []),
        (S.Box(0, 255, (2, 3, 2), np.uint8), 12, ["to_float", "flatten"]),
        (S.Box(0, 255, (7,), np.uint8), 7, ["to_float"]),
        (S.Box(-1, 1, (2, 2), np.float32), 4, ["flatten"]),
        (S.Discrete(5, start=-2), 5, ["one_hot"]),
    ],
)
def test_encodings(space, width, kinds):
    layers, found = encode(space)
    assert found == width and [layer.kind for layer in layers] == kinds


def test_batches_hold_observations_in_the_spaces_dtype_but_for_float64():
    assert batch_dtype(S.Box(-1, 1, (2,), np.float64)) == F32
    assert batch_dtype(S.Box(0, 9, (2,), np.uint8)) == np.uint8
    assert batch_dtype(DISCRETE) == np.int64 and batch_dtype(TORQUE) == F32


# --- other people's settings


@needs_torch
def test_torch_networks_leave_the_global_generator_and_dtype_alone():
    import torch

    state = torch.get_rng_state()
    spec = actor_critic("policy", BOX, 4, model())
    torch.set_default_dtype(torch.float64)
    try:
        network = torch_network(spec)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.dtype == torch.float32 for p in network.parameters())


@needs_tf
def test_keras_networks_are_float32_whatever_the_global_policy():
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        network = keras_network(actor_critic("policy", S.Box(0, 255, (2, 2), np.uint8), 4, model()))
        out = network({"obs": np.zeros((2, 2, 2), np.uint8)})
    finally:
        keras.config.set_dtype_policy(before)
    assert {v.dtype for v in network.variables.values()} == {"float32"}
    assert {x.dtype.name for x in out.values()} == {"float32"}
