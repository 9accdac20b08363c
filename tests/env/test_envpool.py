"""EnvPool's environments: what is told of a fake holds for the real ones too, where EnvPool is installed."""

from __future__ import annotations

import importlib.util
import logging
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from fakes import small_ppo
from gymnasium.vector import AutoresetMode, VectorEnv

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.env.envpool import EnvPoolVectorEnv, is_envpool
from polylib.env.vector_env import autoreset_mode, make_vector_env
from polylib.errors import EnvError
from polylib.evaluation.rollout_worker import RolloutWorker
from polylib.registry import env_creator, register_env

REAL = importlib.util.find_spec("envpool") is not None
needs_envpool = pytest.mark.skipif(not REAL, reason="envpool isn't installed")
EITHER = pytest.mark.parametrize("kind", ["fake", pytest.param("real", marks=needs_envpool)])

MADE: list[FakePool] = []


class FakePool(gym.Env):
    """A pool as EnvPool makes them: of `Fake-v0`, whose rewards are 1, and which ends after 2, 3, 2, 3... steps.

    Observations are `[seed, episode, t]`. Sub-environment i has the seed `seed + i`, which it gets when the pool
    is made; `reset()` takes none.
    """

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self, num_envs: int = 1, seed: int = 42, batch_size: int = 0, truncate: bool = False, **others: Any
    ) -> None:
        self.config = {"num_envs": num_envs, "batch_size": batch_size or num_envs, "seed": seed, "max_num_players": 1}
        self.config.update(others)
        if unknown := set(others) - {"num_threads", "max_num_players"}:
            raise TypeError(f"Config.__new__() got an unexpected keyword argument {unknown.pop()!r}")
        # One environment's spaces, as in EnvPool.
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.all_env_ids = np.arange(num_envs, dtype=np.int32)
        self.truncate, self.closed = truncate, False
        self.state = np.stack([seed + self.all_env_ids, self.all_env_ids * 0 - 1, self.all_env_ids * 0], 1)
        self.done = np.zeros(num_envs, bool)
        MADE.append(self)

    def send(self) -> None: ...

    def recv(self) -> None: ...

    def async_reset(self) -> None: ...

    def _infos(self) -> dict[str, Any]:
        ids = self.all_env_ids
        return {"env_id": ids, "players": {"env_id": ids}, "elapsed_step": self.state[:, 2].astype(np.int32)}

    def reset(self, env_id: Any = None) -> Any:  # other versions warn of a seed
        self.state[:, 1] += 1
        self.state[:, 2] = 0
        self.done[:] = False
        return self.state.astype(np.float32), self._infos()

    def step(self, actions: np.ndarray) -> Any:
        assert isinstance(actions, np.ndarray) and actions.shape == (len(self.done),)
        fresh = self.done
        self.state[fresh, 1] += 1
        self.state[:, 2] = np.where(fresh, 0, self.state[:, 2] + 1)
        self.done = self.state[:, 2] == 2 + self.state[:, 1] % 2
        ends, never = self.done.copy(), np.zeros_like(self.done)
        flags = (never, ends) if self.truncate else (ends, never)
        return self.state.astype(np.float32), (~fresh).astype(np.float32), *flags, self._infos()

    def close(self) -> None:
        self.closed = True


def fake_module() -> Any:
    def make_gymnasium(task_id: str, **options: Any) -> FakePool:
        assert task_id == "CartPole-v1"
        return FakePool(**options)

    return SimpleNamespace(list_all_envs=lambda: ["CartPole-v1", "Pong-v5"], make_gymnasium=make_gymnasium)


@pytest.fixture
def envpool(kind, monkeypatch):
    """The module: EnvPool itself or the fake, as `import envpool` finds it."""
    if kind == "real":
        return pytest.importorskip("envpool")
    module = fake_module()
    monkeypatch.setitem(sys.modules, "envpool", module)
    MADE.clear()
    return module


def made(env="envpool:CartPole-v1", worker_index=0, seed=None, **keys):
    return make_vector_env(small_ppo(env, ("numpy", False), **keys), worker_index, seed)


def first_obs(env, seed=None):
    return env.reset(seed=seed)[0]


@EITHER
def test_a_creator_of_a_pool(envpool):
    register_env("pool", lambda config: envpool.make_gymnasium("CartPole-v1", num_envs=4, **config))
    env = made("pool", env_config={"seed": 3})
    assert isinstance(env, EnvPoolVectorEnv) and isinstance(env, VectorEnv) and not is_envpool(env)
    assert env.num_envs == 4 and autoreset_mode(env) is AutoresetMode.NEXT_STEP
    assert isinstance(env.single_observation_space, gym.spaces.Box)
    assert env.single_action_space == gym.spaces.Discrete(2)
    assert env.observation_space.shape == (4, *env.single_observation_space.shape)
    assert env.action_space.shape == (4,)
    obs, infos = env.reset(seed=99)  # whose pool it is decides about the seed
    assert obs.shape == env.observation_space.shape and infos["elapsed_step"].tolist() == [0] * 4
    env.close()


@EITHER
def test_the_step_after_an_end_only_resets(envpool):
    env = made(num_envs_per_worker=3)
    env.reset()
    over, seen = np.zeros(3, bool), 0
    for _ in range(60):
        obs, rewards, terminations, truncations, infos = env.step(np.zeros(3, np.int64))
        np.testing.assert_array_equal(infos["elapsed_step"] == 0, over)
        np.testing.assert_array_equal(rewards, ~over)
        assert not (over & (terminations | truncations)).any()
        over = terminations | truncations
        seen += over.sum()
    assert seen >= 6


@EITHER
@pytest.mark.parametrize("registered", [True, False])
def test_what_a_worker_samples_is_counted_rightly(envpool, registered):
    """Every row is a step of CartPole: rewards are 1, and an episode's length is its return."""
    name, count = "envpool:CartPole-v1", 8
    if registered:
        name, count = "pool8", 1
        register_env(name, lambda config: envpool.make_gymnasium("CartPole-v1", num_envs=8))
    keys = {"num_envs_per_worker": count, "rollout_fragment_length": 60, "train_batch_size": 480}
    worker = RolloutWorker(small_ppo(name, ("numpy", False), **keys), PPOObjective, ("numpy", False))
    lengths = []
    for _ in range(3):
        batch, episodes = worker.sample_with_metrics()
        assert 480 <= batch.count < 480 + 8
        assert np.all(batch["rewards"] == 1)
        assert episodes and all(e.episode_reward == e.episode_length for e in episodes)
        ends = batch["terminateds"] | batch["truncateds"]
        assert ends.sum() == len(episodes)
        lengths += [e.episode_length for e in episodes]
        # Within an episode rows follow each other.
        follows = batch["eps_id"][1:] == batch["eps_id"][:-1]
        assert np.all(np.diff(batch["t"])[follows] == 1)
    if isinstance(envpool, SimpleNamespace):
        assert set(lengths) == {2, 3}
    worker.stop()


def test_truncated_episodes_are_bootstrapped_with_their_last_observation():
    register_env("truncating", lambda config: FakePool(2, truncate=True))
    keys = {"rollout_fragment_length": 10, "train_batch_size": 20}
    worker = RolloutWorker(small_ppo("truncating", ("numpy", False), **keys), PPOObjective, ("numpy", False))
    fragment = worker._sampler.sample()
    batch, ends = fragment.batch, fragment.ends - 1
    assert batch["truncateds"].any() and not batch["terminateds"].any()
    # [seed, episode, t]: the end of the same episode, not the beginning of the next.
    np.testing.assert_array_equal(fragment.last_obs, batch["obs"][ends] + [0, 0, 1])


@EITHER
def test_seeds(envpool):
    """A reset with a seed starts the pool's episodes over, and a worker's first reset has the seed of the worker."""
    env = made(num_envs_per_worker=3, seed=7)
    start = first_obs(env, 7)
    env.step(np.zeros(3, np.int64))
    assert not np.array_equal(first_obs(env), start)  # the next episodes
    np.testing.assert_array_equal(first_obs(env, 7), start)
    np.testing.assert_array_equal(first_obs(env, 7), start)
    np.testing.assert_array_equal(first_obs(env, [7, 8, 9]), start)
    np.testing.assert_array_equal(first_obs(env, 8)[:2], start[1:])  # sub-environment i has seed + i
    first_obs(env, (1 << 32) + 5)
    assert not np.array_equal(first_obs(made(num_envs_per_worker=3)), first_obs(made(num_envs_per_worker=3)))


@EITHER
def test_a_seed_that_the_pool_has_makes_no_other(envpool):
    env = made(num_envs_per_worker=3, seed=7)
    pool = env.pool
    env.reset(seed=7)
    assert env.pool is pool
    env.reset(seed=7)
    assert env.pool is not pool


@EITHER
def test_the_same_seed_gives_the_same_batch(envpool):
    def batch():
        config = small_ppo("envpool:CartPole-v1", ("numpy", False), num_envs_per_worker=4)
        worker = RolloutWorker(config, PPOObjective, ("numpy", False))
        return worker.sample()

    np.testing.assert_array_equal(batch()["obs"], batch()["obs"])


def test_a_pool_is_made_anew_after_closing_the_old(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", fake_module())
    MADE.clear()
    env = made(seed=1)
    env.reset(seed=2)
    assert [pool.closed for pool in MADE] == [True, False]
    env.close()
    assert MADE[1].closed


@pytest.mark.parametrize("kind", ["fake"])
def test_the_arguments_of_a_pool(envpool):
    """`env_config` goes to EnvPool; remote workers don't take more threads than Ray gave them."""
    env = made(num_envs_per_worker=3, env_config={"truncate": True}, vectorization_mode="vector_entry_point")
    assert env.pool.truncate and env.pool.config["num_envs"] == 3 and "num_threads" not in env.pool.config
    assert made(worker_index=2).pool.config["num_threads"] == 1
    assert made(worker_index=2, num_cpus_per_worker=3).pool.config["num_threads"] == 3
    assert made(worker_index=2, env_config={"num_threads": 5}).pool.config["num_threads"] == 5
    assert env_creator("envpool:CartPole-v1")({"num_envs": 5}).config["num_envs"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 3}, "env_config has 'num_envs'; set config key 'num_envs_per_worker' instead"),
        ({"seed": 3}, "env_config has 'seed'; set config key 'seed' instead"),
        ({"batch_size": 2}, "its EnvPool hands out 2 of its 3 environments at a time; leave out batch_size"),
        ({"nonsense": 2}, "can't be made: TypeError: .*nonsense"),
    ],
)
@EITHER
def test_arguments_that_do_not_fit(envpool, options, message):
    with pytest.raises(EnvError, match=rf"^environment 'envpool:CartPole-v1'.*{message}"):
        made(num_envs_per_worker=3, env_config=options)


def test_pools_of_no_use():
    register_env("several", lambda config: FakePool(2, max_num_players=4))
    with pytest.raises(EnvError, match="environment 'several': its EnvPool has up to 4 players in an environment"):
        made("several")
    foreign = FakePool(2)
    foreign.observation_space = None
    register_env("foreign", lambda config: foreign)
    with pytest.raises(EnvError, match="make it with envpool.make_gymnasium"):
        made("foreign")
    register_env("two", lambda config: FakePool(2))
    with pytest.raises(EnvError, match="'two' is a vector of 2 environments, but num_envs_per_worker is 3"):
        made("two", num_envs_per_worker=3)


@needs_envpool
def test_a_pool_of_deepmind_s_interface():
    import envpool

    register_env("dm", lambda config: envpool.make_dm("CartPole-v1", num_envs=2))
    with pytest.raises(EnvError, match="environment 'dm'.*make it with envpool.make_gymnasium"):
        made("dm")


def test_resets_in_part():
    env = EnvPoolVectorEnv(FakePool(2), "pool")
    env.reset(options={"reset_mask": np.ones(2, bool)})
    with pytest.raises(EnvError, match="'pool': its EnvPool can't be reset in part"):
        env.reset(options={"reset_mask": np.array([True, False])})


@EITHER
def test_workers_whose_pools_begin_alike_are_warned_of(envpool, caplog):
    register_env("alike", lambda config: envpool.make_gymnasium("CartPole-v1", num_envs=2))
    register_env("apart", lambda config: envpool.make_gymnasium("CartPole-v1", num_envs=2, seed=config.worker_index))
    with caplog.at_level(logging.WARNING, "polylib.env.envpool"):
        made("apart", worker_index=2)
        made("alike", worker_index=1)
        assert not caplog.records
        made("alike", worker_index=2)
    assert "seed=10_000 * env_config.worker_index" in caplog.text


@EITHER
def test_an_environment_that_envpool_does_not_have(envpool):
    with pytest.raises(EnvError, match="EnvPool has no 'CartPole-v9'. Did you mean 'CartPole-v1'"):
        env_creator("envpool:CartPole-v9")


def test_without_envpool(block_import):
    block_import("envpool")
    with pytest.raises(EnvError, match="^environment 'envpool:CartPole-v1' needs EnvPool.*: pip install envpool"):
        env_creator("envpool:CartPole-v1")


def test_an_envpool_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "envpool.py").write_text("raise OSError('libstdc++ is too old')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "envpool", raising=False)
    with pytest.raises(EnvError, match="'envpool:CartPole-v1': can't import EnvPool: OSError: libstdc.. is too old"):
        env_creator("envpool:CartPole-v1")


def test_a_registered_name_goes_first(block_import):
    block_import("envpool")
    register_env("envpool:mine", lambda config: FakePool(2))
    assert made("envpool:mine").num_envs == 2


@needs_envpool
def test_truncation_of_a_real_pool():
    config = small_ppo("envpool:Pendulum-v1", ("numpy", False), num_envs_per_worker=2, rollout_fragment_length=20)
    config.environment(env_config={"max_episode_steps": 5})
    worker = RolloutWorker(config, PPOObjective, ("numpy", False))
    fragment = worker._sampler.sample()
    ends = fragment.ends - 1
    assert fragment.batch["truncateds"][ends].sum() >= 6 and not fragment.batch["terminateds"].any()
    assert set(np.flatnonzero(fragment.batch["truncateds"])) <= set(ends)
    assert np.all(fragment.batch["t"][fragment.batch["truncateds"]] == 4)
    # Pendulum turns by at most 8 * 0.05 in a step; a reset puts it anywhere.
    before, after = fragment.batch["obs"][ends, :2], fragment.last_obs[:, :2]
    assert np.all((before * after).sum(1) > np.cos(0.41))
    worker.stop()


@needs_envpool
@pytest.mark.parametrize("name", ["Pendulum-v1", "FrozenLake-v1", "HalfCheetah-v4"])
def test_other_spaces(name):
    config = small_ppo(f"envpool:{name}", ("numpy", False), num_envs_per_worker=2)
    batch = RolloutWorker(config, PPOObjective, ("numpy", False)).sample()
    assert np.isfinite(batch["rewards"]).all()
