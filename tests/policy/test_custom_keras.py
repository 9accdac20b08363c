"""Users' Keras models in the three TensorFlow modes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from modes import MODES, mode_params
from policies import BOX, DISCRETE, TORQUE, make, make_spec, random_batch

import polylib
from polylib import registry
from polylib.algorithms.ppo import PPOConfig
from polylib.checkpoints import CheckpointError
from polylib.errors import ConfigError, FrameworkError
from polylib.models.spaces import flatten, unflatten
from polylib.policy.policy import Policy

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
import keras_models  # noqa: E402

S = gym.spaces
TF_MODES = [mode for mode in MODES if mode[0] != "torch"]
in_all_modes = pytest.mark.parametrize(("framework", "traced"), mode_params(TF_MODES))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_models", registry._Shelf())


def custom(model, **config):
    return {"custom_model": model, "custom_model_config": config}


def finite(policy, batch):
    stats = policy.learn_on_batch(batch)["learner_stats"]
    assert all(np.isfinite(value) for value in stats.values()), stats
    return stats


def complaint(model, mode=("tf2", False), obs_space=BOX, **config):
    with pytest.raises(ConfigError) as caught:
        make(mode, obs_space, model=custom(model, **config))
    return str(caught.value)


# --- ways to name a model


def instance():
    return keras_models.functional(BOX, DISCRETE, {"logits": 3, "value": 1})


WAYS = {
    "function": lambda: keras_models.functional,
    "class": lambda: keras_models.Normalised,
    "registered": lambda: polylib.register_model("mine", keras_models.functional) or "mine",
    "module": lambda: "keras_models:functional",
    "instance": instance,
    "registered instance": lambda: polylib.register_model("mine", instance()) or "mine",
}


@in_all_modes
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_name_a_model_acts_and_learns(framework, traced, way):
    policy = make((framework, traced), model=custom(WAYS[way]()))
    batch = random_batch(policy.spec, 12)
    out = policy.compute_actions(batch["obs"])
    assert out.extras["action_dist_inputs"].shape == (12, 3) and policy.compute_values(batch["obs"]).shape == (12,)
    before = policy.get_weights()
    finite(policy, batch)
    policy.learn_on_minibatches(batch, np.arange(12, dtype=np.int32).reshape(3, 4))
    after = policy.get_weights()
    moved = {key for key in before if not np.array_equal(before[key], after[key])}
    frozen = {"policy/000/kernel", "policy/000/bias"} if way == "class" else set()
    assert moved == set(before) - frozen
    policy.close()


def test_a_name_nobody_registered():
    polylib.register_model("my_net", keras_models.functional)
    text = complaint("my_nett")
    assert "no model is registered as 'my_nett'" in text and "'my_net'" in text and "module:attribute" in text
    assert "can't import 'no_such'" in complaint("no_such:net")
    assert "'keras_models' has no 'nett'" in complaint("keras_models:nett")
    assert "is 3, expected a factory, a class or a model" in complaint("keras_models:NOT_CALLABLE")
    with pytest.raises(ConfigError, match="expected a factory, a class or a model, got 3"):
        polylib.register_model("three", 3)


def test_custom_model_config_reaches_the_factory():
    policy = make(("tf2", False), model=custom(keras_models.functional, units=5))
    assert policy.get_weights()["policy/000/kernel"].shape == (3, 5)
    assert "unexpected keyword argument 'unit'" in complaint(keras_models.functional, unit=5)
    assert "unit can't change a finished model" in complaint(instance(), unit=5)


# --- what is built


@in_all_modes
def test_the_same_seed_builds_the_same_network(framework, traced):
    state, numpy_state = random.getstate(), np.random.get_state()[1].copy()

    def first(seed):
        policy = make((framework, traced), seed=seed, model=custom(keras_models.functional))
        weights = policy.get_weights()
        policy.close()
        return weights

    one, same, other = first(0), first(0), first(1)
    reference = make(("tf2", False), seed=0, model=custom(keras_models.functional)).get_weights()
    for key in one:
        np.testing.assert_array_equal(one[key], same[key])
        np.testing.assert_array_equal(one[key], reference[key])
    assert not np.array_equal(one["policy/000/kernel"], other["policy/000/kernel"])
    assert random.getstate() == state and np.array_equal(np.random.get_state()[1], numpy_state)


@in_all_modes
def test_a_functional_instance_is_cloned_with_its_weights(framework, traced):
    model = instance()
    weights = [w.copy() for w in model.get_weights()]
    one, two = (make((framework, traced), model=custom(model)) for _ in range(2))
    for policy in (one, two):
        for mine, theirs in zip(policy.get_weights().values(), weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    finite(one, random_batch(one.spec, 8))
    assert not np.array_equal(one.get_weights()["policy/000/kernel"], weights[0])
    for kept in (list(two.get_weights().values()), model.get_weights()):
        for mine, theirs in zip(kept, weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_functional_instance_keeps_lambdas_and_own_layers():
    class Double(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    x = inputs = keras.Input((3,))
    x = Double()(keras.layers.Lambda(lambda t: t + 1)(x))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    policy = make(("tf", False), model=custom(model))
    obs = np.ones((2, 3), np.float32)
    logits = policy.compute_actions(obs).extras["action_dist_inputs"]
    np.testing.assert_allclose(logits, model(obs).numpy(), rtol=1e-5)


def test_a_functional_instance_that_cannot_be_copied():
    class Stubborn(keras.layers.Layer):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def call(self, x):
            return self.function(x)

    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(3)(Stubborn(tf.abs)(inputs)))
    text = complaint(model)
    assert "can't be copied for a policy" in text and "pass a factory" in text and "\n" not in text


def subclass_instance():
    return keras_models.Normalised(BOX, DISCRETE, {"logits": 3, "value": 1})


@pytest.mark.parametrize("traced", [False, True])
def test_a_subclass_instance_works_in_tf2(traced):
    model = subclass_instance()
    policy = make(("tf2", traced), model=custom(model))
    assert policy.model is model
    finite(policy, random_batch(policy.spec, 8))


def test_a_subclass_instance_is_refused_where_copies_are_needed():
    text = complaint(subclass_instance(), ("tf", False))
    assert "framework 'tf' needs a copy" in text and "pass a factory" in text and "\n" not in text
    config = PPOConfig().environment("CartPole-v1").framework("tf2").rollouts(num_workers=1)
    config.training(model=custom(keras_models.Normalised(S.Box(-1, 1, (4,)), S.Discrete(2), {"logits": 2, "value": 1})))
    with pytest.raises(ConfigError, match="other workers need copies.*pass a factory"):
        config.build()


@in_all_modes
def test_one_output_gets_a_default_value_network(framework, traced):
    policy = make((framework, traced), hiddens=(6,), model=custom(keras_models.logits_only))
    shapes = {key: value.shape for key, value in policy.get_weights().items()}
    assert shapes == {
        "policy/000/kernel": (3, 8),
        "policy/000/bias": (8,),
        "policy/001/kernel": (8, 3),
        "policy/001/bias": (3,),
        "policy_value/000/kernel": (3, 6),
        "policy_value/000/bias": (6,),
        "policy_value/001/kernel": (6, 1),
        "policy_value/001/bias": (1,),
    }
    batch = random_batch(policy.spec, 8)
    before = policy.get_weights()
    obs = batch["obs"]
    hidden = np.tanh(obs @ before["policy_value/000/kernel"] + before["policy_value/000/bias"])
    expected = (hidden @ before["policy_value/001/kernel"] + before["policy_value/001/bias"])[:, 0]
    np.testing.assert_allclose(policy.compute_values(obs), expected, rtol=1e-5, atol=1e-6)
    finite(policy, batch)
    assert all(not np.array_equal(before[key], value) for key, value in policy.get_weights().items())
    same = make(("tf2", False), hiddens=(6,), model=custom(keras_models.logits_only)).get_weights()
    for key, value in before.items():
        np.testing.assert_array_equal(value, same[key])  # from polylib's own generator, the same in each mode


@in_all_modes
def test_a_list_of_outputs_is_in_the_order_asked_for(framework, traced):
    def factory(observation_space, action_space, outputs):
        x = inputs = keras.Input((3,))
        ones = [keras.layers.Dense(n, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(i))(x)
                for i, n in enumerate(outputs.values(), 1)]
        return keras.Model(inputs, ones)

    policy = make((framework, traced), model=custom(factory))
    obs = np.zeros((2, 3), np.float32)
    assert policy.compute_actions(obs).extras["action_dist_inputs"].tolist() == [[1.0] * 3] * 2
    assert policy.compute_values(obs).tolist() == [2.0, 2.0]


# --- training or not


@in_all_modes
def test_frozen_layers_stay_and_batch_norm_moves(framework, traced):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .framework(framework, eager_tracing=traced)
        .training(train_batch_size=64, sgd_minibatch_size=32, num_sgd_iter=2, model=custom(keras_models.Normalised))
        .debugging(seed=0)
    )
    with config.build() as algo:
        before = algo.get_weights()["default_policy"]
        for _ in range(2):
            algo.train()
        after = algo.get_weights()["default_policy"]
    for key in ("policy/000/kernel", "policy/000/bias"):
        assert before[key].tobytes() == after[key].tobytes()
    for key in ("moving_mean", "moving_variance", "gamma", "beta"):
        assert not np.array_equal(before[f"policy/001/{key}"], after[f"policy/001/{key}"]), key


@in_all_modes
def test_only_updates_move_batch_statistics(framework, traced):
    policy = make((framework, traced), model=custom(keras_models.Normalised))
    batch = random_batch(policy.spec, 8)
    before = policy.get_weights()
    policy.compute_actions(batch["obs"])
    policy.compute_values(batch["obs"])
    policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    assert all(np.array_equal(before[key], value) for key, value in policy.get_weights().items())
    policy.learn_on_batch(batch)
    weights = before
    x = np.tanh(batch["obs"] @ weights["policy/000/kernel"] + weights["policy/000/bias"])
    after = policy.get_weights()
    np.testing.assert_allclose(after["policy/001/moving_mean"], 0.5 * x.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["policy/001/moving_variance"], 0.5 + 0.5 * x.var(0), rtol=1e-4)


def test_the_modes_learn_the_same():
    """Batch norm, dropout and regularisation included, in single updates and in a phase of them."""
    weights = {}
    for mode in TF_MODES:
        policy = make(mode, model=custom(keras_models.Normalised, rate=0.3))
        batch = random_batch(policy.spec, 16)
        policy.learn_on_batch(batch)
        policy.learn_on_minibatches(batch, np.arange(16, dtype=np.int32).reshape(2, 8))
        weights[mode] = policy.get_weights()
        policy.close()
    for mode in TF_MODES[1:]:
        for key, value in weights[TF_MODES[0]].items():
            np.testing.assert_allclose(weights[mode][key], value, rtol=1e-4, atol=1e-5, err_msg=f"{mode} {key}")


@in_all_modes
def test_dropout_is_for_updates_only(framework, traced):
    policy = make((framework, traced), model=custom(keras_models.Normalised, rate=0.5))
    batch = random_batch(policy.spec, 64)
    one, two = (policy.compute_values(batch["obs"]) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    first, second = (policy.compute_gradients(batch)[0]["policy/002/kernel"] for _ in range(2))
    assert np.abs(first - second).max() > 1e-4  # other units are left out each time


@in_all_modes
def test_regularisation_is_added_to_the_loss(framework, traced):
    def factory(observation_space, action_space, outputs, l2):
        x = inputs = keras.Input((3,))
        x = keras.layers.Dense(4, kernel_regularizer=keras.regularizers.L2(l2))(x)
        x = keras.layers.ActivityRegularization(l2=l2)(x)
        return keras.Model(inputs, {name: keras.layers.Dense(n)(x) for name, n in outputs.items()})

    found = {}
    for l2 in (0.0, 0.5):
        policy = make((framework, traced), model=custom(factory, l2=l2))
        batch = random_batch(policy.spec, 8)
        gradients, info = policy.compute_gradients(batch)
        found[l2] = info["learner_stats"]["total_loss"], gradients["policy/000/kernel"]
        weights = policy.get_weights()
    kernel, bias = weights["policy/000/kernel"], weights["policy/000/bias"]
    hidden = batch["obs"] @ kernel + bias
    expected = 0.5 * np.square(kernel).sum() + 0.5 * np.square(hidden).sum() / len(hidden)
    assert found[0.5][0] - found[0.0][0] == pytest.approx(expected, rel=1e-3)
    own = 2 * 0.5 * kernel + 2 * 0.5 * batch["obs"].T @ hidden / len(hidden)
    np.testing.assert_allclose(found[0.5][1] - found[0.0][1], own, rtol=1e-3, atol=1e-4)


@in_all_modes
def test_weights_loaded_by_the_constructor_survive(framework, traced, tmp_path):
    source = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])
    source.save_weights(tmp_path / "trunk.weights.h5")
    kernel = source.get_weights()[0]

    def factory(observation_space, action_space, outputs):
        trunk = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])
        trunk.load_weights(tmp_path / "trunk.weights.h5")
        assert np.array_equal(trunk.get_weights()[0], kernel)  # a constructor may look
        trunk.trainable = False
        x = inputs = keras.Input((3,))
        x = trunk(x)
        return keras.Model(inputs, {name: keras.layers.Dense(n)(x) for name, n in outputs.items()})

    policy = make((framework, traced), model=custom(factory))
    np.testing.assert_array_equal(policy.get_weights()["policy/000/kernel"], kernel)
    finite(policy, random_batch(policy.spec, 8))
    np.testing.assert_array_equal(policy.get_weights()["policy/000/kernel"], kernel)


@in_all_modes
def test_a_layer_that_is_unfrozen_later_learns(framework, traced):
    def factory(observation_space, action_space, outputs):
        layer = keras.layers.Dense(4, trainable=False)
        x = inputs = keras.Input((3,))
        x = layer(x)
        layer.trainable = True
        return keras.Model(inputs, {name: keras.layers.Dense(n)(x) for name, n in outputs.items()})

    policy = make((framework, traced), model=custom(factory))
    gradients, _ = policy.compute_gradients(random_batch(policy.spec, 8))
    assert np.abs(gradients["policy/000/kernel"]).max() > 0


@in_all_modes
def test_layers_that_keep_tensors(framework, traced):
    """A Normalization layer keeps its mean as an eager tensor, here too large to become a constant by itself."""
    space = S.Box(-1.0, 1.0, (200,), np.float32)

    def factory(observation_space, action_space, outputs):
        mean = np.linspace(-1, 1, 200)
        x = inputs = keras.Input((200,))
        x = keras.layers.Normalization(mean=mean, variance=np.full(200, 4.0))(x)
        return keras.Model(inputs, keras.layers.Dense(3, kernel_initializer="ones")(x))

    policy = make((framework, traced), space, model=custom(factory))
    obs = np.zeros((1, 200), np.float32) + np.linspace(-1, 1, 200, dtype=np.float32) + 0.5
    logits = policy.compute_actions(obs).extras["action_dist_inputs"]
    np.testing.assert_allclose(logits, [[50.0] * 3], rtol=1e-4)
    finite(policy, random_batch(policy.spec, 4))


# --- what goes in

NESTED = S.Dict(
    {
        "action_mask": S.MultiBinary(3),
        "camera": S.Box(0, 255, (4, 4, 1), np.uint8),
        "arm": S.Dict({"angle": S.Box(-1.0, 1.0, (2,), np.float32), "grip": S.Discrete(2)}),
    }
)


def nested_batch(policy, size):
    space = policy.observation_space
    space.seed(0)
    rows = [space.sample() for _ in range(size)]
    for row in rows:
        if isinstance(row, dict) and "action_mask" in row:
            row["action_mask"][:] = [1, 0, 1]
    flat = [flatten(space, row) for row in rows]
    columns = {name: np.stack([np.asarray(row[name]) for row in flat]) for name in flat[0]}
    return unflatten(space, columns)


def learn_from(policy, obs, size):
    out = policy.compute_actions(obs)
    rng = np.random.default_rng(0)
    batch = {"obs": obs, "actions": out.actions, **out.extras}
    batch.update(advantages=rng.standard_normal(size, np.float32), value_targets=rng.standard_normal(size, np.float32))
    finite(policy, batch)
    return out


def by_name(observation_space, action_space, outputs):
    """Inputs by name, in another order than the space's, and one of them left out."""
    angle = keras.Input((2,), name="arm_angle")
    camera = keras.Input((4, 4, 1), name="camera", dtype="uint8")
    mask = keras.Input((3,), name="action_mask")
    pixels = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(camera))
    x = keras.layers.Concatenate()([angle, pixels, mask])
    heads = {name: keras.layers.Dense(n)(x) for name, n in outputs.items()}
    return keras.Model([angle, camera, mask], heads)


def by_structure(observation_space, action_space, outputs):
    inputs = {
        "arm": {"angle": keras.Input((2,)), "grip": keras.Input((), dtype="int32")},
        "camera": keras.Input((4, 4, 1), name="camera"),
        "action_mask": keras.Input((3,), name="action_mask"),
    }
    grip = keras.layers.Flatten()(keras.layers.Embedding(2, 3)(inputs["arm"]["grip"]))
    parts = [inputs["arm"]["angle"], grip, keras.layers.Flatten()(inputs["camera"]), inputs["action_mask"]]
    x = keras.layers.Concatenate()(parts)
    return keras.Model(inputs, {name: keras.layers.Dense(n)(x) for name, n in outputs.items()})


SEEN = {}


class Sees(keras.Model):
    """Notes what it is called with."""

    def __init__(self, observation_space, action_space, outputs):
        super().__init__()
        self.heads = {name: keras.layers.Dense(n) for name, n in outputs.items()}

    def call(self, obs):
        SEEN.clear()
        SEEN.update({key: x.dtype.name for key, x in _paths(obs)})
        x = tf.concat([tf.reshape(tf.cast(x, tf.float32), (tf.shape(x)[0], -1)) for x in tf.nest.flatten(obs)], -1)
        return {name: head(x) for name, head in self.heads.items()}


def _paths(nest, path=""):
    if isinstance(nest, dict):
        return [pair for key in nest for pair in _paths(nest[key], f"{path}/{key}")]
    if isinstance(nest, tuple | list):
        return [pair for i, part in enumerate(nest) for pair in _paths(part, f"{path}/{i}")]
    return [(path, nest)]


@in_all_modes
@pytest.mark.parametrize("factory", [by_name, by_structure, Sees])
def test_dict_observations(framework, traced, factory):
    policy = make((framework, traced), NESTED, model=custom(factory))
    obs = nested_batch(policy, 6)
    out = learn_from(policy, obs, 6)
    assert set(np.unique(out.actions)) <= {5, 7}  # the middle one is masked, for polylib too
    if factory is Sees:
        assert SEEN == {"/action_mask": "int8", "/camera": "uint8", "/arm/angle": "float32", "/arm/grip": "int64"}


@in_all_modes
def test_dict_observations_reach_the_input_of_their_name(framework, traced):
    policy = make((framework, traced), NESTED, model=custom(by_name))
    obs = nested_batch(policy, 5)
    weights = policy.get_weights()
    x = np.concatenate([obs["arm"]["angle"], obs["camera"].reshape(5, -1) / 255, obs["action_mask"]], 1)
    value = (x @ weights["policy/001/kernel"] + weights["policy/001/bias"])[:, 0]
    np.testing.assert_allclose(policy.compute_values(obs), value, rtol=1e-4, atol=1e-5)


@in_all_modes
def test_tuple_observations_are_in_order(framework, traced):
    space = S.Tuple((S.Box(-1.0, 1.0, (2,), np.float32), S.Box(0.0, 9.0, (3,), np.float32)))

    def factory(observation_space, action_space, outputs):
        inputs = [keras.Input((2,)), keras.Input((3,))]
        x = keras.layers.Concatenate()(inputs)
        return keras.Model(inputs, {name: keras.layers.Dense(n)(x) for name, n in outputs.items()})

    policy = make((framework, traced), space, model=custom(factory))
    learn_from(policy, nested_batch(policy, 4), 4)
    assert "angle" not in complaint(Sees, obs_space=S.Dict({"x": S.Text(3)}))  # refused, whatever the model


def test_observations_of_other_kinds_arrive_in_their_dtype():
    for space, dtype in [
        (S.Box(0, 255, (4, 4, 3), np.uint8), "uint8"),
        (S.Discrete(4, start=2), "int64"),
        (S.MultiBinary(3), "int8"),
    ]:
        policy = make(("tf2", True), space, model=custom(Sees))
        learn_from(policy, np.stack([np.asarray(space.sample()) for _ in range(4)]), 4)
        assert SEEN == {"": dtype}


# --- memory


def looping_lstm(*spaces_and_outputs):
    return keras_models.lstm(*spaces_and_outputs, unroll=False)


@in_all_modes
@pytest.mark.parametrize("factory", [keras_models.lstm, looping_lstm, keras_models.Memory])
def test_learning_from_sequences_steps_through_them(framework, traced, factory):
    """Acting step by step and learning in one go are the same computation: no KL, and the values agree."""
    policy = make((framework, traced), model=custom(factory) | {"max_seq_len": 4}, kl_coeff=0.0)
    assert policy.is_recurrent() and policy.get_initial_state()[0].shape == (4,)
    rng = np.random.default_rng(0)
    rows = {"obs": [], "actions": [], "eps_id": []}
    for episode, length in enumerate((6, 3, 4)):
        state = policy.get_initial_state()
        for _ in range(length):
            obs = rng.uniform(-1, 1, 3).astype(np.float32)
            out = policy.compute_single_action(obs, state)
            row = {"obs": obs, "actions": out.actions, "eps_id": episode, **out.extras}
            row.update({f"state_in_{i}": x for i, x in enumerate(state)})
            for key, value in row.items():
                rows.setdefault(key, []).append(value)
            state = out.state
    batch = {key: np.stack(value) for key, value in rows.items()}
    size = len(batch["obs"])
    batch.update(advantages=rng.standard_normal(size, np.float32))
    states = [batch[f"state_in_{i}"] for i in range(len(policy.get_initial_state()))]
    batch["value_targets"] = policy.compute_values(batch["obs"], states)
    gradients, info = policy.compute_gradients(batch)
    stats = info["learner_stats"]
    assert abs(stats["kl"]) < 1e-6 and stats["vf_loss"] < 1e-9, stats
    batch["value_targets"] += 1.0
    gradients, info = policy.compute_gradients(batch)
    assert info["learner_stats"]["vf_loss"] == pytest.approx(1.0, rel=1e-4)
    recurrent = next(key for key in gradients if key.endswith("recurrent_kernel"))
    assert np.abs(gradients[recurrent]).max() > 1e-4  # through time: rows alone begin at their states
    policy.learn_on_minibatches(batch, np.array([[0, 1], [2, 3]], np.int32))
    policy.close()


def test_recurrent_gradients_agree_among_modes():
    found = []
    for mode in TF_MODES:
        policy = make(mode, model=custom(keras_models.lstm) | {"max_seq_len": 5})
        batch = random_batch(policy.spec, 10) | {"eps_id": np.repeat([0, 1], [6, 4])}
        found.append(policy.compute_gradients(batch)[0])
        policy.close()
    for other in found[1:]:
        for key, value in found[0].items():
            np.testing.assert_allclose(other[key], value, rtol=1e-4, atol=1e-6)


def forgetful(observation_space, action_space, outputs, **lstm):
    x = inputs = keras.Input((3,))
    x = keras.layers.LSTM(4, name="memory", **lstm)(keras.layers.Reshape((1, 3))(x))
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def test_recurrent_layers_that_would_forget_are_refused():
    text = complaint(forgetful)
    assert "layer 'memory' (LSTM): it sees one step at a time" in text and "\n" not in text
    assert "inputs state_0, state_1 [4]" in text and "initial_state=[state_0, state_1]" in text
    assert "outputs state_out_0, state_out_1" in text


def test_recurrent_layers_over_a_sequence_in_the_observation_are_welcome():
    def factory(observation_space, action_space, outputs):
        inputs = keras.Input((5, 2))
        return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GRU(4)(inputs)))

    space = S.Box(-1.0, 1.0, (5, 2), np.float32)
    for mode in TF_MODES:
        policy = make(mode, space, model=custom(factory))
        assert not policy.is_recurrent()
        finite(policy, random_batch(policy.spec, 4))


# --- mistakes


def answers(**given):
    """A factory of models that return what is given: width, or a function of the input."""

    def factory(observation_space, action_space, outputs):
        x = inputs = keras.Input((3,))
        heads = {
            name: make(x) if callable(make) else keras.layers.Dense(make)(x)
            for name, make in (given or outputs).items()
        }
        return keras.Model(inputs, heads)

    return factory


def half(x):
    return keras.layers.Dense(3, dtype="float16")(x)


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (answers(logits=4, value=1), [["logits", "float32[N, 3]", "float32[N, 4]"], ["value", *["float32[N, 1]"] * 2]]),
        (answers(logits=3, value=2), [["value", "float32[N, 1]", "float32[N, 2]"]]),
        (answers(action=3, value=1), [["logits", "float32[N, 3]", "missing"], ["action", "nothing of that name"]]),
        (answers(logits=3, value=1, more=2), [["more", "nothing of that name", "float32[N, 2]"]]),
        (answers(logits=lambda x: keras.ops.sum(keras.layers.Dense(3)(x), 0)), [["logits", "float32[N, 3]", "[3]"]]),
        (answers(logits=lambda x: keras.ops.cast(keras.layers.Dense(3)(x), "float16")), [["logits", "float16[N, 3]"]]),
        (answers(logits=lambda x: keras.layers.Dense(3)(x) / 0.0 * 0.0), [["logits", "numbers", "NaN"]]),
    ],
)
def test_outputs_that_do_not_fit_stand_beside_what_is_asked_for(factory, says):
    text = complaint(factory)
    assert "expected" in text and "got" in text and "config key 'custom_model'" in text
    lines = text.splitlines()
    for words in says:
        assert any(all(word in line for word in words) for line in lines), (words, text)


def late(observation_space, action_space, outputs):
    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(3)

        def call(self, x):
            return self.head(keras.layers.Dense(4)(x))

    return Late()


SCALE = tf.Variable(1.0, name="scale")


def unknown_to_keras(observation_space, action_space, outputs):
    class Unknown(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(3)

        def call(self, x):
            return self.head(x) * SCALE

    return Unknown()


def frozen(observation_space, action_space, outputs):
    model = keras_models.functional(observation_space, action_space, outputs)
    model.trainable = False
    return model


def raising(observation_space, action_space, outputs):
    raise OSError("no such\nfile")


@pytest.mark.parametrize("mode", TF_MODES)
@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (late, r"model 'late' creates a variable \(.*kernel\) when it is called: make all layers"),
        (unknown_to_keras, r"uses variable 'scale:0', which Keras doesn't know of"),
        (frozen, r"nothing to learn: expected at least one trainable weight, got none and 6 frozen ones"),
        (raising, r"model 'raising' raised OSError when it was called with \(observation_space, .*: no such file"),
        (lambda *args: 5, r"returned builtins.int, expected a keras.Model"),
        (answers(logits=half), r"has dtype float16, expected float32|float16\[N, 3\]"),
    ],
)
def test_models_that_cannot_be_used(mode, factory, says):
    text = complaint(factory, mode)
    assert re.search(says, text), text


@pytest.mark.parametrize(
    ("inputs", "space", "says"),
    [
        (lambda: keras.Input((4,)), BOX, ["[N, 3]", "[N, 4]"]),
        (lambda: keras.Input((2,), name="angle"), NESTED, ["angle", "no such input", "arm_angle, arm_grip, camera"]),
        (lambda: [keras.Input((3,), name="camera")], NESTED, ["camera", "[N, 4, 4, 1]", "[N, 3]"]),
        (lambda: [keras.Input((3,)), keras.Input((3,), name="state_1")], BOX, ["state inputs must be called state_0"]),
    ],
)
def test_inputs_that_do_not_fit(inputs, space, says):
    def factory(observation_space, action_space, outputs):
        given = inputs()
        x = keras.layers.Dense(3)(given[0] if isinstance(given, list) else given)
        return keras.Model(given, x)

    text = complaint(factory, obs_space=space)
    assert "expected" in text and all(part in text for part in says), text


def test_settings_of_the_default_network_beside_a_custom_one():
    with pytest.raises(ConfigError, match="'use_lstm' changes the default network"):
        make(("tf2", False), model=custom(keras_models.functional) | {"use_lstm": True})


# --- looking inside


@in_all_modes
def test_policy_model_is_the_users(framework, traced):
    policy = make((framework, traced), model=custom(keras_models.functional))
    lines = []
    policy.model.summary(print_fn=lambda line, **_: lines.append(line))
    assert "Dense" in "".join(lines)
    batch = random_batch(policy.spec, 8)
    policy.learn_on_batch(batch)
    weights = policy.get_weights()
    for mine, theirs in zip(policy.model.get_weights(), weights.values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(policy.model.layers[1].get_weights()[0], weights["policy/000/kernel"])
    out = policy.model(batch["obs"])
    assert framework != "tf" or isinstance(out["logits"], np.ndarray)
    logits = policy.compute_actions(batch["obs"]).extras["action_dist_inputs"]
    np.testing.assert_allclose(out["logits"], logits, rtol=1e-5, atol=1e-6)


def test_policy_model_has_the_users_class():
    policy = make(("tf2", True), model=custom(keras_models.Normalised))
    assert type(policy.model) is keras_models.Normalised
    graph = make(("tf", False), model=custom(keras_models.Normalised))
    assert graph.model.norm.momentum == 0.5  # everything of the user's class is there
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = graph.model.nothing_like_it


# --- checkpoints


def ppo(framework="tf2", traced=True, model=keras_models.functional, **rollouts):
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .framework(framework, eager_tracing=traced)
        .rollouts(**rollouts)
        .training(train_batch_size=32, sgd_minibatch_size=16, num_sgd_iter=1, model=custom(model))
        .debugging(seed=0)
    )


OBS = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)


def values(policy):
    return policy.compute_actions(OBS, explore=False).extras["action_dist_inputs"]


@pytest.mark.parametrize("model", [keras_models.Normalised, keras_models.logits_only])
def test_checkpoints_go_across_modes(model, tmp_path):
    with ppo("tf", False, model).build() as algo:
        algo.train()
        path = algo.save(str(tmp_path / "saved")).checkpoint.path
        expected, state = values(algo.get_policy()), algo.get_policy().get_state()
    for framework, traced in TF_MODES:
        policy = polylib.load_policy(path, framework, eager_tracing=traced, custom_model=model)
        np.testing.assert_allclose(values(policy), expected, rtol=1e-5, atol=1e-6)
        for key, value in policy.get_state()["optimizer"].items():
            np.testing.assert_array_equal(value, state["optimizer"][key])
        policy.close()
    changes = {"framework": "tf2"}
    with polylib.Algorithm.from_checkpoint(path, config=changes, custom_model=model) as algo:
        np.testing.assert_allclose(values(algo.get_policy()), expected, rtol=1e-5, atol=1e-6)
        algo.train()


def test_a_checkpoint_names_the_model_that_is_missing(tmp_path, monkeypatch):
    with ppo().build() as algo:
        path = algo.save(str(tmp_path / "saved")).checkpoint.path
        expected = values(algo.get_policy())
    says = "its network is a user's own, 'keras_models:functional', and code isn't stored: pass custom_model=..."
    for load in (
        lambda: polylib.load_policy(path, "tf2"),
        lambda: Policy.from_checkpoint(path),
        lambda: polylib.Algorithm.from_checkpoint(path),
        lambda: polylib.Algorithm.from_checkpoint(path, config={"model": {"fcnet_hiddens": [4]}}),
    ):
        with pytest.raises(CheckpointError) as caught:
            load()
        assert says in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(FrameworkError, match="runs in its framework only: load it with framework='tf2'"):
        polylib.load_policy(path)
    given = polylib.load_policy(path, "tf2", custom_model="keras_models:functional")
    np.testing.assert_array_equal(values(given), expected)
    policies = Policy.from_checkpoint(path, custom_model=keras_models.functional)
    np.testing.assert_array_equal(values(policies["default_policy"]), expected)
    with polylib.Algorithm.from_checkpoint(path, config={"model": {"custom_model": "keras_models:functional"}}) as algo:
        np.testing.assert_array_equal(values(algo.get_policy()), expected)


def test_no_module_is_imported_because_a_checkpoint_names_it(tmp_path):
    with ppo(model="keras_models:functional").build() as algo:
        path = algo.save(str(tmp_path / "saved")).checkpoint.path
    with pytest.raises(CheckpointError, match="'keras_models:functional', and code isn't stored"):
        polylib.load_policy(path, "tf2")


def test_a_registered_model_is_found_again(tmp_path, monkeypatch):
    polylib.register_model("mine", keras_models.functional)
    with ppo(model="mine").build() as algo:
        path = algo.save(str(tmp_path / "saved")).checkpoint.path
        expected = values(algo.get_policy())
    np.testing.assert_array_equal(values(polylib.load_policy(path, "tf2")), expected)
    monkeypatch.setattr(registry, "_models", registry._Shelf())  # as in another process
    for load in (lambda: polylib.load_policy(path, "tf2"), lambda: polylib.Algorithm.from_checkpoint(path)):
        with pytest.raises(CheckpointError, match=r"its network is 'mine', which isn't registered here: call polylib"):
            load()


# --- workers


def remote_weights(algo):
    return algo.workers.foreach_worker(lambda worker: worker.get_weights()["default_policy"], local_worker=False)


def own_mean(observation_space, action_space, outputs):
    model = keras_models.Normalised(observation_space, action_space, outputs)
    model(np.zeros((1, *observation_space.shape), np.float32))
    model.frozen.set_weights([np.full((4, 8), 0.25), np.zeros(8)])  # as if loaded
    return model


@pytest.mark.parametrize("framework", ["tf", "tf2"])
def test_workers_have_the_registered_model_and_its_weights(ray_session, framework):
    polylib.register_model("mine", own_mean)
    with ppo(framework, True, "mine", num_workers=1).build() as algo:
        algo.train()
        (kind,) = algo.workers.foreach_worker(lambda w: w.get_policy().framework, local_worker=False)
        assert kind == framework  # NumPy knows no Keras model
        local = algo.get_weights()["default_policy"]
        np.testing.assert_array_equal(local["policy/000/kernel"], np.full((4, 8), 0.25))
        assert not np.array_equal(local["policy/001/moving_mean"], np.zeros(8))
        for weights in remote_weights(algo):
            for key, value in weights.items():
                np.testing.assert_array_equal(value, local[key])


def test_workers_get_copies_of_a_functional_instance(ray_session):
    class Twice(keras.layers.Layer):  # known in this process only
        def call(self, x):
            return 2 * x

    x = inputs = keras.Input((4,))
    x = keras.layers.Dense(3, trainable=False)(Twice()(x))
    model = keras.Model(inputs, {"logits": keras.layers.Dense(2)(x), "value": keras.layers.Dense(1)(x)})
    with ppo(model=model, num_workers=1).build() as algo:
        algo.train()
        for weights in remote_weights(algo):
            np.testing.assert_array_equal(weights["policy/000/kernel"], model.get_weights()[0])


def test_tunes_trials_know_the_registered_model(ray_session, tmp_path, monkeypatch):
    from ray import tune

    from polylib.algorithms import trainable

    registry.add_model_store(trainable._TUNE_MODELS)
    polylib.register_model("mine", keras_models.functional)
    run = tune.RunConfig(stop={"training_iteration": 1}, storage_path=str(tmp_path), verbose=0)
    (result,) = tune.Tuner("PPO", param_space=ppo(model="mine"), run_config=run).fit()
    assert result.error is None and result.metrics["training_iteration"] == 1


def test_numpy_workers_are_refused():
    with pytest.raises(ConfigError, match="worker_policy_backend.*'numpy'"):
        ppo(worker_policy_backend="numpy")
    from polylib.policy.backends import make_policy

    with pytest.raises(FrameworkError, match="a user's own model runs in its framework only"):
        make_policy(make_spec(model=custom(keras_models.functional)), "numpy")


# --- Keras' backend


@pytest.mark.parametrize(
    ("backend", "framework", "says"),
    [("torch", "tf2", "KERAS_BACKEND=tensorflow"), ("tensorflow", "torch", "KERAS_BACKEND=torch")],
)
def test_another_keras_backend_is_refused_with_what_to_type(backend, framework, says):
    pytest.importorskip("torch")
    code = f"""
import sys; sys.path.insert(0, "tests")
import keras_models
from policies import make
from polylib.errors import FrameworkError
try:
    make(({framework!r}, False), model={{"custom_model": keras_models.functional}})
except FrameworkError as error:
    print(error)
"""
    env = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert says in done.stdout and len(done.stdout.splitlines()) == 1, done.stdout + done.stderr


def test_box_actions_too():
    policy = make(("tf", False), BOX, TORQUE, model=custom(keras_models.functional))
    finite(policy, random_batch(policy.spec, 8))
