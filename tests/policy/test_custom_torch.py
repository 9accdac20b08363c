"""Users' torch modules."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from fakes import small_ppo
from policies import BOX, DISCRETE, make, make_spec, random_batch

import polylib
from polylib import registry
from polylib.checkpoints import CheckpointError
from polylib.errors import ConfigError, FrameworkError
from polylib.models.networks import SEQ_MASK
from polylib.policy.backends import make_policy
from polylib.policy.testing import PolicyContract

torch = pytest.importorskip("torch")
import torch_models  # noqa: E402
from torch import nn  # noqa: E402

S = gym.spaces
MODE = ("torch", False)
OUTPUTS = {"logits": 3, "value": 1}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_models", registry._Shelf())


def custom(model, obs_space=BOX, action_space=DISCRETE, seed=0, config=None, **settings):
    """A torch policy with a user's model."""
    model = {"custom_model": model, "custom_model_config": config or {}}
    return make(MODE, obs_space, action_space, seed=seed, model=model, **settings)


def complaint(model, obs_space=BOX, **kwargs):
    with pytest.raises((ConfigError, FrameworkError)) as caught:
        custom(model, obs_space, **kwargs)
    return str(caught.value)


def sequences_batch(spec, size=12, episode=5):
    return {**random_batch(spec, size), "eps_id": np.arange(size) // episode}


# --- ways to name a model


@pytest.fixture
def on_disk(tmp_path):
    """A factory that loads TorchScript from a file."""
    path = str(tmp_path / "net.pt")
    torch.jit.save(torch_models.scripted(BOX, DISCRETE, OUTPUTS), path)
    return lambda obs_space, action_space, outputs: torch.jit.load(path)


WAYS = {
    "class": lambda: torch_models.TwoHeads,
    "function": lambda: torch_models.logits_only,
    "registered": lambda: polylib.register_model("mine", torch_models.TwoHeads) or "mine",
    "module": lambda: "torch_models:TwoHeads",
    "instance": lambda: torch_models.TwoHeads(BOX, DISCRETE, OUTPUTS),
    "dict": lambda: torch_models.Normed,
    "lazy": lambda: torch_models.Lazy,
    "script": lambda: torch_models.scripted(BOX, DISCRETE, OUTPUTS),
}


@pytest.mark.parametrize("way", [*WAYS, "script on disk"])
def test_every_way_to_name_a_model_acts_and_learns(way, on_disk):
    policy = custom(WAYS[way]() if way in WAYS else on_disk)
    batch = random_batch(policy.spec, 12)
    out = policy.compute_actions(batch["obs"])
    assert out.extras["action_dist_inputs"].shape == (12, 3) and policy.compute_values(batch["obs"]).shape == (12,)
    before = policy.get_weights()
    stats = policy.learn_on_batch(batch)["learner_stats"]
    policy.learn_on_minibatches(batch, np.arange(12, dtype=np.int32).reshape(3, 4))
    assert np.isfinite(list(stats.values())).all()
    for key, weight in policy.get_weights().items():
        assert (weight != before[key]).any(), key


def test_policy_model_is_the_users():
    assert isinstance(custom(torch_models.TwoHeads, config={"units": 5}).model, torch_models.TwoHeads)
    assert custom(torch_models.TwoHeads, config={"units": 5}).model.hidden.out_features == 5


def test_keys_follow_the_order_of_modules():
    keys = list(custom(torch_models.Normed).get_weights())
    assert keys == [
        *("policy/000/weight", "policy/000/bias", "policy/001/weight", "policy/001/bias"),
        *("policy/001/running_mean", "policy/001/running_var", "policy/001/num_batches_tracked"),
        *("policy/002/weight", "policy/002/bias", "policy/003/weight", "policy/003/bias"),
    ]


def test_without_values_a_default_network_is_added():
    policy, default = custom(torch_models.logits_only), make(MODE)
    keys = [key for key in policy.get_weights() if key.startswith("policy_value/")]
    assert keys == [f"policy_value/{i:03d}/{leaf}" for i in (0, 1) for leaf in ("kernel", "bias")]
    assert policy.get_weights()["policy_value/000/kernel"].shape == default.get_weights()["policy/002/kernel"].shape
    # Before learning values are nearly 0: its head is small.
    values = policy.compute_values(random_batch(policy.spec, 20)["obs"])
    assert 0 < np.abs(values).max() < 0.1


# --- seeds and first values


def test_a_seed_gives_the_same_network_and_leaves_torchs_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = custom(torch_models.logits_only, seed=1).get_weights()
    assert torch.equal(torch.rand(3), expected)
    two, other = (custom(torch_models.logits_only, seed=seed).get_weights() for seed in (1, 2))
    for key, weight in one.items():
        np.testing.assert_array_equal(weight, two[key])
        assert "bias" in key and "value" in key or (weight != other[key]).any()


def test_loaded_weights_survive_and_the_instance_stays_the_users():
    module = torch_models.TwoHeads(BOX, DISCRETE, OUTPUTS)
    kept = {key: x.clone() for key, x in module.state_dict().items()}
    policy = custom(module)
    np.testing.assert_array_equal(policy.get_weights()["policy/000/weight"], kept["hidden.weight"].numpy())
    policy.learn_on_batch(random_batch(policy.spec, 8))
    assert policy.model is not module
    assert all(torch.equal(x, kept[key]) for key, x in module.state_dict().items())
    assert not np.array_equal(policy.get_weights()["policy/000/weight"], kept["hidden.weight"].numpy())


def test_a_script_keeps_weights_and_what_is_frozen():
    layers = torch_models.logits_only(BOX, DISCRETE, OUTPUTS).requires_grad_(False)
    layers[2].requires_grad_(True)
    module = torch.jit.script(layers)
    policy = custom(module)
    np.testing.assert_array_equal(policy.get_weights()["policy/000/weight"], getattr(module, "0").weight.numpy())
    assert [key for key in policy._trainable_keys() if "value" not in key] == ["policy/001/weight", "policy/001/bias"]
    assert all(p.is_leaf for p in policy.model.parameters())


# --- learning


def test_it_learns_as_the_default_network_does():
    """The same layers, written by a user: the same numbers, update after update."""
    default = make(MODE, share=True)
    policy = custom(torch_models.TwoHeads)
    weights = default.get_weights()
    pairs = dict(zip(policy.get_weights(), weights, strict=True))
    policy.set_weights({key: weights[other].T for key, other in pairs.items()})
    for seed in range(3):
        batch = random_batch(policy.spec, 16, seed=seed)
        stats, expected = (p.learn_on_batch(batch)["learner_stats"] for p in (policy, default))
        for name, value in expected.items():
            assert stats[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    for key, other in pairs.items():
        np.testing.assert_allclose(policy.get_weights()[key], default.get_weights()[other].T, atol=1e-5, err_msg=key)


def frozen_trunk(obs_space, action_space, outputs):
    module = torch_models.Normed(obs_space, action_space, outputs)
    module.trunk.requires_grad_(False).eval()
    return module


def test_frozen_parts_stay_bit_by_bit():
    """Parameters, and the statistics of batch norm in a part that is in eval mode."""
    policy = custom(frozen_trunk)
    before = policy.get_weights()
    for seed in range(3):
        policy.learn_on_batch(random_batch(policy.spec, 16, seed=seed))
    after = policy.get_weights()
    moved = {key for key in before if (before[key] != after[key]).any()}
    assert moved == {f"policy/00{i}/{leaf}" for i in (2, 3) for leaf in ("weight", "bias")}
    slots = {"default/step", *(f"{key}/{leaf}" for key in moved for leaf in "mv")}
    assert set(policy.get_state()["optimizer"]) == slots
    assert policy.compute_gradients(random_batch(policy.spec, 4))[0].keys() == moved


def test_a_module_used_before_learns_all_the_same():
    """One that is in eval mode as a whole was evaluated; that doesn't mean frozen."""
    policy = custom(torch_models.Normed(BOX, DISCRETE, OUTPUTS).eval())
    policy.learn_on_batch(random_batch(policy.spec, 16))
    assert policy.get_weights()["policy/001/num_batches_tracked"] == 1


def test_batch_norm_learns_in_losses_only():
    policy = custom(torch_models.Normed)
    batch, norm = random_batch(policy.spec, 16), policy.model.trunk[1]
    before = policy.get_weights()
    policy.compute_actions(batch["obs"])
    policy.compute_values(batch["obs"])
    policy.compute_log_likelihoods(batch["actions"], batch["obs"])
    assert not policy.model.training
    for key, weight in policy.get_weights().items():
        np.testing.assert_array_equal(weight, before[key])
    policy.compute_gradients(batch)
    hidden = batch["obs"] @ before["policy/000/weight"].T + before["policy/000/bias"]
    np.testing.assert_allclose(norm.running_mean, 0.1 * hidden.mean(0), atol=1e-6)
    np.testing.assert_allclose(norm.running_var, 0.9 + 0.1 * hidden.var(0, ddof=1), atol=1e-6)


def test_dropout_is_off_when_acting():
    policy = custom(torch_models.Normed, config={"dropout": 0.5})
    batch = random_batch(policy.spec, 16)
    policy.learn_on_batch(batch)
    one, two = (policy.compute_actions(batch["obs"]).extras["action_dist_inputs"] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    state = policy.get_state()
    losses = []
    for _ in range(2):
        losses.append(policy.compute_gradients(batch)[1]["learner_stats"]["policy_loss"])
        policy.set_state(state)
    assert losses[0] != losses[1]


def test_losses_of_the_module_are_added():
    plain, policy = custom(torch_models.TwoHeads), custom(torch_models.Penalised)
    batch = random_batch(plain.spec, 16)
    weights = plain.get_weights()
    (gradients, info), (penalised, other) = (p.compute_gradients(batch) for p in (plain, policy))
    penalty = 0.5 * sum(np.square(weights[f"policy/00{i}/weight"]).sum() for i in (0, 1))
    difference = other["learner_stats"]["total_loss"] - info["learner_stats"]["total_loss"]
    assert difference == pytest.approx(penalty, rel=1e-4)
    for key, gradient in gradients.items():
        added = weights[key] if key in ("policy/000/weight", "policy/001/weight") else 0
        np.testing.assert_allclose(penalised[key], gradient + added, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("model", [torch_models.Normed, torch_models.Memory, torch_models.logits_only])
def test_torch_compile_traces_it(model, monkeypatch):
    """Without the C++ compiler, which takes most of a minute: what is traced computes the same."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **kwargs: compile_(f, backend="eager", **kwargs))
    plain, compiled = custom(model), custom(model, torch_compile_learner=True)
    for seed in range(2):
        batch = {**random_batch(plain.spec, 12, seed=seed), "eps_id": np.arange(12) // 5}
        for policy in (plain, compiled):
            policy.learn_on_batch(batch)
            policy.compute_actions(batch["obs"])
    for key, weight in plain.get_weights().items():
        np.testing.assert_allclose(compiled.get_weights()[key], weight, atol=1e-5, err_msg=key)


# --- state


@pytest.mark.parametrize("as_dict", [False, True])
def test_sequences_are_steps_with_the_state_carried(as_dict):
    policy = custom(torch_models.Memory, config={"as_dict": as_dict})
    network, rng = policy.nets["policy"], np.random.default_rng(0)
    obs = torch.from_numpy(rng.uniform(-1, 1, (2 * 4, 3)).astype(np.float32))
    states = [torch.from_numpy(rng.standard_normal((2, 5)).astype(np.float32)) for _ in range(2)]
    mask = torch.ones(2, 4, dtype=torch.bool)
    with torch.no_grad():
        out = network({"obs": obs, "state_0": states[0], "state_1": states[1], SEQ_MASK: mask})
        lstm, heads = nn.LSTM(3, 5, batch_first=True), policy.model.heads
        lstm.load_state_dict({f"{key}_l0": x for key, x in policy.model.cell.state_dict().items()})
        hidden, last = lstm(obs.reshape(2, 4, 3), tuple(x[None] for x in states))
        expected = {name: head(hidden.reshape(8, 5)) for name, head in heads.items()}
    assert list(out) == ["logits", "value", "state_out_0", "state_out_1"]
    for name, x in {**expected, "state_out_0": last[0][0], "state_out_1": last[1][0]}.items():
        np.testing.assert_allclose(out[name], x, atol=1e-6, err_msg=name)


def test_a_recurrent_module_acts_and_learns():
    policy = custom(torch_models.Memory)
    batch = sequences_batch(policy.spec)
    out = policy.compute_actions(batch["obs"])
    assert [x.shape for x in out.state] == [(12, 5), (12, 5)] and policy.is_recurrent()
    second = policy.compute_actions(batch["obs"], out.state)
    assert not np.allclose(second.extras["action_dist_inputs"], out.extras["action_dist_inputs"])
    before = policy.get_weights()
    policy.learn_on_batch(batch)
    assert all((weight != before[key]).any() for key, weight in policy.get_weights().items())


# --- observations


def test_nested_observations_come_nested():
    """In the space's own dtypes; the mask too, which polylib applies."""
    space = S.Dict(
        {
            "eye": S.Box(0, 255, (12, 12, 1), np.uint8),
            "deep": S.Tuple((S.Box(-1.0, 1.0, (2,), np.float64), S.Discrete(4))),
            "action_mask": S.MultiBinary(3),
        }
    )
    policy = custom(torch_models.Nested, space)
    space.seed(0)
    samples = [space.sample() for _ in range(40)]
    obs = {
        "eye": np.stack([x["eye"] for x in samples]),
        "deep": tuple(np.stack([x["deep"][i] for x in samples]) for i in range(2)),
        "action_mask": np.eye(3, dtype=np.int8)[np.arange(40) % 3],
    }
    actions = policy.compute_actions(obs).actions
    assert (actions == 5 + np.arange(40) % 3).all()


# --- saving


def test_state_goes_from_policy_to_policy():
    one, two = custom(torch_models.Normed), custom(torch_models.Normed, seed=1)
    one.learn_on_batch(random_batch(one.spec, 16))
    two.set_state(one.get_state())
    for policy in (one, two):
        policy.learn_on_batch(random_batch(one.spec, 16, seed=1))
    for key, weight in one.get_weights().items():
        assert weight.dtype == np.float32
        np.testing.assert_array_equal(two.get_weights()[key], weight)
    assert two.get_weights()["policy/001/num_batches_tracked"] == 2


def test_a_checkpoint_needs_the_code_again(tmp_path):
    with small_ppo("CartPole-v1", MODE, model={"custom_model": torch_models.Normed}).build() as algo:
        algo.train()
        algo.save(str(tmp_path))
        weights = algo.get_weights()["default_policy"]
    with pytest.raises(CheckpointError, match="torch_models:Normed"):
        polylib.load_policy(tmp_path, "torch")
    policy = polylib.load_policy(tmp_path, "torch", custom_model=torch_models.Normed)
    for key, weight in policy.get_weights().items():
        np.testing.assert_array_equal(weight, weights[key])
    assert weights["policy/001/num_batches_tracked"] > 0


@pytest.mark.parametrize("model", [torch_models.Normed, "instance", "script"])
def test_workers_have_the_module_and_its_weights(ray_session, model):
    if isinstance(model, str):
        make_one = {"instance": torch_models.TwoHeads, "script": torch_models.scripted}[model]
        model = make_one(S.Box(-1.0, 1.0, (4,)), S.Discrete(2), {"logits": 2, "value": 1})
    with small_ppo("CartPole-v1", MODE, num_workers=1, model={"custom_model": model}).build() as algo:
        assert algo.train()["num_env_steps_sampled_this_iter"] > 0
        algo.workers.sync_weights()
        theirs = algo.workers.foreach_worker(lambda worker: worker.get_weights()["default_policy"])
        assert len(theirs) == 2
        for key, weight in theirs[0].items():
            np.testing.assert_array_equal(theirs[1][key], weight, err_msg=key)


class TestContract(PolicyContract):
    """A user's module keeps to everything that default networks keep to."""

    def make_policy(self, seed=0, **config):
        return make_policy(make_spec(seed=seed, model={"custom_model": torch_models.TwoHeads}, **config), *MODE)


# --- mistakes


def returning(result, state=None):
    """A factory of modules that return `result(obs, a layer of width 3)`."""

    class Returning(nn.Module):
        def __init__(self, obs_space, action_space, outputs):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            if state is not None:
                self.state_shapes = state

        def forward(self, obs, *rest):
            return result(obs, self.layer)

    return Returning


def test_what_it_returned_stands_beside_what_was_expected():
    text = complaint(returning(lambda obs, layer: {"logits": layer(obs)[:, :2], "vlaue": layer(obs).double()}))
    assert text.splitlines() == [
        "config key 'custom_model': model 'Returning' doesn't fit: its outputs are not what is asked for",
        "          expected              got",
        "  logits  float32[N, 3]         float32[N, 2]",
        "  value   float32[N, 1]         missing (a default network is added)",
        "  vlaue   nothing of that name  float64[N, 3]",
    ]


@pytest.mark.parametrize(
    ("result", "row"),
    [
        (lambda obs, layer: {"value": layer(obs)[:, :1]}, "logits  float32[N, 3]  missing"),
        (lambda obs, layer: layer(obs).double(), "logits  float32[N, 3]  float64[N, 3]"),
        (lambda obs, layer: (layer(obs), layer(obs)[:, 0]), "value   float32[N, 1]  float32[N]"),
        (lambda obs, layer: layer(obs).mean(0), "logits  float32[N, 3]  float32[N]"),
        (lambda obs, layer: [0.0], "logits  float32[N, 3]  float"),
        (lambda obs, layer: None, "logits  float32[N, 3]  missing"),
        (lambda obs, layer: (layer(obs), layer(obs)[:, :1], obs), "output 2  nothing of that name  float32[N, 3]"),
        (lambda obs, layer: layer(obs) / 0.0, "logits  float32[N, 3]  float32[N, 3] with NaN or infinite numbers"),
    ],
)
def test_bad_outputs(result, row):
    assert row in complaint(returning(result))


@pytest.mark.parametrize(
    ("state", "result", "message"),
    [
        ("wide", None, "state_shapes is 'wide', expected a list of shapes without batch axis, such as [(64,), (64,)]"),
        ([(5,)], lambda obs, layer: layer(obs), "(outputs, new_state) with new_state a list of 1 tensors"),
        ([(5,)], lambda obs, layer: (layer(obs), []), "got a state of 0 tensors"),
        ([(5,)], lambda obs, layer: (layer(obs), [layer(obs)]), "state_out_0  float32[N, 5]  float32[N, 3]"),
    ],
)
def test_bad_states(state, result, message):
    assert message in complaint(returning(result, state))


class Frozen(torch_models.TwoHeads):
    def __init__(self, *args):
        super().__init__(*args)
        self.requires_grad_(False)


class Broken(torch_models.TwoHeads):
    def __init__(self, *args):
        super().__init__(*args)
        nn.init.constant_(self.hidden.bias, torch.nan)


def raising(obs_space, action_space, outputs):
    raise KeyError("no such thing")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Frozen, "Frozen has no trainable parameter: all 6 are frozen; at least one must have requires_grad"),
        (lambda o, a, outputs: nn.Identity(), "Identity has no trainable parameter; at least one must"),
        (Broken, "NaN or infinite numbers"),
        (raising, "action_space, {'logits': 3, 'value': 1}) raised KeyError: 'no such thing'"),
        (returning(lambda obs, layer: layer(obs[:, :2])), r"Returning(obs) raised RuntimeError: mat1 and mat2"),
        (lambda obs_space: None, "which doesn't fit its arguments: too many positional arguments"),
        (lambda o, a, outputs: "a net", "returned str, expected a torch.nn.Module"),
        (lambda *args: torch_models.TwoHeads(*args).double(), "has 'hidden.weight' in float64, expected float32"),
        (7, "got 7"),
        ("mien", "no model is registered as 'mien'"),
    ],
)
def test_bad_models(model, message):
    assert message in complaint(model)


def test_a_parameter_of_another_dtype_is_refused():
    class Half(torch_models.TwoHeads):
        def __init__(self, *args):
            super().__init__(*args)
            self.extra = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    assert "Half has 'extra' in float64, expected float32: call .float() on it" in complaint(Half)


def test_config_for_a_finished_module_is_refused():
    module = torch_models.TwoHeads(BOX, DISCRETE, OUTPUTS)
    text = complaint(module, config={"units": 3})
    assert "'custom_model_config': ['units'] are for a factory or class; custom_model is a finished TwoHeads" in text
    assert re.search("units=.*doesn't fit its arguments", complaint(lambda o, a, outputs: None, config={"units": 3}))


# --- Keras on torch

KERAS = """
import sys
sys.path[:0] = [{tests!r}]
import keras, numpy as np
from learners import build, random_rows
from policies import make, random_batch
from q_models import maker

def net(obs_space, action_space, outputs):
    x = keras.Input(obs_space.shape)
    h = keras.layers.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(x)
    h = keras.layers.BatchNormalization()(h)
    frozen = keras.layers.Dense(4, trainable=False)
    return keras.Model(x, [keras.layers.Dense(width)(frozen(h)) for width in outputs.values()])

assert keras.backend.backend() == "torch"
policy = make(("torch", False), model={{"custom_model": net}})
assert isinstance(policy.model, keras.Model)
before = policy.get_weights()
batch = random_batch(policy.spec, 16)
logits = policy.compute_actions(batch["obs"]).extras["action_dist_inputs"]
np.testing.assert_allclose(logits, keras.ops.convert_to_numpy(policy.model(batch["obs"])[0]), atol=1e-6)
policy.learn_on_batch(batch)
moved = [key for key, w in policy.get_weights().items() if (w != before[key]).any()]
print(*before)
print(*moved)
other = make(("torch", False), model={{"custom_model": net}}, seed=1)
other.set_state(policy.get_state())
for p in (policy, other):
    p.learn_on_batch(batch)
for key, w in policy.get_weights().items():
    np.testing.assert_allclose(other.get_weights()[key], w, atol=1e-6)
assert len(policy.nets["policy"].penalties()) == 1

dqn = build(("torch", False), "DQN", model={{"custom_model": maker("tf", "norm")}})
dqn.learn_on_batch(random_rows(dqn.spec, 8))
dqn.update_target(0.5)
dqn.update_target()
after = dqn.get_weights()
assert all((after["target_" + key] == w).all() for key, w in after.items() if not key.startswith("target"))
assert dqn.model({{"obs": batch["obs"]}})[0].shape == (16, 4)
assert "tensorflow" not in sys.modules
"""


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
def test_keras_on_torch(tmp_path):
    tests = str(Path(__file__).parents[1])
    env = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(Path(tests).parent)}
    code = KERAS.format(tests=tests)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-3000:]
    keys, moved = (line.split() for line in done.stdout.splitlines())
    leaves = [["kernel", "bias"], ["gamma", "beta", "moving_mean", "moving_variance"], *[["kernel", "bias"]] * 3]
    assert keys == [f"policy/{i:03d}/{leaf}" for i, names in enumerate(leaves) for leaf in names]
    assert [key for key in keys if key not in moved] == ["policy/002/kernel", "policy/002/bias"]


def test_keras_on_another_backend_is_refused():
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "torch":
        pytest.skip("this process runs Keras on torch")

    def net(obs_space, action_space, outputs):
        x = keras.Input(obs_space.shape)
        return keras.Model(x, keras.layers.Dense(3)(x), name="mine")

    for model in (net, net(BOX, DISCRETE, OUTPUTS)):
        text = complaint(model)
        assert "Keras model 'mine', and Keras runs on 'tensorflow' here" in text
        assert "KERAS_BACKEND=torch bin/train --framework torch" in text
