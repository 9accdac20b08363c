"""How much memory a record may take once it is unpacked."""

from __future__ import annotations

# Thousands of rows of pictures need a tenth of it. A line of a few KB can ask for any amount.
MAX_RECORD_BYTES = 4 << 30


class Budget:
    """What may still be made of one record."""

    def __init__(self) -> None:
        self._left = MAX_RECORD_BYTES

    def spend(self, size: int) -> None:
        """Takes so many bytes, before they are allocated.

        Raises:
            ValueError: The record would take more than `MAX_RECORD_BYTES`.
        """
        self._left -= size
        if self._left < 0:
            raise ValueError(f"the record would take too much memory, more than {MAX_RECORD_BYTES >> 20} MiB")
