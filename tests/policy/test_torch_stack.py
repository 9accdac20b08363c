"""Learners compute what networks compute, with the same gradients, in fewer and larger steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from policies import make, random_batch

from polylib.algorithms.dqn.config import DQNConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.sac.config import SACConfig
from polylib.algorithms.sac.loss import SACObjective
from polylib.models.default_networks import actor_critic, critic_network, q_network
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec

torch = pytest.importorskip("torch")
fused = pytest.importorskip("polylib.policy.torch.fused")
stack = pytest.importorskip("polylib.policy.torch.stack")
trained = pytest.importorskip("polylib.policy.torch.trained")
models = pytest.importorskip("polylib.policy.torch.models")
pytestmark = needs_torch

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BYTES = gym.spaces.Box(0, 255, (2, 3), np.uint8)
IMAGE = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8)
NESTED = gym.spaces.Dict({"a": BOX, "b": gym.spaces.Discrete(4)})
TORQUE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
ROWS = 6


def model(hiddens: tuple[int, ...] = (8, 7), activation: str = "tanh", **more: Any) -> dict[str, Any]:
    return {**PPOConfig().to_dict()["model"], "fcnet_hiddens": list(hiddens), "fcnet_activation": activation, **more}


def policy_net(space: gym.Space = BOX, **settings: Any) -> Any:
    return actor_critic("p", space, 4, model(**settings), TORQUE)


def dueling(**settings: Any) -> Any:
    return q_network("q", BOX, 3, model(**settings), gym.spaces.Discrete(3), hiddens=(6, 5))


def twins(space: gym.Space = BOX, **settings: Any) -> Any:
    return critic_network("q", space, model(**settings), action_size=2, twins=2)


IMAGES = {"conv_filters": [[4, [4, 4], 4], [5, [4, 4], 1]]}
NETS = {
    "shared": policy_net(vf_share_layers=True),
    "apart": policy_net(vf_share_layers=False, activation="relu"),
    "log_std": policy_net(free_log_std=True),
    "elu": policy_net(activation="elu"),
    "nested": policy_net(NESTED),
    "bytes": policy_net(BYTES, activation="relu"),
    "convolutions": policy_net(IMAGE, **IMAGES),
    "lstm": policy_net(use_lstm=True, lstm_cell_size=5),
    "dueling": dueling(),
    "noisy": q_network("q", BOX, 3, model(), gym.spaces.Discrete(3), hiddens=(6,), noisy=True),
    "twins": twins(activation="relu"),
    "nested twins": twins(NESTED),
}


def build(name: str, seed: int = 0) -> Any:
    network = models.make_network(NETS[name])
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(parameter.shape).astype(np.float32)) / 3)
    return network


def inputs_of(name: str, seed: int = 1, rows: int = ROWS) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    spec = NETS[name]
    found = {
        key: rng.integers(0, 4, (rows, *shape)).astype(dtype)
        if dtype.kind in "iu"
        else rng.standard_normal((rows, *shape)).astype(dtype)
        for key, (shape, dtype) in spec.inputs.items()
    }
    found |= {f"state_{i}": np.zeros((rows, *shape), np.float32) for i, shape in enumerate(spec.state)}
    return {key: torch.from_numpy(x) for key, x in found.items()}


def total(outputs: dict[str, Any]) -> Any:
    """A number in which every entry counts differently."""
    flat = torch.cat([outputs[key].reshape(-1) for key in sorted(outputs)])
    return (flat * torch.cos(torch.arange(len(flat)))).sum()


def gradients(network: Any, loss: Any) -> dict[str, Any]:
    group = trained.Trained([network])
    found = torch.autograd.grad(loss, group.tensors, allow_unused=True, materialize_grads=True)
    return group.by_key(found)


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key].detach(), value.detach(), rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.fixture(params=[False, True], ids=["plain", "kernel"])
def everywhere(request, monkeypatch):
    """The faster kernel for products of any size, or for none."""
    size = 0 if request.param else 1 << 60
    monkeypatch.setattr(fused, "_LARGE", size)
    monkeypatch.setattr(fused, "_MANY", size)


@pytest.mark.parametrize("name", NETS)
def test_outputs_and_gradients_are_the_networks(name, everywhere):
    network, inputs = build(name), inputs_of(name)
    learner = stack.Learner(network)
    names = [key for key in NETS[name].outputs if not key.startswith("state_")]
    for outputs in (names, names[:1], names[-1:]):
        found, expected = learner(inputs, outputs), network(inputs, outputs)
        same(found, expected)
        same(gradients(learner, total(found)), gradients(network, total(expected)))


def test_what_is_not_in_the_stack_has_gradients_of_its_own():
    sizes = {name: len(stack.Learner(build(name)).blocks()) for name in NETS}
    assert sizes["shared"] == sizes["dueling"] == sizes["twins"] == 1  # one vector
    assert sizes["log_std"] == 2
    assert sizes["convolutions"] > 2 and sizes["lstm"] > 2 and sizes["noisy"] > 2


@pytest.mark.parametrize("name", ["dueling", "twins", "nested", "shared"])
def test_a_pass_ahead_is_two_passes(name, everywhere):
    network, now, then = build(name), inputs_of(name), inputs_of(name, 2, 4)
    learner = stack.Learner(network)
    found = learner.ahead(now, then)
    same(found[0], network(now))
    same(found[1], network(then))
    assert not any(x.requires_grad for x in found[1].values())
    same(gradients(learner, total(found[0])), gradients(network, total(network(now))))


@pytest.mark.parametrize("name", ["lstm", "log_std", "noisy", "convolutions"])
def test_no_pass_ahead_where_other_layers_learn(name):
    assert stack.Learner(build(name)).ahead(inputs_of(name), inputs_of(name, 2)) is None


def test_a_frozen_network_has_gradients_of_what_goes_in_alone(everywhere):
    network, inputs = build("twins"), inputs_of("twins")
    slopes = []
    for net in (stack.Learner(network).frozen, network):
        action = inputs["action_units"].clone().requires_grad_()
        out = net({**inputs, "action_units": action})
        slopes.append(torch.autograd.grad(total(out), action, retain_graph=True)[0])
    np.testing.assert_allclose(*slopes, rtol=1e-5, atol=1e-6)
    frozen = stack.Learner(network).frozen
    assert frozen.frozen is frozen and not frozen.vector.requires_grad
    assert not total(frozen(inputs)).requires_grad


def test_results_used_twice_and_graphs_used_twice():
    """Features that are an output too, and two losses of one pass, as algorithms with several optimizers have them."""
    network, inputs = build("dueling"), inputs_of("dueling")
    learner = stack.Learner(network)
    found = learner(inputs)
    assert "features" in found
    one, two = total({"x": found["features"]}), total({"x": found["advantages"]})
    first = torch.autograd.grad(one, learner.vector, retain_graph=True)[0]
    second = torch.autograd.grad(two, learner.vector, retain_graph=True)[0]
    both = torch.autograd.grad(one + two, learner.vector)[0]
    np.testing.assert_allclose(both, first + second, rtol=1e-5, atol=1e-6)


def test_parameters_are_parts_of_the_vector():
    network = build("dueling")
    vector = network.stack.vector
    assert sum(p.numel() for p in network.parameters()) == len(vector)
    with torch.no_grad():
        vector.fill_(3.0)
    assert all((p == 3.0).all() for p in network.parameters())
    # Heads lie one below the other.
    heads = [network.stack.parts[f"{head}_hidden_0"][0] for head in ("advantages", "state_value")]
    assert heads[0].data_ptr() + heads[0].numel() * 4 == heads[1].data_ptr()


def test_large_numbers_and_nan_go_through():
    network, inputs = build("dueling"), inputs_of("dueling")
    for value in (np.nan, np.inf, 1e30):
        inputs["obs"][0, 0] = value
        found, expected = stack.Learner(network)(inputs), network(inputs)
        for key in expected:
            assert torch.equal(found[key].isnan(), expected[key].isnan())


# --- in policies


def dqn(**settings: Any) -> tuple[Any, dict[str, Any]]:
    config = DQNConfig().training(model={"fcnet_hiddens": [9, 8]}, hiddens=[7], **settings).to_dict()
    spec = PolicySpec(BOX, gym.spaces.Discrete(3), DQNObjective, config, seed=0)
    rng = np.random.default_rng(0)
    batch = {
        "obs": rng.standard_normal((ROWS, 3)).astype(np.float32),
        "new_obs": rng.standard_normal((ROWS, 3)).astype(np.float32),
        "actions": rng.integers(0, 3, ROWS),
        "rewards": rng.standard_normal(ROWS).astype(np.float32),
        "terminateds": rng.random(ROWS) < 0.3,
        "discounts": np.full(ROWS, 0.9, np.float32),
    }
    return make_policy(spec, "torch", False), batch


def sac() -> tuple[Any, dict[str, Any]]:
    nets = {"fcnet_hiddens": [9, 8]}
    config = SACConfig().training(q_model_config=nets, policy_model_config=nets).to_dict()
    _, batch = dqn()
    batch["actions"] = np.random.default_rng(1).uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    return make_policy(PolicySpec(BOX, TORQUE, SACObjective, config, seed=0), "torch", False), batch


def ppo() -> tuple[Any, dict[str, Any]]:
    policy = make(("torch", False), hiddens=(9, 8), grad_clip=0.5, free_log_std=True)
    return policy, random_batch(policy.spec, ROWS)


@pytest.mark.parametrize("build_policy", [dqn, sac, ppo])
def test_a_policy_whose_model_is_looked_at_learns_the_same(build_policy):
    """From then on every parameter stands for itself: moments and steps go on."""
    (one, batch), (other, _) = build_policy(), build_policy()
    for i in range(6):
        if i == 3:
            assert other.model is not None
        assert one.learn_on_batch(batch)["learner_stats"] == pytest.approx(
            other.learn_on_batch(batch)["learner_stats"], rel=1e-4, abs=1e-5
        )
    states = [{**p.get_state()["weights"], **p.get_state()["optimizer"]} for p in (one, other)]
    same(*({key: torch.from_numpy(np.asarray(x)) for key, x in state.items()} for state in states))


def test_memory_that_a_user_gives_a_parameter_is_what_learns():
    policy, batch = dqn()
    first = next(iter(policy.model.base_model.parameters()))
    first.data = torch.full_like(first, 0.1)
    policy.learn_on_batch(batch)
    assert (first != 0.1).all()


def test_applying_gradients_is_learning():
    for build_policy in (dqn, sac, ppo):
        (one, batch), (other, _) = build_policy(), build_policy()
        one.learn_on_batch(batch)
        other.apply_gradients(other.compute_gradients(batch)[0])
        for key, value in one.get_weights().items():
            if not key.startswith("target"):
                np.testing.assert_allclose(other.get_weights()[key], value, rtol=1e-5, atol=1e-6, err_msg=key)


# --- how much there is to do


@pytest.fixture
def counted(monkeypatch):
    """Counts of products forwards and backwards, of tensors that Adam moves, and of stats fetched from torch."""
    found = dict.fromkeys(("forwards", "backwards", "adam", "fetches"), 0)

    def count(owner: Any, attribute: str, name: str, by: Any = lambda *args: 1) -> None:
        original = getattr(owner, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            found[name] += by(*args)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, attribute, call)

    count(stack, "dense", "forwards")
    count(stack, "product", "backwards")
    count(torch, "_fused_adam_", "adam", lambda tensors, *rest: len(tensors))
    count(torch.Tensor, "tolist", "fetches")
    return found


def test_an_update_of_dqn_is_few_products(counted):
    """Two hidden layers, a hidden layer of both heads, and the heads; now and next observations in one pass."""
    policy, batch = dqn()
    policy.learn_on_batch(batch)
    counted.update(dict.fromkeys(counted, 0))
    policy.learn_on_batch(batch)
    layers = 2 + 1 + 2
    assert counted == {
        "forwards": 2 * layers,  # the network that learns, and the target
        "backwards": 2 * layers - 1,  # weights, and inputs of all but the first layer
        "adam": 1,
        "fetches": 1,
    }


def test_an_update_of_sac_computes_no_gradient_twice(counted):
    policy, batch = sac()
    policy.learn_on_batch(batch)
    counted.update(dict.fromkeys(counted, 0))
    policy.learn_on_batch(batch)
    twins = 1 + 2 + 2  # products: what comes first is one for both
    assert counted["forwards"] == 2 * 3 + 3 * twins  # the policy twice; the twins, twice, and their targets
    critic, through_critic, actor = twins + twins - 1, twins, 3 + 2
    assert counted["backwards"] == critic + through_critic + actor
    assert counted["fetches"] == 1 and counted["adam"] == 3
