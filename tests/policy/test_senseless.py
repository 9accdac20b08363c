"""What makes no sense is refused in one line that names it, not taken for something else."""

from __future__ import annotations

import logging

import gymnasium as gym
import numpy as np
import pytest
from modes import MODE_PARAMS
from policies import BOX, DISCRETE, make, random_batch

from polylib.errors import BatchError, ConfigError, EnvError
from polylib.models.default_networks import encode
from polylib.models.distributions import framework_distribution, make_distribution
from polylib.policy.builders import build_tf_policy, build_torch_policy

S = gym.spaces
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
NUMPY = ("numpy", False)


@pytest.mark.parametrize("shape", [(0,), (42, 42, 0)])
@pytest.mark.parametrize("nested", [False, True])
def test_observations_without_numbers(shape, nested):
    space = S.Box(0, 255, shape, np.uint8)
    name = "obs/a" if nested else "obs"
    with pytest.raises(EnvError, match=rf"'{name}' has shape \[.*0\], which holds no numbers"):
        make(NUMPY, S.Dict({"a": space, "b": BOX}) if nested else space)


def test_bits_are_0_or_1():
    policy = make(NUMPY, S.MultiBinary(3))
    policy.compute_single_action(np.array([0, 1, 0], np.int8))
    with pytest.raises(BatchError, match=r"observation \[2 7 0\].*not in the space MultiBinary\(3\)"):
        policy.compute_single_action(np.array([2, 7, 0], np.int8))


@pytest.mark.parametrize("value", [-1.0, 0.5, -1e9])
def test_masks_are_0_or_1(value):
    """People who add masks to logits would have theirs understood the other way round."""
    policy = make(NUMPY, S.Dict({"x": BOX, "action_mask": S.Box(-np.inf, 1, (3,), np.float32)}), DISCRETE)
    obs = {"x": np.zeros((1, *BOX.shape), np.float32), "action_mask": np.array([[1, 0, 1]], np.float32)}
    assert policy.compute_actions(obs).actions[0] != DISCRETE.start + 1
    obs["action_mask"][0, 1] = value
    with pytest.raises(BatchError, match="'action_mask' holds .*expected 1 for actions that are allowed and 0"):
        policy.compute_actions(obs)


def test_settings_that_do_nothing(caplog):
    with pytest.raises(ConfigError, match="'lstm_use_prev_action': it does nothing without use_lstm or use_gru"):
        make(NUMPY, model={"lstm_use_prev_action": True})
    with caplog.at_level(logging.WARNING, "polylib"):
        make(NUMPY, model={"conv_filters": [[4, 2, 1]]})
    assert "'conv_filters' does nothing here" in caplog.text


def test_pictures_with_channels_first_are_worth_a_word(caplog):
    with caplog.at_level(logging.WARNING, "polylib"):
        make(NUMPY, S.Box(0, 255, (3, 20, 20), np.uint8))
    assert "take pictures as [height, width, channels]" in caplog.text


def test_bytes_of_small_pictures_are_scaled():
    layers, width = encode(S.Box(0, 255, (2, 3, 2), np.uint8))
    assert layers[0].gain == 1 / 255 and width == 12
    assert encode(S.Box(0, 255, (7,), np.uint8))[0][0].gain == 1  # RAM, not a picture


@MODES
def test_a_loss_without_the_model(framework, traced):
    if framework == "torch":
        import torch

        policy = build_torch_policy("P", loss_fn=lambda policy, model, dist, batch: torch.ones(()))
    else:
        import tensorflow as tf

        policy = build_tf_policy("P", loss_fn=lambda policy, model, dist, batch: tf.constant(1.0))
    made = make((framework, traced), objective=policy)
    with pytest.raises(ConfigError, match="doesn't depend on the model: nothing can be learned from it"):
        made.learn_on_batch(random_batch(made.spec, 4))
    made.close()


def test_a_distribution_that_leaves_the_action_space():
    torch = pytest.importorskip("torch")
    six = framework_distribution(lambda inputs: torch.distributions.Categorical(logits=inputs), inputs_size=6)
    with pytest.raises(ConfigError, match=r"it samples .*, which action space Discrete\(3, start=4\) doesn't have"):
        # Some draws when it is made may happen to fit.
        dist = make_distribution(S.Discrete(3, start=4), custom=six, framework="torch")
        dist.draw(np.random.default_rng(0), np.zeros((20, 6), np.float32))
