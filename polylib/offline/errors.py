"""What can go wrong with traces: files that can't be read or written, and content that isn't what it should be."""

from __future__ import annotations

from polylib.errors import PolylibError

_LONGEST = 1200  # characters of a message


class OfflineError(PolylibError):
    """Reading or writing recorded experience failed; the message names the file, and line and column if it has any."""


class TraceFileError(OfflineError, OSError):
    """A file or folder of traces is missing, can't be read, can't be written, or the disk is full."""


class TraceFormatError(OfflineError, ValueError):
    """A record, or a batch to be recorded, holds what a trace can't hold."""

    def __init__(self, message: str = "") -> None:
        # Names and values of the record stand in it, and may be of any length.
        cut = len(message) > _LONGEST
        super().__init__(f"{message[: _LONGEST // 2]} [...] {message[-_LONGEST // 2 :]}" if cut else message)


class CorruptLineError(TraceFormatError):
    """A line isn't whole JSON, as the last line of a writer that was killed."""
