"""Rows cut into padded sequences, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from modes import MODE_PARAMS
from policies import BOX, make

from polylib.errors import BatchError
from polylib.policy import numpy_ops, sequences
from polylib.policy.objective import row_mean

F32 = np.float32


def cut(rows: int, length: int, **columns) -> tuple[list[int], list[int]]:
    firsts, lengths = sequences.cut({name: np.array(x) for name, x in columns.items()}, rows, length)
    return firsts.tolist(), lengths.tolist()


def test_sequences_end_with_segments_and_at_the_longest():
    """Stretches of 5, 1 and 4 rows, at most 2 steps each: 2 2 1, 1, 2 2."""
    unrolls = [3] * 5 + [4] + [7] * 4
    assert cut(10, 2, unroll_id=unrolls) == ([0, 2, 4, 5, 6, 8], [2, 2, 1, 1, 2, 2])
    assert cut(10, 5, unroll_id=unrolls) == ([0, 5, 6], [5, 1, 4])
    assert cut(10, 99, unroll_id=unrolls) == ([0, 5, 6], [5, 1, 4])
    assert cut(3, 1, unroll_id=[0, 0, 0]) == ([0, 1, 2], [1, 1, 1])


def test_either_id_separates():
    """One episode over two unrolls (a cut fragment), and two episodes that share an unroll's number."""
    assert cut(4, 9, unroll_id=[0, 0, 1, 1], eps_id=[5, 5, 5, 5]) == ([0, 2], [2, 2])
    assert cut(4, 9, unroll_id=[0, 0, 0, 0], eps_id=[5, 6, 6, 6]) == ([0, 1], [1, 3])
    assert cut(4, 9, eps_id=[5, 6, 6, 5]) == ([0, 1, 3], [1, 2, 1])
    assert cut(4, 3) == ([0, 3], [3, 1]), "without ids all rows are one stretch"


def test_given_lengths_are_taken():
    assert cut(6, 4, seq_lens=[1, 3, 2], unroll_id=[0, 0, 0, 1, 1, 1]) == ([0, 1, 4], [1, 3, 2])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 2], r"'seq_lens' adds up to 3 rows, the batch has 6"),
        ([6, 0], "'seq_lens'"),
        ([5, 1], "'seq_lens' holds 5, more than max_seq_len=4"),
        ([[3], [3]], "'seq_lens'"),
    ],
)
def test_wrong_lengths(lengths, message):
    with pytest.raises(BatchError, match=message):
        cut(6, 4, seq_lens=lengths)


def test_padding_repeats_the_last_row():
    """What is computed for padded steps stays finite."""
    padded = sequences.pad({"x": np.arange(5), "y": np.eye(5)}, np.array([0, 3]), np.array([3, 2]), 4)
    assert padded["x"].tolist() == [[0, 1, 2, 2], [3, 4, 4, 4]] and padded["y"].shape == (2, 4, 5)
    assert padded["seq_mask"].tolist() == [[True, True, True, False], [True, True, False, False]]
    rows = sequences.as_rows(numpy_ops, {**padded, "state_0": np.ones((2, 7))})
    assert rows["x"].tolist() == [0, 1, 2, 2, 3, 4, 4, 4] and rows["y"].shape == (8, 5)
    assert rows["state_0"].shape == (2, 7) and rows["seq_mask"].shape == (2, 4)
    assert sequences.row_mask(numpy_ops, rows).tolist() == [1, 1, 1, 0, 1, 1, 0, 0]


def test_means_are_over_real_rows():
    """(1 + 2 + 4) / 3: not over the padded 100."""
    batch = {"seq_mask": np.array([[True, True], [True, False]])}
    mean = row_mean(numpy_ops, batch)
    assert mean(F32([1, 2, 4, 100])) == pytest.approx(7 / 3)
    assert mean(F32(5)) == pytest.approx(5), "of a number, as penalties are"
    assert row_mean(numpy_ops, {})(F32([1, 2, 4, 100])) == pytest.approx(107 / 4)


def batch_of(policy, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-1, 1, (rows, 3)).astype(F32)
    out = policy.compute_actions(obs)
    return {
        "obs": obs,
        "actions": out.actions,
        **out.extras,
        "advantages": rng.standard_normal(rows, F32),
        "value_targets": rng.standard_normal(rows, F32),
    }


MODEL = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4}


@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_how_rows_are_cut_is_all_that_matters(framework, traced):
    """Other numbers of padded steps, sequences in another order: the same loss and gradients."""
    policy = make((framework, traced), BOX, hiddens=(4,), model={**MODEL, "max_seq_len": 6})
    batch = batch_of(policy, 9)
    batch["unroll_id"] = np.array([0, 0, 0, 0, 0, 1, 1, 2, 2])
    rng = np.random.default_rng(1)
    batch["state_in_0"], batch["state_in_1"] = (rng.standard_normal((9, 3)).astype(F32) for _ in range(2))
    gradients, info = policy.compute_gradients(batch)
    order = np.array([7, 8, 0, 1, 2, 3, 4, 5, 6])
    shorter = make((framework, traced), BOX, hiddens=(4,), model={**MODEL, "max_seq_len": 5})
    again, other = shorter.compute_gradients({name: x[order] for name, x in batch.items()})
    for name, value in info["learner_stats"].items():
        assert other["learner_stats"][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    for key, gradient in gradients.items():
        np.testing.assert_allclose(again[key], gradient, rtol=1e-4, atol=1e-6, err_msg=key)
    policy.close()
    shorter.close()


def test_states_may_come_one_per_row_or_per_sequence():
    policy = make(("numpy", False), BOX, hiddens=(4,), model=MODEL)
    batch = {**batch_of(policy, 6), "unroll_id": np.array([0] * 5 + [1])}
    states = np.arange(18, dtype=F32).reshape(6, 3)
    prepared = policy.inputs.prepare({**batch, "state_in_0": states, "state_in_1": states})
    assert (prepared.size, prepared.steps) == (3, 4)
    assert prepared.columns["state_0"].tolist() == states[[0, 4, 5]].tolist()
    assert prepared.columns["state_1"].tolist() == states[[0, 4, 5]].tolist()
    per_sequence = policy.inputs.prepare({**batch, "state_in_0": states[:3], "state_in_1": states})
    assert per_sequence.columns["state_0"].tolist() == states[:3].tolist()
    without = policy.inputs.prepare(batch)
    assert not without.columns["state_0"].any() and without.columns["state_0"].shape == (3, 3)
    with pytest.raises(BatchError, match="'state_in_0' has 4 rows, expected one for each of 6 rows or of 3 sequences"):
        policy.inputs.prepare({**batch, "state_in_0": states[:4]})
    with pytest.raises(BatchError, match=r"'state_in_0' has shape \[6, 2\], expected \[B, 3\]"):
        policy.inputs.prepare({**batch, "state_in_0": states[:, :2]})


def test_minibatches_are_of_sequences():
    """Indices name sequences; there are three of them here."""
    policy = make(("numpy", False), BOX, hiddens=(4,), model=MODEL)
    batch = {**batch_of(policy, 6), "unroll_id": np.array([0] * 5 + [1])}
    with pytest.raises(BatchError, match="indices from 0 to 3: the batch has rows 0 to 2"):
        policy.learn_on_minibatches(batch, np.array([[0, 3]]))
