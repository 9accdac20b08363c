"""Atari games: their names, the wrappers that a config asks for, lost lives and rewards."""

import gymnasium
import numpy as np
import pytest
from fakes import small_ppo
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import GrayscaleObservation

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.atari_ids import CLASSIC_GAMES, classic_ids, is_atari_id, register_atari
from polylib.env.atari import LIFE_LOST, looks_raw, reports_lives, wrap_deepmind
from polylib.env.vector_env import make_vector_env
from polylib.errors import ConfigError, EnvError
from polylib.evaluation.rollout_worker import RolloutWorker
from polylib.registry import env_creator, register_env

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

NUMPY = ("numpy", False)
# Small enough to be quick, and it fits frames of 84x84 pixels.
MODEL = {"conv_filters": [[4, [8, 8], 8], [8, [11, 11], 1]]}


def made(env, model=None, **keys):
    return make_vector_env(small_ppo(env, NUMPY, model=model or {}, **keys))


def worker(env, rows=100, envs=1, model=MODEL, **keys):
    config = small_ppo(
        env,
        NUMPY,
        model=model,
        num_envs_per_worker=envs,
        rollout_fragment_length=rows,
        train_batch_size=rows * envs,
        **keys,
    )
    return RolloutWorker(config, PPOObjective, NUMPY)


def frames_per_step(env, action=0, steps=8):
    """How many frames of the game each step takes."""
    env.reset(seed=1)
    ale = env.unwrapped.ale
    counts = []
    for _ in range(steps):
        before = ale.getFrameNumber()
        env.step(action)
        counts.append(ale.getFrameNumber() - before)
    return counts


# --- names


@pytest.mark.parametrize("version, repeat", [("v0", 0.25), ("v4", 0.0)])
@pytest.mark.parametrize("ram", ["", "-ram"])
@pytest.mark.parametrize("flavour, frames", [("", {2, 3, 4}), ("Deterministic", {4}), ("NoFrameskip", {1})])
def test_a_classic_name_is_played_as_ever(flavour, frames, ram, version, repeat):
    env = env_creator(f"Pong{ram}{flavour}-{version}")({})
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == pytest.approx(repeat)
    assert env.unwrapped.ale.getInt("max_num_frames_per_episode") == 108_000
    assert env.observation_space.shape == ((128,) if ram else (210, 160, 3))
    assert set(frames_per_step(env, steps=40)) == frames


def test_space_invaders_skips_three_frames():
    """With four its shots, which blink, couldn't be seen."""
    assert set(frames_per_step(env_creator("SpaceInvadersDeterministic-v4")({}))) == {3}


def test_all_games_have_classic_names():
    assert len(CLASSIC_GAMES) == 62 and len(classic_ids()) == 62 * 12
    assert all(map(is_atari_id, classic_ids()))
    for name in ("MsPacmanDeterministic-v4", "KungFuMaster-ramDeterministic-v0", "UpNDownDeterministic-v0"):
        register_atari(name)
        assert gymnasium.spec(name).kwargs["frameskip"] == 4
    assert set(CLASSIC_GAMES) <= set(ale_py.roms.get_all_rom_ids())


def test_the_table_agrees_with_what_ale_py_registers(monkeypatch):
    theirs = {name: gymnasium.spec(name) for name in classic_ids() if name in gymnasium.registry}
    monkeypatch.setattr(gymnasium, "register_envs", lambda module: None)
    compared = 0
    for name, spec in list(theirs.items()):
        if "NoFrameskip" in name and "-ram" not in name:
            monkeypatch.delitem(gymnasium.registry, name)
            register_atari(name)
            assert {**spec.kwargs, "obs_type": "rgb"} == gymnasium.spec(name).kwargs and spec.max_episode_steps is None
            compared += 1
    assert compared >= 62


def test_names_are_registered_when_asked_for(monkeypatch):
    env_creator("PongDeterministic-v4")
    monkeypatch.delitem(gymnasium.registry, "PongDeterministic-v4")
    env_creator("BreakoutDeterministic-v4")
    assert "PongDeterministic-v4" not in gymnasium.registry
    env_creator("PongDeterministic-v4")
    assert "PongDeterministic-v4" in gymnasium.registry
    assert env_creator("ALE/Pong-v5")({}).unwrapped._frameskip == 4


def test_what_users_register_with_gymnasium_stays(monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("AlienDeterministic-v4", "gymnasium.envs.classic_control:CartPoleEnv")
    monkeypatch.setitem(gymnasium.registry, "AlienDeterministic-v4", spec)
    assert env_creator("AlienDeterministic-v4")({}).observation_space.shape == (4,)


@pytest.mark.parametrize("name", ["ALE/Pong-v5", "PongNoFrameskip-v4", "PongDeterministic-v4", "Pong-v0"])
def test_without_ale_py(monkeypatch, block_import, name):
    monkeypatch.delitem(gymnasium.registry, name, raising=False)
    block_import("ale_py")
    with pytest.raises(
        EnvError, match=rf"'{name}' is an Atari game, which needs ale-py.*pip install 'polylib\[atari\]'"
    ):
        env_creator(name)


def test_an_unknown_game():
    with pytest.raises(EnvError, match=r"unknown environment 'PongDeterminstic-v4'.* 'PongDeterministic-v4'\?"):
        env_creator("PongDeterminstic-v4")
    with pytest.raises(EnvError, match="are called like ALE/Pong-v5"):
        env_creator("ALE/Pongg-v5")


# --- wrappers


@pytest.mark.parametrize(
    "keys, model, shape, dtype",
    [
        ({}, {}, (84, 84, 4), np.uint8),
        ({}, {"framestack": False}, (84, 84, 1), np.uint8),
        ({}, {"dim": 42}, (42, 42, 4), np.uint8),
        ({"is_atari": True}, {}, (84, 84, 4), np.uint8),
        ({"is_atari": False}, {}, (210, 160, 3), np.uint8),
        ({"preprocessor_pref": None}, {}, (210, 160, 3), np.uint8),
        ({"preprocessor_pref": "rllib"}, {}, (84, 84, 3), np.float32),
        ({"preprocessor_pref": "rllib"}, {"grayscale": True, "dim": 42}, (42, 42, 1), np.float32),
    ],
)
def test_observations(keys, model, shape, dtype):
    env = made("PongDeterministic-v4", model, **keys)
    obs, _ = env.reset(seed=0)
    assert env.single_observation_space.shape == shape and obs.shape == (1, *shape)
    assert env.single_observation_space.dtype == dtype and obs.dtype == dtype
    assert env.single_observation_space.contains(env.step(np.array([2]))[0][0])


def test_rllibs_pixels():
    around = made("PongDeterministic-v4", preprocessor_pref="rllib").reset(seed=0)[0]
    above = made("PongDeterministic-v4", {"zero_mean": False}, preprocessor_pref="rllib").reset(seed=0)[0]
    np.testing.assert_allclose(around * 128 + 128, above * 255, atol=1e-3)
    assert around.min() < 0 <= above.min()


@pytest.mark.parametrize("how", ["deepmind", "rllib"])
def test_memory_in_place_of_frames(how):
    env = made("Pong-ramDeterministic-v4", preprocessor_pref=how)
    raw = made("Pong-ramDeterministic-v4", preprocessor_pref=None)
    expected = (raw.reset(seed=0)[0].astype(np.float32) - 128) / 128
    np.testing.assert_array_equal(env.reset(seed=0)[0], expected)
    assert not reports_lives(env)


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "PongDeterministic-v4", "ALE/Pong-v5"])
def test_four_frames_an_action_once(name):
    assert set(frames_per_step(made(name).envs[0])) == {4}


def test_a_frame_skip_of_the_users():
    assert set(frames_per_step(made("ALE/Pong-v5", env_config={"frameskip": 1}).envs[0])) == {4}
    assert set(frames_per_step(made("ALE/Pong-v5", env_config={"frameskip": 2}).envs[0])) == {2}
    assert set(frames_per_step(made("Pong-v4").envs[0], steps=40)) == {2, 3, 4}


def test_the_newest_frame_is_the_last_channel():
    env = made("PongDeterministic-v4").envs[0]
    first, _ = env.reset(seed=0)
    assert all(np.array_equal(first[..., 0], first[..., i]) for i in range(4))
    before = first
    for _ in range(6):
        after = env.step(2)[0]
        np.testing.assert_array_equal(after[..., :3], before[..., 1:])
        before = after
    assert not np.array_equal(before, first)


def test_starts_differ_by_seed_and_repeat_with_it():
    env = made("PongNoFrameskip-v4").envs[0]
    starts = []
    for seed in (0, 1, 2, 3, 0, 1, 2, 3):
        env.reset(seed=seed)
        starts.append(env.unwrapped.ale.getEpisodeFrameNumber())
    assert starts[:4] == starts[4:] and len(set(starts)) > 1
    fire = 2 * 4  # and no more than 30 no-ops before
    assert all(fire < start <= fire + 31 for start in starts)


@pytest.mark.parametrize("name", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_two_runs_with_a_seed_are_the_same(name):
    one, other = (worker(name, rows=30, envs=2).sample() for _ in range(2))
    for column in ("obs", "actions", "rewards", "eps_id"):
        np.testing.assert_array_equal(one[column], other[column])


def test_many_environments_are_polylibs_own():
    """ale-py's own vector prepares frames in another way."""
    env = made("ALE/Pong-v5", num_envs_per_worker=16)
    assert isinstance(env, SyncVectorEnv) and env.single_observation_space.shape == (84, 84, 4)
    raw = made("ALE/Pong-v5", num_envs_per_worker=16, preprocessor_pref=None)
    assert raw.single_observation_space.shape == (210, 160, 3)


def test_ale_pys_own_vector():
    with pytest.raises(EnvError, match="'vectorization_mode': ale-py's own vector of 'ALE/Pong-v5' prepares frames"):
        made("ALE/Pong-v5", vectorization_mode="vector_entry_point")
    env = made("ALE/Pong-v5", num_envs_per_worker=2, vectorization_mode="vector_entry_point", preprocessor_pref=None)
    assert env.single_observation_space.shape == (4, 84, 84)
    with pytest.raises(EnvError, match="'PongDeterministic-v4' has no vectorised implementation"):
        made("PongDeterministic-v4", vectorization_mode="vector_entry_point")


def test_users_creators_are_wrapped_too_unless_they_wrap_themselves():
    register_env("my-pong", lambda config: env_creator("PongDeterministic-v4")(config))
    assert made("my-pong").single_observation_space.shape == (84, 84, 4)
    register_env("my-grey-pong", lambda config: GrayscaleObservation(env_creator("PongDeterministic-v4")(config)))
    assert made("my-grey-pong").single_observation_space.shape == (210, 160)
    register_env("my-deepmind-pong", lambda config: wrap_deepmind(env_creator("PongNoFrameskip-v4")(config), dim=42))
    env = made("my-deepmind-pong")
    assert env.single_observation_space.shape == (42, 42, 4) and reports_lives(env) and not looks_raw(env.envs[0])
    with pytest.raises(EnvError, match=r"its own frames.*'my-grey-pong' has .*\(210, 160\)"):
        made("my-grey-pong", is_atari=True)


def test_other_environments_are_left_alone():
    env = made("CartPole-v1")
    assert env.single_observation_space.shape == (4,) and not reports_lives(env)


@pytest.mark.parametrize("how", ["deepmind", "rllib"])
def test_is_atari_for_what_is_none(how):
    with pytest.raises(EnvError, match=f"'is_atari': preprocessor_pref='{how}' takes .*'CartPole-v1' has observations"):
        made("CartPole-v1", is_atari=True, preprocessor_pref=how)


def test_values_of_the_keys_are_checked():
    with pytest.raises(ConfigError, match="'is_atari'.*expected one of None, True, False"):
        small_ppo("ALE/Pong-v5", is_atari=1)
    with pytest.raises(ConfigError, match="'preprocessor_pref'.*expected one of 'deepmind', 'rllib', None"):
        small_ppo("ALE/Pong-v5", preprocessor_pref="baselines")
    with pytest.raises(ConfigError, match="model.dim"):
        small_ppo("ALE/Pong-v5", model={"dim": 0})


def test_without_opencv(block_import):
    block_import("cv2")
    with pytest.raises(EnvError, match=r"'ALE/Pong-v5'.*OpenCV, which isn't installed: pip install 'polylib\[atari\]'"):
        made("ALE/Pong-v5")


def test_an_argument_that_the_game_lacks():
    with pytest.raises(EnvError, match=r"'PongDeterministic-v4' can't be made: TypeError: .*'frame_skip'"):
        made("PongDeterministic-v4", env_config={"frame_skip": 2})


# --- lives


def test_a_lost_life_is_reported_and_the_game_goes_on():
    env = wrap_deepmind(env_creator("BreakoutDeterministic-v4")({}))
    env.reset(seed=0)
    ale, lost, ended, steps = env.unwrapped.ale, 0, False, 0
    assert ale.lives() == 5
    while not ended:
        frame = ale.getEpisodeFrameNumber()
        _, _, ended, truncated, info = env.step(0)
        steps += 1
        assert not truncated and ale.getEpisodeFrameNumber() > frame and steps < 400
        lost += LIFE_LOST in info
        assert ended or ale.lives() == 5 - lost  # FIRE starts the next life, or this would never end
    assert lost == 4 and ale.lives() == 0


def test_a_lost_life_ends_an_episode_for_learning():
    local = worker("BreakoutDeterministic-v4", rows=300)
    batch, episodes = local.sample_with_metrics()
    ends = np.flatnonzero(batch["terminateds"])
    assert len(episodes) >= 1 and not batch["truncateds"].any()
    # All rows of a life have an id of their own, and count from 0.
    changes = np.flatnonzero(np.diff(batch["eps_id"]))
    np.testing.assert_array_equal(changes, ends[ends < 299])
    np.testing.assert_array_equal(batch["t"][changes + 1], 0)
    # The first game's five lives.
    assert episodes[0].episode_length == ends[4] + 1
    assert episodes[0].episode_reward == batch["rewards"][: ends[4] + 1].sum()
    assert len(episodes) == len(ends) // 5


def test_whole_lives_are_complete_episodes():
    batch = worker("BreakoutDeterministic-v4", rows=60, batch_mode="complete_episodes").sample()
    assert batch["terminateds"][-1] and batch.count >= 60
    for one in np.unique(batch["eps_id"]):
        rows = batch["eps_id"] == one
        assert batch["terminateds"][rows].tolist() == [False] * (rows.sum() - 1) + [True]


def test_episodes_of_evaluation_are_whole_games():
    local = worker("BreakoutDeterministic-v4", envs=2, explore=False)
    policy = local.policy_map["default_policy"]
    env = wrap_deepmind(env_creator("BreakoutDeterministic-v4")({}))
    expected = []
    for seed in (5, 6):
        obs, _ = env.reset(seed=seed)
        reward, length, done = 0.0, 0, False
        while not done:
            obs, gained, terminated, truncated, _ = env.step(policy.compute_single_action(obs, explore=False))
            reward, length, done = reward + gained, length + 1, terminated or truncated
        expected.append((reward, length))
    assert [(e.episode_reward, e.episode_length) for e in local.evaluate(2, seed=5)] == expected


def test_a_game_is_gone_on_with_after_lost_lives():
    """What a checkpoint keeps brings games back to where they were, in a later life too."""
    one = worker("BreakoutDeterministic-v4", rows=100, envs=2)
    assert one.sample()["terminateds"].sum() > 0
    values, arrays = one.get_state()
    assert any(values["sampler"]["earlier"])
    other = worker("BreakoutDeterministic-v4", rows=100, envs=2)
    assert other.set_state(values, {name: np.array(x) for name, x in arrays.items()})
    for _ in range(2):
        (batch, episodes), (again, same) = one.sample_with_metrics(), other.sample_with_metrics()
        for column in ("obs", "actions", "rewards", "terminateds", "eps_id", "t"):
            np.testing.assert_array_equal(batch[column], again[column])
        assert episodes[-1:] == same[-1:]


# --- rewards

# Short games with rewards of ten.
PACMAN = {"env": "MsPacmanNoFrameskip-v4", "env_config": {"max_num_frames_per_episode": 800}}


def test_rewards_are_clipped_for_learning_only():
    batch, episodes = worker(**PACMAN, rows=300).sample_with_metrics()
    assert set(np.unique(batch["rewards"])) == {0.0, 1.0}
    assert episodes and all(e.episode_reward % 10 == 0 and e.episode_reward > 10 for e in episodes)


@pytest.mark.parametrize(
    "keys, most",
    [({"clip_rewards": False}, 10), ({"clip_rewards": 2.5}, 2.5), ({"preprocessor_pref": "rllib"}, 10)],
)
def test_rewards_as_the_config_says(keys, most):
    """Without a value, only "deepmind" clips."""
    batch = worker(**PACMAN, **keys, rows=300).sample()
    assert batch["rewards"].max() == most
