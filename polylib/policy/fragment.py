"""Fragment: what a sampler hands to an objective's postprocessing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tree

from polylib.errors import BatchError
from polylib.policy import columns as c
from polylib.policy.sample_batch import SampleBatch


@dataclass
class Fragment:
    """What a sampler hands over for postprocessing: rows of one or more segments, one segment after another.

    A segment is an uninterrupted stretch of one episode of one agent, in time order. It ends where the episode was
    terminated, was truncated, or where sampling stopped.

    Attributes:
        batch: The rows [B].
        starts: The first row of each segment, int64 [K].
        ends: One past the last row of each segment, int64 [K].
        last_obs: The true observation after each segment's last row [K, *obs], nested as `obs` is.
        bootstrap: The value of `last_obs`, float32 [K], and 0 for terminated segments; None until it is computed.
        last_inputs: What a network sees besides `last_obs`, [K, ...] by column: `state_in_i`, `prev_actions` and
            `prev_rewards`, where the policy takes them.

    Raises:
        BatchError: The segments aren't non-empty or don't cover the rows one after another.
    """

    batch: SampleBatch
    starts: np.ndarray
    ends: np.ndarray
    last_obs: Any
    bootstrap: np.ndarray | None = None
    last_inputs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.starts = np.asarray(self.starts, np.int64)
        self.ends = np.asarray(self.ends, np.int64)
        check_segments(self.starts, self.ends, self.batch.count)
        if self.bootstrap is not None:
            self.bootstrap = np.asarray(self.bootstrap, np.float32)
            if self.bootstrap.shape != self.starts.shape:
                raise BatchError(
                    f"bootstrap has shape {self.bootstrap.shape}: expected one value for each of the "
                    f"{len(self.starts)} segments."
                )

    @property
    def terminated(self) -> np.ndarray:
        """Which segments ended in a terminal state, bool [K]."""
        return np.asarray(self.batch[c.TERMINATEDS], np.bool_)[self.ends - 1]

    def with_new_obs(self) -> SampleBatch:
        """The batch with the column `new_obs` [B, *obs]: the observation after each row, `last_obs` at segment ends.

        The other columns are shared with `batch`, which stays as it is.
        """
        out = self.batch.copy(shallow=True)
        out[c.NEXT_OBS] = self.new_obs()
        return out

    def new_obs(self) -> Any:
        """The observation after each row [B, *obs], nested as `obs` is: `last_obs` at segment ends."""
        obs = self.batch[c.OBS]
        if isinstance(obs, np.ndarray):
            return self._shifted(obs, self.last_obs)
        try:
            return tree.map_structure(self._shifted, obs, self.last_obs)
        except BatchError:
            raise
        except (TypeError, ValueError) as e:
            raise BatchError(f"last_obs isn't nested as the column {c.OBS!r} is: {e}") from e

    def _shifted(self, x: np.ndarray, last: Any) -> np.ndarray:
        last = np.asarray(last)
        if last.shape != (len(self.ends), *x.shape[1:]):
            raise BatchError(
                f"last_obs has shape {last.shape}: expected {(len(self.ends), *x.shape[1:])}, one observation for "
                "each segment."
            )
        out = np.empty_like(x)
        out[:-1] = x[1:]
        out[self.ends - 1] = last
        return out


def check_segments(starts: np.ndarray, ends: np.ndarray, rows: int) -> None:
    """Checks that segments [K] are non-empty and cover the rows of a batch one after another.

    Raises:
        BatchError: They aren't, or don't.
    """
    if starts.ndim != 1 or starts.shape != ends.shape:
        raise BatchError(f"starts {starts.shape} and ends {ends.shape}: expected two vectors of the same length.")
    if len(starts) == 1 and starts[0] == 0 and ends[0] == rows and rows > 0:
        return  # a single segment, as in the small fragments of algorithms that replay
    covers = bool(len(starts)) and starts[0] == 0 and ends[-1] == rows and bool(np.all(starts[1:] == ends[:-1]))
    if not covers and (rows or len(starts)):
        raise BatchError(
            f"Segments starts={starts}, ends={ends} don't cover {rows} rows one after another: "
            "the first starts at 0, each next one starts where the one before ends, the last ends at the last row."
        )
    if np.any(starts >= ends):
        k = int(np.argmax(starts >= ends))
        raise BatchError(f"Segment {k} from row {starts[k]} up to row {ends[k]} is empty: leave it out.")
