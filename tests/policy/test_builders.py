"""Policies from a user's own loss: `build_tf_policy`, `build_torch_policy`, and algorithms made of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from fakes import MatchEnv
from modes import FAST_MODE_PARAMS, MODE_PARAMS
from policies import BOX, DISCRETE, TORQUE, random_batch

import polylib
from polylib.algorithms.algorithm import Algorithm
from polylib.algorithms.from_policy import PolicyAlgorithmConfig
from polylib.algorithms.ppo import PPO, PPOConfig
from polylib.algorithms.registry import algorithm_names, get_config_class, registered_name, spelled_name
from polylib.errors import (
    BatchError,
    ConfigError,
    ConfigTypeError,
    FrameworkError,
    PolylibError,
    UnknownKeyError,
    WeightsError,
)
from polylib.evaluation.postprocessing import compute_advantages
from polylib.evaluation.worker_set import WorkerSet
from polylib.policy.actor_critic import ActorCritic
from polylib.policy.backends import make_policy
from polylib.policy.builders import build_tf_policy, build_torch_policy
from polylib.policy.objective import PolicySpec, row_mean

ROOT = Path(__file__).parents[2]
MODES = pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
SMALL = {"fcnet_hiddens": [8]}


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    from polylib.algorithms import registry

    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_spelled", {})


# --- the same policy gradient, in each framework and over ops


def returns(policy, batch, other_agent_batches, episode):
    last = batch["values_bootstrapped"][-1]
    return compute_advantages(batch, last, policy.config["gamma"], use_gae=False, use_critic=False)


def tf_loss(policy, model, dist_class, train_batch):
    """Policy gradient with a value loss."""
    import tensorflow as tf

    logits, _ = model(train_batch)
    dist = dist_class(logits, model)
    policy.pg = -tf.reduce_mean(dist.logp(train_batch["actions"]) * train_batch["advantages"])
    policy.vf = tf.reduce_mean(tf.square(model.value_function() - train_batch["value_targets"]))
    policy.entropy = tf.reduce_mean(dist.entropy())
    return policy.pg + 0.5 * policy.vf - 0.01 * policy.entropy


def torch_loss(policy, model, dist_class, train_batch):
    """Policy gradient with a value loss."""
    logits, _ = model(train_batch)
    dist = dist_class(logits, model)
    policy.pg = -(dist.logp(train_batch["actions"]) * train_batch["advantages"]).mean()
    policy.vf = (model.value_function() - train_batch["value_targets"]).square().mean()
    policy.entropy = dist.entropy().mean()
    return policy.pg + 0.5 * policy.vf - 0.01 * policy.entropy


class OverOps(ActorCritic):
    """The same loss, written once."""

    columns = ("obs", "actions", "advantages", "value_targets")
    optional_columns = ("action_mask", "action_raw")

    def losses(self, ops, nets, batch, noise, c, training):
        mean = row_mean(ops, batch)
        out = nets["policy"](batch, training=training)
        inputs = self.dist.mask(ops, out["logits"], batch.get("action_mask"))
        logp = self.dist.logp(ops, inputs, self.taken(batch), batch.get("action_raw"))
        error = ops.square(out["value"][:, 0] - batch["value_targets"])
        entropy = self.dist.entropy(ops, inputs)
        return {"default": mean(-logp * batch["advantages"] + 0.5 * error - 0.01 * entropy)}, {}, {}

    def postprocess(self, fragment):
        return fragment.batch


def stats(policy, train_batch):
    return {"pg": policy.pg, "vf": policy.vf}


def define(framework, name="Mine", loss=None, **hooks):
    """The definition of the loss, in a framework."""
    if framework == "torch":
        return build_torch_policy(name, loss_fn=loss or torch_loss, **hooks)
    return build_tf_policy(name, loss_fn=loss or tf_loss, **hooks)


def spec_of(definition, obs_space=BOX, action_space=DISCRETE, model=None, **config):
    values = PolicyAlgorithmConfig().to_dict()
    model = {**values["model"], **SMALL, **(model or {})}
    return PolicySpec(obs_space, action_space, definition, {**values, "model": model, **config}, seed=0)


def make(mode, definition, *spaces, **config):
    return make_policy(spec_of(definition, *spaces, **config), *mode)


def batch_for(spec, size=16, **kwargs):
    """Columns as PPO's tests have them."""
    return random_batch(PolicySpec(spec.observation_space, spec.action_space, OverOps, spec.config), size, **kwargs)


def assert_same(weights, others, tolerance=1e-5):
    assert list(weights) == list(others)
    for key, w in weights.items():
        np.testing.assert_allclose(w, others[key], rtol=tolerance, atol=tolerance, err_msg=key)


# --- losses


@MODES
@pytest.mark.parametrize("actions", [DISCRETE, TORQUE], ids=["discrete", "box"])
def test_a_users_loss_moves_weights_as_the_same_loss_over_ops(framework, traced, actions):
    mode = (framework, traced)
    policy, house = make(mode, define(framework), BOX, actions), make(mode, OverOps, BOX, actions)
    batch = batch_for(policy.spec)
    before = policy.get_weights()
    indices = np.random.default_rng(0).integers(0, 16, (6, 8))
    for p in (policy, house):
        for _ in range(3):
            p.learn_on_batch(batch)
        p.learn_on_minibatches(batch, indices)
        p.apply_gradients(p.compute_gradients(batch)[0])
    assert policy.num_updates == 10
    assert_same(policy.get_weights(), house.get_weights())
    assert not np.allclose(before["policy/000/kernel"], policy.get_weights()["policy/000/kernel"], atol=1e-4)
    for p in (policy, house):
        p.close()


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_a_users_loss_learns(framework, traced):
    config = {"lr": 0.03, "gamma": 0.0, "train_batch_size": 200, "model": {"fcnet_hiddens": [16]}}
    config.update(sgd_minibatch_size=50, num_envs_per_worker=10)
    hooks = {"postprocess_fn": returns, "stats_fn": stats}
    algorithm = polylib.build_algorithm("Mine", policy=define(framework, **hooks), config=config)
    chosen = algorithm.get_default_config().environment(MatchEnv).debugging(seed=0)
    with chosen.framework(framework, eager_tracing=traced).build() as algo:
        assert type(algo) is algorithm and issubclass(algorithm, Algorithm)
        for _ in range(15):
            result = algo.train()
            if result["episode_reward_mean"] > 8.0:
                break
        learned = result["info"]["learner"]["default_policy"]["learner_stats"]
    assert result["episode_reward_mean"] > 8.0, "10 is the best, 3.3 is chance"
    assert {"pg", "vf", "total_loss", "grad_gnorm", "cur_lr"} == set(learned)


def loud_loss(policy, model, dist_class, train_batch):
    loss = tf_loss(policy, model, dist_class, train_batch)
    print("loss is", type(loss).__name__, float(loss) if hasattr(loss, "numpy") else "symbolic")
    return loss


@pytest.mark.parametrize(("framework", "traced"), [m for m in MODE_PARAMS if m.values[0] != "torch"])
def test_prints_and_breakpoints_work_in_eager(framework, traced, capsys, monkeypatch):
    """Eagerly every update runs the loss line by line, on values; otherwise it is traced, once."""
    policy = make((framework, traced), define(framework, loss=loud_loss))
    batch = batch_for(policy.spec)
    policy.learn_on_minibatches(batch, np.arange(16).reshape(4, 4))
    policy.learn_on_minibatches(batch, np.arange(16).reshape(4, 4))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("loss is")]
    if (framework, traced) == ("tf2", False):
        assert len(said) == 8 and all("EagerTensor" in line for line in said)
        stops = []
        monkeypatch.setattr(sys, "breakpointhook", lambda: stops.append(sys._getframe(1).f_code.co_name))

        def stopping(policy, model, dist_class, train_batch):
            breakpoint()  # noqa: T100
            return tf_loss(policy, model, dist_class, train_batch)

        make((framework, traced), define(framework, loss=stopping)).learn_on_batch(batch)
        assert stops == ["stopping"]
    else:
        assert 1 <= len(said) <= 2 and "symbolic" in said[0]
    policy.close()


@MODES
def test_recurrent_policies_and_nests(framework, traced):
    """Padded steps are masked by the user; observations and actions are nested as their spaces are."""
    seen = {}

    def loss(policy, model, dist_class, batch):
        assert set(batch["obs"]) == {"a", "b"} and isinstance(batch["actions"], tuple)
        seen.update({name: tuple(x.shape) for name, x in batch.items() if hasattr(x, "shape")})
        logits, state = model(batch)
        assert len(state) == 2
        logp = dist_class(logits, model).logp(batch["actions"])
        if framework == "torch":
            mask = batch["seq_mask"].reshape(-1).float()
            total = (logp * batch["advantages"] + 0.5 * model.value_function()) * mask
            return -total.sum() / mask.sum()
        import tensorflow as tf

        mask = tf.cast(tf.reshape(batch["seq_mask"], (-1,)), tf.float32)
        total = (logp * batch["advantages"] + 0.5 * model.value_function()) * mask
        return -tf.reduce_sum(total) / tf.reduce_sum(mask)

    class House(OverOps):
        columns = ("obs", "actions", "advantages")

        def losses(self, ops, nets, batch, noise, c, training):
            out = nets["policy"](batch, training=training)
            logp = self.dist.logp(ops, out["logits"], self.taken(batch), batch.get("action_raw"))
            total = logp * batch["advantages"] + 0.5 * out["value"][:, 0]
            return {"default": -row_mean(ops, batch)(total)}, {}, {}

    obs_space = gym.spaces.Dict(a=BOX, b=gym.spaces.Discrete(3))
    action_space = gym.spaces.Tuple((gym.spaces.Discrete(2), TORQUE))
    model = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    mode = (framework, traced)
    policy = make(mode, define(framework, loss=loss), obs_space, action_space, model=model)
    house = make(mode, House, obs_space, action_space, model=model)
    rng = np.random.default_rng(0)
    obs = {"a": rng.uniform(-1, 1, (10, 3)).astype(np.float32), "b": rng.integers(0, 3, 10)}
    acted = policy.compute_actions(obs)
    batch = {
        "obs": obs,
        "actions": acted.actions,
        "action_raw": acted.extras["action_raw"],
        "advantages": rng.standard_normal(10).astype(np.float32),
        "eps_id": np.repeat([0, 1], [7, 3]),
        "unroll_id": np.repeat([0, 1], [7, 3]),
    }
    for p in (policy, house):
        for _ in range(3):
            p.learn_on_batch(batch)
    assert_same(policy.get_weights(), house.get_weights())
    assert {"seq_mask", "seq_lens", "state_in_0", "state_in_1", "advantages"} <= set(seen)
    for p in (policy, house):
        p.close()


@MODES
def test_masked_actions_stay_out_of_the_loss(framework, traced):
    space = gym.spaces.Dict(x=BOX, action_mask=gym.spaces.MultiBinary(3))
    policy = make((framework, traced), define(framework), space)
    obs = {"x": np.zeros((6, 3), np.float32), "action_mask": np.array([[1, 1, 0]] * 6, np.int8)}
    actions = policy.compute_actions(obs).actions
    ones = np.ones(6, np.float32)
    batch = {"obs": obs, "actions": actions, "advantages": np.arange(6, dtype=np.float32), "value_targets": ones}
    policy.learn_on_batch(batch)
    after = policy.get_weights()
    assert all(np.isfinite(w).all() for w in after.values())
    (bias,) = (w for w in after.values() if w.shape == (3,))
    assert bias[2] == 0.0 and bias[:2].any(), "no gradient reaches a masked logit"
    policy.close()


# --- hooks


@MODES
def test_hooks_around_the_policy(framework, traced):
    """In order, with the policy, its spaces and its config; extra outputs become columns and reach the loss."""
    calls = []

    def note(name):
        return lambda policy, obs_space, action_space, config: calls.append((name, obs_space, config["lr"]))

    def extra(policy, input_dict, state_batches, model, action_dist):
        assert state_batches == [] and "obs" in input_dict
        return {"behaviour_values": model.value_function(), "behaviour_entropy": action_dist.entropy()}

    def loss(policy, model, dist_class, batch):
        base = (torch_loss if framework == "torch" else tf_loss)(policy, model, dist_class, batch)
        policy.residual = model.value_function() - batch["behaviour_values"]
        return base

    def post(policy, batch, other_agent_batches, episode):
        assert other_agent_batches is None and episode is None
        assert batch["new_obs"].shape == batch["obs"].shape and len(set(batch["eps_id"])) == 1
        batch["steps"] = np.arange(len(batch["rewards"]))
        return returns(policy, batch, other_agent_batches, episode)

    definition = define(
        framework,
        loss=loss,
        validate_spaces=note("validate"),
        before_init=note("before"),
        after_init=note("after"),
        extra_action_out_fn=extra,
        extra_learn_fetches_fn=lambda policy: {"residual": policy.residual, "bias": policy.pg},
        postprocess_fn=post,
        get_default_config=lambda: {"lr": 0.01, "train_batch_size": 30, "my_key": 7},
    )
    algorithm = polylib.build_algorithm("Mine", policy=definition, config={"lr": 0.02, "model": SMALL})
    config = algorithm.get_default_config()
    assert config["my_key"] == 7 and config["lr"] == 0.02 and config["train_batch_size"] == 30
    assert config["model"]["fcnet_hiddens"] == [8] and config.sources == {}
    with pytest.raises(UnknownKeyError, match="my_kye.*my_key"):
        config.training(my_kye=1)
    config.training(my_key=8).environment(MatchEnv).framework(framework, eager_tracing=traced)
    with config.build() as algo:
        policy = algo.get_policy()
        assert [name for name, _, _ in calls] == ["validate", "before", "after"] and policy.config["my_key"] == 8
        assert calls[0][2] == 0.02
        out = policy.compute_actions(np.eye(3, dtype=np.float32))
        assert out.extras["behaviour_values"].shape == out.extras["behaviour_entropy"].shape == (3,)
        np.testing.assert_allclose(
            out.extras["behaviour_values"], policy.compute_values(np.eye(3, dtype=np.float32)), rtol=1e-5
        )
        batch = algo.workers.local_worker().sample()
        assert {"behaviour_values", "steps", "advantages"} <= set(batch) and "new_obs" not in batch
        info = policy.learn_on_batch(batch)
        assert info["rows"]["residual"].shape == (len(batch["obs"]),) and "bias" in info["learner_stats"]
        np.testing.assert_allclose(info["rows"]["residual"], 0.0, atol=1e-5)
        assert algo.train()["timesteps_total"] == 30


def test_values_bootstrapped_are_those_of_the_next_state():
    """0 after a terminal state, the value of the last true observation where sampling stopped."""
    from polylib.policy.fragment import Fragment
    from polylib.policy.sample_batch import SampleBatch

    seen = []

    def post(policy, batch, other_agent_batches, episode):
        seen.append((batch["values_bootstrapped"].tolist(), batch["new_obs"][:, 0].tolist()))
        batch["rewards"] *= 0  # doesn't reach what was sampled
        return batch

    objective = define("tf", postprocess_fn=post)(spec_of(OverOps))
    objective._policy = lambda: None
    batch = SampleBatch(
        obs=np.arange(15, dtype=np.float32).reshape(5, 3),
        rewards=np.ones(5, np.float32),
        vf_preds=np.arange(5, dtype=np.float32),
        terminateds=np.array([False, True, False, False, False]),
    )
    last = np.full((2, 3), -1, np.float32)
    fragment = Fragment(batch, [0, 2], [2, 5], last, np.array([0.0, 9.0], np.float32))
    out = objective.postprocess(fragment)
    assert seen == [([1.0, 0.0], [3.0, -1.0]), ([3.0, 4.0, 9.0], [9.0, 12.0, -1.0])]
    assert not out["rewards"].any() and batch["rewards"].all()


def sgd(policy, config):
    if policy.framework == "torch":
        import torch

        return torch.optim.SGD(policy.model.parameters(), lr=0.1, momentum=0.9)
    import keras

    return keras.optimizers.SGD(0.1, momentum=0.9)


@MODES
def test_a_users_optimizer(framework, traced):
    """Its steps are taken, and its state goes into the policy's."""
    policy = make((framework, traced), define(framework, optimizer_fn=sgd))
    other = make((framework, traced), define(framework, optimizer_fn=sgd))
    batch = batch_for(policy.spec)
    weights, velocity = policy.get_weights(), {}
    for _ in range(3):
        gradients, info = policy.compute_gradients(batch)
        assert info["learner_stats"]["cur_lr"] == pytest.approx(0.1)
        policy.learn_on_batch(batch)
        for key, g in gradients.items():
            # Keras: v = m v - lr g, w += v; torch: v = m v + g, w -= lr v. Without dampening they are the same.
            velocity[key] = 0.9 * velocity.get(key, 0.0) - 0.1 * g
            weights[key] = weights[key] + velocity[key]
        assert_same(policy.get_weights(), weights)
    state = policy.get_state()
    assert any(np.abs(x).max() > 0 for key, x in state["optimizer"].items() if "step" not in key)
    other.set_state(state)
    for p in (policy, other):
        p.learn_on_minibatches(batch, np.arange(16).reshape(2, 8))
    assert_same(policy.get_weights(), other.get_weights(), 1e-6)
    with pytest.raises(WeightsError, match="optimizer: "):
        other.set_state({**state, "optimizer": {**state["optimizer"], "nonsense/x": np.zeros(3)}})
    for p in (policy, other):
        p.close()


@MODES
@pytest.mark.parametrize("own", [False, True], ids=["adam", "own optimizer"])
def test_gradients_of_a_users_own(framework, traced, own):
    """Signs of gradients in place of gradients, and steps that are left out."""
    seen = []

    def compute(policy, optimizer, loss):
        pairs = optimizer.compute_gradients(loss)
        if own:
            assert type(optimizer.own).__name__ == "SGD"
            own_part = optimizer.param_groups if framework == "torch" else optimizer.learning_rate
            assert own_part is not None
        seen.append(len(pairs))
        if framework == "torch":
            return [(g.sign(), v) for g, v in pairs]
        import tensorflow as tf

        return [(tf.sign(g), v) for g, v in pairs]

    def apply(policy, optimizer, grads_and_vars):
        optimizer.apply_gradients(grads_and_vars[:2])  # the first layer alone

    hooks = {"compute_gradients_fn": compute, "apply_gradients_fn": apply}
    if own:
        hooks["optimizer_fn"] = sgd
    policy = make((framework, traced), define(framework, **hooks), grad_clip=1e-3)
    batch, before = batch_for(policy.spec), policy.get_weights()
    gradients, _ = policy.compute_gradients(batch)
    assert all(set(np.unique(g)) <= {-1.0, 0.0, 1.0} for g in gradients.values()) and set(seen) == {len(gradients)}
    policy.learn_on_batch(batch)
    after = policy.get_weights()
    moved = [key for key, w in after.items() if not np.array_equal(w, before[key])]
    assert moved == list(before)[:2]
    if own:
        np.testing.assert_allclose(after[moved[0]], before[moved[0]] - 0.1 * gradients[moved[0]], rtol=1e-5)
    policy.close()


@MODES
def test_an_action_distribution_of_a_users_own(framework, traced):
    """The logits halved: in acting, in likelihoods, on every path."""

    def halved(policy, model, input_dict, *, state_batches, **kwargs):
        logits, state = model(input_dict, state_batches)
        return logits * 0.5, policy.dist_class, state

    policy = make((framework, traced), define(framework, action_distribution_fn=halved))
    plain = make((framework, traced), define(framework))
    obs = batch_for(policy.spec)["obs"]
    out, expected = policy.compute_actions(obs), plain.compute_actions(obs).extras["action_dist_inputs"]
    np.testing.assert_allclose(out.extras["action_dist_inputs"], 0.5 * expected, rtol=1e-5, atol=1e-7)
    logp = policy.compute_log_likelihoods(out.actions, obs)
    np.testing.assert_allclose(logp, out.extras["action_logp"], rtol=1e-5, atol=1e-6)
    for wrong, message in (
        (lambda *args, **kwargs: 3, r"has to return \(dist_inputs, dist_class, state_out\), got int"),
        (lambda p, m, i, **kwargs: (m(i)[0][:, :2], None, []), "width 2, Categorical takes 3"),
    ):
        bad = make((framework, traced), define(framework, action_distribution_fn=wrong))
        with pytest.raises(ConfigError, match=message):
            bad.compute_actions(obs)
        bad.close()
    for p in (policy, plain):
        p.close()


@MODES
def test_a_model_of_a_users_own(framework, traced):
    """`make_model` gives the network; its class is what `policy.model` is."""

    def network(policy, obs_space, action_space, config):
        assert policy.framework == framework and config["lr"] > 0
        if framework == "torch":
            from torch import nn

            return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        import keras

        x = keras.Input((3,))
        return keras.Model(x, keras.layers.Dense(3, name="logits")(keras.layers.Dense(5, "tanh")(x)))

    policy = make((framework, traced), define(framework, make_model=network))
    batch = batch_for(policy.spec)
    before = policy.get_weights()
    assert sum(w.size for key, w in before.items() if not key.startswith("policy_value")) == 20 + 18
    policy.learn_on_batch(batch)
    after = policy.get_weights()
    assert all(not np.array_equal(w, before[key]) for key, w in after.items() if w.ndim == 2)
    policy.close()


@MODES
def test_columns_are_asked_for(framework, traced):
    """With `columns` a loss gets those, `new_obs` too, and nothing else; what is missing is named."""
    seen = set()

    def loss(policy, model, dist_class, batch):
        seen.update(batch)
        _, _ = model({"obs": batch["new_obs"]})
        after = model.value_function()
        model(batch)
        error = batch["rewards"] + after - model.value_function() + batch["mine"]
        return (error * error).mean() if framework == "torch" else _mean(error * error)

    def _mean(x):
        import tensorflow as tf

        return tf.reduce_mean(x)

    policy = make((framework, traced), define(framework, loss=loss, columns=("rewards", "new_obs", "mine")))
    batch = batch_for(policy.spec)
    batch.update(rewards=np.ones(16, np.float32), new_obs=batch["obs"], mine=np.ones(16), t=np.arange(16))
    policy.learn_on_batch(batch)
    assert seen == {"obs", "actions", "rewards", "new_obs", "mine"}
    for name in ("mine", "rewards"):
        with pytest.raises(BatchError, match=f"has no column '{name}'"):
            policy.learn_on_batch({key: x for key, x in batch.items() if key != name})
    policy.close()


# --- mistakes


@MODES
def test_a_wrong_loss_is_told_in_one_line(framework, traced):
    def shaped(policy, model, dist_class, batch):
        model(batch)
        return model.value_function()

    def reads(policy, model, dist_class, batch):
        return batch["advantage"]

    cases = [
        (shaped, r"loss_fn returned shape \[(16|None)\], expected a scalar"),
        (lambda *args: None, "loss_fn returned NoneType, expected a scalar tensor"),
        (lambda *args: 3.0, "loss_fn returned float, expected a scalar tensor"),
        (reads, "the train batch has no column 'advantage'; it has obs, actions"),
    ]
    for loss, message in cases:
        policy = make((framework, traced), define(framework, loss=loss))
        with pytest.raises(PolylibError, match=message):
            policy.learn_on_batch(batch_for(policy.spec))
        policy.close()
    policy = make((framework, traced), define(framework, stats_fn=lambda policy, batch: {"x": batch["advantages"]}))
    with pytest.raises(ConfigError, match=r"stats_fn returns 'x' of shape \[(16|None)\], expected a scalar"):
        policy.learn_on_batch(batch_for(policy.spec))
    policy.close()


@MODES
def test_samples_in_a_loss(framework, traced):
    """Drawn on the host where the loss runs line by line, refused where it is traced."""

    def loss(policy, model, dist_class, batch):
        logits, _ = model(batch)
        dist = dist_class(logits, model)
        logp = dist.logp(dist.sample())
        if framework == "torch":
            return -logp.mean()
        import tensorflow as tf

        return -tf.reduce_mean(logp)

    policy = make((framework, traced), define(framework, loss=loss))
    if framework == "torch" or not traced and framework == "tf2":
        assert np.isfinite(policy.learn_on_batch(batch_for(policy.spec))["learner_stats"]["total_loss"])
    else:
        with pytest.raises(FrameworkError, match=r"sample\(\) of an action distribution draws on the host"):
            policy.learn_on_batch(batch_for(policy.spec))
    policy.close()


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
def test_a_framework_without_a_version_is_refused(framework, traced):
    other, has = ("tf", "'tf' or 'tf2'") if framework == "torch" else ("torch", "'torch'")
    definition = define(other)
    message = f"policy 'Mine' has no '{framework}' version; it runs with framework {has}"
    with pytest.raises(FrameworkError, match=message):
        make((framework, traced), definition)
    algorithm = polylib.build_algorithm("Mine", policy=definition)
    config = algorithm.get_default_config().environment(MatchEnv).framework(framework)
    with pytest.raises(FrameworkError, match=f"Mine has no '{framework}' backend; it runs with framework {has}"):
        config.build()

    class Theirs(PPO):
        objective_class = definition

    with pytest.raises(FrameworkError, match=message):
        Theirs(PPOConfig().environment(MatchEnv).framework(framework).training(model=SMALL))


def test_definitions_are_checked():
    with pytest.raises(ConfigTypeError, match=r"stats_fn is 3 \(int\), expected a function"):
        build_tf_policy("Mine", loss_fn=tf_loss, stats_fn=3)
    with pytest.raises(ConfigError, match="a policy's name has to be a Python name, got 'my policy'"):
        build_torch_policy("my policy", loss_fn=torch_loss)
    with pytest.raises(TypeError, match="action_sampler_fn"):
        build_tf_policy("Mine", loss_fn=tf_loss, action_sampler_fn=print)
    definition = define("tf")
    with pytest.raises(ConfigError, match="'PPO' is polylib's own algorithm"):
        polylib.build_algorithm("PPO", policy=definition)
    with pytest.raises(ConfigError, match="a Python name, got '1'"):
        polylib.build_algorithm("1", policy=definition)
    with pytest.raises(ConfigTypeError, match="policy is <function tf_loss.*expected what build_tf_policy"):
        polylib.build_algorithm("Mine", policy=tf_loss)
    with pytest.raises(ConfigError, match="expected one policy per framework, got 2"):
        polylib.build_algorithm("Mine", policy=(definition, define("tf2")))
    with pytest.raises(ConfigError, match="config key 'lr': got -1"):
        polylib.build_algorithm("Mine", policy=definition, config={"lr": -1})


def test_a_policy_with_hooks_that_act_needs_its_framework():
    pytest.importorskip("torch")
    acting = define("torch", extra_action_out_fn=lambda *args: {})
    with pytest.raises(FrameworkError, match="has hooks that act through its framework: choose framework 'torch'"):
        make(("numpy", False), acting)
    assert make(("numpy", False), define("torch")).compute_actions(np.zeros((1, 3), np.float32)).actions.shape == (1,)
    config = polylib.build_algorithm("Mine", policy=acting).get_default_config().environment(MatchEnv)
    workers = WorkerSet.__new__(WorkerSet)
    workers.config = config
    assert workers._worker_backend(("torch", False), acting) == ("torch", False)
    assert workers._worker_backend(("torch", False), define("torch")) == ("numpy", False)


# --- algorithms


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
def test_both_frameworks_in_one_algorithm(framework, traced, tmp_path):
    """The version follows the framework; a checkpoint of one goes on in NumPy and with its own optimizer's state."""
    both = (define("tf", "InTF", postprocess_fn=returns), define("torch", "InTorch", postprocess_fn=returns))
    algorithm = polylib.build_algorithm("Both", policy=both, config={"train_batch_size": 20, "model": SMALL})
    assert "Both" in algorithm_names() and get_config_class("Both") is algorithm.config_class
    config = algorithm.get_default_config().environment(MatchEnv).framework(framework, eager_tracing=traced)
    with config.build() as algo:
        expected = "InTorch" if framework == "torch" else "InTF"
        assert type(algo.get_policy().objective).__name__ == expected
        algo.train()
        path = algo.save(str(tmp_path / "checkpoint")).checkpoint.path
        obs = np.eye(3, dtype=np.float32)
        actions = algo.compute_actions(obs, explore=False)
    policy = polylib.load_policy(path)
    np.testing.assert_array_equal(policy.compute_actions(obs, explore=False).actions, actions)
    other = polylib.load_policy(path, framework="torch" if framework != "torch" else "tf2")
    assert type(other.objective).__name__ != expected
    with Algorithm.from_checkpoint(path, env=MatchEnv) as algo:
        assert type(algo) is algorithm and algo.train()["timesteps_total"] == 40


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS)
def test_an_optimizers_state_goes_into_checkpoints(framework, traced, tmp_path):
    definition = define(framework, postprocess_fn=returns, optimizer_fn=sgd)
    config = {"train_batch_size": 20, "model": SMALL}
    algorithm = polylib.build_algorithm("Mine", policy=definition, config=config)
    config = algorithm.get_default_config().environment(MatchEnv).framework(framework, eager_tracing=traced)
    with config.debugging(seed=0).build() as algo:
        algo.train()
        path = algo.save(str(tmp_path / "checkpoint")).checkpoint.path
        algo.train()
        with Algorithm.from_checkpoint(path, env=MatchEnv) as other:
            other.train()
            assert_same(algo.get_weights()["default_policy"], other.get_weights()["default_policy"], 1e-6)
    assert polylib.load_policy(path).num_updates == 1


def test_an_objective_over_ops_needs_no_builder():
    """`build_algorithm` takes one as it is."""

    class Written(OverOps):
        def postprocess(self, fragment):
            return compute_advantages(fragment, 0.0, 0.0, use_gae=False, use_critic=False)

    algorithm = polylib.build_algorithm("Written", policy=Written, config={"train_batch_size": 20, "model": SMALL})
    with algorithm.get_default_config().environment(MatchEnv).build() as algo:
        assert algo.train()["timesteps_total"] == 20


@pytest.mark.parametrize(("framework", "traced"), FAST_MODE_PARAMS[-1:])
def test_remote_workers_know_the_definition(framework, traced, ray_session):
    """It is pickled by value where its module can't be imported, as that of this test; hooks that act run there."""
    definition = define(
        framework,
        postprocess_fn=returns,
        extra_action_out_fn=lambda policy, input_dict, states, model, dist: {"behaviour": dist.entropy()},
    )
    algorithm = polylib.build_algorithm("Mine", policy=definition, config={"train_batch_size": 20, "model": SMALL})
    config = algorithm.get_default_config().environment(MatchEnv).rollouts(num_workers=1)
    with config.framework(framework).build() as algo:
        batch = algo.workers.sample()[0][0]
        assert batch["behaviour"].shape == (20,) and "advantages" in batch
        assert algo.train()["timesteps_total"] == 20


# --- names


MODULE = """
import polylib
from polylib.algorithms.ppo import PPO

def loss(policy, model, dist_class, batch):
    raise NotImplementedError

MyPG = polylib.build_algorithm("MyPG", policy=polylib.build_tf_policy("Policy", loss_fn=loss))

class Theirs(PPO):
    pass

number = 3
"""


def test_algorithms_by_module(tmp_path, monkeypatch):
    (tmp_path / "my_algorithms.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert registered_name("PPO") == "PPO"
    assert registered_name("my_algorithms:MyPG") == "MyPG" and "MyPG" in algorithm_names()
    assert spelled_name("MyPG") == "my_algorithms:MyPG" and spelled_name("PPO") == "PPO"
    for name, message in {
        "my_algorithms:Other": "module 'my_algorithms' has no 'Other'",
        "my_algorithm:MyPG": "can't be imported: ModuleNotFoundError",
        "my_algorithms:number": "is 3, expected an Algorithm class",
        "my_algorithms:Theirs": "has the config of 'PPO'.*algo_name = 'Theirs'",
    }.items():
        with pytest.raises(UnknownKeyError, match=message):
            registered_name(name)
    with pytest.raises(UnknownKeyError, match="unknown algorithm 'my_algorithms:MyPG'"):
        get_config_class("my_algorithms:MyPG")  # a name in a file, say


def test_algorithms_by_module_on_the_command_line(tmp_path):
    (tmp_path / "my_algorithms.py").write_text(MODULE)
    command = [sys.executable, ROOT / "bin/train", "--algo", "my_algorithms:MyPG", "--env", "CartPole-v1"]

    def run(*args):
        return subprocess.run([*command, *args], cwd=tmp_path, capture_output=True, text=True, timeout=120)

    done = run("--framework", "torch")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "MyPG has no 'torch' backend; it runs with framework 'tf' or 'tf2'" in done.stderr
    done = run("--print-config")
    assert done.returncode == 0 and "sgd_minibatch_size" in done.stdout, done.stderr
