"""First weights by name: their sizes by hand, where a config's `model` puts them, and the same in every framework."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from modes import MODE_PARAMS
from policies import make

from polylib.algorithms.ppo.config import PPOConfig
from polylib.errors import ConfigError, ConfigTypeError
from polylib.models.default_networks import actor_critic, critic_network, q_network
from polylib.models.initializers import NAMED, canonical, configured, he_uniform, normc, orthogonal, xavier_uniform
from polylib.policy.policy import random_stream

S = gym.spaces
BOX = S.Box(-1, 1, (4,), np.float32)
ORTHOGONAL = {"fcnet_weights_initializer": "orthogonal", "fcnet_weights_initializer_config": {"gain": 1.5}}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def model(**keys) -> dict:
    return dict(PPOConfig().training(model={"fcnet_hiddens": [8, 6], **keys})["model"])


def weights(spec) -> dict[str, np.ndarray]:
    """Kernels by layer name."""
    made = spec.initial_weights(rng())
    return {name: made[keys[0]] for name, keys in spec.weight_keys().items()}


def is_orthogonal(kernel: np.ndarray, gain: float) -> bool:
    """All columns (rows if there are fewer) of length `gain`, at right angles."""
    kernel = kernel.reshape(-1, kernel.shape[-1])
    small = kernel.T @ kernel if kernel.shape[0] >= kernel.shape[1] else kernel @ kernel.T
    return np.allclose(small, gain**2 * np.eye(len(small)), atol=1e-5)


# --- by themselves


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (2, 3, 4, 5)])
def test_orthogonal(shape):
    kernel = orthogonal(2.0)(rng(), shape)
    assert kernel.shape == shape and is_orthogonal(kernel, 2.0)
    assert not is_orthogonal(normc(2.0)(rng(), shape), 2.0)


def test_normc_has_columns_of_one_length():
    kernel = normc(0.5)(rng(), (2, 3, 4))
    np.testing.assert_allclose(np.square(kernel).sum((0, 1)), np.full(4, 0.25))


def test_variances():
    """300 inputs, 100 units: Xavier 2 / 400 (uniform up to sqrt(6 / 400)), He 2 / 300 (up to sqrt(6 / 300))."""
    shape = (300, 100)
    for name, variance in {"xavier_uniform": 2 / 400, "xavier_normal": 2 / 400, "he_uniform": 2 / 300}.items():
        assert np.var(NAMED[name][0]()(rng(), shape)) == pytest.approx(variance, rel=0.03), name
    assert np.var(NAMED["he_normal"][0]()(rng(), shape)) == pytest.approx(2 / 300, rel=0.03)
    assert np.std(NAMED["normal"][0](0.2)(rng(), shape)) == pytest.approx(0.2, rel=0.03)
    assert np.abs(xavier_uniform()(rng(), shape)).max() == pytest.approx((6 / 400) ** 0.5, rel=0.01)
    assert np.abs(he_uniform()(rng(), shape)).max() == pytest.approx((6 / 300) ** 0.5, rel=0.01)
    # A gain of 3 is one of 9 in variance.
    assert np.var(NAMED["xavier_normal"][0](3.0)(rng(), shape)) == pytest.approx(9 * 2 / 400, rel=0.03)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("orthogonal_", "orthogonal"),
        ("glorot_uniform", "xavier_uniform"),
        ("xavier_normal_", "xavier_normal"),
        ("kaiming_normal_", "he_normal"),
        ("random_normal", "normal"),
    ],
)
def test_names_of_keras_and_torch(name, ours):
    assert canonical(name) == ours
    assert model(fcnet_weights_initializer=name)["fcnet_weights_initializer"] == ours


# --- in networks


def test_hidden_layers_have_it_and_heads_do_not():
    before, after = weights(actor_critic("p", BOX, 2, model())), weights(actor_critic("p", BOX, 2, model(**ORTHOGONAL)))
    hidden = ["hidden_0", "hidden_1", "value_hidden_0", "value_hidden_1"]
    assert sorted(before) == sorted(after) == sorted([*hidden, "logits", "value"])
    for name in hidden:
        assert is_orthogonal(after[name], 1.5) and not is_orthogonal(before[name], 1.0), name
    for name in ("logits", "value"):  # columns of length 0.01, as ever
        np.testing.assert_allclose(np.square(after[name]).sum(0), np.full(after[name].shape[1], 1e-4), rtol=1e-5)


def test_the_default_is_normc_of_1():
    default, named = model(), model(fcnet_weights_initializer="normc", fcnet_weights_initializer_config={"std": 1.0})
    for name, kernel in weights(actor_critic("p", BOX, 2, default)).items():
        np.testing.assert_array_equal(weights(actor_critic("p", BOX, 2, named))[name], kernel)


def test_in_networks_of_q_values():
    found = weights(critic_network("q", BOX, model(**ORTHOGONAL), action_size=2, twins=2))
    assert all(is_orthogonal(found[f"q{i}_hidden_{j}"], 1.5) for i in (1, 2) for j in (0, 1))
    found = weights(q_network("q", BOX, 3, model(**ORTHOGONAL), S.Discrete(3), hiddens=[5]))
    assert is_orthogonal(found["hidden_0"], 1.5) and not is_orthogonal(found["advantages_hidden_0"], 1.5)


def test_layers_after_convolutions_have_their_own():
    image = S.Box(0, 255, (10, 10, 1), np.uint8)
    keys = {"conv_filters": [[2, [4, 4], 3], [3, [3, 3], 2]], "post_fcnet_hiddens": [5], "vf_share_layers": True}
    post = {"post_fcnet_weights_initializer": "orthogonal", "post_fcnet_weights_initializer_config": {"gain": 0.5}}
    found = weights(actor_critic("p", image, 2, model(**keys, **ORTHOGONAL, **post)))
    assert is_orthogonal(found["post_0"], 0.5) and not is_orthogonal(found["obs_conv_0"], 1.5)
    both = weights(actor_critic("p", S.Dict({"i": image, "v": BOX}), 2, model(**keys, **ORTHOGONAL)))
    assert is_orthogonal(both["hidden_0"], 1.5) and not is_orthogonal(both["post_0"], 1.5)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_every_framework_starts_with_the_same(framework, traced):
    policy = make((framework, traced), BOX, S.Discrete(2), seed=3, hiddens=(8, 6), model=ORTHOGONAL)
    spec = policy.objective.networks()["policy"]
    found = policy.get_weights()
    kernels = [found[keys[0]] for name, keys in spec.weight_keys().items() if "hidden" in name]
    assert len(kernels) == 4 and all(is_orthogonal(kernel, 1.5) for kernel in kernels)
    for key, value in spec.initial_weights(random_stream(3, 0)).items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


# --- mistakes


def test_unknown_names():
    with pytest.raises(ConfigError, match=r"'model.fcnet_weights_initializer': got 'ortogonal', expected None or"):
        model(fcnet_weights_initializer="ortogonal")
    with pytest.raises(ConfigError, match=r"'normal' \(did you mean 'orthogonal'\?\)"):
        model(post_fcnet_weights_initializer="ortogonal")
    with pytest.raises(ConfigError, match="got 1.5, expected None or one of 'normc', 'orthogonal'"):
        model(fcnet_weights_initializer=1.5)
    with pytest.raises(ConfigTypeError, match="'model.fcnet_weights_initializer_config': got 1.5 .*, expected a dict"):
        model(fcnet_weights_initializer_config=1.5)
    # Where nobody checked the key before, as in a part of `model` that an algorithm takes.
    with pytest.raises(ConfigError, match="'model.fcnet_weights_initializer': got 'othogonal', expected None or"):
        configured({"fcnet_weights_initializer": "othogonal"}, "fcnet")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("orthogonal", {"gian": 1.4}, r"got \{'gian': 1.4\}, expected a dict with at most the key 'gain'"),
        ("orthogonal", {"std": 1.0}, "at most the key 'gain': 'orthogonal' takes no other"),
        ("normc", {"gain": 1.0}, "at most the key 'std': 'normc' takes no other"),
        ("orthogonal", {"gain": 0.0}, "'gain' is 0.0, expected a number > 0"),
        ("orthogonal", {"gain": float("inf")}, "'gain' is inf, expected a number > 0"),
        ("orthogonal", {"gain": float("nan")}, "'gain' is nan, expected a number > 0"),
        ("orthogonal", {"gain": "big"}, "'gain' is 'big', expected a number > 0"),
        ("orthogonal", {"gain": True}, "'gain' is True, expected a number > 0"),
        (None, {"gain": 1.4}, r"\{'gain': 1.4\} does nothing without fcnet_weights_initializer: set it to"),
    ],
)
def test_settings_that_do_not_fit(name, settings, message):
    keys = {"fcnet_weights_initializer": name, "fcnet_weights_initializer_config": settings}
    with pytest.raises(ConfigError, match=f"config key 'model.fcnet_weights_initializer_config': .*{message}"):
        actor_critic("p", BOX, 2, model(**keys))
