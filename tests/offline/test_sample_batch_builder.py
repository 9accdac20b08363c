"""Batches from logs that people have: step by step."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from offline.batches import assert_same, cartpole

from polylib.errors import BatchError
from polylib.offline import (
    JsonReader,
    JsonWriter,
    MultiAgentSampleBatchBuilder,
    SampleBatchBuilder,
    TraceFormatError,
)
from polylib.policy.sample_batch import MultiAgentBatch


def test_the_steps_of_an_environment_become_traces(tmp_path):
    env, builder = gym.make("CartPole-v1"), SampleBatchBuilder()
    obs, t, over = env.reset(seed=0)[0], 0, False
    with JsonWriter(tmp_path) as writer:
        while not over:
            new_obs, reward, terminated, truncated, info = env.step(t % 2)
            over = terminated or truncated
            builder.add_values(
                t=t, eps_id=7, obs=obs, actions=t % 2, rewards=reward, terminateds=terminated, truncateds=truncated,
                new_obs=new_obs, infos=info,
            )  # fmt: skip
            obs, t = new_obs, t + 1
        assert builder.count == t
        batch = builder.build_and_reset()
        writer.write(batch)
    assert builder.count == 0 and len(builder.build_and_reset()) == 0
    space = (env.observation_space, env.action_space)
    read = JsonReader(tmp_path, observation_space=space[0], action_space=space[1]).next()
    assert_same(read, batch)
    dtypes = {name: batch[name].dtype.name for name in batch}
    assert dtypes == {
        **{"t": "int32", "eps_id": "int64", "obs": "float32", "actions": "int64", "rewards": "float32"},
        **{"terminateds": "bool", "truncateds": "bool", "new_obs": "float32", "infos": "object"},
    }
    assert batch["t"].tolist() == list(range(t)) and batch["terminateds"].tolist() == [False] * (t - 1) + [True]


def test_arrays_that_an_environment_writes_into_are_kept_as_they_were():
    builder, state = SampleBatchBuilder(), {"a": np.zeros(2), "b": (np.zeros(1),)}
    for i in range(3):
        state["a"] += 1
        state["b"][0][:] = i
        builder.add_values(obs=state)
    batch = builder.build_and_reset()
    assert batch["obs"]["a"][:, 0].tolist() == [1, 2, 3] and batch["obs"]["b"][0].tolist() == [[0], [1], [2]]


def test_old_dones_become_terminateds():
    builder = SampleBatchBuilder()
    for done in (False, True):
        builder.add_values(obs=0.5, dones=done)
    batch = builder.build_and_reset()
    assert list(batch) == ["obs", "terminateds", "truncateds"]
    assert batch["terminateds"].tolist() == [False, True] and not batch["truncateds"].any()


def test_batches_are_added_row_by_row():
    builder = SampleBatchBuilder()
    builder.add_batch(cartpole(2))
    builder.add_batch(cartpole(3, first=2))
    batch = builder.build_and_reset()
    assert batch["t"].tolist() == [0, 1, 2, 3, 4] and batch["obs"].shape == (5, 4)


MISTAKES = {
    "a fraction of an id": ({"eps_id": 1.5}, "column 'eps_id': row 1 is 1.5: expected values of int64"),
    "an id of letters": ({"eps_id": "a1"}, "column 'eps_id': it holds .*: expected int64"),
    "another shape": ({"obs": np.zeros(3)}, "column 'obs': "),
    "other parts": ({"obs": {"b": 1}}, "column 'obs': "),
    "no number": ({"rewards": None}, "column 'rewards': its rows can't be made an array"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_values_that_do_not_fit_name_the_column_and_are_kept(case):
    changed, text = MISTAKES[case]
    builder, row = SampleBatchBuilder(), {"eps_id": 1, "obs": np.zeros(2), "rewards": 1.0}
    builder.add_values(**row)
    builder.add_values(**{**row, **changed})
    with pytest.raises(BatchError, match=text):
        builder.build_and_reset()
    assert builder.count == 2


@pytest.mark.parametrize("value", [[1.0, 2.0], (1.0, 2.0), {"a": 1.0}], ids=repr)
def test_rewards_and_ids_are_single_values(value):
    builder = SampleBatchBuilder()
    builder.add_values(obs=[1.0], rewards=value)
    with pytest.raises(BatchError, match="column 'rewards': its rows have .*: expected a single value each"):
        builder.build_and_reset()


def test_nested_rows_need_the_same_parts():
    for rows, text in (([{"a": 1}, {"b": 1}], "the parts 'a'"), ([(1, 2), (1,)], "all have 2 parts")):
        builder = SampleBatchBuilder()
        for row in rows:
            builder.add_values(obs=row)
        with pytest.raises(BatchError, match=f"column 'obs': its rows don't all have .*{text}|{text}"):
            builder.build_and_reset()


def test_a_step_with_other_columns_is_refused_when_it_comes():
    builder = SampleBatchBuilder()
    builder.add_values(obs=1, rewards=0.0)
    with pytest.raises(BatchError, match="step 1 lacks the column 'rewards'"):
        builder.add_values(obs=2)
    with pytest.raises(BatchError, match="step 1 has the column 'actions'"):
        builder.add_values(obs=2, rewards=0.0, actions=1)
    builder.add_values(obs=2, rewards=1.0)
    assert builder.build_and_reset()["obs"].tolist() == [1, 2]


# --- several agents ---------------------------------------------------------------------------------------------------


def test_agents_stand_one_after_another_in_their_policys_batch(tmp_path):
    builder = MultiAgentSampleBatchBuilder()
    for t in range(3):
        for agent, policy in (("red", "attack"), ("blue", "attack"), ("gold", "keep")):
            if agent != "gold" or t < 2:
                builder.add_values(agent, policy, t=t, eps_id=5, obs=np.full(2, t), actions=t, rewards=float(t))
    assert builder.count == 8
    batch = builder.build_and_reset()
    assert isinstance(batch, MultiAgentBatch) and batch.count == 3 and builder.count == 0
    attack, keep = batch.policy_batches["attack"], batch.policy_batches["keep"]
    assert attack["t"].tolist() == [0, 1, 2, 0, 1, 2] and attack["agent_index"].tolist() == [0, 0, 0, 1, 1, 1]
    assert keep["agent_index"].tolist() == [2, 2] and keep["t"].dtype == np.int32
    with JsonWriter(tmp_path) as writer:
        writer.write(batch)
    assert_same(JsonReader(tmp_path).next(), batch)


def test_environment_steps_are_counted_or_given():
    def filled(**columns):
        builder = MultiAgentSampleBatchBuilder()
        for agent, steps in (("a", (0, 2)), ("b", (1, 2, 3))):
            for t in steps:
                builder.add_values(agent, "p", obs=0.0, **{name: t for name in columns}, eps_id=1)
        return builder

    assert filled(t=None).build_and_reset().count == 4  # steps 0, 1, 2 and 3, in two of which only one agent acted
    assert filled().build_and_reset().count == 3
    assert filled().build_and_reset(env_steps=5).count == 5


def test_an_agents_mistake_names_it():
    builder = MultiAgentSampleBatchBuilder()
    builder.add_values("a", "p", obs=1)
    with pytest.raises(BatchError, match="agent 'a', policy 'p': step 1 has the column 'rewards'"):
        builder.add_values("a", "p", obs=1, rewards=0.0)
    builder.add_values("b", "p", obs=1, rewards=0.0)
    with pytest.raises(BatchError, match="agent 'b', policy 'p': Column 'rewards' is in batch 1 but missing"):
        builder.build_and_reset()
    assert builder.count == 2


def test_what_cannot_be_recorded_is_told_when_it_is_written(tmp_path):
    builder = SampleBatchBuilder()
    builder.add_values(infos={"object": object()})
    with pytest.raises(TraceFormatError, match="column 'infos' of policy 'default_policy' can't be recorded"):
        JsonWriter(tmp_path).write(builder.build_and_reset())
    assert list(tmp_path.iterdir()) == []
