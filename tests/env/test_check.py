"""Making environments, and what is said about those that don't keep to Gymnasium's rules."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from fakes import BrokenEnv, ScriptEnv, UsersVectorEnv, small_ppo
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from polylib.env.check import check_env, misfit
from polylib.env.vector_env import EnvContext, autoreset_mode, make_vector_env
from polylib.errors import EnvError

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete


def make(env, **keys):
    return make_vector_env(small_ppo(env, **keys))


def complaint(env, **keys):
    with pytest.raises(EnvError) as caught:
        make(env, **keys)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 600
    return text


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("old reset", "reset() returned array([0., 0.], dtype=float32), expected (observation, info dict)"),
        ("shape", "its shape is (3,), the space's (2,)"),
        ("outside", "values lie outside the bounds [-10, 10]"),
        ("dtype", "its dtype is <U1, the space's float32"),
        ("nan reset", "it holds NaN"),
        ("no space", "action_space is None, expected a gymnasium.spaces.Space"),
        ("reset", "raised in reset(): ValueError: no level was found (worker 0)"),
    ],
)
def test_a_misfit_names_environment_space_and_value(fault, says):
    text = complaint(BrokenEnv, env_config={"fault": fault})
    assert says in text and "'BrokenEnv'" in text
    if fault in ("shape", "outside", "dtype", "nan reset"):
        assert "observation_space Box(-10.0, 10.0, (2,), float32)" in text
    if fault == "outside":
        assert "array([11., 11.]" in text


def test_the_check_can_be_left_out():
    make(BrokenEnv, env_config={"fault": "outside"}, disable_env_checking=True)


def test_the_check_resets_once_and_never_steps():
    env = ScriptEnv()
    check_env(env, "script", seed=3)
    assert env.episode == 0 and env.actions == []


@pytest.mark.parametrize(
    ("space", "value", "fits"),
    [
        (Box(-1, 1, (2,)), np.zeros(2, np.float32), True),
        (Box(-1, 1, (2,)), np.zeros(2), True),  # float64: batches hold float32 anyway
        (Box(-1, 1, (2,)), [0, 0.5], True),
        (Box(-1, 1, (2,)), np.zeros(2, int), True),
        (Box(0, 0.7, (1,)), np.array([0.7]), True),  # float32's 0.7 is less than 0.7
        (Box(0, 0.7, (1,)), np.array([0.71]), False),
        (Box(-0.7, 0, (1,)), np.array([-0.7]), True),
        (Box(-1, 1, (2,)), np.zeros(3), False),
        (Box(-1, 1, (2,)), np.zeros((2, 1)), False),
        (Box(-1, 1, (2,)), np.array([0, np.nan]), False),
        (Box(-1, 1, (2,)), np.array([0, 1.5]), False),
        (Box(-np.inf, np.inf, (1,)), np.array([1e30]), True),
        (Box(0, 255, (2,), np.uint8), np.array([1, 2], np.uint8), True),
        (Box(0, 255, (2,), np.uint8), np.array([1.0, 2.0]), False),
        (Box(0, 255, (2,), np.uint8), np.array([-1, 2]), False),
        (Discrete(3, start=5), 7, True),
        (Discrete(3, start=5), np.int64(5), True),
        (Discrete(3, start=5), 2, False),
        (Discrete(3), 1.0, False),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 2]), True),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([2, 2]), False),
    ],
)
def test_misfit(space, value, fits):
    assert (misfit(space, value) is None) == fits


# --- what a creator may be, and may return


def function_creator(config):
    return ScriptEnv(config)


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "CartPole",
        ScriptEnv,
        function_creator,
        lambda config: ScriptEnv(config),
        "fakes:ScriptEnv",
    ],
)
def test_environments_by_id_class_function_and_module(env):
    vector = make(env, num_envs_per_worker=3)
    assert vector.num_envs == 3 and vector.reset()[0].shape == (3, *vector.single_observation_space.shape)
    assert autoreset_mode(vector) is AutoresetMode.DISABLED


def test_env_config_reaches_the_environment():
    made = make(ScriptEnv, env_config={"episodes": [[5, 6]]})
    assert made.reset()[0].tolist() == [[5.0]]
    made = make("CartPole-v1", env_config={"max_episode_steps": 7})
    assert made.envs[0].spec.max_episode_steps == 7


def test_the_context_says_where_the_environment_lives():
    seen = []

    def creator(context):
        seen.append(context)
        return ScriptEnv(context)

    config = small_ppo(creator, env_config={"episodes": [[5, 6]]}, num_envs_per_worker=2, num_workers=4)
    make_vector_env(config, worker_index=3)
    assert all(isinstance(c, EnvContext) and c == {"episodes": [[5, 6]]} for c in seen)
    assert [(c.worker_index, c.num_workers, c.vector_index) for c in seen] == [(3, 4, 0), (3, 4, 1)]


def test_a_vector_environment_is_used_as_it_is():
    made = UsersVectorEnv([ScriptEnv(), ScriptEnv()], AutoresetMode.SAME_STEP)
    assert make(lambda config: made) is made
    assert make(lambda config: made, num_envs_per_worker=2) is made
    assert "is a vector of 2 environments, but num_envs_per_worker is 3" in complaint(
        lambda config: made, num_envs_per_worker=3
    )
    own = SyncVectorEnv([ScriptEnv], autoreset_mode=AutoresetMode.SAME_STEP)
    assert make(lambda config: own) is own


@pytest.mark.parametrize(("returned", "kind"), [(None, "NoneType"), (5, "int"), (ScriptEnv, "type")])
def test_wrong_return_types_of_a_creator(returned, kind):
    text = complaint(lambda config: returned)
    assert f"its creator returned {kind}, expected a gymnasium.Env or a gymnasium.vector.VectorEnv" in text


def test_a_creator_that_raises():
    def no_licence(config):
        raise OSError("no licence\nfor this simulator")

    assert "environment 'no_licence' can't be made: OSError: no licence for this simulator" in complaint(no_licence)
    assert "can't be made: TypeError" in complaint("CartPole-v1", env_config={"gravitee": 3})


def test_environments_of_one_worker_must_be_alike():
    def creator(context):
        return ScriptEnv({"actions": Discrete(2 + context.vector_index)})

    text = complaint(creator, num_envs_per_worker=2)
    assert "2 of it can't be stepped together" in text


def test_unknown_autoreset_mode():
    env = UsersVectorEnv([ScriptEnv()], AutoresetMode.SAME_STEP)
    env.metadata = {"autoreset_mode": None}
    with pytest.raises(EnvError, match="autoreset_mode'] is None"):
        autoreset_mode(env)
    env.metadata = {"autoreset_mode": "SameStep"}
    assert autoreset_mode(env) is AutoresetMode.SAME_STEP
    env.metadata = {}
    assert autoreset_mode(env) is AutoresetMode.NEXT_STEP
