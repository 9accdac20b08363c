"""Acting for those who take actions only: the same actions, with less work."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from modes import MODE_PARAMS

from polylib.algorithms.ddpg import DDPGConfig, TD3Config
from polylib.algorithms.ddpg.loss import DDPGObjective
from polylib.algorithms.dqn import DQNConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.algorithms.sac import SACConfig
from polylib.algorithms.sac.loss import SACObjective
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec

FEW, TORQUE = gym.spaces.Discrete(4, start=2), gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
MASKED = gym.spaces.Dict({"action_mask": gym.spaces.MultiBinary(4), "seen": OBS})
SMALL = {"fcnet_hiddens": [8]}
WAIT = {"random_timesteps": 10}
CASES = {
    "dqn": (DQNObjective, DQNConfig().training(model=SMALL, hiddens=[8]), MASKED, FEW),
    "dqn-lstm": (DQNObjective, DQNConfig().training(model={**SMALL, "use_lstm": True, "lstm_cell_size": 4}), OBS, FEW),
    "sac": (
        SACObjective,
        SACConfig().training(policy_model_config=SMALL, q_model_config=SMALL).exploration(exploration_config=WAIT),
        OBS,
        TORQUE,
    ),
    "td3": (
        DDPGObjective,
        TD3Config().training(actor_hiddens=[8], critic_hiddens=[8]).exploration(exploration_config=WAIT),
        OBS,
        TORQUE,
    ),
    "ddpg": (
        DDPGObjective,
        DDPGConfig().training(actor_hiddens=[8], critic_hiddens=[8]).exploration(exploration_config=WAIT),
        OBS,
        TORQUE,
    ),
    "ppo": (PPOObjective, PPOConfig().training(model=SMALL), OBS, TORQUE),
}


def policy_of(name, framework, traced):
    objective, config, obs_space, action_space = CASES[name]
    return make_policy(PolicySpec(obs_space, action_space, objective, config.to_dict(), seed=0), framework, traced)


def inputs_of(policy, rows):
    rng = np.random.default_rng(rows)
    obs = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
    if policy.inputs.nested_obs:
        mask = rng.random((rows, 4)) < 0.5
        mask[:, 1] = True
        obs = {"action_mask": mask.astype(np.int8), "seen": obs}
    return policy.inputs.acting(obs, None, None, None, None)


def acted(policy, rows, extras, explore=True):
    policy.rng = np.random.default_rng(7)
    policy.set_exploration_state({})
    return policy.act(inputs_of(policy, rows), explore, extras)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_the_actions_are_those_of_act(name, framework, traced):
    policy = policy_of(name, framework, traced)
    shares = {"epsilon": (1.0, 0.5, 0.0)} if "dqn" in name else {} if name == "ppo" else {"random": (1.0, 0.0)}
    for rows in (1, 6):
        for key, values in shares.items() or [("", (0,))]:
            for value in values:
                policy.set_coefficients(**({key: value} if key else {}))
                whole, rest = acted(policy, rows, True), acted(policy, rows, False)
                np.testing.assert_allclose(rest.actions, whole.actions, rtol=1e-6)
                assert rest.actions.dtype == whole.actions.dtype and whole.extras
                assert len(rest.state) == len(whole.state) == len(policy.inputs.state_shapes)
                assert name == "ppo" or not rest.extras
        best = acted(policy, rows, True, explore=False), acted(policy, rows, False, explore=False)
        np.testing.assert_allclose(best[0].actions, best[1].actions, rtol=1e-6)


@pytest.mark.parametrize("name", ["dqn", "sac", "td3", "ddpg"])
def test_random_actions_need_no_network(name, monkeypatch):
    policy = policy_of(name, "torch", False)
    monkeypatch.setattr(policy, "_act_in_numpy", lambda *args: pytest.fail("a network was called"))
    key = "epsilon" if name == "dqn" else "random"
    policy.set_coefficients(**{key: 1.0})
    for rows in (1, 5):
        actions = acted(policy, rows, False).actions
        assert len(actions) == rows
        if name == "dqn":
            mask = inputs_of(policy, rows)["obs/action_mask"]
            assert mask[np.arange(rows), actions - 2].all(), "only what the mask allows"
    policy.set_coefficients(**{key: 0.0})
    with pytest.raises(pytest.fail.Exception):
        acted(policy, 1, False)
