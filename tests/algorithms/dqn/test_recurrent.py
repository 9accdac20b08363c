"""DQN with memory: sequences, burn-in, priorities (R2D2), unrolled by hand."""

from __future__ import annotations

import numpy as np
import pytest
from learners import LSTM, OBS, setting, small_config, spec_of

from polylib.errors import BatchError, ConfigError, NotBuiltError
from polylib.execution.replay import sequence_priorities
from polylib.models.numpy_network import NumpyNetwork
from polylib.policy.backends import make_policy

F32 = np.float32
# Heads are linear and there are two units: small enough to unroll.
KEYS = {**LSTM, "hiddens": []}


def unrolled(spec, weights, obs, state):
    """Q values `[T + 1, A]` of a network that steps through the observations one by one."""
    net = NumpyNetwork(spec, weights)
    found = []
    for row in obs:
        inputs = {"obs": row[None], **{f"state_{i}": s for i, s in enumerate(state)}}
        out = net(inputs)
        state = [out[name] for name in net.state_outputs]
        found.append(out["state_value"] + out["advantages"] - out["advantages"].mean())
    return np.concatenate(found)


def test_targets_are_those_of_a_network_that_lived_through_the_sequence():
    """Row t: r + gamma Q'(s[t + 1], argmax Q(s[t + 1])), both networks having seen s[0] to s[t]."""
    spec = spec_of("DQN", OBS, **KEYS)
    weights, _ = setting(spec)
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (5, 3)).astype(F32)
    state = [rng.standard_normal((1, 2)).astype(F32) for _ in range(2)]
    actions, rewards = np.array([5, 6, 7, 5]), rng.standard_normal(4).astype(F32)
    batch = {
        "obs": obs[:-1],
        "new_obs": obs[1:],
        "actions": actions,
        "rewards": rewards,
        "terminateds": np.array([False, False, False, True]),
        "discounts": np.full(4, 0.9, F32),
        "seq_lens": np.array([4]),
        "state_in_0": state[0],
        "state_in_1": state[1],
    }
    objective = spec.objective_class(spec)
    networks = objective.networks()
    q = unrolled(networks["q"], weights, obs, state)
    # The target network begins with the learning network's state, and lives on by itself.
    target = unrolled(networks["target_q"], weights, obs, state)
    best = q[1:].argmax(1)
    goals = rewards + 0.9 * np.array([1, 1, 1, 0]) * target[1:][np.arange(4), best]
    expected = q[:-1][np.arange(4), actions - 5] - goals
    policy = make_policy(spec, "torch", False) if _has_torch() else pytest.skip("torch isn't installed")
    policy.set_weights(weights)
    info = policy.learn_on_batch(batch)
    np.testing.assert_allclose(info["rows"]["td_error"], expected, rtol=1e-5, atol=1e-6)


def _has_torch() -> bool:
    from modes import has

    return has("torch")


def test_burn_in_rows_count_for_the_state_and_not_for_the_loss():
    if not _has_torch():
        pytest.skip("torch isn't installed")
    spec = spec_of("DQN", OBS, **KEYS)
    weights, batch = setting(spec)
    batch["burn_in"] = np.zeros(12, bool)
    batch["burn_in"][:2] = True  # the first sequence's first two of four
    policy = make_policy(spec, "torch", False)
    policy.set_weights(weights)

    def gradients(**changes):
        found, info = policy.compute_gradients({**batch, **changes})
        return found, info["rows"]["td_error"]

    first, errors = gradients()
    rewards = batch["rewards"].copy()
    rewards[:2] += 100
    other, _ = gradients(rewards=rewards)
    for key, g in first.items():
        np.testing.assert_array_equal(g, other[key], err_msg=f"what was rewarded in burn-in doesn't matter: {key}")
    obs = batch["obs"].copy()
    obs[0] = -obs[0]
    _, moved = gradients(obs=obs)
    assert np.all(moved[2:4] != errors[2:4]), "what was seen in burn-in does"
    np.testing.assert_array_equal(moved[4:], errors[4:], "but not to other sequences")


def test_batches_are_sequences_with_priorities_of_their_own():
    keys = {"train_batch_size": 11, "num_steps_sampled_before_learning_starts": 40, "env": "CartPole-v1", "seed": 0}
    replay = {"replay_burn_in": 1, "capacity": 200}
    algo = small_config("DQN", **KEYS, **keys, replay_buffer_config=replay).framework("torch").build()
    try:
        buffer = algo.replay
        assert (buffer.sequence_length, buffer.burn_in) == (3, 1), "max_seq_len=4 in all"
        batches = []
        learn = algo.get_policy().learn_on_batch

        def watched(batch):
            info = learn(batch)
            batches.append((batch, info))
            return info

        algo.get_policy().learn_on_batch = watched
        algo.train()
        batch, info = batches[-1]
        assert len(batch["seq_lens"]) == 3, "11 rows hold three sequences of 3"
        assert batch["seq_lens"].sum() == len(batch["rewards"]) == len(info["rows"]["td_error"])
        expected = sequence_priorities(info["rows"]["td_error"], batch["seq_lens"], batch["burn_in"])
        slots = batch["batch_indexes"] % len(buffer._table)
        assert buffer._tree.values[slots] == pytest.approx((expected + 1e-6) ** 0.6)
        assert 0 < info["learner_stats"]["total_loss"] < 10
    finally:
        algo.stop()


def test_a_batch_smaller_than_a_sequence_is_one_sequence():
    keys = {"train_batch_size": 2, "num_steps_sampled_before_learning_starts": 8, "env": "CartPole-v1"}
    algo = small_config("DQN", **KEYS, **keys, min_sample_timesteps_per_iteration=20).framework("torch").build()
    try:
        assert algo._batch_items() == 1
        algo.train()
        assert algo.get_policy().num_updates > 0
    finally:
        algo.stop()


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"n_step": 2}, ConfigError, "'n_step': 2 steps don't go together with a recurrent network.* set n_step=1"),
        (
            {"replay_buffer_config": {"replay_sequence_length": 9}},
            ConfigError,
            "'model.max_seq_len': 4 steps are fewer than the 9 of a replayed sequence",
        ),
        (
            # 12 / (4 - 3) sequences of 3 + 1 rows.
            {"replay_buffer_config": {"capacity": 47, "replay_burn_in": 3}, "train_batch_size": 12},
            ConfigError,
            "'replay_buffer_config.capacity': 47 rows are fewer than a batch's 12 sequences of 4 .*raise it, or lower",
        ),
        ({"replay_buffer_config": {"storage_unit": "episodes"}}, NotBuiltError, "not from whole 'episodes'"),
        ({"replay_buffer_config": {"type": "ReservoirReplayBuffer"}}, NotBuiltError, "holds transitions, no sequences"),
    ],
)
def test_keys_that_dont_go_together(keys, error, message):
    with pytest.raises(error, match=message):
        small_config("DQN", **KEYS, **keys).validate()


def test_sequences_without_memory_are_refused():
    with pytest.raises(ConfigError, match="sequences are for networks with state; set model.use_lstm"):
        small_config("DQN", replay_buffer_config={"replay_sequence_length": 5}).validate()


def test_sequences_longer_than_the_network_sees_are_refused():
    spec = spec_of("DQN", OBS, **KEYS)
    _, batch = setting(spec)
    policy = make_policy(spec, "numpy", False)
    with pytest.raises(BatchError, match="'seq_lens' holds 6, more than max_seq_len=4"):
        policy.inputs.prepare({**batch, "seq_lens": np.array([6, 6])})
