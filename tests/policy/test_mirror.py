"""Acting through NumPy copies of the networks: as fresh as the weights, and given up when somebody has the model."""

import numpy as np
import pytest
from backends import needs_tf
from modes import MODE_PARAMS
from policies import BOX, DISCRETE, make, random_batch

from polylib.algorithms.dqn import DQNConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec

MIRRORING = {("tf", False), ("tf2", True), ("torch", False)}


def dqn_spec():
    config = DQNConfig().training(model={"fcnet_hiddens": [8]}, hiddens=[8]).to_dict()
    return PolicySpec(BOX, DISCRETE, DQNObjective, config, seed=0)


def dqn_batch():
    rng = np.random.default_rng(0)
    return {
        "obs": rng.random((8, 3), np.float32),
        "new_obs": rng.random((8, 3), np.float32),
        "actions": rng.integers(5, 8, 8),
        "rewards": rng.random(8, np.float32),
        "terminateds": np.zeros(8, np.bool_),
        "discounts": np.full(8, 0.9, np.float32),
    }


def logits(policy, obs):
    return policy.compute_actions(obs, explore=False).extras["action_dist_inputs"]


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_every_change_of_weights_reaches_the_next_action(framework, traced):
    """After each way to change weights, acting equals acting through the model itself."""
    mode = (framework, traced)
    policy, twin = make(mode), make(mode)
    batch = random_batch(policy.spec, 8)
    obs = batch["obs"]
    assert twin.model is not None  # the twin acts through its model
    seen = [logits(policy, obs)]

    def same_again():
        seen.append(logits(policy, obs))
        np.testing.assert_allclose(seen[-1], logits(twin, obs), rtol=1e-5, atol=1e-6)
        assert not np.array_equal(seen[-1], seen[-2])

    for p in (policy, twin):
        p.learn_on_batch(batch)
    same_again()
    for p in (policy, twin):
        p.learn_on_minibatches(batch, np.arange(8).reshape(2, 4))
    same_again()
    for p in (policy, twin):
        p.apply_gradients(p.compute_gradients(batch)[0])
    same_again()
    for p in (policy, twin):
        p.set_weights({key: w * 1.5 for key, w in p.get_weights().items()})
    same_again()
    state = make(mode).get_state()
    for p in (policy, twin):
        p.set_state(state)
    same_again()


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_who_mirrors(framework, traced, monkeypatch):
    """The fast modes act in NumPy until their model is taken out; eager tf2 never does, tf for a few rows only."""
    policy = make((framework, traced))
    obs = random_batch(policy.spec, 2)["obs"]
    calls = []
    act = policy._act
    monkeypatch.setattr(policy, "_act", lambda *args: calls.append(1) or act(*args))
    policy.compute_actions(obs)
    assert bool(calls) == ((framework, traced) not in MIRRORING)
    calls.clear()
    policy.compute_actions(random_batch(policy.spec, 5)["obs"])
    assert bool(calls) == (framework == "tf" or (framework, traced) not in MIRRORING)
    calls.clear()
    assert policy.model is not None
    policy.compute_actions(obs)
    assert calls


@pytest.mark.parametrize(("framework", "traced"), [m for m in MODE_PARAMS if m.values in MIRRORING])
def test_a_model_changed_from_outside_counts(framework, traced):
    """Weights that a user changes in the model itself are what acts."""
    policy = make((framework, traced))
    obs = random_batch(policy.spec, 4)["obs"]
    before = logits(policy, obs)
    if policy.framework == "torch":
        for parameter in policy.model.parameters():
            parameter.data.mul_(2.0)
    elif policy.framework == "tf":
        pytest.skip("the model of a graph is evaluated, not changed, from outside")
    else:
        policy.model.set_weights([2.0 * w for w in policy.model.get_weights()])
    assert not np.allclose(logits(policy, obs), before)


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_an_update_reaches_the_next_action_of_algorithms_that_replay(framework, traced):
    """There every action follows an update: what acts is read anew, whoever owns its memory."""
    policy, twin = (make_policy(dqn_spec(), framework, traced) for _ in range(2))
    assert twin.model is not None  # the twin acts through its model
    batch = dqn_batch()
    obs = batch["obs"][:3]
    seen = [logits(policy, obs)]
    for _ in range(3):
        for p in (policy, twin):
            p.learn_on_batch(batch)
        seen.append(logits(policy, obs))
        np.testing.assert_allclose(seen[-1], logits(twin, obs), rtol=1e-5, atol=1e-6)
        assert not np.array_equal(seen[-1], seen[-2])
    for p in (policy, twin):
        p.update_target()
    np.testing.assert_allclose(logits(policy, obs), logits(twin, obs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("framework", "traced"), [m for m in MODE_PARAMS if m.values != ("torch", False)])
def test_weights_that_were_read_stay_what_they_were(framework, traced):
    """TensorFlow's are the variables' own memory, which updates leave alone while somebody looks at it."""
    policy = make_policy(dqn_spec(), framework, traced)
    keys = list(policy.get_weights())
    read = policy.weights_of(keys)
    before = {key: x.copy() for key, x in read.items()}
    for _ in range(3):
        policy.learn_on_batch(dqn_batch())
    policy.update_target(0.5)
    policy.set_weights({key: x + 1 for key, x in policy.get_weights().items()})
    for key in keys:
        np.testing.assert_array_equal(read[key], before[key])
        assert not np.array_equal(policy.weights_of([key])[key], before[key]), key


@pytest.mark.parametrize(("framework", "traced"), [m for m in MODE_PARAMS if m.values in MIRRORING])
def test_networks_for_acting_are_made_once(framework, traced, monkeypatch):
    """However many updates there are; only their weights are read again, and none while nothing changes.

    torch's are views, and traced updates hand them out themselves.
    """
    policy, batch = make_policy(dqn_spec(), framework, traced), dqn_batch()
    made, read = [], []
    networks, weights = policy._numpy_networks, policy._acting_weights
    monkeypatch.setattr(policy, "_numpy_networks", lambda *args: made.append(1) or networks(*args))
    monkeypatch.setattr(policy, "_acting_weights", lambda keys: read.append(1) or weights(keys))
    for _ in range(4):
        for _ in range(3):
            policy.compute_actions(batch["obs"][:2])
        policy.learn_on_batch(batch)
    assert len(made) == 1 and len(read) == (4 if framework == "tf" else 1)


@needs_tf
@pytest.mark.parametrize("acts_first", [True, False])
def test_a_traced_update_hands_out_the_weights_that_act(acts_first):
    """Whether or not somebody has acted when it is traced; other changes of weights are read as ever."""
    policy, batch = make_policy(dqn_spec(), "tf2", True), dqn_batch()
    obs = batch["obs"][:2]
    if acts_first:
        policy.compute_actions(obs)
    for change in (
        lambda: policy.learn_on_batch(batch),
        lambda: policy.apply_gradients(policy.compute_gradients(batch)[0]),
        lambda: policy.set_weights({key: x + 1 for key, x in policy.get_weights().items()}),
        lambda: policy.learn_on_batch(batch),
    ):
        change()
        policy.compute_actions(obs)
        weights = policy.get_weights()
        for net in policy._mirror.values():
            for key in net.spec.shapes():
                np.testing.assert_array_equal(net.weights[key], weights[key], err_msg=key)
    assert policy.traces["learn"] == 1
