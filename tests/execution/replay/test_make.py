"""`replay_buffer_config` as RLlib's users write it."""

from __future__ import annotations

from typing import Any

import pytest

from polylib.errors import ConfigError, NotBuiltError
from polylib.execution.replay import (
    PrioritizedReplayBuffer,
    Replay,
    ReplayBuffer,
    ReservoirReplayBuffer,
    SequenceReplayBuffer,
    check_replay_config,
    make_replay_buffer,
)

# The default of RLlib 2.6's DQN.
DQN = {
    "type": "MultiAgentPrioritizedReplayBuffer",
    "prioritized_replay": -1,
    "capacity": 50000,
    "prioritized_replay_alpha": 0.6,
    "prioritized_replay_beta": 0.4,
    "prioritized_replay_eps": 1e-6,
    "replay_sequence_length": 1,
    "worker_side_prioritization": False,
}


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (None, PrioritizedReplayBuffer),
        (DQN, PrioritizedReplayBuffer),
        ({"type": "MultiAgentReplayBuffer"}, ReplayBuffer),
        ({"type": "ReplayBuffer", "capacity": 1e3}, ReplayBuffer),
        ({"type": "EpisodeReplayBuffer"}, ReplayBuffer),
        ({"type": "PrioritizedEpisodeReplayBuffer", "alpha": 0.5, "beta": 0.5}, PrioritizedReplayBuffer),
        ({"type": "ReservoirReplayBuffer", "prioritized_replay": False}, ReservoirReplayBuffer),
        ({**DQN, "prioritized_replay": False}, ReplayBuffer),
        ({"type": "ReplayBuffer", "prioritized_replay": True}, PrioritizedReplayBuffer),
        ({"type": "ReplayBuffer", "replay_sequence_length": 20, "replay_burn_in": 5}, SequenceReplayBuffer),
        ({"storage_unit": "episodes"}, SequenceReplayBuffer),
        (
            {"_enable_replay_buffer_api": True, "replay_mode": "independent", "num_shards": 1},
            PrioritizedReplayBuffer,
        ),
    ],
)
def test_names_of_rllib(config: dict[str, Any] | None, kind: type[Replay]) -> None:
    assert type(make_replay_buffer(config, seed=0)) is kind


def test_settings_arrive() -> None:
    buffer = make_replay_buffer({**DQN, "capacity": 7, "prioritized_replay_beta": [[0, 0.4], [10, 1.0]]})
    assert isinstance(buffer, PrioritizedReplayBuffer)
    assert (buffer.capacity, buffer._priorities.alpha, buffer._priorities.eps) == (7, 0.6, 1e-6)
    assert buffer._priorities.beta(None, 5) == pytest.approx(0.7)
    buffer = make_replay_buffer(
        {
            "type": "MultiAgentReplayBuffer",
            "storage_unit": "sequences",
            "replay_sequence_length": 8,
            "replay_burn_in": 3,
            "replay_zero_init_states": False,
        }
    )
    assert isinstance(buffer, SequenceReplayBuffer)
    assert (buffer.sequence_length, buffer.burn_in, buffer.zero_init_states, buffer.prioritized) == (8, 3, False, False)
    buffer = make_replay_buffer({"storage_unit": "episodes", "eps": 0.5})
    assert isinstance(buffer, SequenceReplayBuffer)
    assert (buffer.sequence_length, buffer.prioritized, buffer._priorities.eps) == (None, True, 0.5)
    assert check_replay_config({}).capacity == 50_000
    assert check_replay_config({"replay_sequence_length": 5}).sequences


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"typ": "ReplayBuffer"}, r"replay_buffer_config has no key 'typ'\. Did you mean 'type'\?"),
        ({"zzz": 1}, "has no key 'zzz'. Its keys are type, capacity, storage_unit"),
        ({"type": "ReplyBuffer"}, r"\['type'\]='ReplyBuffer': expected one of .* Did you mean 'ReplayBuffer'\?"),
        ({"type": 5}, r"\['type'\]=5: expected one of"),
        ({"capacity": 0}, r"\['capacity'\]=0: expected an integer >= 1"),
        ({"capacity": "many"}, r"\['capacity'\]='many': expected an integer >= 1"),
        ({"capacity": 2.5}, r"\['capacity'\]=2.5: expected an integer >= 1"),
        ({"capacity": float("inf")}, r"\['capacity'\]=inf: expected an integer >= 1"),
        ({"replay_burn_in": -1}, r"\['replay_burn_in'\]=-1: expected an integer >= 0"),
        ({"replay_burn_in": 3}, r"\['replay_burn_in'\]=3: only sequences have a burn-in"),
        ({"replay_sequence_length": -1}, r"\['replay_sequence_length'\]=-1: expected an integer >= 1"),
        ({"replay_zero_init_states": 1}, r"\['replay_zero_init_states'\]=1: expected True or False"),
        ({"storage_unit": "rows"}, r"\['storage_unit'\]='rows': expected one of timesteps, sequences, episodes"),
        ({"prioritized_replay": "yes"}, r"\['prioritized_replay'\]='yes': expected True, False or -1"),
        ({"type": "ReservoirReplayBuffer", "prioritized_replay": True}, "a ReservoirReplayBuffer has no priorities"),
        ({"prioritized_replay_alpha": -1}, "replay_buffer_config: prioritized_replay_alpha=-1: expected a number"),
        ({"prioritized_replay_beta": "x"}, "replay_buffer_config: prioritized_replay_beta"),
        ({"prioritized_replay_beta": -1}, "replay_buffer_config: prioritized_replay_beta=-1: expected a number >= 0"),
        ({"prioritized_replay_beta": [[0, 0.4], [9, -1]]}, "prioritized_replay_beta=-1: expected a number >= 0"),
        ({"prioritized_replay_eps": 0}, "replay_buffer_config: prioritized_replay_eps=0: expected a number > 0"),
        ({"alpha": 0.5, "prioritized_replay_alpha": 0.5}, "'alpha' and 'prioritized_replay_alpha' are the same key"),
        ({"learning_starts": 1000}, r"\['learning_starts'\].*set num_steps_sampled_before_learning_starts"),
        ({"buffer_size": 1000}, r"\['buffer_size'\].*call it capacity"),
        ({"replay_sequence_length": 9, "capacity": 5}, r"\['capacity'\]=5 holds no sequence of 9 \+ 0 steps"),
        ([("type", "ReplayBuffer")], "replay_buffer_config=.*: expected a dict"),
    ],
)
def test_mistakes(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_replay_buffer(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"type": "MultiAgentMixInReplayBuffer"},
        {"worker_side_prioritization": True},
        {"replay_mode": "lockstep"},
        {"num_shards": 4},
        {"underlying_buffer_config": {}},
        {"replay_sequence_override": False},
        {"_enable_replay_buffer_api": False},
        {"storage_unit": "fragments"},
        {"type": "ReservoirReplayBuffer", "replay_sequence_length": 3},
    ],
)
def test_what_is_not_built_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(NotBuiltError, match="replay_buffer_config"):
        make_replay_buffer(config)
