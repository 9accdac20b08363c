"""The sampler and the rollout worker around it: which rows they hand out, in every autoreset mode."""

from __future__ import annotations

import logging

import fakes
import gymnasium as gym
import numpy as np
import pytest
from fakes import BrokenEnv, FakePolicy, RandomEpisodes, ScriptEnv, UsersVectorEnv, fake_spec, small_ppo
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.env.in_turn import InTurn
from polylib.errors import EnvError, WorkerError
from polylib.evaluation import rollout_worker as rollout_worker_module
from polylib.evaluation.collector import Collector
from polylib.evaluation.rollout_worker import RolloutWorker
from polylib.evaluation.sampler import Sampler

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


def sync(envs, mode):
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode)


def sync_without_copies(envs, mode):
    return SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=mode, copy=False)


def in_turn(envs, mode):
    assert mode is DISABLED
    return InTurn([lambda env=env: env for env in envs])


VECTORS = [
    *(
        pytest.param(make, mode, id=f"{make.__name__}-{mode.name}")
        for make in (sync, sync_without_copies, UsersVectorEnv)
        for mode in (NEXT, SAME, DISABLED)
    ),
    pytest.param(in_turn, DISABLED, id="in_turn"),
]


def sampler(env, fragment_length, act=None, **kwargs):
    return Sampler(env, FakePolicy(fake_spec(env), act), fragment_length=fragment_length, env_name="fake", **kwargs)


@pytest.fixture
def make_worker(monkeypatch):
    """A RolloutWorker whose policy is a FakePolicy."""

    def make(env, worker_index=0, **keys):
        monkeypatch.setattr(rollout_worker_module, "make_policy", lambda spec, *framework: FakePolicy(spec))
        monkeypatch.setattr(rollout_worker_module, "limit_threads", lambda count: None)
        config = small_ppo(env, **{"rollout_fragment_length": 4, **keys})
        return RolloutWorker(config, PPOObjective, ("torch", False), worker_index)

    return make


# --- no reset row anywhere


@pytest.mark.parametrize(("make", "mode"), VECTORS)
@pytest.mark.parametrize("num_envs", [1, 3])
def test_three_episodes_of_three_steps(make, mode, num_envs):
    envs = [ScriptEnv({"episodes": [[0, 1, 2, 3]], "rewards": [[1.0, 2.0, 4.0]]}) for _ in range(num_envs)]
    sampling = sampler(make(envs, mode), 9 // num_envs)
    fragment = sampling.sample()
    assert fragment.batch.count == 9
    assert fragment.batch["obs"][:, 0].tolist() == [0, 1, 2] * 3
    assert fragment.batch["t"].tolist() == [0, 1, 2] * 3
    assert fragment.batch["rewards"].tolist() == [1, 2, 4] * 3
    assert fragment.batch["terminateds"].tolist() == [False, False, True] * 3
    assert not fragment.batch["truncateds"].any()
    assert len(set(fragment.batch["eps_id"])) == 3
    assert (fragment.starts.tolist(), fragment.ends.tolist()) == ([0, 3, 6], [3, 6, 9])
    assert fragment.last_obs[:, 0].tolist() == [3, 3, 3]
    assert [e[:2] for e in sampling.pop_episodes()] == [(7.0, 3)] * 3
    assert sampling.pop_episodes() == []
    assert sum(len(env.actions) for env in envs) == 9


@pytest.mark.parametrize(("make", "mode"), VECTORS)
def test_steps_go_on_after_the_fragment(make, mode):
    env = ScriptEnv({"episodes": [[0, 1, 2, 3], [10, 11, 12]]})
    sampling = sampler(make([env], mode), 2)
    got = [sampling.sample().batch["obs"][:, 0].tolist() for _ in range(5)]
    assert got == [[0, 1], [2, 10], [11, 0], [1, 2], [10, 11]]
    assert [e.episode_length for e in sampling.pop_episodes()] == [3, 2, 3, 2]


# --- the value of the true last observation


@pytest.mark.parametrize(
    ("make", "mode"), [*VECTORS, pytest.param(None, None, id="polylibs-own")]
)
def test_the_bootstrap_is_the_value_of_the_true_last_observation(make_worker, make, mode):
    def creator(config):
        env = ScriptEnv({"episodes": [[0, 1, 2, 7]], "ends": ["truncated"]})
        return env if make is None else make([env], mode)

    worker = make_worker(creator, rollout_fragment_length=5, gamma=1.0, **{"lambda": 1.0})
    batch = worker.sample()
    # V(o) = o. The first episode: 1 + 1 + 1 + V(7); the second was cut after two steps, where the observation is 2.
    assert batch["obs"][:, 0].tolist() == [0, 1, 2, 0, 1]
    assert batch["vf_preds"].tolist() == [0, 1, 2, 0, 1]
    assert batch["value_targets"].tolist() == [10, 9, 8, 4, 3]
    assert batch["advantages"].tolist() == [10, 8, 6, 4, 2]
    assert batch["truncateds"].tolist() == [False, False, True, False, False]


@pytest.mark.parametrize(("make", "mode"), VECTORS)
def test_a_terminated_episode_has_no_value_beyond(make_worker, make, mode):
    worker = make_worker(
        lambda config: make([ScriptEnv({"episodes": [[0, 1, 2, 7]]})], mode),
        rollout_fragment_length=3,
        gamma=1.0,
        **{"lambda": 1.0},
    )
    assert worker.sample()["value_targets"].tolist() == [3, 2, 1]


# --- against a loop that steps one environment at a time


def played(place, count):
    """The first `count` rows of a RandomEpisodes environment, as tuples, and the observation after each."""
    env, rows = RandomEpisodes(place=place), []
    obs = env.reset()[0]
    for _ in range(count):
        new, reward, terminated, truncated, _ = env.step(0)
        rows.append((*obs.tolist(), reward, terminated, truncated, *new.tolist()))
        obs = env.reset()[0] if terminated or truncated else new
    return rows


def rows_of(fragment):
    """The fragment's rows by place, in the same form."""
    batch = fragment.with_new_obs()
    rows = {}
    for i in range(batch.count):
        obs = batch["obs"][i].tolist()
        ends = bool(batch["terminateds"][i]), bool(batch["truncateds"][i])
        row = (*obs, float(batch["rewards"][i]), *ends, *batch["new_obs"][i].tolist())
        rows.setdefault(int(obs[0]), []).append(row)
    return rows


def own_action(obs):
    return (100 * obs[:, 0] + 10 * obs[:, 1] + obs[:, 2]).astype(np.int64) % 1000


@pytest.mark.parametrize("complete", [False, True], ids=["truncate", "complete"])
@pytest.mark.parametrize(("make", "mode"), VECTORS)
@pytest.mark.parametrize(("num_envs", "fragment_length"), [(1, 1), (2, 7), (5, 4), (3, 25)])
def test_rows_are_those_of_a_loop(make, mode, complete, num_envs, fragment_length):
    env = make([RandomEpisodes(place=place) for place in range(num_envs)], mode)
    sampling = sampler(env, fragment_length, own_action, complete_episodes=complete)
    collected = {place: [] for place in range(num_envs)}
    episode_ids, unrolls, counts = {}, [], []
    for _ in range(12):
        fragment = sampling.sample()
        batch = fragment.batch
        # by environment, in time order
        places = batch["obs"][:, 0].tolist()
        assert places == sorted(places)
        for place, rows in rows_of(fragment).items():
            collected[place] += rows
        assert (batch["actions"] == own_action(batch["obs"])).all()
        assert (batch["t"] == batch["obs"][:, 2]).all()
        counts.append(batch.count)
        for row in range(batch.count):
            key = (batch["obs"][row, 0], batch["obs"][row, 1])
            assert episode_ids.setdefault(key, batch["eps_id"][row]) == batch["eps_id"][row]
        for start, end in zip(fragment.starts, fragment.ends, strict=True):
            # a segment is a stretch of one episode
            unrolls.append(batch["unroll_id"][start])
            assert len(set(batch["unroll_id"][start:end])) == len(set(batch["eps_id"][start:end])) == 1
            done = batch["terminateds"][start:end] | batch["truncateds"][start:end]
            assert not done[:-1].any()
            if complete:
                assert batch["t"][start] == 0 and done[-1]
    for place, rows in collected.items():
        assert rows == played(place, len(rows)), place
    assert len(set(episode_ids.values())) == len(episode_ids)
    assert unrolls == sorted(set(unrolls))
    wanted = num_envs * fragment_length
    assert min(counts) >= wanted
    if not complete:
        assert max(counts) < wanted + num_envs
        if mode is not NEXT:
            assert set(counts) == {wanted}
    # every finished episode was reported once, with its return and length
    finished = [r for rows in collected.values() for r in rows if r[4] or r[5]]
    reported = sampling.pop_episodes()
    assert len(reported) >= len(finished)
    if not complete:
        assert sorted(e.episode_length for e in reported) == sorted(int(r[2]) + 1 for r in finished)


def test_held_back_rows_survive_the_next_fragment():
    """The rows held back of one environment while others fill the same columns again."""
    long = ScriptEnv({"episodes": [list(range(100, 110))]})
    short = ScriptEnv({"episodes": [[0, 1, 2]]})
    sampling = sampler(sync([short, long], DISABLED), 2, complete_episodes=True)
    obs = np.concatenate([sampling.sample().batch["obs"][:, 0] for _ in range(8)])
    longs = obs[obs >= 100].tolist()
    assert longs and longs == (list(range(100, 109)) * 9)[: len(longs)]


@pytest.mark.parametrize(("length", "told"), [(900, 0), (1100, 1)])
def test_who_waits_for_whole_episodes_is_told_of_long_ones(length, told, monkeypatch, caplog):
    """Four rows are asked for: 50 times as many are no reason, as an ordinary episode has more."""
    monkeypatch.setattr("polylib.evaluation.sampler._LONG", 1000)
    sampling = sampler(sync([ScriptEnv({"episodes": [list(range(length + 1))]})], SAME), 4, complete_episodes=True)
    with caplog.at_level(logging.WARNING):
        assert sampling.sample().batch.count == length
    assert sum("TimeLimit" in record.getMessage() for record in caplog.records) == told


def test_the_collector_grows():
    env = ScriptEnv({"episodes": [list(range(31))], "rewards": [[float(i) for i in range(30)]]})
    sampling = sampler(sync([env], DISABLED), 2, complete_episodes=True)
    assert sampling.collector.capacity == 2
    fragment = sampling.sample()
    assert fragment.batch["obs"][:, 0].tolist() == list(range(30))
    assert fragment.batch["rewards"].tolist() == list(range(30))
    assert sampling.collector.capacity == 32
    assert sampling.sample().batch["t"].tolist() == list(range(30))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_all_rows_at_once_are_those_picked_one_by_one(num_envs):
    """A fragment whose rows are all valid is put together in another way than one of which some are left out."""
    envs = [RandomEpisodes(seed) for seed in range(num_envs)]
    sampling = sampler(in_turn(envs, DISABLED), 7)
    collector, compared = sampling.collector, []
    whole = collector._whole

    def both(current):
        one, other = whole(current), collector._picked(current, False)
        compared.append(len(collector._last))
        assert one[1] == other[1]
        for a, b in ((one[0], other[0]), (one[2], other[2])):
            assert a.keys() == b.keys()
            for name in a:
                np.testing.assert_array_equal(a[name], b[name], err_msg=name)
                assert a[name].dtype == b[name].dtype and not np.shares_memory(a[name], collector.columns[name])
        return one

    collector._whole = both
    for _ in range(12):
        sampling.sample()
    assert len(compared) == 12 and 0 in compared and max(compared) > 0


def test_without_extras_fragments_hold_what_everybody_needs():
    fragments = []
    for extras in (True, False):
        envs = [ScriptEnv({"episodes": [[0, 1, 2, 3]], "rewards": [[1.0, 2.0, 4.0]]})]
        fragments.append(sampler(in_turn(envs, DISABLED), 5, extras=extras).sample().batch)
    whole, rest = fragments
    assert whole.keys() - rest.keys() == {"action_logp", "action_dist_inputs"}
    for name in rest:
        np.testing.assert_array_equal(rest[name], whole[name])


def test_the_collector_hands_out_copies():
    collector = Collector(1, 1)
    for name in ("obs", "rewards"):
        collector.column(name, (), np.float32)
    for name in ("terminateds", "truncateds"):
        collector.column(name, (), np.bool_)
    collector.next_row()
    collector.put(0, "obs", np.array([5.0], np.float32))
    fragment = collector.fragment({"obs": np.array([6.0])}, False, 0)
    collector.next_row()
    collector.put(0, "obs", np.array([9.0], np.float32))
    assert fragment.batch["obs"].tolist() == [5.0]


# --- calls, dtypes, units


def test_one_call_per_vector_step_and_one_for_all_values(make_worker):
    worker = make_worker(ScriptEnv, num_envs_per_worker=3, rollout_fragment_length=6)
    for n in (1, 2):
        assert worker.sample().count == 18
        assert worker.get_policy().calls == {"act": 6 * n, "values": n}
    assert {len(obs) for obs in worker.get_policy().seen} == {3}


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
def test_observations_are_copied(mode):
    """From an environment that hands out one buffer, and from a vector environment that does."""
    sampling = sampler(UsersVectorEnv([ScriptEnv({"reuse": True, "ends": ["truncated"]})], mode), 5)
    first = sampling.sample()
    assert first.batch["obs"][:, 0].tolist() == [0, 1, 2, 0, 1]
    assert first.last_obs[:, 0].tolist() == [3, 2]
    sampling.sample()
    assert first.batch["obs"][:, 0].tolist() == [0, 1, 2, 0, 1]
    assert first.last_obs[:, 0].tolist() == [3, 2]
    assert np.concatenate(sampling.policy.held)[:5, 0].tolist() != [0] * 5


@pytest.mark.parametrize("mode", [NEXT, SAME, DISABLED])
def test_float64_observations_become_float32_once(mode):
    env = ScriptEnv({"dtype": np.float64, "episodes": [[0, 0.1, 0.2, 0.3]], "ends": ["truncated"]})
    sampling = sampler(sync([env], mode), 4)
    fragment = sampling.sample()
    assert fragment.batch["obs"].dtype == fragment.last_obs.dtype == np.float32
    np.testing.assert_array_equal(fragment.last_obs[:, 0], np.array([0.3, 0.1], np.float32))
    assert {obs.dtype for obs in sampling.policy.seen} == {np.dtype(np.float32)}
    assert fragment.batch["rewards"].dtype == np.float32


def test_integer_actions_arrive_in_the_environments_units(make_worker):
    env = ScriptEnv({"actions": gym.spaces.Discrete(3, start=5)})
    sampling = sampler(sync([env], DISABLED), 3, lambda obs: np.full(1, 6, np.int64))
    assert sampling.sample().batch["actions"].tolist() == [6, 6, 6]
    assert [int(a) for a in env.actions] == [6, 6, 6]
    assert all(env.action_space.contains(a) for a in env.actions)
    worker = make_worker(lambda config: ScriptEnv({"actions": gym.spaces.MultiDiscrete([3, 2], start=[5, 7])}))
    worker.get_policy().actions = lambda obs: np.array([[7, 8]])
    assert worker.sample()["actions"].tolist() == [[7, 8]] * 4


# --- vector environments of others


def test_gymnasiums_own_vector_cartpole_plugs_in(make_worker):
    def creator(config):
        return gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="vector_entry_point")

    worker = make_worker(creator, rollout_fragment_length=50, seed=3)
    batch = worker.sample()
    assert 150 <= batch.count < 153
    # The physics says which rows follow one another: x' = x + 0.02 v inside an episode.
    inside = (batch["eps_id"][1:] == batch["eps_id"][:-1]).nonzero()[0]
    x, v = batch["obs"][:, 0], batch["obs"][:, 1]
    assert len(inside) > 120
    np.testing.assert_allclose(x[inside + 1], (x + 0.02 * v)[inside], atol=1e-6)
    assert (np.abs(x[batch["t"] == 0]) <= 0.05).all()
    ends = batch["terminateds"]
    lengths = [episode.episode_length for episode in worker.get_metrics()]
    assert sorted(lengths) == sorted((batch["t"][ends] + 1).tolist()) and len(lengths) > 3
    # seeded once, by a number: it takes no list of seeds
    again = make_worker(creator, rollout_fragment_length=50, seed=3).sample()
    np.testing.assert_array_equal(again["obs"], batch["obs"])


def test_auto_counts_a_vector_environments_own_sub_environments(make_worker):
    def creator(config):
        return UsersVectorEnv([ScriptEnv() for _ in range(4)], SAME)

    worker = make_worker(creator, rollout_fragment_length="auto", train_batch_size=64)
    assert worker.sample().count == 64
    worker = make_worker(ScriptEnv, rollout_fragment_length="auto", train_batch_size=64, num_envs_per_worker=4)
    assert worker.sample().count == 64


@pytest.mark.parametrize("sloppy", ["done on reset", "reward on reset"])
def test_what_a_reset_row_says_is_ignored(sloppy):
    sampling = sampler(UsersVectorEnv([ScriptEnv(), ScriptEnv({"episodes": [[0, 1]]})], NEXT, sloppy), 6)
    sampling.sample()
    sampling.sample()
    # at the end of step 3, and after each step of the one-step episodes
    assert {e[:2] for e in sampling.pop_episodes()} == {(3.0, 3), (1.0, 1)}


@pytest.mark.parametrize(
    ("sloppy", "mode", "says"),
    [
        ("no final_obs", SAME, "final_obs"),
        ("final shape", SAME, r"final_obs'\] of shape \[9\], expected \[1\]"),
        ("reward column", SAME, r"rewards of shape \[2, 1\]"),
        ("four", SAME, r"expected \(observations, rewards, terminations, truncations, infos\)"),
        ("float dones", SAME, "terminations of shape .* dtype float32"),
        ("", "sometimes", "autoreset_mode'] is 'sometimes', expected .*'NextStep'"),
    ],
)
def test_a_vector_environment_that_breaks_the_rules(sloppy, mode, says):
    with pytest.raises(EnvError, match=says) as caught:
        sampler(UsersVectorEnv([ScriptEnv(), ScriptEnv()], mode, sloppy), 4).sample()
    assert "\n" not in str(caught.value)


class WrongObs(UsersVectorEnv):
    def __init__(self, obs):
        super().__init__([ScriptEnv(), ScriptEnv()], SAME)
        self.obs = obs

    def reset(self, **kwargs):
        return self.obs, {}


@pytest.mark.parametrize(
    ("obs", "says"),
    [
        (np.zeros(2), r"observations of shape \[2\] from reset\(\), expected \[2, 1\]"),
        (np.zeros((2, 1), complex), "dtype complex128 from reset"),
        (np.full((2, 1), "x"), "dtype <U1 from reset"),
    ],
)
def test_observations_that_do_not_fit_are_not_broadcast(obs, says):
    with pytest.raises(EnvError, match=says):
        sampler(WrongObs(obs), 2).sample()


# --- what goes wrong in environments


FAULTS = {
    "nan obs": ("returned a NaN observation", 3),
    "nan last obs": ("returned a NaN observation", 3),
    "nan reward": ("returned a reward that is not finite: nan", 3),
    "inf reward": ("returned a reward that is not finite: inf", 3),
    "step": ("raised in step(): RuntimeError: the motor is on fire", 3),
    "old step": ("step() of an environment must return (observation, reward, terminated, truncated, info)", 3),
    "step shape": ("raised in step()", 3),
}


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_environment_worker_and_step(make_worker, fault, num_envs):
    says, step = FAULTS[fault]
    keys = {"env_config": {"fault": fault}, "rollout_fragment_length": 8, "num_envs_per_worker": num_envs}
    worker = make_worker(BrokenEnv, 2, **keys)
    with pytest.raises(EnvError) as caught:
        worker.sample()
    text = str(caught.value)
    assert "'BrokenEnv'" in text and says in text and "worker 2" in text and "\n" not in text
    if num_envs == 1:
        assert f"step {step} of an episode" in text
    elif "raised" in says or "must return" in says:
        assert f"steps {step}, {step} of the sub-environments' episodes" in text
    else:
        assert f"sub-environment 0, step {step} of an episode" in text


@pytest.mark.parametrize("at", [3, 8])
def test_nan_in_the_very_last_observation_is_seen(make_worker, at):
    """It is in no row yet: without a look it would reach the weights as a bootstrap value."""
    worker = make_worker(BrokenEnv, env_config={"fault": "nan obs", "at": at}, rollout_fragment_length=at)
    with pytest.raises(EnvError, match=f"NaN observation.*step {at} of"):
        worker.sample()


@pytest.mark.parametrize("checking", [True, False])
def test_raising_in_reset(make_worker, checking):
    with pytest.raises(EnvError) as caught:
        make_worker(BrokenEnv, 1, env_config={"fault": "reset"}, disable_env_checking=not checking).sample()
    text = str(caught.value)
    assert "'BrokenEnv' raised in reset(): ValueError: no level was found" in text and "worker 1" in text
    assert checking or "step 0 of an episode" in text


def test_old_reset_without_the_check(make_worker):
    with pytest.raises(EnvError, match=r"reset\(\) of an environment must return \(observation, info\)"):
        make_worker(lambda c: OldResetThree(), disable_env_checking=True).sample()


class OldResetThree(ScriptEnv):
    def reset(self, **kwargs):
        return np.zeros(1, np.float32), {}, "more"


def test_sampling_starts_anew_after_an_error(make_worker):
    """Nothing of the half-filled row may get into a batch."""
    keys = {"rollout_fragment_length": 4, "batch_mode": "complete_episodes"}
    worker = make_worker(BrokenEnv, env_config={"fault": "step"}, **keys)
    with pytest.raises(EnvError):
        worker.sample()
    for env in worker.env.envs:
        env.fault = None
    batch = worker.sample()
    assert batch["t"].tolist() == list(range(8))
    np.testing.assert_allclose(batch["obs"][:, 0], 0.1 * np.arange(8), atol=1e-6)
    assert [e[:2] for e in worker.get_metrics()] == [(8.0, 8)]


def test_closing_forgives_a_raising_environment(make_worker, caplog):
    worker = make_worker(BrokenEnv, env_config={"fault": "close"})
    with caplog.at_level(logging.WARNING):
        worker.stop()
    assert "raised in close(): the window is gone" in caplog.text


def test_an_episode_without_an_end_is_warned_of(caplog, monkeypatch):
    """complete_episodes would wait for ever without a word."""
    env = ScriptEnv({"episodes": [list(range(12_001))]})
    sampling = sampler(sync([env], DISABLED), 2, complete_episodes=True)
    with caplog.at_level(logging.WARNING):
        assert sampling.sample().batch.count == 12_000
    assert "only 0 of the 2 rows asked for" in caplog.text and "complete_episodes" in caplog.text
    assert len(caplog.records) < 6


def test_a_worker_without_environment_says_so(make_worker):
    worker = make_worker(ScriptEnv)
    worker._sampler = None
    with pytest.raises(WorkerError, match="create_env_on_local_worker"):
        worker.sample()
    assert worker.get_metrics() == []


# --- seeds


def test_seeds_decide_the_episodes(make_worker):
    def first_obs(seed, index=0):
        worker = make_worker("CartPole-v1", index, seed=seed, num_envs_per_worker=2, rollout_fragment_length=30)
        return worker.sample()["obs"]

    np.testing.assert_array_equal(first_obs(1), first_obs(1))
    assert not np.array_equal(first_obs(1)[0], first_obs(2)[0])
    assert not np.array_equal(first_obs(1)[0], first_obs(1, index=1)[0])
    one = first_obs(1)
    assert not np.array_equal(one[0], one[30])  # the two environments of a worker


def test_ids_of_workers_never_meet(make_worker):
    seen = [make_worker(ScriptEnv, i, rollout_fragment_length=30).sample() for i in (0, 1, 2)]
    for name in ("eps_id", "unroll_id"):
        sets = [set(batch[name].tolist()) for batch in seen]
        assert len(set().union(*sets)) == sum(map(len, sets))


def test_the_fakes_keep_to_gymnasiums_rules():
    for env in (ScriptEnv(), RandomEpisodes(), fakes.MatchEnv(), fakes.MatchEnv({"obs": "discrete", "actions": "box"})):
        assert env.observation_space.contains(env.reset(seed=1)[0])
