"""Rebatched: batches of a wanted size, whatever the size of records."""

from __future__ import annotations

from typing import Any

from polylib.errors import ConfigError
from polylib.offline.input_reader import InputReader
from polylib.offline.joined import Joiner
from polylib.offline.json_format import Batch
from polylib.offline.whole_episodes import WholeEpisodes
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch


class Rebatched(InputReader):
    """Cuts and joins a reader's records to batches of so many rows.

    Without `complete_episodes` every batch has exactly `rows` rows, but for the last one of a reader that ends. With
    it a batch has as many whole episodes as it takes for at least `rows` rows. Batches of several agents aren't cut:
    as many records as it takes for at least `rows` environment steps are joined.

    Args:
        reader: Gives the records.
        rows: Rows of a batch.
        complete_episodes: Only whole episodes; see `WholeEpisodes`.
    """

    def __init__(self, reader: InputReader, rows: int, complete_episodes: bool = False) -> None:
        if rows < 1:
            raise ConfigError(f"batches of {rows} rows: expected at least 1")
        self._reader = WholeEpisodes(reader) if complete_episodes else reader
        self._rows, self._whole, self._joiner = rows, complete_episodes, Joiner()
        # The end of the record that was read last, and how the reader stood before it.
        self._rest: Batch | None = None
        self._taken, self._before = 0, None

    def next(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: The reader has no more.
        """
        parts: list[Batch] = []
        count = 0
        while count < self._rows:
            if self._rest is None:
                # Asked for before the record is read, since where it was read in part has no other name.
                before = None if self._whole else self._reader.get_state()
                try:
                    self._rest = self._reader.next()
                except StopIteration:
                    if not parts:
                        raise
                    break
                self._before, self._taken = before, 0
            batch = self._rest
            wanted = self._rows - count
            if self._whole or isinstance(batch, MultiAgentBatch) or batch.count - self._taken <= wanted:
                part = batch[self._taken :] if self._taken and isinstance(batch, SampleBatch) else batch
                self._rest = None
            else:
                part = batch[self._taken : self._taken + wanted]
                self._taken += wanted
            count += part.count
            if part.count:
                parts.append(part)
        return self._joiner.join(parts)

    def get_state(self) -> Any:
        """Where the next batch begins."""
        if self._rest is None:
            state = self._reader.get_state()
            return None if state is None else {"reader": state, "taken": 0}
        return None if self._before is None else {"reader": self._before, "taken": self._taken}

    def set_state(self, state: Any) -> bool:
        """Goes on from where `get_state` was called."""
        if not isinstance(state, dict) or not self._reader.set_state(state["reader"]):
            return False
        self._rest = None
        if state["taken"]:
            self._before, self._taken = state["reader"], state["taken"]
            self._rest = self._reader.next()
        return True

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()
