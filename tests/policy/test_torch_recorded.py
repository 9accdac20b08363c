"""Recorded updates compute what updates compute, for whatever changes between them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch

from polylib.algorithms.ddpg.config import TD3Config
from polylib.algorithms.ddpg.loss import DDPGObjective
from polylib.algorithms.dqn.config import DQNConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.algorithms.marwil.config import MARWILConfig
from polylib.algorithms.marwil.loss import MARWILObjective
from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.algorithms.sac.config import SACConfig
from polylib.algorithms.sac.loss import SACObjective
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec

torch = pytest.importorskip("torch")
recorded = pytest.importorskip("polylib.policy.torch.recorded")
fused = pytest.importorskip("polylib.policy.torch.fused")
pytestmark = needs_torch

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(3, start=5)
TORQUE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
SMALL = {"fcnet_hiddens": [8, 7]}
OFTEN = 3

RAINBOW = {"num_atoms": 5, "v_min": -2, "v_max": 2, "noisy": True}
CASES: dict[str, tuple[Any, type, gym.Space, str]] = {
    "dqn": (DQNConfig().training(hiddens=[6, 5], model=SMALL), DQNObjective, DISCRETE, "lr"),
    "rainbow": (DQNConfig().training(hiddens=[6], model=SMALL, **RAINBOW), DQNObjective, DISCRETE, "lr"),
    "sac": (SACConfig().training(q_model_config=SMALL, policy_model_config=SMALL), SACObjective, TORQUE, "critic_lr"),
    "marwil": (MARWILConfig().training(model=SMALL), MARWILObjective, TORQUE, "lr"),
    "td3": (TD3Config().training(actor_hiddens=[8, 7], critic_hiddens=[8, 7]), DDPGObjective, TORQUE, "critic_lr"),
}


def build(name: str) -> Any:
    config, objective, actions, _ = CASES[name]
    return make_policy(PolicySpec(BOX, actions, objective, config.to_dict(), seed=0), "torch", False)


def batch_of(policy: Any, seed: int, rows: int = 6) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    space = policy.action_space
    discrete = isinstance(space, gym.spaces.Discrete)
    return {
        "obs": rng.standard_normal((rows, 3)).astype(np.float32),
        "new_obs": rng.standard_normal((rows, 3)).astype(np.float32),
        "actions": rng.integers(5, 8, rows) if discrete else rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.standard_normal(rows).astype(np.float32),
        "terminateds": rng.random(rows) < 0.3,
        "discounts": np.full(rows, 0.9, np.float32),
        "weights": rng.random(rows).astype(np.float32) + 0.5,
        "value_targets": rng.standard_normal(rows).astype(np.float32),
    }


def agree(found: Any, expected: Any) -> None:
    for key, value in expected.get_weights().items():
        np.testing.assert_array_equal(found.get_weights()[key], value, err_msg=key)


@pytest.fixture(params=[False, True], ids=["plain", "kernel"])
def often(request, monkeypatch):
    monkeypatch.setattr(recorded, "_OFTEN", OFTEN)
    for name in ("_LARGE", "_MANY"):  # products of any size by the faster kernel, or none
        monkeypatch.setattr(fused, name, 0 if request.param else 1 << 60)


@pytest.mark.parametrize("name", CASES)
def test_updates_are_the_same_and_python_is_left_alone(name, often, monkeypatch):
    found, expected = build(name), build(name)
    expected._recorded = None
    calls: list[int] = []
    losses = found.objective.losses
    monkeypatch.setattr(found.objective, "losses", lambda *args, **more: calls.append(1) or losses(*args, **more))
    rate = CASES[name][3]
    for i in range(OFTEN + recorded._CHECKS + 6):
        batch = batch_of(found, i)
        for policy in (found, expected):
            policy.set_coefficients(**{rate: 1e-3 * (i + 1), "grad_clip": 40.0 if i % 2 else 0.1})
        infos = [policy.learn_on_batch(batch) for policy in (found, expected)]
        for key, value in infos[1]["learner_stats"].items():
            assert infos[0]["learner_stats"][key] == pytest.approx(value, rel=1e-6, abs=1e-9), key
        for key, rows in infos[1].get("rows", {}).items():
            np.testing.assert_array_equal(infos[0]["rows"][key], rows)
        for policy in (found, expected):
            if i == OFTEN + recorded._CHECKS + 1:  # memory is written to from outside
                policy.set_weights({key: 1.5 * x for key, x in policy.get_weights().items()})
                if policy._target_keys():
                    policy.update_target()
    agree(found, expected)
    assert found._recorded.recordings == 1 and found._recorded._works
    # Those before it, the recording itself, and the checks.
    assert len(calls) == OFTEN - 1 + 1 + recorded._CHECKS


def test_other_shapes_are_recorded_anew(often):
    found, expected = build("dqn"), build("dqn")
    expected._recorded = None
    for i, rows in enumerate([6] * 7 + [4] * 7 + [6] * 2):
        for policy in (found, expected):
            policy.learn_on_batch(batch_of(policy, i, rows))
    agree(found, expected)
    assert found._recorded.recordings == 2


def test_there_are_few_recordings(often, monkeypatch):
    """Each costs memory for good: those of shapes that come again are kept, and no more are made than that."""
    monkeypatch.setattr(recorded, "_MOST", 2)
    found, expected = build("dqn"), build("dqn")
    expected._recorded = None
    for i, rows in enumerate([6] * 4 + [4] * 4 + [6] * 4 + [5] * 5 + [4] * 4):
        for policy in (found, expected):
            policy.learn_on_batch(batch_of(policy, i, rows))
    agree(found, expected)
    assert found._recorded.recordings == 2 and found._recorded._works


def test_each_shape_has_its_own_names(often):
    """Stats may depend on the columns that a batch has, so those of the last recording aren't those of all."""
    weight = torch.ones(2, requires_grad=True)

    def compute(c: Any, batch: Any, noise: Any) -> Any:
        loss = sum((weight * x).sum() for x in batch.values())
        stats = {f"mean_{name}": x.mean() for name, x in batch.items()}
        return {"all": loss}, stats, {}, {"all": torch.autograd.grad(loss, [weight])}

    runs = recorded.Recorded(compute)
    for name in ["a"] * 8 + ["b"] * 8 + ["a"] * 2:
        _, stats, _, gradients = runs({}, torch.zeros(0), {name: torch.tensor([3.0, 5.0])}, {})
        assert {key: float(x) for key, x in stats.items()} == {f"mean_{name}": 4.0}
        assert gradients["all"][0].tolist() == [3.0, 5.0]
    assert runs.recordings == 2 and runs._works


def test_layers_whose_bias_is_added_first(often, monkeypatch):
    """Few rows and wide layers, where a sum in another order shows: once biases of the target network aren't 0."""
    wide = DQNConfig().training(model={"fcnet_hiddens": [256, 256]})
    monkeypatch.setitem(CASES, "dqn", (wide, DQNObjective, DISCRETE, "lr"))
    found, expected = build("dqn"), build("dqn")
    expected._recorded = None
    for i in range(40):
        for policy in (found, expected):
            policy.learn_on_batch(batch_of(policy, i, 8))
            if i % 10 == 9:
                policy.update_target()
    agree(found, expected)
    assert found._recorded._works


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_where_recording_fails_updates_go_on(fault, often, monkeypatch):
    found, expected = build("dqn"), build("dqn")
    expected._recorded = None

    def broken(compute: Any, tensors: Any) -> Any:
        if fault == "raises":
            raise RuntimeError("no such operation")
        return lambda given: [x + 1.0 for x in compute(*given)]

    def no_gradients(compute: Any, tensors: Any) -> Any:
        made = broken(compute, tensors)
        return lambda given: torch.enable_grad()(made)(given)

    monkeypatch.setattr(recorded, "record", no_gradients)
    for i in range(OFTEN + 4):
        for policy in (found, expected):
            policy.learn_on_batch(batch_of(policy, i))
    agree(found, expected)
    assert found._recorded.recordings == 1 and not found._recorded._works


def test_what_is_recorded():
    """Frequent updates of polylib's networks, until somebody looks at these."""
    policy = build("dqn")
    assert policy._recorded is not None
    assert policy.model is not None and policy._recorded is None
    config = PPOConfig().training(model={"fcnet_hiddens": [8]}).to_dict()
    assert make_policy(PolicySpec(BOX, TORQUE, PPOObjective, config, seed=0), "torch", False)._recorded is None
