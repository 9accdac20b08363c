"""`policy.model` and `policy.dist_class`: for people who look inside."""

from __future__ import annotations

import functools
import io

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_tf
from fakes import MatchEnv
from modes import MODE_PARAMS
from policies import BOX, DISCRETE, MULTI, TORQUE, make

from polylib.algorithms.ppo import PPOConfig
from polylib.errors import BatchError, FrameworkError, WeightsError
from polylib.models.preprocessors import get_preprocessor
from polylib.models.spaces import flatten
from polylib.policy import numpy_ops
from polylib.policy.testing import sample_space

MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
NATIVE = {"tf": "ndarray", "tf2": "EagerTensor", "torch": "Tensor"}


SPACES = {"discrete": DISCRETE, "multi": MULTI, "box": TORQUE}


@functools.cache
def policy(mode, actions="discrete"):
    return make(mode, BOX, SPACES[actions], hiddens=(8, 7), seed=3)


def view(mode, actions="discrete", size=6):
    """A policy, observations, and the model's logits for them."""
    p = policy(mode, actions)
    obs = sample_space(BOX, size, 0)
    return p, obs, p.model({"obs": obs})[0]


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
    p = policy((framework, traced), kind)
    obs = sample_space(BOX, 6, 0)
    logits, state = p.model({"obs": obs})
    assert state == [] and type(logits).__name__ == NATIVE[framework]
    values = p.model.value_function()
    assert type(values).__name__ == NATIVE[framework] and values.shape == (6,)
    acted = p.compute_actions(obs, explore=False)
    np.testing.assert_allclose(to_numpy(logits), acted.extras["action_dist_inputs"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(to_numpy(values), p.compute_values(obs), rtol=1e-6, atol=1e-7)


@MODES
def test_the_model_is_the_policys_own(framework, traced):
    """It follows `set_weights`, and one observation at a time is fine."""
    p, obs, before = view((framework, traced))
    before = to_numpy(before).copy()
    weights = p.get_weights()
    p.set_weights({key: w + 1 for key, w in weights.items()})
    after = to_numpy(p.model({"obs": obs})[0])
    acted = p.compute_actions(obs, explore=False).extras["action_dist_inputs"]
    np.testing.assert_allclose(after, acted, rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)
    p.model({"obs": obs[:1]})
    assert to_numpy(p.model.value_function()).shape == (1,)
    p.set_weights(weights)


@MODES
def test_nested_observations_masks_and_memory(framework, traced):
    """As the space has them; a mask in them counts; states go in and come out, for steps and for sequences."""
    space = gym.spaces.Dict(
        {
            "pair": gym.spaces.Tuple((BOX, gym.spaces.Discrete(3, start=1))),
            "action_mask": gym.spaces.MultiBinary(3),
        }
    )
    lstm = {"use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 3, "lstm_use_prev_reward": True}
    config = PPOConfig().training(model={"fcnet_hiddens": [8], **lstm}).to_dict()
    p = make((framework, traced), space, DISCRETE, model=config["model"])
    obs = {
        "pair": (sample_space(BOX, 6, 0), np.array([1, 2, 3, 3, 2, 1])),
        "action_mask": np.array([[1, 1, 0]] * 6, np.int8),
    }
    state = [np.full((6, 5), 0.3, np.float32), np.full((6, 5), -0.2, np.float32)]
    rewards = np.arange(6, dtype=np.float32)
    acted = p.compute_actions(obs, state, explore=False, prev_rewards=rewards)
    logits, after = p.model({"obs": obs, "prev_rewards": rewards}, state)
    np.testing.assert_allclose(to_numpy(logits), acted.extras["action_dist_inputs"], rtol=1e-5, atol=1e-6)
    assert (to_numpy(logits)[:, 2] < -1e8).all()
    for x, y in zip(after, acted.state, strict=True):
        np.testing.assert_allclose(to_numpy(x), y, rtol=1e-5, atol=1e-6)
    # Two sequences of three steps, the second one padded: as the same steps one by one.
    starts = [x[:2] for x in state]
    logits, _ = p.model({"obs": obs}, starts, np.array([3, 2]))
    first = [x[:1] for x in state]
    for t in range(3):
        row = {"pair": tuple(x[t : t + 1] for x in obs["pair"]), "action_mask": obs["action_mask"][t : t + 1]}
        one, first = p.model({"obs": row}, first)
        np.testing.assert_allclose(to_numpy(logits)[t], to_numpy(one)[0], rtol=1e-5, atol=1e-6)
    # Nothing given: zeros.
    zeros, _ = p.model({"obs": obs})
    np.testing.assert_allclose(
        to_numpy(zeros), p.compute_actions(obs, explore=False).extras["action_dist_inputs"], rtol=1e-5, atol=1e-6
    )
    with pytest.raises(BatchError, match=r"seq_lens \[4, 2\] don't fit 6 rows"):
        p.model({"obs": obs}, starts, [4, 2])
    with pytest.raises(BatchError, match="got 1 state arrays, this model has 2"):
        p.model({"obs": obs}, starts[:1])
    p.close()


@MODES
def test_what_doesnt_fit_is_named(framework, traced):
    p = make((framework, traced))
    with pytest.raises(BatchError, match="call it first"):
        p.model.value_function()
    with pytest.raises(BatchError, match="the model takes {\"obs\": observations}; got a dict with 'observation'"):
        p.model({"observation": sample_space(BOX, 2, 0)})
    with pytest.raises(BatchError, match=r"column 'obs' has shape \[2, 4\], expected \[B, 3\]"):
        p.model({"obs": np.zeros((2, 4), np.float32)})
    p.close()


@MODES
def test_variables(framework, traced):
    """The framework's own, and their values in the same order."""
    p = policy((framework, traced))
    model, weights = p.model, p.get_weights()
    assert list(model.variables(as_dict=True)) == list(weights)
    assert len(model.variables()) == len(model.trainable_variables()) == len(weights)
    sizes = [w.size for w in weights.values()]
    assert [w.size for w in model.get_weights()] == sizes
    assert [int(np.prod(v.shape)) for v in model.trainable_variables()] == sizes
    values = model.get_weights()
    if framework == "tf":
        with pytest.raises(FrameworkError, match=r"set with policy\.set_weights"):
            model.set_weights(values)
        return
    model.set_weights([w + 1 for w in values])
    for key, w in p.get_weights().items():
        np.testing.assert_allclose(w, weights[key] + 1, rtol=1e-6, err_msg=key)
    with pytest.raises(WeightsError, match=r"got arrays of shapes \[\[1\]\], expected \[\["):
        model.set_weights([np.zeros(1)])
    model.set_weights(values)


@MODES
def test_gradients_flow_through_the_model(framework, traced):
    """In the eager frameworks people take them by hand."""
    p, obs, _ = view((framework, traced))
    if framework == "torch":
        p.model({"obs": obs})
        p.model.value_function().sum().backward()
        found = [x.grad for x in p.model.trainable_variables()]
        total = sum(float(g.abs().sum()) for g in found if g is not None)
        for x in p.model.trainable_variables():
            x.grad = None
    elif framework == "tf2":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            p.model({"obs": obs})
            value = tf.reduce_sum(p.model.value_function())
        found = tape.gradient(value, p.model.trainable_variables())
        total = sum(float(tf.reduce_sum(tf.abs(g))) for g in found if g is not None)
    else:
        pytest.skip("NumPy comes out in a graph")
    assert total > 0


@pytest.mark.parametrize("space", ["box", "discrete"])
@MODES
def test_the_guides_snippets(framework, traced, space, capsys):
    """What RLlib's guide shows of a trained algorithm's policy and model."""
    config = (
        PPOConfig()
        .environment(MatchEnv, env_config={"obs": space})
        .framework(framework, eager_tracing=traced)
        .training(train_batch_size=20, sgd_minibatch_size=10, num_sgd_iter=1, model={"fcnet_hiddens": [8]})
    )
    with config.build() as algo:
        weights = algo.get_policy().get_weights()
        assert all(isinstance(w, np.ndarray) for w in weights.values())
        everywhere = algo.workers.foreach_worker(lambda worker: worker.get_policy().get_weights())
        assert len(everywhere) == 1 and list(everywhere[0]) == list(weights)
        everywhere = algo.workers.foreach_worker_with_index(lambda worker, i: (i, worker.get_policy().get_weights()))
        assert everywhere[0][0] == 0

        env = MatchEnv({"obs": space})
        prep = get_preprocessor(env.observation_space)(env.observation_space)
        first = env.reset(seed=0)[0]
        obs = prep.transform(first)

        policy = algo.get_policy()
        model = policy.model
        model.base_model.summary()
        assert "logits" in capsys.readouterr().out
        logits, _ = model({"obs": np.array([obs])})
        acted = policy.compute_actions(np.array([first]), explore=False)
        np.testing.assert_allclose(to_numpy(logits), acted.extras["action_dist_inputs"], rtol=1e-5, atol=1e-6)
        dist = policy.dist_class(logits, model)
        action = to_numpy(dist.sample())[0]
        assert env.action_space.contains(action)
        assert to_numpy(dist.logp(dist.sample())).shape == (1,)
        assert to_numpy(model.value_function()).shape == (1,)


def test_flattened_observations_are_restored():
    """A preprocessor's vectors of a nest, in the parts that the network sees."""
    space = gym.spaces.Dict(
        z=BOX, a=gym.spaces.Tuple((gym.spaces.Discrete(3, start=4), gym.spaces.MultiDiscrete([2, 3])))
    )
    prep, samples = get_preprocessor(space)(space), [space.sample() for _ in range(5)]
    from polylib.models.preprocessors import restore

    found = flatten(space, restore(space, np.stack([prep.transform(x) for x in samples])))
    for i, sample in enumerate(samples):
        for name, value in flatten(space, sample).items():
            np.testing.assert_allclose(found[name][i], value, err_msg=name)
    with pytest.raises(BatchError, match=r"observations \[2, 5\] aren't those of .*\[B, 11\]"):
        restore(space, np.zeros((2, 5)))


@MODES
@pytest.mark.parametrize("kind", SPACES)
def test_dist_class_is_the_distribution_of_the_models_outputs(framework, traced, kind):
    mode = (framework, traced)
    p, obs, out = view(mode, kind)
    inputs = to_numpy(out)
    dist = p.dist_class(out)
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
    dist = p.dist_class(out, p.model)
    np.testing.assert_array_equal(to_numpy(dist.entropy()), to_numpy(p.dist_class(out).entropy()))


@needs_tf
@pytest.mark.parametrize("mode", [("tf", False), ("tf2", False), ("tf2", True)], ids=["tf", "tf2", "tf2-traced"])
def test_summary_lists_the_layers(mode):
    p = policy(mode)
    lines = io.StringIO()
    p.model.base_model.summary(print_fn=lambda line, **kwargs: lines.write(line + "\n"))
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
    """Lists and float64 too; one-hot observations as well; the Keras model behind it by its own inputs' names."""
    p = policy(("tf", False))
    obs = sample_space(BOX, 2, 0)
    expected = p.model({"obs": obs})[0]
    for variant in (obs.tolist(), obs.astype(np.float64)):
        logits, _ = p.model({"obs": variant})
        assert isinstance(logits, np.ndarray)
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    for given in (obs, {"obs": obs}):
        np.testing.assert_allclose(p.model.base_model(given)["logits"], expected, rtol=1e-5, atol=1e-6)
    one_hot = make(("tf", False), gym.spaces.Discrete(4, start=1), DISCRETE)
    assert one_hot.model({"obs": np.array([1, 4])})[0].shape == (2, 3)
    one_hot.close()


def test_torch_parameters_can_be_listed():
    pytest.importorskip("torch")
    p = policy(("torch", False))
    assert sum(x.numel() for x in p.model.parameters()) == sum(w.size for w in p.get_weights().values())
