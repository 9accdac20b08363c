"""Acting through NumPy copies of the networks: as fresh as the weights, and given up when somebody has the model."""

import numpy as np
import pytest
from modes import MODE_PARAMS
from policies import make, random_batch

MIRRORING = {("tf", False), ("tf2", True), ("torch", False)}


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
