"""Recorded experience: writing it to JSON files, and reading polylib's and RLlib's."""

from __future__ import annotations

from polylib.offline.errors import CorruptLineError, OfflineError, TraceFileError, TraceFormatError
from polylib.offline.io_context import IOContext
from polylib.offline.json_reader import JsonReader
from polylib.offline.json_writer import JsonWriter
from polylib.offline.output import make_output

__all__ = [
    "CorruptLineError",
    "IOContext",
    "JsonReader",
    "JsonWriter",
    "OfflineError",
    "TraceFileError",
    "TraceFormatError",
    "make_output",
]
