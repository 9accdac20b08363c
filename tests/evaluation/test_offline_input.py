"""What a worker makes of recorded experience, before it is learnt from."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
from learners import CHOICE, LSTM, OBS, TORQUE, small_config, spec_of

from polylib.checkpoints import with_arrays, without_arrays
from polylib.errors import ConfigError
from polylib.evaluation.inputs import fragments_of, portable_input, reads, samples
from polylib.evaluation.offline_input import OfflineInput
from polylib.evaluation.offline_spaces import offline_spaces
from polylib.offline.errors import OfflineError
from polylib.offline.input_reader import InputReader
from polylib.offline.json_format import encode_record
from polylib.offline.json_writer import JsonWriter
from polylib.policy.backends import make_policy
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch
from polylib.registry import register_input

F32 = np.float32
S = gym.spaces


class Records(InputReader):
    """Some batches, over and over."""

    def __init__(self, batches, loop=True):
        self.batches, self.loop, self.place = batches, loop, 0

    def next(self):
        if not self.loop and self.place >= len(self.batches):
            raise StopIteration
        self.place += 1
        return self.batches[(self.place - 1) % len(self.batches)].copy()

    def get_state(self):
        return {"place": self.place}

    def set_state(self, state):
        self.place = state["place"]
        return True


def episode(eps_id=1, first=0, size=4, end=None, **others):
    """Steps of an episode; `obs` counts its steps, rewards are 1, and actions take turns."""
    t = np.arange(first, first + size)
    obs = np.repeat(F32(0.01 * t)[:, None], 3, 1)
    return SampleBatch(
        obs=obs,
        new_obs=obs + F32(0.01),
        actions=5 + t % 3,
        rewards=np.ones(size, F32),
        terminateds=np.arange(size) == (size - 1 if end == "terminated" else -1),
        truncateds=np.arange(size) == (size - 1 if end == "truncated" else -1),
        eps_id=np.full(size, eps_id),
        t=t.astype(np.int32),
        **others,
    )


class Source(OfflineInput):
    """Gives as many rows as it is asked for."""

    def __init__(self, config, policy, source, rows=1):
        super().__init__(config, policy, source, rows)

    def sample(self, rows):
        self.rows = rows
        return self.next()


def make(algo, batches, spaces=(OBS, CHOICE), loop=True, policy=None, **keys):
    keys = {"seed": 0, **keys}
    spec = spec_of(algo, *spaces, **keys)
    policy = policy or make_policy(spec, "numpy", False)
    config = small_config(algo, **keys)
    return Source(config, policy, lambda ioctx: Records(batches, loop))


def values(batch, name="obs"):
    x = batch[name]
    return np.round(x if x.ndim == 1 else 100 * x[:, 0], 5).tolist()


def plain(batch):
    return {name: x.tolist() for name, x in batch.items()}


def test_rows_come_in_their_order_and_as_many_as_wanted():
    """Records of 3 and 5 rows in fragments of 4: nothing is lost between them."""
    found = make("BC", [episode(size=3), episode(2, size=5)])
    taken = [found.sample(4) for _ in range(4)]
    assert [batch.count for batch in taken] == [4] * 4
    assert [x for batch in taken for x in values(batch)] == [0, 1, 2, 0, 1, 2, 3, 4] * 2
    assert found.sample(16).count == 16


def test_what_belongs_to_another_policy_is_left_out():
    others = {
        "action_raw": np.zeros((4, 1), F32),
        "action_dist_inputs": np.zeros((4, 3), F32),
        "vf_preds": np.zeros(4, F32),
        "advantages": np.zeros(4, F32),
        "weights": np.zeros(4, F32),
        "state_in_0": np.zeros((4, 2), F32),
        "state_out_0": np.zeros((4, 2), F32),
        "infos": np.array([{}] * 4),
        "action_logp": np.full(4, -1, F32),
        "mine": np.arange(4),
    }
    batch = make("BC", [episode(**others)]).sample(4)
    assert set(batch) == {*episode(), "action_logp", "mine"}


def test_n_steps_reach_over_records():
    """gamma 1/2, 3 steps, truncated at the end: sums of 3, 3, 2 and 1 rewards, each with its own power of gamma."""
    pieces = [episode(first=0, size=2), episode(first=2, size=2, end="truncated")]
    batch = make("DQN", pieces, gamma=0.5, n_step=3).sample(4)
    np.testing.assert_allclose(batch["rewards"], [1.75, 1.75, 1.5, 1.0])
    np.testing.assert_allclose(batch["discounts"], [0.125, 0.125, 0.25, 0.5])
    assert values(batch, "new_obs") == [3, 4, 4, 4] and batch["truncateds"].tolist() == [False, True, True, True]
    # One step each needs nothing of its neighbours.
    batch = make("DQN", pieces, gamma=0.5).sample(2)
    np.testing.assert_allclose(batch["discounts"], [0.5, 0.5])


def test_returns_reach_over_records():
    """gamma 1/2: 1 + 1/2 + 1/4 to an end in the second record; what is cut off ends with the value beyond it."""
    pieces = [episode(first=0, size=2), episode(first=2, size=1, end="terminated"), episode(2, size=1)]
    found = make("MARWIL", [*pieces, episode(2, first=7, size=1, end="terminated")], gamma=0.5)
    assert found.sample(3)["value_targets"] == pytest.approx([1.75, 1.5, 1.0])
    batch = found.sample(2)  # a step is missing between them, so that the first was released when the second came
    value = found.policy.compute_values(batch["new_obs"][:1])[0]
    assert batch["value_targets"] == pytest.approx([1 + 0.5 * value, 1.0]) and value != 0
    assert "vf_preds" not in batch
    batch = make("MARWIL", pieces[:2], gamma=0.5, **{"lambda": 0.0}).sample(3)
    following = found.policy.compute_values(batch["new_obs"])
    assert batch["value_targets"] == pytest.approx([1 + 0.5 * following[0], 1 + 0.5 * following[1], 1.0])


def test_files_without_next_observations():
    """They are those of the next rows, also where these come with another record."""
    pieces = [episode(first=0, size=2), episode(first=2, size=2, end="terminated"), episode(2, size=3)]
    for piece in pieces:
        del piece["new_obs"]
    found = make("DQN", [*pieces, episode(3, size=1, end="terminated")])
    batch = found.sample(4)
    assert values(batch, "new_obs") == [1, 2, 3, 3] and batch["terminateds"].tolist() == [False] * 3 + [True]
    # Behavioural cloning has no use for them, so it uses all rows.
    assert values(make("BC", pieces).sample(7)) == [0, 1, 2, 3, 0, 1, 2]


def test_no_row_that_could_be_used():
    piece = episode(size=1)
    for name in ("new_obs", "eps_id", "t"):
        del piece[name]
    with pytest.raises(OfflineError, match="1000 records .* in a row had no row to learn from: .*'new_obs'"):
        make("DQN", [piece]).sample(1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rewards": F32([1, np.nan, 1, 1])},
            "batch 1, column 'rewards': row 1 of the record of episode 1 holds nan: nothing",
        ),
        (
            {"obs": np.full((4, 3), np.inf, F32)},
            r"column 'obs': row 0 of the record of episode 1 holds \[inf inf inf\]:",
        ),
    ],
)
def test_numbers_that_are_not_finite(change, message):
    batch = episode()
    for name, x in change.items():
        batch[name] = x
    with pytest.raises(OfflineError, match=message):
        make("DQN", [batch]).sample(4)


@pytest.mark.parametrize(("column", "value"), [("obs", np.nan), ("new_obs", np.inf), ("rewards", np.nan)])
@pytest.mark.parametrize("restored", [False, True])
def test_numbers_that_are_not_finite_in_a_file(tmp_path, column, value, restored):
    """The third line of the second file."""
    bad = episode(2)
    bad[column][2] = value
    for name, records in (("a.json", [episode(), episode()]), ("b.json", [episode(), episode(), bad])):
        (tmp_path / name).write_bytes(b"".join(encode_record(record) for record in records))
    policy = make_policy(spec_of("DQN", OBS, CHOICE), "numpy", False)
    config = small_config("DQN").update_from_dict({"input_config": {"shuffle": None}})
    found = Source(config, policy, str(tmp_path))
    found.sample(16)
    if restored:
        state, found = found.get_state(), Source(config, policy, str(tmp_path))
        assert found.set_state(state)
    message = f"b.json, line 3, column '{column}': row 2 of the record of episode 2 holds "
    with pytest.raises(OfflineError, match=message):
        found.sample(1)


def test_ids_that_are_text(tmp_path):
    """Two episodes over three records; text of the same letters is the same episode in whichever file."""
    pieces = [episode(1, size=2), episode(2, size=3, end="terminated"), episode(1, 2, 2, "terminated")]
    for i, (piece, name) in enumerate(zip(pieces, ("one", "zwei", "one"), strict=True)):
        piece["eps_id"] = np.array([name] * piece.count)
        (tmp_path / f"{i}.json").write_bytes(encode_record(piece))
    keys = {"input_config": {"shuffle": None}, "gamma": 0.5, "n_step": 3}
    policy = make_policy(spec_of("DQN", OBS, CHOICE, **keys), "numpy", False)
    batch = Source(small_config("DQN", **keys), policy, str(tmp_path)).sample(7)
    two, one = batch["eps_id"][[0, 3]].tolist()
    assert batch["eps_id"].tolist() == [two] * 3 + [one] * 4 and batch["eps_id"].dtype == np.int64
    # The first 53 bits of blake2b("one") and blake2b("zwei").
    assert [one, two] == [1862966581489346, 4005886070193321]
    assert batch["rewards"].tolist() == [1.75, 1.5, 1, 1.75, 1.75, 1.5, 1]
    # A line of another program's.
    lists = {name: column.tolist() for name, column in pieces[1].items()}
    (tmp_path / "1.json").write_text(json.dumps({"type": "SampleBatch", **lists}))
    assert (
        Source(small_config("DQN", **keys), policy, str(tmp_path)).sample(7)["eps_id"].tolist() == [two] * 3 + [one] * 4
    )
    # Anything else stays an error.
    pieces[0]["eps_id"] = np.array([None, None], object)
    (tmp_path / "0.json").write_bytes(encode_record(pieces[0]))
    with pytest.raises(OfflineError, match="0.json, line 1, column 'eps_id': it holds object: expected int64"):
        Source(small_config("DQN", **keys), policy, str(tmp_path)).sample(1)


def test_columns_that_are_needed():
    batch = episode()
    del batch["rewards"]
    assert make("BC", [batch]).sample(4).count == 4
    with pytest.raises(OfflineError, match="column 'rewards': missing"):
        make("DQN", [batch]).sample(4)
    with pytest.raises(OfflineError, match="column 'rewards': missing"):
        make("MARWIL", [batch]).sample(4)


def test_experience_of_several_policies():
    batch = MultiAgentBatch({"red": episode(), "blue": episode()}, 4)
    with pytest.raises(OfflineError, match=r"of 2 policies \(blue, red\), and BC trains one in this version"):
        make("BC", [batch]).sample(1)
    assert make("BC", [MultiAgentBatch({"red": episode()}, 4)]).sample(4).count == 4


@pytest.mark.parametrize("name", ["BC", "MARWIL", "DQN"])
def test_records_of_nobody_are_passed_over(name):
    batch = make(name, [MultiAgentBatch({}, 3), episode(end="terminated"), episode()[:0]]).sample(8)
    assert values(batch, "t") == [0, 1, 2, 3] * 2


def test_a_reader_that_ends():
    found = make("BC", [episode()], loop=False)
    found.sample(4)
    with pytest.raises(OfflineError, match="has ended, and training goes on: a reader of your own has to start over"):
        found.sample(1)


def test_whole_episodes():
    """Two records of 1 and 2 rows are an episode of 3; at least 4 rows are two of them."""
    pieces = [episode(first=0, size=1), episode(first=1, size=2, end="terminated")]
    found = make("BC", pieces, batch_mode="complete_episodes")
    batch = found.sample(4)
    assert values(batch) == [0, 1, 2] * 2 and batch["unroll_id"].tolist() == [0, 0, 0, 1, 1, 1]
    assert found.sample(3).count == 3


@pytest.mark.parametrize("algo", ["BC", "DQN", "MARWIL"])
def test_rows_are_shuffled_after_returns_are_known(algo):
    """Each buffer of 6 rows has those of two episodes once, with the numbers that their neighbours gave them."""
    pieces = [episode(i, size=3, end="terminated") for i in range(4)]
    keys = {"gamma": 0.5, **({"n_step": 2} if algo == "DQN" else {})}
    plain, shuffled, again = (make(algo, pieces, shuffle_buffer_size=n, **keys).sample(12) for n in (0, 6, 6))
    target = "value_targets" if algo == "MARWIL" else "rewards"

    def in_order(batch):
        return sorted(zip(batch["eps_id"], batch["t"], batch[target], strict=True))

    assert values(shuffled) != values(plain) and values(shuffled) == values(again)
    assert in_order(shuffled) == in_order(plain)
    assert set(shuffled["eps_id"][:6]) == {0, 1} and sorted(values(shuffled)[:6]) == [0, 0, 1, 1, 2, 2]


def test_sequences_stay_together_when_shuffled():
    pieces = [episode(i, size=3, end="terminated") for i in range(6)]
    batch = make("BC", pieces, **LSTM, shuffle_buffer_size=18).sample(18)
    assert values(batch) == [0, 1, 2] * 6
    episodes = batch["eps_id"][::3].tolist()
    assert sorted(episodes) == list(range(6)) and episodes != list(range(6))


def test_what_networks_see_of_the_step_before():
    model = {**LSTM["model"], "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
    batch = make("BC", [episode(size=3, end="terminated"), episode(2, size=2)], model=model).sample(5)
    assert batch["prev_actions"].tolist() == [5, 5, 6, 5, 5]
    assert batch["prev_rewards"].tolist() == [0, 1, 1, 0, 1]
    lacking = episode(size=3)
    del lacking["rewards"]
    with pytest.raises(OfflineError, match="has no column 'rewards', which the network sees of the step before"):
        make("BC", [lacking], model=model).sample(1)


def test_filters_and_clipped_rewards():
    """Observations are normalised by what was read so far, the last ones too; rewards of 3 are 1."""
    found = make("DQN", [episode()], observation_filter="MeanStdFilter")
    batch = found.sample(4)
    # 0, 1, 2, 3 hundredths: mean 1.5, variance 5/3.
    np.testing.assert_allclose(batch["obs"][:, 1], (np.arange(4) - 1.5) / (5 / 3) ** 0.5, rtol=1e-4)
    np.testing.assert_allclose(batch["new_obs"][:, 1], (np.arange(4) - 0.5) / (5 / 3) ** 0.5, rtol=1e-4)
    assert found.policy.filter.get_state()["obs"]["count"] == 4
    large = episode()
    large["rewards"] = F32([3, -3, 0.5, 0])
    assert make("DQN", [large], clip_rewards=True).sample(4)["rewards"].tolist() == [1, -1, 1, 0]
    assert make("DQN", [large], clip_rewards=2).sample(4)["rewards"].tolist() == [2, -2, 0.5, 0]


def test_nested_and_preprocessed_observations():
    """A Dict observation as it is, and as one vector, which is how other libraries record it."""
    space = S.Dict({"kind": S.Discrete(2), "seen": OBS})
    obs = {"kind": np.array([0, 1, 0, 1]), "seen": episode()["obs"]}
    flat = np.concatenate([np.eye(2, dtype=F32)[obs["kind"]], obs["seen"]], 1)
    for given in (obs, flat):
        record = episode()
        record["obs"] = record["new_obs"] = given
        found = make("DQN", [record], spaces=(space, CHOICE))
        batch = found.sample(4)
        assert batch["obs"]["kind"].tolist() == [0, 1, 0, 1] and batch["obs"]["kind"].dtype == np.int64
        np.testing.assert_array_equal(batch["obs"]["seen"], obs["seen"])
        np.testing.assert_array_equal(batch["new_obs"]["kind"][:2], [1, 0])


def test_actions_in_the_units_of_the_environment(tmp_path):
    """[-1, 1] of torques in [-2, 2] and [0, 1], from a file, if the config says so."""
    record = episode()
    record["actions"] = F32([[-1, -1], [0, 0], [1, 1], [0.5, -0.5]])
    with JsonWriter(tmp_path, compress_columns=[]) as writer:
        writer.write(record)
    policy = make_policy(spec_of("SAC", OBS, TORQUE), "numpy", False)
    config = small_config("SAC")
    found = Source(config, policy, str(tmp_path)).sample(4)["actions"]
    assert found.tolist() == record["actions"].tolist()
    config.actions_in_input_normalized = True
    found = Source(config, policy, str(tmp_path)).sample(4)["actions"]
    assert found.tolist() == [[-2, 0], [0, 0.5], [2, 1], [1, 0.25]]


@pytest.mark.parametrize(
    ("low", "high", "scale", "keys", "told"),
    [
        ([-2, 0], [2, 1], [1, 1], {}, True),  # further in one dimension, and not as far in the other
        ([-2, 0], [2, 1], [1, 1], {"actions_in_input_normalized": True}, False),
        ([-2, -2], [2, 2], [1, 1.5], {}, False),  # beyond [-1, 1]
        ([-2, -2], [2, 2], [0.1, 0.1], {}, False),  # small ones
        ([-0.4, -0.4], [0.4, 0.4], [0.4, 0.4], {}, False),
        ([-1, -1], [1, 1], [1, 1], {}, False),
        ([-1, -np.inf], [1, np.inf], [1, 1], {}, False),  # without bounds there is nothing to scale by
    ],
)
def test_actions_that_may_be_normalized(tmp_path, caplog, low, high, scale, keys, told):
    """Once, when all of a small file was seen."""
    record = episode()
    record["actions"] = F32([[-1, -1], [0, 0], [1, 1], [0.5, -0.5]]) * F32(scale)
    (tmp_path / "a.json").write_bytes(encode_record(record))
    space = S.Box(F32(low), F32(high))
    found = Source(small_config("BC", **keys), make_policy(spec_of("BC", OBS, space), "numpy", False), str(tmp_path))
    for _ in range(5):
        found.sample(4)
    assert [r.message.rpartition(", ")[2] for r in caplog.records] == ["set actions_in_input_normalized=True"] * told


@pytest.mark.parametrize(
    ("algo", "keys"),
    [
        ("BC", {}),
        ("DQN", {"n_step": 3}),
        ("MARWIL", {"batch_mode": "complete_episodes"}),
        ("MARWIL", {"shuffle_buffer_size": 10}),
        ("BC", {**LSTM, "shuffle_buffer_size": 10}),
    ],
)
def test_reading_goes_on_where_it_stopped(algo, keys):
    """In the middle of records and episodes, with rows that were read and not handed out."""
    pieces = [episode(1, size=3), episode(2, size=5), episode(1, 3, 4, "terminated"), episode(2, 5, 2, "truncated")]
    unbroken = make(algo, pieces, **keys)
    states = []
    for _ in range(5):
        arrays = {}
        states.append((json.loads(json.dumps(without_arrays(unbroken.get_state(), arrays, "input"))), arrays))
        unbroken.sample(3)
    rest = [plain(unbroken.sample(3)) for _ in range(6)]
    for place, (numbers, arrays) in enumerate(states):
        again = make(algo, pieces, policy=unbroken.policy, **{**keys, "seed": 9})
        again.sample(2)
        assert again.set_state(with_arrays(numbers, arrays))
        for _ in range(5 - place):
            again.sample(3)
        assert [plain(again.sample(3)) for _ in range(6)] == rest, place


def test_readers_that_cant_say_where_they_are():
    class Forgetful(Records):
        def get_state(self):
            return None

    config = small_config("BC", seed=0)
    policy = make_policy(spec_of("BC"), "numpy", False)
    assert Source(config, policy, lambda ioctx: Forgetful([episode()])).get_state() is None


# --- mixes


def mixed(weights, rows, seed=0):
    """Sources of observations 1, 2, ...; the environment gives zeros."""
    names = list(weights)

    def reader(name, size):
        record = episode()
        record["obs"] = np.full((4, 3), F32(0.01 * (names.index(name) + 1)))
        found = make("BC", [record])
        found.rows = size
        return found

    sampled = episode(size=rows, more=np.zeros(rows))
    sampled["obs"] = np.zeros((rows, 3), F32)
    return fragments_of(weights, rows, reader, sampled.copy, np.random.default_rng(seed))


@pytest.mark.parametrize(("rows", "piece"), [(4000, 200), (40, 2), (30, 1), (45, 1), (150, 6), (7, 1)])
def test_a_fragment_is_made_of_equal_parts(rows, piece):
    """Of twenty or more, so that the weights are shares of rows."""
    mix = mixed({"a": 0.5, "b": 0.5}, rows)
    assert {mix.next().count for _ in range(10)} == {piece} and rows % piece == 0


def test_weights_are_shares_of_rows():
    weights = {"a": 0.7, "b": 0.2, "c": 0.1}
    one, same, other = mixed(weights, 20), mixed(weights, 20), mixed(weights, 20, seed=1)
    drawn, again, others = ([values(mix.next())[0] for _ in range(2000)] for mix in (one, same, other))
    assert drawn == again and drawn != others
    assert [np.mean(np.equal(drawn, i)) for i in (1, 2, 3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def test_the_environment_takes_turns_with_files():
    """Its fragments stay whole, and keep their columns."""
    mix = mixed({"files": 0.5, "sampler": 0.5}, 10)
    found = [mix.next() for _ in range(200)]
    kinds = [set(np.round(100 * batch["obs"][:, 0])) for batch in found]
    assert all(kind in ({0}, {1}) for kind in kinds) and {batch.count for batch in found} == {10}
    assert all(("more" in batch) == (kind == {0}) for batch, kind in zip(found, kinds, strict=True))
    assert 70 < sum(kind == {0} for kind in kinds) < 130


def test_mixes_go_on_where_they_stopped():
    weights = {"a": 0.7, "b": 0.3}
    unbroken = mixed(weights, 60)
    for _ in range(7):
        unbroken.next()
    arrays = {}
    state = json.loads(json.dumps(without_arrays(unbroken.get_state(), arrays, "input")))
    rest = [plain(unbroken.next()) for _ in range(20)]
    again = mixed(weights, 60, seed=5)
    assert again.set_state(with_arrays(state, arrays)) and [plain(again.next()) for _ in range(20)] == rest
    assert not mixed({"a": 0.5, "b": 0.3, "c": 0.2}, 60).set_state(with_arrays(state, arrays))
    one = make("BC", [episode()])
    assert not one.set_state(with_arrays(state, arrays)) and not mixed(weights, 60).set_state(one.get_state())


def test_what_an_input_asks_for():
    assert not reads("sampler") and reads("a/folder") and reads({"sampler": 0.5, "a": 0.5})
    assert samples("sampler") and samples({"sampler": 0.5, "a": 0.5}) and samples(lambda ioctx: None)
    assert not samples("a/folder") and not samples(["a", "b"]) and not samples({"a": 1.0, "sampler": 0.0})
    register_input("my_records", lambda ioctx: Records([]))
    assert samples("my_records") and portable_input({"my_records": 0.5, "a": 0.5}) != {"my_records": 0.5, "a": 0.5}
    assert portable_input("a") == "a" and callable(portable_input("my_records"))


# --- spaces


def test_spaces_without_an_environment(tmp_path):
    """The config's, else the environment's (evaluation's too), else those that files say."""
    noted = S.Box(-1, 1, (3,), F32), S.Discrete(9)
    with JsonWriter(tmp_path, compress_columns=[], spaces=noted) as writer:
        writer.write(episode())

    def found(env=None, evaluation=None, **keys):
        config = small_config("BC", input=str(tmp_path), env=env, **keys)
        return offline_spaces(config, config.copy().update_from_dict({"env": evaluation or env}))

    assert found() == noted
    assert found(action_space=CHOICE) == (noted[0], CHOICE)
    assert found(observation_space=OBS, action_space=CHOICE, env="Nothing-v0") == (OBS, CHOICE)
    assert found("CartPole-v1")[1] == found(None, "CartPole-v1")[1] == S.Discrete(2)
    config = small_config("BC", input=lambda ioctx: Records([]))
    with pytest.raises(ConfigError, match="'observation_space': the input .* doesn't say it: give observation_space"):
        offline_spaces(config, config)


@pytest.mark.parametrize("keys", [{}, {"observation_filter": "MeanStdFilter"}], ids=["kept", "read anew"])
def test_a_shuffle_buffer_larger_than_the_files(tmp_path, keys):
    """It would never be full: what a pass has is shuffled."""
    with JsonWriter(tmp_path) as writer:
        for i in range(3):
            writer.write(episode(i, end="terminated"))
    keys = {"seed": 0, "shuffle_buffer_size": 10**30, **keys}
    policy = make_policy(spec_of("BC", OBS, CHOICE, **keys), "numpy", False)
    found = Source(small_config("BC", **keys), policy, str(tmp_path))
    for _ in range(3):
        assert found.sample(12).count == 12
    assert found._ready_rows <= 24 and sum(len(rows["actions"]) for rows in found._pool) <= 24


def test_a_space_that_is_none(tmp_path):
    config = small_config("BC").update_from_dict({"input": str(tmp_path), "observation_space": 3})
    with pytest.raises(ConfigError, match="config key 'observation_space': got 3, expected a space of Gymnasium"):
        offline_spaces(config, config)
    with pytest.raises(ConfigError, match="config key 'input': got 3 .int., expected 'sampler', a file"):
        offline_spaces(config.copy().update_from_dict({"input": 3}), config)


@pytest.mark.parametrize("algo", ["BC", "MARWIL", "DQN"])
def test_records_without_rows_are_passed_over(algo):
    pieces = [episode(size=0), episode(1, end="terminated"), episode(size=0)]
    assert make(algo, pieces).sample(8)["eps_id"].tolist() == [1] * 8
