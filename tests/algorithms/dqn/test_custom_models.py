"""Users' networks in DQN and SimpleQ: below Q heads, or the whole of it, with a second copy as target network."""

from __future__ import annotations

import functools

import gymnasium as gym
import numpy as np
import pytest
from learners import CHOICE, LSTM, MASKED, OBS, build, random_rows, setting, shared, small_config, spec_of
from modes import FAST_MODES, MODES, has, mode_params
from q_models import maker

import polylib
from polylib.algorithms.algorithm import Algorithm
from polylib.checkpoints import CheckpointError
from polylib.errors import BatchError, ConfigError, FrameworkError
from polylib.policy.testing import PolicyContract, sample_space

WHOLE = {"dueling": False, "hiddens": []}
CART = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
ATOMS = {"num_atoms": 3, "v_min": -2.0, "v_max": 3.0}
SEQUENCES = {"replay_buffer_config": {"storage_unit": "sequences"}}
TF2, TORCH = EAGER = [("tf2", False), ("torch", False)]
#: The space, the default network's keys, the kind of model that is the same, keys beside it, and the modes: the three
#: of TensorFlow share their bodies, and graphs take long to make.
KINDS = {
    "body": (OBS, {}, "mlp", {}, MODES),
    "whole": (OBS, {**WHOLE, "double_q": False, "td_error_loss_fn": "mse"}, "mlp", {}, EAGER),
    "rainbow": (MASKED, {**ATOMS, "noisy": True, "hiddens": [2]}, "mlp", {}, EAGER),
    "c51 whole": (OBS, {**WHOLE, **ATOMS}, "mlp", {}, EAGER),
    "lstm": (OBS, {**LSTM, "hiddens": [3]}, "lstm", {**SEQUENCES, "model": {"use_lstm": False}}, EAGER),
}
COMBINED = [
    pytest.param(*mode.values, kind, id=f"{mode.id}-{kind}", marks=mode.marks)
    for kind, (*_, modes) in KINDS.items()
    for mode in mode_params(modes)
]
EACH = pytest.mark.parametrize(("framework", "traced"), mode_params(FAST_MODES))


def custom(mode, kind, obs_space=OBS, algo="DQN", model=None, **keys):
    """A policy with a user's model."""
    found = {"custom_model": maker(mode[0], kind), **(model or {})}
    return build(mode, algo, obs_space, CHOICE, model=found, **keys)


def canonical(key, w):
    """A weight of a user's model, and its inverse: torch's kernels lie the other way round."""
    return w.T if key.endswith("weight") else w


def take(policy, weights):
    """Gives a user's model the weights of the default network of the same layers."""
    policy.set_weights({key: canonical(key, w) for key, w in zip(policy.get_weights(), weights.values(), strict=True)})


@pytest.mark.parametrize(("framework", "traced", "kind"), COMBINED)
def test_the_same_layers_give_the_same_values_and_updates(framework, traced, kind):
    space, keys, model, more, _ = KINDS[kind]
    weights, batch = setting(spec_of("DQN", space, CHOICE, **keys))
    default = shared((framework, traced), "DQN", space, CHOICE, **keys)
    own = custom((framework, traced), model, space, **{**keys, **more})
    default.set_weights(weights)
    take(own, weights)
    state = [np.full((4, 2), 0.3, np.float32)] * 2 if kind == "lstm" else None
    obs = sample_space(space, 4, 5)
    for update in range(3):
        found, expected = (p.compute_actions(obs, state, explore=False) for p in (own, default))
        np.testing.assert_array_equal(found.actions, expected.actions)
        values = [x.extras["action_dist_inputs"] for x in (found, expected)]
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-5)
        for policy in (own, default):
            policy.rng = np.random.default_rng(update)
        info, other = (p.learn_on_batch(batch) for p in (own, default))
        for name, value in other["learner_stats"].items():
            assert info["learner_stats"][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        np.testing.assert_allclose(info["rows"]["td_error"], other["rows"]["td_error"], rtol=1e-5, atol=1e-5)
        for policy in (own, default):
            policy.update_target(0.5)
    learnt = default.get_weights()
    for (key, w), (name, expected) in zip(own.get_weights().items(), learnt.items(), strict=True):
        np.testing.assert_allclose(canonical(key, w), expected, rtol=1e-5, atol=1e-5, err_msg=f"{key}, {name}")
        assert np.abs(expected - weights[name]).max() > 1e-4, "it moved by more than is compared"


@functools.cache
def _normed(framework, traced):
    policy = custom((framework, traced), "norm")
    return policy, policy.get_state()


def normed(framework, traced):
    """A policy with batch norm below its heads, in its first state."""
    policy, state = _normed(framework, traced)
    policy.set_state(state)
    return policy


def parts(weights, *leaves):
    """Those of the learning network and of the target network."""
    chosen = {key: w for key, w in weights.items() if not leaves or key.endswith(leaves)}
    target = {key.removeprefix("target_"): w for key, w in chosen.items() if key.startswith("target_")}
    return {key: w for key, w in chosen.items() if not key.startswith("target_")}, target


@EACH
def test_the_target_network_is_a_copy_with_its_statistics(framework, traced):
    """Statistics of batch norm move in the learning network's loss, and reach the target as weights do."""
    policy = normed(framework, traced)
    first, target = parts(policy.get_weights())
    assert first.keys() == target.keys() and len(first) in (14, 15)
    assert all(np.array_equal(target[key], w) for key, w in first.items())
    batch = random_rows(policy.spec, 16)
    policy.compute_actions(batch["obs"])
    policy.learn_on_batch(batch)
    learnt, target = parts(policy.get_weights())
    assert all(not np.array_equal(w, first[key]) for key, w in learnt.items())
    assert all(np.array_equal(w, first[key]) for key, w in target.items())
    # Keras counts half of a batch's mean, as asked; torch half of the mean, too.
    (key, kernel), (_, bias), *_ = first.items()
    seen = np.tanh(batch["obs"] @ canonical(key, kernel) + bias).mean(0)
    (mean,) = parts(policy.get_weights(), "moving_mean", "running_mean")[0].values()
    np.testing.assert_allclose(mean, 0.5 * seen, rtol=1e-4, atol=1e-6)
    policy.update_target(0.25)
    for key, w in parts(policy.get_weights())[1].items():
        tau = 1.0 if key.endswith("num_batches_tracked") else 0.25  # a counter is copied
        np.testing.assert_allclose(w, (1 - tau) * first[key] + tau * learnt[key], rtol=1e-5, atol=1e-6, err_msg=key)
    policy.update_target()
    assert all(np.array_equal(w, learnt[key]) for key, w in parts(policy.get_weights())[1].items())


def numbers(x):
    return np.asarray(x.detach() if hasattr(x, "detach") else x)


@EACH
def test_policy_model_has_the_heads_and_the_users_model(framework, traced):
    policy = normed(framework, traced)
    obs = sample_space(OBS, 5, 1)
    model = policy.model
    out = model({"obs": obs})
    features, state = out
    found = (model.get_q_values(out), model.get_q_value_distributions(out)[0], model.get_state_value(out))
    values, scores, value = map(numbers, found)
    expected = policy.compute_actions(obs, explore=False).extras["action_dist_inputs"]
    np.testing.assert_allclose(values, expected, atol=1e-6)
    np.testing.assert_allclose(values, value + scores - scores.mean(1, keepdims=True), atol=1e-6)
    assert np.shape(features) == (5, 4) and state == []
    lines = []
    model.q_value_head.summary(lines.append)
    assert lines[0] == "Head: advantages" and lines[-1] == f"Total params: {4 * 4 + 4 + 4 * 3 + 3}"
    assert list(model.state_value_head.variables(as_dict=True)) == [
        f"q_head/00{i}/{leaf}" for i in (2, 3) for leaf in ("kernel", "bias")
    ]
    assert len(model.variables()) == len(policy.get_weights()) // 2 == len(model.get_weights())
    assert set(model.trainable_variables(as_dict=True)) == set(policy._trainable_keys())
    if framework == "torch":
        assert model.base_model is policy.nets["q"].model and model.hidden.out_features == 4
    else:
        assert model.layers[1].units == 4 and model.name == "mine"  # as of the model itself


@pytest.mark.parametrize(("framework", "traced"), mode_params(EAGER))
def test_a_model_that_is_all_of_it_has_no_heads(framework, traced):
    policy = custom((framework, traced), "mlp", algo="SimpleQ")
    assert not any("head" in key for key in policy.get_weights())
    obs = sample_space(OBS, 5, 1)
    out = policy.model({"obs": obs})
    expected = policy.compute_actions(obs, explore=False).extras["action_dist_inputs"]
    for values in (out[0], policy.model.get_q_values(out), policy.model.get_q_value_distributions(out)[0]):
        np.testing.assert_allclose(numbers(values), expected, atol=1e-6)
    assert policy.model.q_value_head.variables() == []
    with pytest.raises(BatchError, match="no head for the state's value: dueling=False"):
        policy.model.get_state_value(out)


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize(("framework", "traced"), mode_params(EAGER))
def test_regularisation_counts_once(framework, traced, double_q):
    """That of the learning network, whatever else it is called for: half the square of a kernel."""
    plain, own = (custom((framework, traced), kind, double_q=double_q) for kind in ("mlp", "penalised"))
    own.set_weights(plain.get_weights())
    batch = random_rows(own.spec, 8)
    first, second = (p.compute_gradients(batch)[1]["learner_stats"]["total_loss"] for p in (plain, own))
    kernel = next(iter(own.get_weights().values()))
    assert second - first == pytest.approx(0.5 * np.square(kernel).sum(), rel=1e-4)


class _Contract(PolicyContract):
    mode: tuple[str, bool]
    kind = "mlp"
    samples = False
    keys: dict = {}

    def make_policy(self, seed=0, **config):
        return custom(self.mode, self.kind, seed=seed, **{**self.keys, **config})


@pytest.mark.skipif(not has("tf"), reason="tensorflow isn't installed")
class TestKerasContract(_Contract):
    mode = TF2


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
class TestTorchContract(_Contract):
    mode, keys = TORCH, WHOLE


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
class TestRecurrentContract(_Contract):
    mode, kind, keys = TORCH, "lstm", SEQUENCES


# --- a whole run


@pytest.mark.parametrize(("framework", "traced"), mode_params([("tf", False), TORCH]))
def test_a_run_its_checkpoint_and_its_export(framework, traced, tmp_path):
    model = maker(framework, "mlp")
    config = small_config(
        "DQN",
        env="CartPole-v1",
        model={"custom_model": model},
        **WHOLE,
        n_step=2,
        num_steps_sampled_before_learning_starts=20,
        min_sample_timesteps_per_iteration=60,
        target_network_update_freq=20,
        seed=0,
    ).framework(framework, eager_tracing=traced)
    obs = sample_space(CART, 6, 1)
    with config.build() as algo:
        result = algo.train()
        assert result["num_env_steps_trained_this_iter"] > 0 and algo._counters["num_target_updates"] > 0
        algo.save(str(tmp_path / "saved"))
        expected = algo.get_policy().compute_actions(obs, explore=False)
        algo.export_policy_model(str(tmp_path / "exported"))  # which compares what it wrote with the policy
        stats = algo.train()["info"]["learner"]["default_policy"]["learner_stats"]
    with pytest.raises(CheckpointError, match="custom_model=..."):
        polylib.load_policy(tmp_path / "saved", framework)
    policy = polylib.load_policy(tmp_path / "saved", framework, custom_model=model)
    found = policy.compute_actions(obs, explore=False)
    np.testing.assert_array_equal(found.extras["action_dist_inputs"], expected.extras["action_dist_inputs"])
    with Algorithm.from_checkpoint(tmp_path / "saved", custom_model=model) as algo:
        again = algo.get_policy().compute_actions(obs, explore=False)
        np.testing.assert_array_equal(again.actions, expected.actions)
        assert np.isfinite(list(stats.values())).all() and algo.train()["num_env_steps_trained_this_iter"] > 0


@pytest.mark.parametrize(("framework", "traced"), mode_params(EAGER))
def test_heads_learn_on_a_frozen_model_which_both_copies_may_share(framework, traced):
    made = keras_model(4) if framework == "tf2" else torch_model(4)
    for part in made.layers if framework == "tf2" else made.parameters():
        setattr(part, "trainable" if framework == "tf2" else "requires_grad", False)
    policy = build((framework, traced), "DQN", OBS, CHOICE, model={"custom_model": always(made)})
    before = policy.get_weights()
    policy.learn_on_batch(random_rows(policy.spec, 8))
    policy.update_target(0.3)
    after = policy.get_weights()
    assert {key for key, w in before.items() if np.array_equal(w, after[key])} == {
        key for key in before if key.split("/")[0] in ("q", "target_q")
    }


@pytest.mark.parametrize("kind", [None, "norm"])
@pytest.mark.parametrize(("framework", "traced"), mode_params(EAGER))
def test_noisy_heads_are_exported_without_noise(framework, traced, kind, tmp_path):
    model = {} if kind is None else {"model": {"custom_model": maker(framework, kind)}}
    policy = build((framework, traced), "DQN", OBS, CHOICE, noisy=True, num_atoms=3, **model)
    policy.export_model(tmp_path, "torchscript" if framework == "torch" else "keras")  # compared with the policy there


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_workers_have_the_weights_of_both_copies(ray_session):
    keys = {"num_workers": 1, "num_steps_sampled_before_learning_starts": 20, "min_sample_timesteps_per_iteration": 60}
    config = small_config("DQN", env="CartPole-v1", model={"custom_model": maker("torch", "norm")}, **keys)
    with config.framework("torch").build() as algo:
        algo.train()
        algo.workers.sync_weights()
        here, there = algo.workers.foreach_worker(lambda worker: worker.get_weights()["default_policy"])
    assert here["q/001/num_batches_tracked"] > 0 and here.keys() == there.keys()
    assert all(np.array_equal(there[key], w) for key, w in here.items())


# --- mistakes


def keras_model(*widths):
    import keras

    return keras.Sequential([keras.Input((3,)), *(keras.layers.Dense(n) for n in widths)], name="mine")


def keras_subclass():
    import keras

    class Sub(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(4)

        def call(self, x):
            return self.head(x)

    return Sub()


def torch_model(width):
    from torch import nn

    return nn.Linear(3, width)


def torch_actor_critic():
    from torch import nn

    class Two(nn.Linear):
        def forward(self, obs):
            return {"logits": super().forward(obs), "value": super().forward(obs)}

    return Two(3, 3)


def always(made):
    """A factory that doesn't make its model itself."""
    return lambda observation_space, action_space, outputs: made


def another_each_time():
    widths = iter((4, 5))
    return lambda observation_space, action_space, outputs: torch_model(next(widths))


ASKED = r" *expected *got\n"
MISTAKES = {
    "too wide": (
        TF2,
        lambda: keras_model(4, 5),
        WHOLE,
        rf"features, .* goes with hiddens=\[256\] .*\n{ASKED} *q_values *float32\[N, 3\] *float32\[N, 5\]",
    ),
    "too wide in torch": (
        TORCH,
        lambda: torch_model(5),
        WHOLE,
        rf"goes with hiddens=\[256\] .*\n{ASKED} *q_values *float32\[N, 3\] *float32\[N, 5\]",
    ),
    "another algorithm's": (
        TORCH,
        torch_actor_critic,
        {},
        r"returns the values of all actions itself goes with hiddens=\[\], dueling=False, noisy=False\n"
        rf"{ASKED} *features *float32\[N, any width\] *missing\n *logits *nothing of that name",
    ),
    "one object": (TF2, keras_subclass, {}, "a finished Sub, and a target network is a second copy of it: pass a fact"),
    "torch in tf": (TF2, lambda: torch_model(3), WHOLE, "custom_model is the torch.nn.Module 'Linear': frameworks"),
    "Keras in torch": (TORCH, lambda: keras_model(3), WHOLE, "custom_model is the Keras model 'mine', and Keras runs"),
    "shared": (TF2, lambda: always(keras_model(4)), {}, "it returns the same variable 'q/000/kernel' whenever"),
    "shared modules": (TORCH, lambda: always(torch_model(4)), {}, "variable 'q/000/weight' whenever it is called"),
    "unlike": (TORCH, another_each_time, {}, r"the second model that it made, .* of shapes \[\(5, 3\), \(5,\), "),
    "state": (TORCH, lambda: maker("torch", "lstm"), {}, "your network has state, which .*'storage_unit': 'sequences'"),
    "no state": (TF2, lambda: keras_model(4), SEQUENCES, "sequences are for networks with state, and your custom"),
    "perturbed": (
        TORCH,
        lambda: torch_model(4),
        {"exploration_config": {"type": "ParameterNoise"}},
        "'exploration_config.type': ParameterNoise perturbs default networks only; beside custom_model use Epsilon",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cant_be_meant(name):
    mode, make, keys, message = MISTAKES[name]
    if not has(mode[0]) or (" in " in name and not has("tf")) or ("torch" in name and not has("torch")):
        pytest.skip("a framework isn't installed")
    with pytest.raises((ConfigError, FrameworkError), match=message):
        build(mode, "DQN", OBS, CHOICE, model={"custom_model": make()}, **keys)


def test_sequences_are_learnt_step_by_step():
    keys = {"model": {"custom_model": "my_pkg.nets:my_net"}, **SEQUENCES}
    small_config("DQN", **keys).validate()
    with pytest.raises(ConfigError, match="'n_step': 3 steps don't go together with a recurrent network"):
        small_config("DQN", n_step=3, **keys).validate()


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
@pytest.mark.parametrize(("width", "warns"), [(3, True), (4, False)])
def test_values_that_are_taken_for_features_are_pointed_out(width, warns, caplog):
    build(TORCH, "DQN", OBS, CHOICE, model={"custom_model": torch_model(width)})
    said = "your network returns 3 numbers, as many as there are actions" in caplog.text
    assert said == warns
