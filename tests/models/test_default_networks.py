"""Default networks: which layers a space and a config give, by hand and in every backend."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
from networks import FRAMEWORKS, built, call, gradients, make_weights
from policies import BOX

from polylib.algorithms.ppo.config import PPOConfig
from polylib.errors import ConfigError, EnvError
from polylib.models.default_networks import CONV_FILTERS, actor_critic
from polylib.models.networks import Convolution, Layer, NetworkSpec, batch_dtype, plain_names
from polylib.models.numpy_network import convolve
from polylib.models.spaces import leaves
from polylib.policy.testing import sample_space

F32 = np.float32
S = gym.spaces
CARTPOLE = S.Box(-1, 1, (4,), F32)


def config(**keys) -> dict:
    return {**PPOConfig()["model"], **keys}


def image(height: int, width: int | None = None, channels: int = 3, dtype=np.uint8) -> gym.spaces.Box:
    high = 255 if dtype == np.uint8 else 1
    return S.Box(0, high, (height, height if width is None else width, channels), dtype)


def observations(space: gym.Space, size: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(sample_space(part, size, seed + i)).astype(batch_dtype(part))
        for i, (name, part) in enumerate(leaves(space).items())
    }


def count(spec: NetworkSpec) -> int:
    return sum(math.prod(shape) for shape in spec.shapes().values())


# --- convolutions by hand


def test_same_padding_puts_the_odd_zero_at_the_end():
    """As TensorFlow: ceil(size / stride) results, and for 5 rows with kernel 4 and stride 2 three zeros, 1 and 2."""
    conv = Convolution.make((5, 4, 1), 1, (4, 3), (2, 1), same=True)
    assert conv.out == (3, 4, 1) and conv.pads == ((1, 2), (1, 1))
    # A stride beyond the kernel needs none.
    assert Convolution.make((4, 4, 1), 1, (1, 1), (3, 3), same=True).pads == ((0, 0), (0, 0))
    valid = Convolution.make((5, 4, 2), 7, (4, 3), (2, 1), same=False)
    assert valid.out == (1, 2, 7) and valid.pads == ((0, 0), (0, 0))


def test_a_convolution_by_hand():
    """3x3 pixels with a 2x2 kernel, stride 2, "same": one zero below and to the right."""
    x = F32([[1, 2, 3], [4, 5, 6], [7, 8, 9]]).reshape(1, 3, 3, 1)
    kernel = F32([[1, 10], [100, 1000]]).reshape(2, 2, 1, 1)
    found = convolve(Convolution.make((3, 3, 1), 1, (2, 2), (2, 2), same=True), x, kernel)
    assert found[0, :, :, 0].tolist() == [[1 + 20 + 400 + 5000, 3 + 600], [7 + 80, 9]]
    found = convolve(Convolution.make((3, 3, 1), 1, (2, 2), (1, 1), same=False), x, kernel)
    assert found[0, :, :, 0].tolist() == [[5421, 6532], [8754, 9865]]


def test_channels_by_hand():
    """Two channels in, two filters out: kernels are [height, width, in, out]."""
    x = F32([[[1, 2]]]).reshape(1, 1, 1, 2)
    kernel = F32([[1, 10], [100, 1000]]).reshape(1, 1, 2, 2)
    assert convolve(Convolution.make((1, 1, 2), 2, (1, 1), (1, 1), same=False), x, kernel).ravel().tolist() == [
        1 * 1 + 2 * 100,
        1 * 10 + 2 * 1000,
    ]


FILTERS = {
    "odd": ((7, 6, 2), [[2, [4, 3], 2], [3, [2, 3], 1]]),
    "uneven_strides": ((9, 8, 1), [[2, [3, 4], [2, 3]], [2, 2, 1]]),
    "large_kernel": ((6, 5, 3), [[2, [5, 5], [1, 2]], [2, [6, 3], 1]]),
    "wide_stride": ((8, 8, 1), [[3, [2, 2], 3], [2, [3, 3], 1]]),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("framework", [*FRAMEWORKS, "keras_model"])
def test_convolutions_are_numpys(framework, name):
    shape, filters = FILTERS[name]
    spec = actor_critic("policy", S.Box(-1, 1, shape, F32), 2, config(conv_filters=filters))
    weights, inputs = make_weights(spec), observations(S.Box(-1, 1, shape, F32), 4)
    expected = call("numpy", spec, weights, inputs)
    for output, x in call(framework, spec, weights, inputs).items():
        np.testing.assert_allclose(x, expected[output], rtol=2e-5, atol=2e-6, err_msg=output)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_of_convolutions_are_numpys(framework):
    """Smooth activations: relu has no central difference at 0."""
    shape, filters = FILTERS["odd"]
    keys = {"conv_activation": "tanh", "post_fcnet_hiddens": [3], "post_fcnet_activation": "elu"}
    spec = actor_critic("policy", S.Box(-1, 1, shape, F32), 2, config(conv_filters=filters, **keys))
    weights, inputs = make_weights(spec), observations(S.Box(-1, 1, shape, F32), 3)
    found = gradients(framework, spec, weights, inputs, ("logits", "value"))
    for key, x in gradients("numpy", spec, weights, inputs, ("logits", "value")).items():
        np.testing.assert_allclose(found[key], x, rtol=1e-4, atol=1e-5, err_msg=key)


def test_post_fcnet_layers_follow_the_hidden_ones_of_vectors_too():
    spec = actor_critic("policy", S.Box(-1, 1, (3,), F32), 2, config(fcnet_hiddens=[7], post_fcnet_hiddens=[5]))
    dense = [(layer.fan_in, layer.units, layer.activation) for layer in spec.layers if layer.kind == "dense"]
    assert dense[:3] == [(3, 7, "tanh"), (7, 5, "relu"), (5, 2, None)]


# --- sizes


@pytest.mark.parametrize("size", [42, 64, 84, 96])
def test_default_filters_leave_one_pixel(size):
    """Each layer halves or quarters; the last one takes all that is left, into 256 numbers."""
    spec = actor_critic("policy", image(size), 2, config())
    convs = [layer for layer in spec.layers if layer.conv is not None and not layer.name.startswith("value_")]
    assert [[x.conv.filters, list(x.conv.kernel), x.conv.stride[0]] for x in convs] == CONV_FILTERS[size, size]
    assert convs[-1].conv.out == (1, 1, 256) and not any(map(any, convs[-1].conv.pads))
    heads = {layer.name: layer.fan_in for layer in spec.layers if layer.kind == "dense"}
    assert heads == {"logits": 256, "value": 256}


ATARI = 8 * 8 * 4 * 16 + 16 + 4 * 4 * 16 * 32 + 32 + 11 * 11 * 32 * 256 + 256
MLP = 4 * 256 + 256 + 256 * 256 + 256
HEADS = 256 * 2 + 2 + 256 + 1
GATE = 2 * 64 * 3 * 64 + 64
UNIT = 4 * 64 + 4 * 64 * 32 + 2 * 32 + 32 * 64 + 2 * GATE + 64 * 32 + 32 + 32 * 64 + 64


@pytest.mark.parametrize(
    ("space", "keys", "expected"),
    [
        (CARTPOLE, {}, 2 * MLP + HEADS),
        (image(84, channels=4), {}, 2 * ATARI + HEADS),
        (image(84, channels=4), {"vf_share_layers": True}, ATARI + HEADS),
        (CARTPOLE, {"use_lstm": True}, MLP + 4 * (256 * 256 + 256 * 256 + 256) + HEADS),
        (CARTPOLE, {"use_gru": True}, MLP + 3 * (256 * 256 + 256 * 256 + 2 * 256) + HEADS),
        (CARTPOLE, {"use_lstm": True, "lstm_cell_size": 8}, MLP + 4 * (256 * 8 + 8 * 8 + 8) + 9 * 3),
        (image(84, channels=4), {"use_lstm": True}, ATARI + 4 * (256 * 256 * 2 + 256) + HEADS),
        (CARTPOLE, {"use_attention": True}, MLP + 256 * 64 + 64 + UNIT + 65 * 3),
        (CARTPOLE, {"use_attention": True, "attention_num_transformer_units": 2}, MLP + 257 * 64 + 2 * UNIT + 65 * 3),
        (CARTPOLE, {"free_log_std": True}, 2 * MLP + 257 * 1 + 1 + 257),
        # An image of its own and a branch for the rest, in both of policy and value.
        (S.Dict({"eye": image(84, channels=4), "arm": CARTPOLE}), {}, 2 * (ATARI + MLP) + 513 * 2 + 513),
    ],
)
def test_parameter_counts(space, keys, expected):
    action_space = S.Box(-1, 1, (1,), F32)  # two inputs of its distribution, like two choices
    assert count(actor_critic("policy", space, 2, config(**keys), action_space)) == expected


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("keys", [{}, {"use_lstm": True}, {"use_gru": True}, {"use_attention": True}])
def test_frameworks_have_as_many_parameters(framework, keys):
    spec = actor_critic("policy", S.Dict({"eye": image(42), "arm": CARTPOLE}), 2, config(**keys))
    network = built(framework, spec, spec.initial_weights(np.random.default_rng(0)))
    if framework == "torch":
        assert sum(p.numel() for p in network.parameters()) == count(spec)
    else:
        assert network.model.count_params() == count(spec)


# --- wrong filters


def test_other_sizes_get_filters_suggested():
    """And the suggestion works."""
    with pytest.raises(ConfigError) as error:
        actor_critic("policy", image(60, 80), 2, config())
    text = str(error.value)
    assert "'conv_filters': there is no default for images of 60x80 pixels" in text
    assert "(only for 42x42, 64x64, 84x84, 96x96)" in text
    suggested = [[16, [4, 4], 2], [32, [4, 4], 2], [64, [4, 4], 2], [256, [8, 10], 1]]
    assert f"conv_filters={suggested} would fit" in text
    spec = actor_critic("policy", image(60, 80), 2, config(conv_filters=suggested))
    assert [layer.conv.out for layer in spec.layers if layer.conv][3] == (1, 1, 256)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([[16, [8, 8]]], r"item 0 is \[16, \[8, 8\]\], expected \[filters, kernel, stride\] such as"),
        ([[16, [8, 8, 8], 4]], r"item 0 is .*expected \[filters, kernel, stride\]"),
        ([[16, [8, 8], 4], [0, [4, 4], 2]], r"item 1 is \[0, .*expected"),
        ([[16, [8, 8], 0]], "item 0 is .*expected"),
        ([[16, [8.5, 8], 1]], "item 0 is .*expected"),
        ([[True, [8, 8], 1]], "item 0 is .*expected"),
        ([[16, "8x8", 1]], "item 0 is .*expected"),
        (["16"], "item 0 is '16', expected"),
        ([5], "item 0 is 5, expected"),
        ("16, 8, 4", "'conv_filters' is '16, 8, 4', expected a list"),
        (7, "'conv_filters' is 7, expected a list"),
        (
            [[16, [8, 8], 4], [32, [4, 4], 2], [256, [13, 11], 1]],
            r"item 2, \[256, \[13, 11\], 1\], doesn't fit: 11x11 pixels are left and the last kernel is not padded; "
            r"for 84x84 pixels conv_filters=\[\[16, .*\] would fit",
        ),
    ],
)
def test_wrong_filters_are_named(filters, message):
    with pytest.raises(ConfigError, match=message):
        actor_critic("policy", image(84), 2, config(conv_filters=filters))


def test_small_images_are_flattened_unless_told_otherwise():
    """Rank 3, at least 16 pixels high and wide: an image. `conv_filters=[]` flattens any."""
    kinds = lambda space, **keys: {layer.kind for layer in actor_critic("p", space, 2, config(**keys)).layers}  # noqa: E731
    assert "conv" not in kinds(image(15))
    assert "conv" in kinds(image(15), conv_filters=[[4, [3, 3], 2]])
    assert "conv" not in kinds(image(84), conv_filters=[])
    assert "conv" not in kinds(S.Box(-1, 1, (84, 84), F32))


# --- inputs


def test_bytes_of_images_become_numbers_up_to_1():
    """Other integers, and images of floats, stay as they are."""

    def entering(space: gym.Space, value: float) -> float:
        spec = actor_critic("policy", space, 2, config(conv_filters=[[1, [16, 16], 1]]))
        first = next(layer for layer in spec.layers if layer.kind == "conv")
        cut = NetworkSpec("policy", spec.inputs, spec.layers, {"x": first.source})
        obs = np.full((1, *space.shape), value, batch_dtype(space))
        if first.source == "obs":
            return float(obs.ravel()[0])
        return float(call("numpy", cut, make_weights(spec), {"obs": obs})["x"].ravel()[0])

    assert entering(image(16), 255) == 1.0 and entering(image(16), 51) == pytest.approx(0.2)
    assert entering(S.Box(0, 9, (16, 16, 1), np.int32), 7) == 7.0
    assert entering(image(16, dtype=F32), 0.25) == 0.25


def test_one_hot_by_hand():
    """Each component's classes side by side, from its start on; a value outside is all 0."""
    space = S.MultiDiscrete([[2, 3], [1, 2]], start=[[0, 5], [7, -1]])
    spec = actor_critic("policy", space, 2, config(fcnet_hiddens=[]))
    (layer,) = (layer for layer in spec.layers if layer.kind == "one_hot")
    assert layer.units == 8 and layer.sizes == (2, 3, 1, 2) and layer.offsets == (0, 5, 7, -1)
    cut = NetworkSpec("policy", spec.inputs, spec.layers, {"x": layer.name})
    obs = np.array([[[1, 7], [7, -1]], [[0, 5], [7, 0]]])
    found = call("numpy", cut, make_weights(spec), {"obs": obs})["x"]
    assert found.tolist() == [[0, 1, 0, 0, 1, 1, 1, 0], [1, 0, 1, 0, 0, 1, 0, 1]]


SPACES = {
    "multi_discrete": S.MultiDiscrete([[2, 3], [1, 2]], start=[[0, 5], [7, -1]]),
    "multi_binary": S.MultiBinary(5),
    "multi_binary_matrix": S.MultiBinary([2, 3]),
    "bool_box": S.Box(0, 1, (3,), np.bool_),
    "dict": S.Dict({"b": BOX, "a": S.Discrete(3, start=1), "c": S.MultiBinary(2)}),
    "tuple": S.Tuple([S.Discrete(2), S.Tuple([BOX, S.Dict({"x": S.Box(-1, 1, (2, 2), np.float64)})])]),
    "image_and_rest": S.Dict({"eye": image(16, 17), "arm": BOX, "gear": S.Discrete(3, start=2)}),
    "two_images": S.Tuple([image(16), image(16, 18, 1, F32)]),
    "names_that_meet": S.Dict({"a": S.Dict({"b": BOX, "c d": S.Discrete(2)}), "a_b": BOX, "é.f": S.MultiBinary(2)}),
}
SMALL = {"fcnet_hiddens": [4], "conv_filters": [[2, [4, 4], 3], [3, [3, 3], 2]], "post_fcnet_hiddens": [3]}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("framework", [*FRAMEWORKS, "keras_model"])
def test_spaces_are_encoded_alike(framework, name, share):
    spec = actor_critic("policy", SPACES[name], 2, config(**SMALL, vf_share_layers=share))
    weights, inputs = make_weights(spec), observations(SPACES[name], 5)
    expected = call("numpy", spec, weights, inputs)
    for output, x in call(framework, spec, weights, inputs).items():
        np.testing.assert_allclose(x, expected[output], rtol=2e-5, atol=5e-6, err_msg=output)


def test_a_mixed_network_has_a_branch_for_each_image_and_one_for_the_rest():
    spec = actor_critic("policy", SPACES["image_and_rest"], 2, config(**SMALL, vf_share_layers=True))
    sources = {layer.name: layer.sources for layer in spec.layers}
    assert sources["encoded"] == ("obs/arm", "obs/gear_one_hot")
    assert sources["hidden_0"] == ("encoded",)
    assert sources["branches"] == ("obs/eye_conv_flat", "hidden_0")
    assert sources["post_0"] == ("branches",) and sources["logits"] == sources["value"] == ("post_0",)


def test_networks_dont_see_the_action_mask():
    space = S.Dict({"action_mask": S.MultiBinary(3), "x": BOX})
    spec = actor_critic("policy", space, 3, config(fcnet_hiddens=[4]))
    assert list(spec.inputs) == ["obs/x"]
    with pytest.raises(EnvError, match="holds nothing but an action mask: a network needs something to see"):
        actor_critic("policy", S.Dict({"action_mask": S.MultiBinary(3)}), 3, config())


@pytest.mark.parametrize("space", [S.Text(3), S.Sequence(S.Discrete(2)), S.Graph(BOX, None)])
def test_unsupported_parts_are_named(space):
    with pytest.raises(EnvError, match=r"observation space .* of 'obs/deep/1' isn't supported: expected Box, Discrete"):
        actor_critic("policy", S.Dict({"deep": S.Tuple([BOX, space])}), 2, config())


def test_plain_names_are_never_the_same():
    found = plain_names(["a/b", "a_b", "a.b", "a_b_1", "c d"])
    assert found == {"a/b": "a_b", "a_b": "a_b_1", "a.b": "a_b_2", "a_b_1": "a_b_1_1", "c d": "c_d"}


# --- heads


@pytest.mark.parametrize("framework", ["numpy", *FRAMEWORKS])
def test_free_log_std_is_the_same_for_every_row(framework):
    spec = actor_critic("policy", BOX, 4, config(fcnet_hiddens=[4], free_log_std=True), S.Box(-1, 1, (2,), F32))
    weights = make_weights(spec)
    (key,) = (key for key in weights if key.endswith("log_std"))
    assert not spec.initial_weights(np.random.default_rng(0))[key].any(), "a standard deviation of 1 at first"
    out = call(framework, spec, weights, observations(BOX, 5))["logits"]
    assert out.shape == (5, 4)
    np.testing.assert_array_equal(out[:, 2:], np.tile(weights[key], (5, 1)))
    assert len(np.unique(out[:, 0])) == 5
    if framework != "numpy":
        found = gradients(framework, spec, weights, observations(BOX, 5), ("logits",))[key]
        coefficients = np.cos(np.arange(20)).reshape(5, 4)[:, 2:].sum(0)
        np.testing.assert_allclose(found, coefficients, rtol=1e-5)


@pytest.mark.parametrize(("logits", "space"), [(3, S.Discrete(3)), (4, S.Discrete(4)), (2, S.Tuple([S.Discrete(2)]))])
def test_free_log_std_is_for_boxes(logits, space):
    with pytest.raises(ConfigError, match="'free_log_std': needs means and as many log-stds.*it is for Box actions"):
        actor_critic("policy", BOX, logits, config(free_log_std=True), space)


def test_without_a_final_linear_layer_the_last_hidden_one_is_the_output():
    keys = {"fcnet_hiddens": [5, 2], "fcnet_activation": "tanh", "no_final_linear": True}
    spec = actor_critic("policy", BOX, 2, config(**keys))
    assert spec.outputs["logits"] == "hidden_1"
    out = call("numpy", spec, make_weights(spec), observations(BOX, 3))
    assert out["logits"].shape == (3, 2) and (np.abs(out["logits"]) < 1).all(), "tanh is its activation"
    half = actor_critic("policy", BOX, 4, config(**keys, free_log_std=True), S.Box(-1, 1, (2,), F32))
    assert half.outputs["logits"] == "log_std"


@pytest.mark.parametrize(
    "keys", [{}, {"fcnet_hiddens": []}, {"fcnet_hiddens": [5]}, {"fcnet_hiddens": [2], "use_lstm": True}]
)
def test_no_final_linear_that_doesnt_fit(keys):
    with pytest.raises(ConfigError, match=r"'no_final_linear': the last of fcnet_hiddens=.* must be 2 wide in a fully"):
        actor_critic("policy", BOX, 2, config(**keys, no_final_linear=True))


def test_convolutions_keep_the_scale_through_relu():
    """Columns of length sqrt(2): half of what is normally distributed is lost, the rest is as large again."""
    spec = actor_critic("policy", image(42, dtype=F32), 2, config())
    weights = spec.initial_weights(np.random.default_rng(0))
    for name, (kernel, bias) in spec.weight_keys().items():
        layer: Layer = next(layer for layer in spec.layers if layer.name == name)
        length = np.sqrt(np.square(weights[kernel]).reshape(-1, weights[kernel].shape[-1]).sum(0))
        expected = math.sqrt(2) if layer.kind == "conv" else 0.01
        np.testing.assert_allclose(length, expected, rtol=1e-5, err_msg=name)
        assert not weights[bias].any()
