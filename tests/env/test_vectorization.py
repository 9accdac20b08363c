"""Which vector environment a worker gets, and that Gymnasium's own is counted rightly."""

import numpy as np
import pytest
from fakes import small_ppo
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.env.vector_env import autoreset_mode, make_vector_env
from polylib.errors import EnvError
from polylib.evaluation.rollout_worker import RolloutWorker
from polylib.registry import register_env


def made(env="CartPole-v1", **keys):
    return make_vector_env(small_ppo(env, ("numpy", False), **keys))


def test_few_environments_are_stepped_one_by_one():
    env = made(num_envs_per_worker=15)
    assert isinstance(env, SyncVectorEnv) and autoreset_mode(env) is AutoresetMode.DISABLED


@pytest.mark.parametrize("keys", [{"num_envs_per_worker": 16}, {"vectorization_mode": "vector_entry_point"}])
def test_many_environments_are_gymnasiums_own_vector(keys):
    env = made(**keys)
    assert type(env).__name__ == "CartPoleVectorEnv" and env.num_envs == keys.get("num_envs_per_worker", 1)


def test_sync_is_kept_when_asked_for():
    assert isinstance(made(num_envs_per_worker=16, vectorization_mode="sync"), SyncVectorEnv)


def test_an_environment_without_a_vectorised_implementation():
    assert isinstance(made("MountainCar-v0", num_envs_per_worker=16), SyncVectorEnv)
    with pytest.raises(EnvError, match="'vectorization_mode': environment 'MountainCar-v0' has no vectorised"):
        made("MountainCar-v0", vectorization_mode="vector_entry_point")


def test_a_users_name_is_never_swapped():
    """A registered name stands for the user's creator, also where Gymnasium knows the same id."""
    import gymnasium

    register_env("Vectorised-v0", lambda config: gymnasium.make("CartPole-v1"))
    assert isinstance(made("Vectorised-v0", num_envs_per_worker=16), SyncVectorEnv)


def test_steps_and_episodes_of_gymnasiums_vector_are_counted_rightly():
    """Every row is a step of CartPole: rewards are 1, and an episode's length is its return."""
    config = small_ppo(
        "CartPole-v1", ("numpy", False), num_envs_per_worker=16, rollout_fragment_length=60, train_batch_size=960
    )
    worker = RolloutWorker(config, PPOObjective, ("numpy", False))
    batch, episodes = worker.sample_with_metrics()
    assert 960 <= batch.count < 960 + 16
    assert np.all(batch["rewards"] == 1)
    assert episodes and all(e.episode_reward == e.episode_length for e in episodes)
    ends = batch["terminateds"] | batch["truncateds"]
    assert ends.sum() == len(episodes)
    assert sorted(batch["t"][ends] + 1) == sorted(e.episode_length for e in episodes)
