"""Two runs of a seed are the same, and a run that is stopped in the middle goes on as the unbroken one would."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from learners import LSTM, small_config
from modes import MODES, has, mode_id

from polylib.algorithms.algorithm import Algorithm
from polylib.checkpoints import CheckpointError
from polylib.errors import DivergedError

TORCH = ("torch", False)
QUICK = {"train_batch_size": 8, "min_sample_timesteps_per_iteration": 24, "min_time_s_per_iteration": 0}
#: Replay algorithms: learning starts in the second iteration, and everything that changes with time does.
REPLAY = {**QUICK, "num_steps_sampled_before_learning_starts": 30, "store_buffer_in_checkpoints": True}
EPSILON = {"type": "EpsilonGreedy", "initial_epsilon": 0.9, "final_epsilon": 0.1, "epsilon_timesteps": 100}
NOISE = {"random_timesteps": 40, "scale_timesteps": 60}
CASES = {
    "DQN": ("DQN", "CartPole-v1", {**REPLAY, "target_network_update_freq": 10, "exploration_config": EPSILON}),
    "rainbow": (
        "DQN",
        "CartPole-v1",
        {**REPLAY, "noisy": True, "num_atoms": 5, "v_max": 50.0, "n_step": 3, "num_envs_per_worker": 2},
    ),
    "R2D2": (
        "DQN",
        "CartPole-v1",
        {
            **REPLAY,
            **LSTM,
            "replay_buffer_config": {"capacity": 60, "replay_burn_in": 1, "replay_zero_init_states": False},
        },
    ),
    "SimpleQ": (
        "SimpleQ",
        "CartPole-v1",
        {**REPLAY, "training_intensity": 3, "replay_buffer_config": {"capacity": 50}, "lr": [[0, 0.1], [90, 0.0]]},
    ),
    "parameter_noise": (
        "DQN",
        "CartPole-v1",
        {
            **REPLAY,
            "noisy": True,
            "exploration_config": {"type": "ParameterNoise", "random_timesteps": 40},
            "num_envs_per_worker": 2,
        },
    ),
    "RND": ("DQN", "CartPole-v1", {**REPLAY, "exploration_config": {"type": "RND", "embed_dim": 4}}),
    "SAC": ("SAC", "Pendulum-v1", REPLAY),
    "SAC_discrete": ("SAC", "CartPole-v1", {**REPLAY, "target_network_update_freq": 10}),
    "DDPG": ("DDPG", "Pendulum-v1", {**REPLAY, "num_envs_per_worker": 2, "exploration_config": NOISE}),
    "TD3": ("TD3", "Pendulum-v1", {**REPLAY, "exploration_config": NOISE}),
    "CQL": ("CQL", "Pendulum-v1", {**REPLAY, "bc_iters": 20, "lagrangian": True}),
    "CRR": ("CRR", "Pendulum-v1", {**REPLAY, "target_update_grad_intervals": 7}),
    "IQL": ("IQL", "CartPole-v1", {**REPLAY, "replay_buffer_config": {"type": "MultiAgentPrioritizedReplayBuffer"}}),
    "A2C": ("A2C", "CartPole-v1", {**QUICK, "rollout_fragment_length": 8, "microbatch_size": 3}),
    "PG": ("PG", "CartPole-v1", {**QUICK, "num_envs_per_worker": 2, "lr": [[0, 0.1], [90, 0.0]]}),
}
SPLITS = [
    pytest.param(name, mode, id=f"{name}-{mode_id(*mode)}")
    for name, mode in [
        *((name, TORCH) for name in CASES),
        *((name, mode) for mode in MODES[:3] for name in ("DQN", "TD3")),
    ]
    if has(mode[0])
]


@pytest.fixture
def build():
    """Algorithms that are stopped when the test ends."""
    made = []

    def make(name, mode=TORCH, **keys):
        algo, env, given = CASES[name]
        config = small_config(algo, **{"env": env, "seed": 3, **given, **keys})
        config.framework(mode[0], eager_tracing=mode[1])
        made.append(config.build())
        return made[-1]

    def add(algo):
        made.append(algo)
        return algo

    make.add = add
    yield make
    for algo in made:
        algo.stop()


def state_of(algo):
    policy = algo.get_policy().get_state()
    progress = algo.progress()
    progress.pop("time_total_s")
    return policy, progress


def assert_same(one, other):
    (policy, progress), (others, theirs) = state_of(one), state_of(other)
    for part in ("weights", "optimizer"):
        mine, yours = policy.pop(part), others.pop(part)
        assert set(mine) == set(yours)
        for key, value in mine.items():
            np.testing.assert_array_equal(value, yours[key], err_msg=key)
    assert repr(policy) == repr(others) and repr(progress) == repr(theirs)


def stats_of(result):
    return result["info"]["learner"]["default_policy"].get("learner_stats"), result["hist_stats"]


@pytest.mark.parametrize(("name", "mode"), SPLITS)
def test_a_run_split_at_any_iteration(build, tmp_path, name, mode):
    iterations, results, unbroken = 4, [], build(name, mode)
    for iteration in range(iterations):
        unbroken.save(tmp_path / str(iteration))
        results.append(stats_of(unbroken.train()))
    again = build(name, mode)
    assert [stats_of(again.train()) for _ in range(iterations)] == results, "two runs of a seed are the same"
    assert_same(again, unbroken)
    again.stop()
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "2"))
    # Then the same one again, back: what it had been doing is forgotten.
    for start in (2, 1):
        if start != 2:
            restored.restore(tmp_path / str(start))
        for iteration in range(start, iterations):
            assert stats_of(restored.train()) == results[iteration], (start, iteration)
        assert_same(restored, unbroken)
    if hasattr(unbroken, "replay"):
        assert len(restored.replay) == len(unbroken.replay)
    assert unbroken.get_policy().num_updates > 3


def test_what_changes_with_time_has_changed(build):
    algo = build("DQN")
    for _ in range(3):
        result = algo.train()
    assert result["num_env_steps_sampled"] == 72
    assert algo.get_policy().coefficients["epsilon"] == pytest.approx(0.9 - 0.8 * 0.72)
    # Every 10 steps, in rounds of 4, from the first update on (32 steps): 32, 44, 56, 68.
    counters = result["counters"]
    assert counters["num_target_updates"] == 4 and counters["last_target_update_ts"] == 68
    assert counters["num_env_steps_trained"] == 8 * algo.get_policy().num_updates == 8 * 11
    ddpg = build("DDPG")
    ddpg.train()
    state = ddpg.get_policy().get_state()["exploration"]["state"]
    assert state.shape == (2, 1) and np.all(state != 0)


def test_importance_weights_follow_their_schedule(build):
    """beta is 0 up to 40 steps and then 1: updates after 32, 36 and 40 steps have weights of 1, later ones not."""
    algo = build("DQN", replay_buffer_config={"prioritized_replay_beta": [[0, 0.0], [40, 0.0], [41, 1.0]]})
    drawn, draw = [], algo.replay.sample

    def sample(*args, **keys):
        drawn.append(draw(*args, **keys))
        return drawn[-1]

    algo.replay.sample = sample
    for _ in range(2):
        algo.train()
    assert [bool((batch["weights"] == 1).all()) for batch in drawn] == [True] * 3 + [False] * 2


def test_td3_moves_its_actor_and_all_targets_every_third_update(build):
    """Of each update, the networks whose weights it changed."""
    algo, moved = build("TD3", policy_delay=3), []
    update = algo._update

    def watched(policy, sampled):
        before = policy.get_weights()
        update(policy, sampled)
        moved.append({key.split("/")[0] for key, w in policy.get_weights().items() if (w != before[key]).any()})

    algo._update = watched
    for _ in range(2):
        algo.train()
    critic, all_of_them = {"q"}, {"q", "policy", "target_q", "target_policy"}
    assert moved[:6] == [critic, critic, all_of_them] * 2


def test_remote_workers_follow_the_weights_and_the_schedule(ray_session, build):
    """In the first iteration nothing is learnt yet, but epsilon falls: 0.9 - 0.8 * 24 / 100."""
    algo = build("DQN", num_workers=1, num_cpus_per_worker=0.1)
    for epsilon in (0.9 - 0.8 * 0.24, 0.9 - 0.8 * 0.48):
        algo.train()
        (here, _), (there, found) = algo.workers.foreach_worker(
            lambda worker: (worker.get_weights()["default_policy"], worker.get_policy().coefficients["epsilon"])
        )
        assert found == pytest.approx(epsilon)
        assert all(np.array_equal(there[key], w) for key, w in here.items() if key.startswith("q/"))
    assert algo.get_policy().num_updates > 0


def test_every_step_has_a_timer(build):
    result = build("DQN").train()
    result = build("DQN", num_steps_sampled_before_learning_starts=0).train()
    timers = result["timers"]
    for part in ("sample", "act", "replay_add", "replay_sample", "learn", "replay_update", "update_target"):
        assert timers[f"{part}_time_ms"] > 0, part
    assert timers["act_time_ms"] < timers["sample_time_ms"] < timers["training_iteration_time_ms"]


def test_without_its_buffer_a_run_collects_one_first(build, tmp_path, caplog):
    algo = build("SimpleQ", store_buffer_in_checkpoints=False)
    for _ in range(2):
        algo.train()
    updates = algo.get_policy().num_updates
    assert updates > 0
    algo.save(tmp_path / "c")
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "c"))
    assert len(restored.replay) == 0
    restored.train()
    assert restored.get_policy().num_updates == updates, "30 steps are to be sampled before learning goes on"
    restored.train()
    assert restored.get_policy().num_updates > updates
    # Once more, in the middle of waiting: it waits anew.
    algo.restore(tmp_path / "c")
    assert len(algo.replay) == 0


def test_a_buffer_that_doesnt_fit_changes_nothing(build, tmp_path):
    algo = build("SimpleQ")
    algo.train()
    algo.save(tmp_path / "c")
    other = build("SimpleQ", replay_buffer_config={"capacity": 70}, seed=9)
    other.train()
    before = state_of(other)
    with pytest.raises(CheckpointError, match="extra.json doesn't fit this algorithm: .*capacity 50, this one 70"):
        other.restore(tmp_path / "c")
    assert repr(state_of(other)) == repr(before)
    prioritized = build("DQN")
    with pytest.raises(CheckpointError, match="is a checkpoint of SimpleQ, not of DQN"):
        prioritized.restore(tmp_path / "c")


def test_training_intensity_is_the_ratio_of_trained_to_sampled_rows(build):
    """3 rows per row sampled: 4 new rows pay for 12, which is a batch of 8 and half of one."""
    algo = build("SimpleQ", num_steps_sampled_before_learning_starts=8)
    result = algo.train()
    # The first round doesn't learn yet, the others do: 20 rows * 3 / 8 = 7 updates.
    assert result["num_env_steps_sampled_this_iter"] == 24 and algo.get_policy().num_updates == 7


def test_learning_waits_for_a_batch(build):
    algo = build("SAC", num_steps_sampled_before_learning_starts=0, train_batch_size=20, rollout_fragment_length=1)
    algo.train()
    assert algo.get_policy().num_updates == 24 - 19


class Huge(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 3e38, False, False, {}


@pytest.mark.parametrize("name", ["DQN", "SAC_discrete"])
def test_numbers_that_are_not_finite_stop_the_run(build, name):
    algo = build(name, env=Huge, td_error_loss_fn="mse") if name == "DQN" else build(name, env=Huge)
    with pytest.raises(DivergedError, match="learning diverged: total_loss is (inf|nan) in update"):
        for _ in range(3):
            algo.train()


def test_returns_beyond_the_range_are_said_once(build, caplog):
    algo = build("rainbow", v_max=0.5)
    with caplog.at_level("WARNING", "polylib"):
        for _ in range(3):
            algo.train()
    lines = [r.getMessage() for r in caplog.records if "'v_min' and 'v_max'" in r.getMessage()]
    assert len(lines) == 1 and "% of a batch's targets" in lines[0] and "[-10, 0.5]" in lines[0]
