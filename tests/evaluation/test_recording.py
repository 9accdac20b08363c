"""What traces hold besides the rows that are learnt from."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch

from polylib.algorithms.dqn import DQNConfig
from polylib.algorithms.ppo import PPOConfig
from polylib.evaluation.recording import infos_of
from polylib.offline import JsonReader

STEPS = 5


class Counting(gym.Env):
    """Observes 100, 101, ... 100 + STEPS, where it terminates; its infos say which step it was."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        box = gym.spaces.Box(0, 1000, (1,), np.float32)
        self.nested = bool(config.get("nested"))
        self.observation_space = gym.spaces.Dict({"x": box}) if self.nested else box

    def _obs(self):
        x = np.float32([100 + self.t])
        return {"x": x} if self.nested else x

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._obs(), {"step": 0}

    def step(self, action):
        self.t += 1
        return self._obs(), 2.0, self.t == STEPS, False, {"step": self.t, "code": object(), "name": f"n{self.t}"}


def record(config, folder, **env_config):
    config = (
        config.environment(Counting, env_config=env_config)
        .framework("torch")
        .offline_data(output=str(folder), output_compress_columns=[])
        .debugging(seed=0)
    )
    with config.build() as algo:
        algo.train()
    return JsonReader(folder).read_all()


def ppo(**keys):
    model = {"fcnet_hiddens": [4]}
    return PPOConfig().training(train_batch_size=20, sgd_minibatch_size=20, num_sgd_iter=1, model=model, **keys)


@needs_torch
@pytest.mark.parametrize("nested", [False, True])
def test_observations_are_recorded_before_any_filter(nested, tmp_path):
    """A filter's numbers depend on what one run has seen: another one, reading them, would filter them again."""
    batch = record(ppo().rollouts(observation_filter="MeanStdFilter", num_envs_per_worker=2), tmp_path, nested=nested)
    obs, new_obs = (batch[name]["x"] if nested else batch[name] for name in ("obs", "new_obs"))
    np.testing.assert_array_equal(obs[:, 0], 100 + batch["t"])
    np.testing.assert_array_equal(new_obs[:, 0], 101 + batch["t"])
    assert not [name for name in batch if name.startswith("unfiltered")]


@needs_torch
def test_values_advantages_and_infos_stand_in_traces(tmp_path):
    batch = record(ppo(), tmp_path)
    assert [info["step"] for info in batch["infos"]] == (batch["t"] + 1).tolist()
    assert batch["infos"][0] == {"step": 1, "name": "n1"}  # objects of other kinds can't be recorded
    assert {"vf_preds", "advantages", "value_targets"} <= set(batch)
    # Advantages as recorded are those before they are standardized: what targets exceed values by (GAE, lambda 1).
    np.testing.assert_allclose(batch["advantages"], batch["value_targets"] - batch["vf_preds"], rtol=1e-4, atol=1e-4)


@needs_torch
def test_what_is_recorded_is_not_learnt_from(tmp_path):
    """Two seeded runs end with the same weights, recorded or not; n-step rows keep their own rewards in the trace."""

    def weights(**output):
        config = (
            DQNConfig()
            .environment(Counting)
            .framework("torch")
            .training(n_step=3, num_steps_sampled_before_learning_starts=10, train_batch_size=8, hiddens=[4])
            .training(model={"fcnet_hiddens": [4]})
            .rollouts(rollout_fragment_length=5, observation_filter="MeanStdFilter")
            .reporting(min_sample_timesteps_per_iteration=50)
            .debugging(seed=0)
            .offline_data(**output)
        )
        with config.build() as algo:
            algo.train()
            return algo.get_policy().get_weights()

    plain, recorded = weights(), weights(output=str(tmp_path))
    for name, x in plain.items():
        np.testing.assert_array_equal(recorded[name], x, err_msg=name)
    assert set(JsonReader(tmp_path).read_all()["rewards"].tolist()) == {2.0}


@needs_torch
def test_rewards_are_recorded_before_they_are_clipped(tmp_path):
    assert set(record(ppo().environment(clip_rewards=True), tmp_path)["rewards"].tolist()) == {2.0}


def test_infos_of_environments_that_reset_by_themselves():
    """Gymnasium's layout: arrays with masks; the ended environment's own info stands under `final_info`."""
    infos = {
        "step": np.array([0, 3]),
        "_step": np.array([True, True]),
        "final_info": {"step": np.array([7, 0]), "_step": np.array([True, False])},
        "_final_info": np.array([True, False]),
    }
    found = infos_of(infos, np.array([True, False]))
    assert found.tolist() == [{"step": 7}, {"step": 3}]
