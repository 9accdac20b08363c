"""All rows, in the order of the table."""

from __future__ import annotations

from rows import acting, learning, replay, sampling, starting, traces
from rows.spec import Row

ROWS: list[Row] = [*acting.ROWS, *sampling.ROWS, *learning.ROWS, *replay.ROWS, *traces.ROWS, *starting.ROWS]
