"""Recorded experience: writing it to JSON files, and reading polylib's and RLlib's."""

from __future__ import annotations

from polylib.offline.errors import CorruptLineError, OfflineError, TraceFileError, TraceFormatError
from polylib.offline.input_reader import InputReader
from polylib.offline.io_context import IOContext
from polylib.offline.json_reader import JsonReader
from polylib.offline.json_writer import JsonWriter
from polylib.offline.make_input import make_input
from polylib.offline.mixed_input import MixedInput
from polylib.offline.output import make_output
from polylib.offline.rebatched import Rebatched
from polylib.offline.sample_batch_builder import MultiAgentSampleBatchBuilder, SampleBatchBuilder
from polylib.offline.shuffled_input import ShuffledInput
from polylib.offline.spaces_of import spaces_of

__all__ = [
    "CorruptLineError",
    "IOContext",
    "InputReader",
    "JsonReader",
    "JsonWriter",
    "MixedInput",
    "MultiAgentSampleBatchBuilder",
    "OfflineError",
    "Rebatched",
    "SampleBatchBuilder",
    "ShuffledInput",
    "TraceFileError",
    "TraceFormatError",
    "make_input",
    "make_output",
    "spaces_of",
]
