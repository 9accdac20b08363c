"""What networks with state see while sampling: memory, previous action and reward; values after the last row."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from fakes import RandomEpisodes, UsersVectorEnv, small_ppo
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.evaluation.rollout_worker import RolloutWorker, _seen
from polylib.evaluation.sampler import Sampler
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch, concat_samples

MODES = list(AutoresetMode)
LSTM = {
    "use_lstm": True,
    "lstm_cell_size": 3,
    "fcnet_hiddens": [4],
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
    "max_seq_len": 4,
}
ATTENTION = {
    "use_attention": True,
    "fcnet_hiddens": [4],
    "attention_dim": 4,
    "attention_head_dim": 3,
    "attention_memory_inference": 3,
    "attention_memory_training": 3,
}


class Episodes(RandomEpisodes):
    """With small numbers, so that no unit saturates, and few actions."""

    def __init__(self, config: Any = None, place: int | None = None) -> None:
        super().__init__(config, place)
        self.action_space = gym.spaces.Discrete(3, start=2)

    def _obs(self) -> np.ndarray:
        return super()._obs() * np.float32([0.5, 0.2, 0.1])

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, 0.01 * reward + 0.1 * int(action), *rest


def make(mode: AutoresetMode | None, count: int = 3, model: dict | None = None, **sampler: Any) -> Sampler:
    config = small_ppo(Episodes, model=LSTM if model is None else model).to_dict()
    envs = [Episodes(place=i) for i in range(count)]
    if mode is None:  # as polylib makes them
        env: Any = SyncVectorEnv([lambda e=e: e for e in envs], copy=False, autoreset_mode=AutoresetMode.DISABLED)
    else:
        env = UsersVectorEnv(envs, mode)
    policy = make_policy(PolicySpec(envs[0].observation_space, envs[0].action_space, PPOObjective, config, 0), "numpy")
    rng = np.random.default_rng(0)  # the first heads are nearly 0
    policy.set_weights({key: 0.7 * rng.standard_normal(w.shape) for key, w in policy.get_weights().items()})
    return Sampler(env, policy, fragment_length=5, **sampler)


def check_memory(batch: SampleBatch, policy: Policy) -> int:
    """Every row's memory is that of the row before it, or an episode's first; returns how many were continued."""
    before: dict[int, dict[str, Any]] = {}
    states = [f"state_in_{i}" for i in range(len(policy.get_initial_state()))]
    continued = 0
    for row in batch.rows():
        last = before.get(int(row["eps_id"]))
        assert row["t"] == (0 if last is None else last["t"] + 1), "rows of an episode follow each other"
        if last is None:
            expected = policy.get_initial_state()
            action, reward = getattr(policy.action_space, "start", 0), 0.0
        else:
            continued += 1
            action, reward = last["actions"], last["rewards"]
            extra = {k: np.array([last[k]]) for k in ("prev_actions", "prev_rewards") if k in last}
            out = policy.compute_actions(last["obs"][None], [last[s][None] for s in states], False, **extra)
            expected = [x[0] for x in out.state]
            assert any(np.abs(x).max() > 1e-3 for x in expected)
        for name, x in zip(states, expected, strict=True):
            np.testing.assert_allclose(row[name], x, rtol=1e-5, atol=1e-6, err_msg=f"{name} of step {row['t']}")
        if "prev_actions" in row:
            assert row["prev_actions"] == action and row["prev_rewards"] == pytest.approx(reward)
        before[int(row["eps_id"])] = row
    return continued


# --- memory


@pytest.mark.parametrize("model", [LSTM, ATTENTION], ids=["lstm", "attention"])
@pytest.mark.parametrize("mode", [None, *MODES], ids=["own", *(m.name for m in MODES)])
def test_memory_goes_on_over_fragments_and_begins_anew_with_episodes(mode, model):
    sampler = make(mode, model=model)
    batch = concat_samples([sampler.sample().batch for _ in range(6)])
    # Rows of one environment after another in each fragment: by episode they are in order.
    assert check_memory(batch, sampler.policy) > 30
    ends = batch["terminateds"] | batch["truncateds"]
    assert ends.sum() > 8 and len(np.unique(batch["eps_id"])) > 8


@pytest.mark.parametrize("mode", [None, *MODES], ids=["own", *(m.name for m in MODES)])
def test_whole_episodes(mode):
    """`complete_episodes` holds rows back with their memory."""
    sampler = make(mode, complete_episodes=True)
    fragments = [sampler.sample() for _ in range(4)]
    batch = concat_samples([f.batch for f in fragments])
    assert check_memory(batch, sampler.policy) > 30
    for f in fragments:
        done = f.batch["terminateds"] | f.batch["truncateds"]
        assert done[f.ends - 1].all() and done.sum() == len(f.ends)
        assert (f.batch["t"][f.starts] == 0).all() and not f.batch["state_in_0"][f.starts].any()


# --- values after the last row


@pytest.mark.parametrize("mode", [None, *MODES], ids=["own", *(m.name for m in MODES)])
def test_the_value_after_a_segment_has_the_memory_after_its_last_row(mode):
    """For truncated episodes and for fragments cut in the middle; nothing of the next episode."""
    sampler = make(mode)
    policy = sampler.policy
    for _ in range(4):
        fragment = sampler.sample()
        values = policy.compute_values(*_seen(fragment, policy))
        rows = fragment.batch.count
        assert len(values) == rows + len(fragment.ends)
        for k, end in enumerate(fragment.ends):
            row = {name: x[end - 1 : end] for name, x in fragment.batch.items()}
            states = [row["state_in_0"], row["state_in_1"]]
            own = policy.compute_values(row["obs"], states, row["prev_actions"], row["prev_rewards"])
            assert values[end - 1] == pytest.approx(own[0], rel=1e-5)
            after = policy.compute_actions(
                row["obs"], states, False, prev_actions=row["prev_actions"], prev_rewards=row["prev_rewards"]
            ).state
            last = fragment.last_obs[k : k + 1]
            # The true last observation: the same place and episode, one step later.
            np.testing.assert_allclose(last[0], row["obs"][0] + np.float32([0, 0, 0.1]), atol=1e-6)
            expected = policy.compute_values(last, after, row["actions"], row["rewards"])
            assert values[rows + k] == pytest.approx(expected[0], rel=1e-4, abs=1e-6)


def test_a_worker_bootstraps_with_them():
    """gamma = lambda = 1: a cut segment's first advantage is all rewards plus the value after it less its own."""
    config = small_ppo(Episodes, model=LSTM, gamma=1.0, rollout_fragment_length=5, num_envs_per_worker=3)
    config.update_from_dict({"lambda": 1.0, "train_batch_size": 60})
    worker = RolloutWorker(config, PPOObjective, ("numpy", False))
    policy = worker.get_policy()
    cut = 0
    for _ in range(6):
        batch = worker.sample()
        for part in batch.split_by_episode("unroll_id"):
            row = part[-1:]
            value = 0.0
            if not row["terminateds"][0]:
                states = [row["state_in_0"], row["state_in_1"]]
                previous = {"prev_actions": row["prev_actions"], "prev_rewards": row["prev_rewards"]}
                after = policy.compute_actions(row["obs"], states, False, **previous).state
                last = row["obs"] + np.float32([0, 0, 0.1])
                value = float(policy.compute_values(last, after, row["actions"], row["rewards"])[0])
                cut += 1
            target = part["rewards"].sum() + value
            assert part["value_targets"][0] == pytest.approx(target, rel=1e-4, abs=1e-5)
    assert cut > 10
    worker.stop()


# --- evaluation


def test_evaluation_keeps_memory_as_compute_single_action_does():
    """Episode k is what a loop with the state handed on gives."""
    config = small_ppo(_Echo, ("numpy", False), model=LSTM, num_envs_per_worker=2)
    worker = RolloutWorker(config, PPOObjective, ("numpy", False))
    policy = worker.get_policy()
    rng = np.random.default_rng(1)
    policy.set_weights({k: 2 * rng.standard_normal(w.shape) * (w.ndim > 1) for k, w in policy.get_weights().items()})
    worker.config = config.copy().update_from_dict({"explore": False})
    found = [e.episode_reward for e in worker.evaluate(4, seed=7)]
    expected = []
    for k in range(4):
        env = _Echo()
        obs, _ = env.reset(seed=7 + k)
        state, action, reward, total, over = policy.get_initial_state(), None, None, 0.0, False
        while not over:
            action, state, _ = policy.compute_single_action(
                obs, state, explore=False, prev_action=action, prev_reward=reward
            )
            obs, reward, over, _, _ = env.step(action)
            total += reward
        expected.append(total)
    assert found == pytest.approx(expected) and len(set(expected)) > 1
    worker.stop()


class _Echo(gym.Env):
    """Returns that depend on every action: memory that goes wrong shows."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), float(int(action) * 3.0 ** -self.t), self.t == 9, False, {}
