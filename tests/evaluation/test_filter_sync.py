"""Observation filters over workers, evaluation and checkpoints: one state everywhere."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_torch
from fakes import MatchEnv, RandomEpisodes, small_ppo

import polylib
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.callbacks import DefaultCallbacks
from polylib.errors import PolylibError
from polylib.evaluation.rollout_worker import RolloutWorker
from polylib.models.filters import MeanStdFilter

NUMPY = ("numpy", False)


class Walk(gym.Env):
    """Observations far from 0, of different scales, that depend on the actions."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space = gym.spaces.Dict(
            {"x": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), "n": gym.spaces.Discrete(2)}
        )
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.x = 0, self.np_random.normal(5.0, 2.0)
        return self._obs(), {}

    def _obs(self) -> Any:
        return {"x": np.array([self.x, 100 * self.x + self.t], np.float32), "n": self.t % 2}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.x += float(self.np_random.normal(int(action) - 0.5, 1.0))
        return self._obs(), -abs(self.x), False, self.t == 9, {}


def raw_stats(worker: RolloutWorker) -> dict[str, Any]:
    return worker.get_policy().filter.get_state()


def same_state(one: dict, other: dict, exact: bool = True) -> None:
    assert set(one) == set(other)
    for column, moments in one.items():
        assert moments["count"] == other[column]["count"]
        for name in ("mean", "m2"):
            if exact:
                np.testing.assert_array_equal(moments[name], other[column][name])
            else:
                np.testing.assert_allclose(moments[name], other[column][name], rtol=1e-9)


def test_batches_hold_what_the_network_sees():
    """Filtered as it was when the policy acted; metrics and discrete parts stay the environment's own."""
    config = small_ppo(Walk, NUMPY, observation_filter="MeanStdFilter", rollout_fragment_length=30)
    worker = RolloutWorker(config, PPOObjective, NUMPY)
    plain = RolloutWorker(config.copy().update_from_dict({"observation_filter": "NoFilter"}), PPOObjective, NUMPY)
    plain.get_policy().act = worker.get_policy().act  # same actions need the same observations
    filtered = worker.sample()
    assert filtered["obs"]["x"].dtype == np.float32 and filtered["obs"]["n"].dtype == np.int64
    assert raw_stats(worker)["obs/x"]["count"] == 30, "each row once; the true last observations don't count"
    assert abs(raw_stats(worker)["obs/x"]["mean"][1]) > 100
    assert np.abs(filtered["obs"]["x"][5:]).max() < 6
    logp = worker.get_policy().compute_log_likelihoods(filtered["actions"], filtered["obs"])
    np.testing.assert_allclose(logp, filtered["action_logp"], rtol=1e-5, atol=1e-6)


def test_acting_alone_applies_but_doesnt_count():
    config = small_ppo(Walk, NUMPY, observation_filter="MeanStdFilter")
    worker = RolloutWorker(config, PPOObjective, NUMPY)
    worker.sample()
    policy, before = worker.get_policy(), raw_stats(worker)
    obs = {"x": np.float32([7, 650]), "n": 1}
    out = policy.compute_single_action(obs, explore=False, full_fetch=True)
    state = before["obs/x"]
    std = np.sqrt(state["m2"] / (state["count"] - 1))
    seen = {"x": ((obs["x"] - state["mean"]) / std)[None].astype(np.float32), "n": np.array([1])}
    logp = policy.compute_log_likelihoods(np.array([out.actions]), seen)
    assert logp[0] == pytest.approx(out.extras["action_logp"], rel=1e-4)
    worker.evaluate(2, seed=1)
    same_state(raw_stats(worker), before)


def test_deltas_are_handed_over_once():
    """What two workers saw, merged, is what one worker would have seen."""
    config = small_ppo(Walk, NUMPY, observation_filter="MeanStdFilter", rollout_fragment_length=20)
    workers = [RolloutWorker(config, PPOObjective, NUMPY, i) for i in range(2)]
    driver = RolloutWorker(config, PPOObjective, NUMPY, 0, make_env=False, spaces=_spaces())
    for _ in range(2):
        for worker in workers:
            _, _, deltas = worker.sample_for_driver()
            assert deltas["default_policy"]["obs/x"]["count"] == 20
            driver.merge_filters(deltas)
    assert raw_stats(driver)["obs/x"]["count"] == 80
    whole = MeanStdFilter(_spaces()[0])
    for worker in workers:
        whole.merge(raw_stats(worker))
    same_state(raw_stats(driver), whole.get_state(), exact=False)
    for worker in workers:
        worker.set_weights(driver.get_weights(), filters=driver.get_filters())
        same_state(raw_stats(worker), raw_stats(driver))
        assert worker.get_policy().filter.pop_delta()["obs/x"]["count"] == 0


def _spaces() -> tuple[Any, Any]:
    env = Walk()
    return env.observation_space, env.action_space


def test_without_a_filter_nothing_is_sent():
    worker = RolloutWorker(small_ppo(Walk, NUMPY), PPOObjective, NUMPY)
    assert worker.sample_for_driver()[2] == {} and worker.get_filters() == {}


# --- algorithms


def train(algo: Any, iterations: int) -> list[dict[str, np.ndarray]]:
    found = []
    for _ in range(iterations):
        algo.train()
        found.append(algo.get_weights()["default_policy"])
    return found


@needs_torch
@pytest.mark.parametrize("name", ["MeanStdFilter", "ConcurrentMeanStdFilter"])
def test_driver_and_workers_have_the_same_filter(ray_session, name):
    """After each iteration, evaluation's worker too."""
    keys = {"observation_filter": name, "num_workers": 2, "evaluation_num_workers": 1, "evaluation_interval": 1}
    with small_ppo(Walk, evaluation_duration=1, **keys).build() as algo:
        for iteration in (1, 2):
            algo.train()
            states = algo.workers.foreach_worker(lambda w: w.get_policy().filter.get_state())
            assert states[0]["obs/x"]["count"] == 64 * iteration
            for state in states[1:]:
                same_state(state, states[0])
            # Both workers took part.
            assert abs(states[0]["obs/x"]["mean"][0] - 5) < 4
        evaluators = algo._evaluation.workers.foreach_worker(lambda w: w.get_policy().filter.get_state())
        for state in evaluators:
            same_state(state, states[0])


@needs_torch
def test_workers_may_keep_their_own(ray_session):
    keys = {"use_worker_filter_stats": False, "synchronize_filters": False, "num_workers": 2}
    with small_ppo(Walk, observation_filter="MeanStdFilter", **keys).build() as algo:
        assert algo.config["update_worker_filter_stats"] is False
        algo.train()
        driver, *workers = algo.workers.foreach_worker(lambda w: w.get_policy().filter.get_state())
    assert driver["obs/x"]["count"] == 0 and [w["obs/x"]["count"] for w in workers] == [32, 32]
    assert workers[0]["obs/x"]["mean"][0] != workers[1]["obs/x"]["mean"][0]


@needs_torch
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True}])
def test_a_checkpoint_goes_on_with_the_filter(tmp_path, model):
    """Saved in the middle: the same weights and statistics as without stopping; episodes unfinished, memory kept."""
    keys = {"observation_filter": "MeanStdFilter", "num_envs_per_worker": 2, "train_batch_size": 50}
    config = small_ppo(Walk, model={"fcnet_hiddens": [8], "max_seq_len": 5, **model}, **keys)
    with config.build() as algo:
        train(algo, 2)
        path = algo.save(str(tmp_path))
        expected, filters = train(algo, 2), algo.get_policy().filter.get_state()
    with config.copy().build() as other:
        other.restore(path)
        found = train(other, 2)
        same_state(other.get_policy().filter.get_state(), filters)
    for one, two in zip(found, expected, strict=True):
        for key, w in two.items():
            np.testing.assert_array_equal(one[key], w, err_msg=key)
    policy = polylib.load_policy(path)
    assert policy.filter.get_state()["obs/x"]["count"] == 100
    assert policy.is_recurrent() == bool(model)


@needs_torch
def test_another_filter_refuses_the_statistics(tmp_path):
    config = small_ppo(Walk, observation_filter="MeanStdFilter")
    with config.build() as algo:
        algo.train()
        path = algo.save(str(tmp_path))
    with small_ppo(Walk).build() as other, pytest.raises(PolylibError, match="filter's statistics are of columns"):
        other.restore(path)


@needs_torch
def test_a_whole_run_over_workers_is_restored(ray_session, tmp_path):
    """Two workers with an LSTM and a filter go on bit for bit."""
    keys = {"observation_filter": "MeanStdFilter", "num_workers": 2, "train_batch_size": 40, "sgd_minibatch_size": 20}
    config = small_ppo(Walk, model={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}, **keys)
    with config.build() as algo:
        train(algo, 1)
        path = algo.save(str(tmp_path))
        expected = train(algo, 2)
    with config.copy().build() as other:
        other.restore(path)
        found = train(other, 2)
    for one, two in zip(found, expected, strict=True):
        for key, w in two.items():
            np.testing.assert_array_equal(one[key], w, err_msg=key)


# --- rewards and actions


def test_clipped_rewards_are_learnt_from_and_counted_as_they_are():
    config = small_ppo(RandomEpisodes, NUMPY, clip_rewards=True, rollout_fragment_length=50)
    worker = RolloutWorker(config, PPOObjective, NUMPY)
    batch = worker.sample()
    assert set(batch["rewards"].tolist()) == {0.0, 1.0}
    rows = batch["obs"]
    own = 10 * rows[:, 1] + rows[:, 2]
    episodes = {e: own[rows[:, 1] == e].sum() for e in np.unique(rows[:, 1])}
    metrics = worker.get_metrics()
    assert [m.episode_reward for m in metrics] == [episodes[e] for e in range(len(metrics))]
    worker.stop()


@pytest.mark.parametrize("keys", [{"normalize_actions": False, "clip_actions": True}, {"normalize_actions": True}])
def test_half_bounded_actions(keys):
    """Bounded parts are scaled or clipped, the open sides are left open; the environment gets what is in the space."""
    low, high = np.float32([-1, -np.inf, 0, -np.inf]), np.float32([1, 0.5, np.inf, np.inf])

    class Env(MatchEnv):
        def __init__(self, config: Any = ()) -> None:
            super().__init__({"actions": "box"})
            self.action_space = gym.spaces.Box(low, high)

    worker = RolloutWorker(small_ppo(Env, NUMPY, rollout_fragment_length=300, **keys), PPOObjective, NUMPY)
    batch = worker.sample()
    actions, raw = batch["actions"], batch["action_raw"]
    assert (actions >= low).all() and (actions <= high).all()
    assert actions[:, 1].min() < -1 and actions[:, 2].max() > 1 and np.abs(actions[:, 3]).max() > 1.5
    np.testing.assert_allclose(actions, np.clip(raw, low, high), atol=1e-6)
    worker.stop()


def test_callbacks_hear_of_the_environments_own_rewards():
    """Clipping is for learning."""
    heard: list[float] = []

    class Notes(DefaultCallbacks):
        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            heard.append(episode.total_reward)

    config = small_ppo(RandomEpisodes, NUMPY, clip_rewards=True, rollout_fragment_length=50, callbacks=Notes)
    worker = RolloutWorker(config, PPOObjective, NUMPY)
    worker.sample()
    assert heard == [m.episode_reward for m in worker.get_metrics()] and max(heard) > 100
    worker.stop()
