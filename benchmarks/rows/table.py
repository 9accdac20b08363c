"""All rows, in the order of the table."""

from __future__ import annotations

from rows import acting, learning, sampling, starting, traces
from rows.spec import Row

ROWS: list[Row] = [*acting.ROWS, *sampling.ROWS, *learning.ROWS, *traces.ROWS, *starting.ROWS]
