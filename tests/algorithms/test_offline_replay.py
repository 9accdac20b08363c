"""CQL, CRR and IQL learn from files: what they read, what changes from update to update, and going on in the middle."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from learners import CHOICE, OBS, TORQUE, small_config
from modes import MODES, has, mode_id

from polylib.algorithms.algorithm import Algorithm
from polylib.errors import ConfigError
from polylib.offline import JsonWriter
from polylib.policy.sample_batch import SampleBatch
from polylib.policy.testing import sample_space

TORCH = ("torch", False)
ROWS, EPISODES = 20, 3
#: Everything that changes with updates does so in these: the policy imitates, then climbs; targets move now and then.
ALGOS = {
    "CQL": {"bc_iters": 4, "lagrangian": True},
    "CRR": {"target_update_grad_intervals": 3, "tau": 1.0},
    "IQL": {},
}
ITERATION = {
    "min_time_s_per_iteration": 0,
    "min_train_timesteps_per_iteration": 24,
    "train_batch_size": 8,
    "store_buffer_in_checkpoints": True,
    "replay_buffer_config": {"capacity": 100},
}


def write(folder, action_space):
    rng = np.random.default_rng(0)
    with JsonWriter(folder, spaces=(OBS, action_space)) as writer:
        for episode in range(EPISODES):
            obs = sample_space(OBS, ROWS + 1, episode)
            writer.write(
                SampleBatch(
                    {
                        "obs": obs[:-1],
                        "new_obs": obs[1:],
                        "actions": sample_space(action_space, ROWS, episode),
                        "rewards": rng.normal(size=ROWS).astype(np.float32),
                        "terminateds": np.arange(ROWS) == ROWS - 1,
                        "truncateds": np.zeros(ROWS, bool),
                        "eps_id": np.full(ROWS, episode),
                        "t": np.arange(ROWS, dtype=np.int32),
                    }
                )
            )
    return str(folder)


@pytest.fixture
def build(tmp_path):
    """Algorithms on written traces; stopped when the test ends."""
    made, folders = [], {}

    def make(algo, mode=TORCH, action_space=TORQUE, **keys):
        name = type(action_space).__name__
        if name not in folders:
            folders[name] = write(tmp_path / name, action_space)
        config = small_config(algo, **{"input": folders[name], "seed": 3, **ITERATION, **ALGOS[algo], **keys})
        config.framework(mode[0], eager_tracing=mode[1])
        made.append(config.build())
        return made[-1]

    make.add = lambda algo: made.append(algo) or algo
    yield make
    for algo in made:
        algo.stop()


def state_of(algo):
    state = algo.get_policy().get_state()
    return {**state.pop("weights"), **state.pop("optimizer")}, repr(state)


def assert_same(one, other):
    (arrays, rest), (others, theirs) = state_of(one), state_of(other)
    assert set(arrays) == set(others) and rest == theirs
    for key, value in arrays.items():
        np.testing.assert_array_equal(value, others[key], err_msg=key)


SPLITS = [
    pytest.param(algo, mode, space, id=f"{algo}-{mode_id(*mode)}-{type(space).__name__}")
    for algo, mode, space in [
        *((algo, TORCH, space) for algo in ALGOS for space in (TORQUE, CHOICE)),
        *(("CQL", mode, TORQUE) for mode in MODES[:3]),
    ]
    if has(mode[0])
]


@pytest.mark.parametrize(("algo", "mode", "space"), SPLITS)
def test_a_run_split_in_the_middle(build, tmp_path, algo, mode, space):
    unbroken = build(algo, mode, space)
    unbroken.train()
    unbroken.save(tmp_path / "1")
    unbroken.train()
    again = build(algo, mode, space)
    for _ in range(2):
        again.train()
    assert_same(again, unbroken)
    restored = build.add(Algorithm.from_checkpoint(tmp_path / "1"))
    restored.train()
    assert_same(restored, unbroken)
    # Each update reads as many rows as it trains: 3 of 8 rows an iteration.
    assert unbroken.get_policy().num_updates == 6 and len(restored.replay) == len(unbroken.replay) == 48


def test_what_is_replayed_is_what_was_recorded(build):
    algo = build("IQL", gamma=0.9)
    for _ in range(3):
        algo.train()
    batch = algo.replay.sample(40)
    assert batch["discounts"] == pytest.approx(np.full(40, 0.9)) and set(batch["terminateds"]) == {False, True}
    recorded = np.concatenate([sample_space(TORQUE, ROWS, episode) for episode in range(EPISODES)])
    assert {tuple(x) for x in batch["actions"]} <= {tuple(x) for x in recorded}


def test_cql_imitates_for_bc_iters_updates(build):
    algo, seen = build("CQL"), []
    policy, learn = algo.get_policy(), algo.get_policy().learn_on_batch
    policy.learn_on_batch = lambda batch: seen.append(policy.coefficients["bc"]) or learn(batch)
    for _ in range(2):
        algo.train()
    assert seen == [1, 1, 1, 1, 0, 0]


def test_crrs_targets_move_every_so_many_updates(build):
    algo, moved = build("CRR"), []
    policy, learn = algo.get_policy(), algo.get_policy().learn_on_batch

    def learn_and_look(batch):
        before = policy.get_weights()
        info = learn(batch)
        after = policy.get_weights()
        pairs = policy._target_keys()
        moved.append(any(np.any(before[key] != after[key]) for key in pairs))
        if moved[-1]:
            assert all(np.array_equal(after[key], after[source]) for key, source in pairs.items())
        return info

    policy.learn_on_batch = learn_and_look
    for _ in range(2):
        algo.train()
    assert moved == [False, False, True, False, False, True]


@pytest.mark.parametrize("algo", ALGOS)
def test_recorded_actions_of_other_kinds_are_refused(build, algo):
    with pytest.raises(ConfigError, match=f"{algo} needs a Box or Discrete action space, not MultiDiscrete"):
        build(algo, action_space=gym.spaces.MultiDiscrete([2, 2]))


@pytest.mark.parametrize("algo", ALGOS)
def test_as_many_rows_are_read_as_are_trained_unless_told_otherwise(algo):
    config = small_config(algo, input="somewhere")
    assert config.get_rollout_fragment_length(1) == config["train_batch_size"]
    assert small_config(algo, input="somewhere", rollout_fragment_length=7).get_rollout_fragment_length(1) == 7
    assert small_config(algo).get_rollout_fragment_length(1) == 1, "from an environment step by step"
