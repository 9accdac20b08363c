"""Nested observations and actions: from the environment into batches, traces and callbacks; action masks."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tree
from backends import needs_torch
from fakes import small_ppo
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from nested import NestedEnv

from polylib.algorithms.ppo.loss import PPOObjective
from polylib.callbacks import DefaultCallbacks
from polylib.errors import EnvError
from polylib.evaluation.rollout_worker import RolloutWorker, _seen
from polylib.evaluation.sampler import Sampler
from polylib.offline import JsonReader
from polylib.policy.backends import make_policy
from polylib.policy.objective import PolicySpec
from polylib.policy.sample_batch import SampleBatch, concat_samples
from polylib.policy.testing import close, row

MODES = [pytest.param(mode, id=mode.name) for mode in AutoresetMode]
NUMPY = ("numpy", False)


def sampler(mode: AutoresetMode, count: int = 2, **keys: Any) -> tuple[Sampler, list[NestedEnv]]:
    envs = [NestedEnv() for _ in range(count)]
    config = small_ppo(NestedEnv, NUMPY, **keys).to_dict()
    policy = make_policy(PolicySpec(envs[0].observation_space, envs[0].action_space, PPOObjective, config, 0), "numpy")
    vector = SyncVectorEnv([lambda e=e: e for e in envs], autoreset_mode=mode)
    return Sampler(vector, policy, fragment_length=7), envs


def check_rows(batch: SampleBatch) -> None:
    """All parts of an observation are of the same step of the same episode."""
    obs = batch["obs"]
    assert set(obs) == {"arm", "eye"} and isinstance(obs["arm"], tuple)
    episode, t = obs["arm"][0].T
    assert obs["arm"][0].dtype == np.float32 and obs["arm"][1].dtype == np.int64 and obs["eye"].dtype == np.uint8
    np.testing.assert_array_equal(t, batch["t"])
    np.testing.assert_array_equal(obs["arm"][1], 1 + t)
    np.testing.assert_array_equal(obs["eye"].reshape(len(t), -1), np.tile((10 * episode + t)[:, None], 6))


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_nested_as_the_spaces(mode):
    sampling, envs = sampler(mode)
    fragments = [sampling.sample() for _ in range(4)]
    batch = concat_samples([f.batch for f in fragments])
    check_rows(batch)
    actions = batch["actions"]
    assert set(actions) == {"move", "push"} and [x.shape[1:] for x in actions["push"]] == [(2,), (2,)]
    assert actions["move"].min() >= 4 and batch["action_raw"].shape[1] == 2
    # What the environments got; rows of the last step are all there, but for those of resets (NEXT_STEP).
    given = sorted((int(a["move"]), *a["push"][0].tolist(), *a["push"][1].tolist()) for e in envs for a in e.actions)
    rows = zip(actions["move"], *actions["push"], strict=True)
    assert sorted((int(m), *p.tolist(), *b.tolist()) for m, p, b in rows) == given
    # The true last observations.
    for f in fragments:
        ends = f.ends - 1
        np.testing.assert_array_equal(f.last_obs["arm"][0][:, 1], f.batch["t"][ends] + 1)
        np.testing.assert_array_equal(f.last_obs["arm"][0][:, 0], f.batch["obs"]["arm"][0][ends, 0])
        new = f.with_new_obs()["new_obs"]
        np.testing.assert_array_equal(new["arm"][1], f.batch["obs"]["arm"][1] + 1)
        np.testing.assert_array_equal(new["eye"], f.batch["obs"]["eye"] + 1)


@pytest.mark.parametrize("format", ["json", "polylib"])
def test_traces(tmp_path, format):
    """Written and read back: equal, bit for bit, and of the same dtypes; checked against the spaces."""
    config = small_ppo(NestedEnv, NUMPY, output=str(tmp_path), output_config={"format": format}, train_batch_size=13)
    config.update_from_dict({"sgd_minibatch_size": 13, "model": {"use_lstm": True, "lstm_cell_size": 3}})
    config.update_from_dict({"model": {"lstm_use_prev_action": True}})
    worker = RolloutWorker(config, PPOObjective, NUMPY)
    written = concat_samples([worker.sample() for _ in range(3)])
    worker.stop()
    space, actions = worker.env.single_observation_space, worker.env.single_action_space
    reader = JsonReader(str(tmp_path), observation_space=space, action_space=actions, required=["obs", "new_obs"])
    read = concat_samples(list(reader))
    check_rows(read)
    for name in ("obs", "actions", "prev_actions", "rewards", "action_raw", "action_logp", "state_in_0", "unroll_id"):
        tree.assert_same_structure(read[name], written[name])
        for x, y in zip(tree.flatten(read[name]), tree.flatten(written[name]), strict=True):
            assert x.dtype == y.dtype, name
            np.testing.assert_array_equal(x, y, err_msg=name)
    np.testing.assert_array_equal(read["new_obs"]["arm"][1], read["obs"]["arm"][1] + 1)


def test_callbacks_see_nested_observations_and_actions():
    seen: list[Any] = []

    class Notes(DefaultCallbacks):
        def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
            seen.append(("start", episode.last_observation_for(), None))

        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            seen.append(("step", episode.last_observation_for(), episode.last_action_for()))

    worker = RolloutWorker(small_ppo(NestedEnv, NUMPY, callbacks=Notes, train_batch_size=64), PPOObjective, NUMPY)
    space, actions = worker.env.single_observation_space, worker.env.single_action_space
    worker.sample()
    assert [kind for kind, *_ in seen[:7]] == ["start"] + ["step"] * 5 + ["start"]
    for kind, obs, action in seen:
        assert space.contains(obs), obs
        assert kind == "start" or actions.contains(action), action
    assert [int(obs["arm"][1]) for _, obs, _ in seen[:7]] == [1, 2, 3, 4, 5, 6, 1]
    assert [int(obs["arm"][0][1]) for _, obs, _ in seen[:7]] == [0, 1, 2, 3, 4, 5, 0], "not one buffer seen many times"
    worker.stop()


# --- masks


def test_masked_actions_are_never_taken():
    """Neither while sampling nor evaluating; the environment itself would object."""
    config = small_ppo(NestedEnv, NUMPY, env_config={"mask": "some"}, num_envs_per_worker=3)
    worker = RolloutWorker(config, PPOObjective, NUMPY)
    batch = concat_samples([worker.sample() for _ in range(4)])
    allowed = batch["obs"]["action_mask"].astype(bool)
    assert allowed[np.arange(batch.count), batch["actions"] - 4].all()
    assert (batch["action_dist_inputs"][~allowed] <= -1e9).all() and (~allowed).any()
    assert np.isfinite(batch["action_logp"]).all()
    worker.evaluate(3, seed=0)
    worker.stop()


@pytest.mark.parametrize("mode", MODES)
def test_an_ended_episode_may_allow_nothing(mode):
    """Nobody chooses there; truncated episodes bootstrap with its value all the same."""
    envs = [NestedEnv({"mask": "some", "length": 3 + i}) for i in range(2)]
    config = small_ppo(NestedEnv, NUMPY).to_dict()
    policy = make_policy(PolicySpec(envs[0].observation_space, envs[0].action_space, PPOObjective, config, 0), "numpy")
    sampling = Sampler(SyncVectorEnv([lambda e=e: e for e in envs], autoreset_mode=mode), policy, fragment_length=20)
    fragment = sampling.sample()
    assert (fragment.last_obs["action_mask"].sum(1) == 0).sum() > 5
    assert fragment.batch["obs"]["action_mask"].any(1).all()
    values = policy.compute_values(*_seen(fragment, policy))
    assert len(values) == fragment.batch.count + len(fragment.ends) and np.isfinite(values).all()


def test_100_000_masked_samples():
    space = gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (1,), np.float32), "action_mask": gym.spaces.MultiBinary(6)})
    config = small_ppo(NestedEnv, NUMPY).to_dict()
    policy = make_policy(PolicySpec(space, gym.spaces.Discrete(6), PPOObjective, config, 0), "numpy")
    rng = np.random.default_rng(0)
    mask = rng.random((100_000, 6)) < 0.3
    mask[np.arange(len(mask)), rng.integers(0, 6, len(mask))] = True
    out = policy.compute_actions({"x": np.zeros((len(mask), 1), np.float32), "action_mask": mask.astype(np.int8)})
    assert mask[np.arange(len(mask)), out.actions].all()
    assert set(out.actions) == set(range(6))


@pytest.mark.parametrize("mode", [pytest.param(("torch", False), marks=needs_torch), NUMPY])
def test_all_actions_masked(mode):
    """One line that names the environment, the worker and the step that would have been."""
    config = small_ppo(NestedEnv, mode, env_config={"mask": "none"})
    worker = RolloutWorker(config, PPOObjective, mode)
    with pytest.raises(EnvError, match="returned an action mask that allows nothing") as error:
        worker.sample()
    assert re.search(r"environment 'NestedEnv' .*row 0.*\(worker 0, step 4 of an episode\)", str(error.value))
    assert "\n" not in str(error.value)
    worker.stop()


def test_a_mask_of_another_size():
    space = gym.spaces.Dict({"x": gym.spaces.Box(-1, 1, (1,), np.float32), "action_mask": gym.spaces.MultiBinary(5)})
    config = small_ppo(NestedEnv, NUMPY).to_dict()
    with pytest.raises(EnvError, match=r"'action_mask' has shape \[5\], expected \[6\]: one flag for each input"):
        make_policy(PolicySpec(space, gym.spaces.Discrete(6), PPOObjective, config, 0), "numpy")


@needs_torch
def test_an_algorithms_actions():
    """One observation, a batch, or observations by id; nested actions come back alike."""
    model = {"use_lstm": True, "lstm_cell_size": 3, "lstm_use_prev_action": True}
    with small_ppo(NestedEnv, model=model).build() as algo:
        env = NestedEnv()
        obs = [env.reset()[0] for _ in range(3)]
        single = [algo.compute_single_action(o, explore=False) for o in obs]
        for out in single:
            assert env.action_space.contains(out.actions), out.actions
        by_id = algo.compute_actions(dict(zip("abc", obs, strict=True)), explore=False)
        batch = tree.map_structure(lambda *x: np.stack(x), *obs)
        actions, states, _ = algo.compute_actions(batch, explore=False, full_fetch=True)
        for i, key in enumerate("abc"):
            assert env.action_space.contains(by_id[key])
            for x in (by_id[key], row(actions, i)):
                close(x, single[i].actions, "the same action, however it is asked for")
        previous = tree.map_structure(lambda x: x[0], actions)
        one = algo.compute_single_action(obs[0], [s[0] for s in states], explore=False, prev_action=previous)
        all_ = algo.compute_actions(batch, states, explore=False, prev_actions=actions, full_fetch=True)
        close(one.actions, row(all_[0], 0), "the previous action counts")
        other = algo.compute_actions(batch, states, explore=False, full_fetch=True)
        assert not np.array_equal(all_[2]["action_dist_inputs"], other[2]["action_dist_inputs"])
