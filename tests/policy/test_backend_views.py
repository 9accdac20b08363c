"""`policy.model` and `policy.dist_class`: for people who look inside."""

from __future__ import annotations

import functools
import io

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_tf
from modes import MODE_PARAMS
from policies import BOX, DISCRETE, MULTI, TORQUE, make

from polylib.policy import numpy_ops
from polylib.policy.testing import sample_space

MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
NATIVE = {"tf": "ndarray", "tf2": "EagerTensor", "torch": "Tensor"}


SPACES = {"discrete": DISCRETE, "multi": MULTI, "box": TORQUE}


@functools.cache
def policy(mode, actions="discrete"):
    return make(mode, BOX, SPACES[actions], hiddens=(8, 7), seed=3)


def view(mode, actions="discrete", size=6):
    """A policy, observations, and the model's outputs for them."""
    p = policy(mode, actions)
    obs = sample_space(BOX, size, 0)
    return p, obs, p.model(obs)


def to_numpy(x):
    return x.detach().numpy() if hasattr(x, "detach") else np.asarray(x)


def tensor(mode, array):
    """The array as the mode's own tensor, NumPy in `tf` mode."""
    if mode[0] == "torch":
        import torch

        return torch.from_numpy(array)
    if mode[0] == "tf2":
        import tensorflow as tf

        return tf.constant(array)
    return array


@MODES
@pytest.mark.parametrize("kind", SPACES)
def test_the_model_gives_what_the_policy_acts_on(framework, traced, kind):
    p, obs, out = view((framework, traced), kind)
    assert set(out) == {"logits", "value"}
    assert type(out["logits"]).__name__ == NATIVE[framework]
    acted = p.compute_actions(obs, explore=False)
    np.testing.assert_allclose(to_numpy(out["logits"]), acted.extras["action_dist_inputs"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(to_numpy(out["value"])[:, 0], p.compute_values(obs), rtol=1e-6, atol=1e-7)


@MODES
def test_the_model_is_the_policys_own(framework, traced):
    """It follows `set_weights`, and one observation at a time is fine."""
    p, obs, before = view((framework, traced))
    before = to_numpy(before["logits"]).copy()
    weights = p.get_weights()
    p.set_weights({key: w + 1 for key, w in weights.items()})
    after = to_numpy(p.model(obs)["logits"])
    acted = p.compute_actions(obs, explore=False).extras["action_dist_inputs"]
    np.testing.assert_allclose(after, acted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)
    assert to_numpy(p.model(obs[:1])["value"]).shape == (1, 1)
    p.set_weights(weights)


@MODES
@pytest.mark.parametrize("kind", SPACES)
def test_dist_class_is_the_distribution_of_the_models_outputs(framework, traced, kind):
    mode = (framework, traced)
    p, obs, out = view(mode, kind)
    inputs = to_numpy(out["logits"])
    dist = p.dist_class(out["logits"])
    acted = p.compute_actions(obs, explore=False)
    np.testing.assert_allclose(to_numpy(dist.deterministic_sample()), acted.actions, rtol=1e-6, atol=1e-6)

    state = p.rng.bit_generator.state
    drawn = to_numpy(dist.sample())
    p.rng.bit_generator.state = state
    expected = p.compute_actions(obs, explore=True)
    np.testing.assert_allclose(drawn, expected.actions, rtol=1e-6, atol=1e-6)

    own = p.objective.dist
    actions = expected.actions
    logp = to_numpy(dist.logp(tensor(mode, actions)))
    np.testing.assert_allclose(logp, own.logp(numpy_ops, inputs, actions), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(to_numpy(dist.entropy()), own.entropy(numpy_ops, inputs), rtol=1e-5)
    other = p.dist_class(tensor(mode, inputs + np.float32(0.1) * np.arange(inputs.shape[1], dtype=np.float32)))
    kl = own.kl(numpy_ops, inputs, to_numpy(other.inputs))
    np.testing.assert_allclose(to_numpy(dist.kl(other)), kl, rtol=1e-4, atol=1e-6)
    for x in (dist.sample(), dist.logp(tensor(mode, actions)), dist.entropy()):
        assert type(x).__name__ == NATIVE[framework], "the backend's own tensors; NumPy in tf mode"


@MODES
def test_rllibs_second_argument_is_accepted(framework, traced):
    p, _, out = view((framework, traced))
    dist = p.dist_class(out["logits"], p.model)
    np.testing.assert_array_equal(to_numpy(dist.entropy()), to_numpy(p.dist_class(out["logits"]).entropy()))


@needs_tf
@pytest.mark.parametrize("mode", [("tf", False), ("tf2", False), ("tf2", True)], ids=["tf", "tf2", "tf2-traced"])
def test_summary_lists_the_layers(mode):
    p = policy(mode)
    lines = io.StringIO()
    p.model.summary(print_fn=lambda line, **kwargs: lines.write(line + "\n"))
    text = lines.getvalue()
    for name in ("hidden_0", "hidden_1", "value_hidden_0", "logits", "value"):
        assert name in text
    # 3 * 8 + 8 and 8 * 7 + 7 in each branch, 7 * 3 + 3 and 7 + 1 in the heads
    assert f"{2 * (32 + 63) + 24 + 8}" in text


@needs_tf
@pytest.mark.parametrize("mode", [("tf", False), ("tf2", True)], ids=["tf", "tf2"])
def test_keras_attributes_are_there(mode):
    p = policy(mode)
    assert p.model.name == "policy"
    assert len(p.model.layers) > 4
    weights = p.model.get_weights()
    assert all(isinstance(w, np.ndarray) for w in weights)
    assert sum(w.size for w in weights) == sum(w.size for w in p.get_weights().values())
    with pytest.raises(AttributeError, match="no_such_thing"):
        p.model.no_such_thing  # noqa: B018


@needs_tf
def test_the_graph_modes_model_returns_numpy_for_any_input():
    """Lists and float64 too; one-hot observations as well."""
    p = policy(("tf", False))
    obs = sample_space(BOX, 2, 0)
    expected = p.model(obs)
    for variant in (obs.tolist(), obs.astype(np.float64)):
        for name, x in p.model(variant).items():
            assert isinstance(x, np.ndarray)
            np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=1e-6)
    one_hot = make(("tf", False), gym.spaces.Discrete(4, start=1), DISCRETE)
    assert one_hot.model(np.array([1, 4]))["logits"].shape == (2, 3)
    one_hot.close()


def test_torch_parameters_can_be_listed():
    pytest.importorskip("torch")
    p = policy(("torch", False))
    assert sum(x.numel() for x in p.model.parameters()) == sum(w.size for w in p.get_weights().values())
