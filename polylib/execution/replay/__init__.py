"""Replay buffers: uniform, prioritized, reservoir, and sequences for recurrent policies."""

from polylib.execution.replay.base import Replay
from polylib.execution.replay.make import ReplayOptions, check_replay_config, make_replay_buffer
from polylib.execution.replay.prioritized import PrioritizedReplayBuffer
from polylib.execution.replay.reservoir import ReservoirReplayBuffer
from polylib.execution.replay.sequences import SequenceReplayBuffer, sequence_priorities
from polylib.execution.replay.storage import from_spaces
from polylib.execution.replay.uniform import ReplayBuffer

__all__ = [
    "PrioritizedReplayBuffer",
    "Replay",
    "ReplayBuffer",
    "ReplayOptions",
    "ReservoirReplayBuffer",
    "SequenceReplayBuffer",
    "from_spaces",
    "check_replay_config",
    "make_replay_buffer",
    "sequence_priorities",
]
