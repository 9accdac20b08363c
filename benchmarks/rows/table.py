"""All rows, in the order of the table."""

from __future__ import annotations

from rows import acting, learning, networks, off_policy, offline, replay, sampling, starting, traces
from rows.spec import Row

ROWS: list[Row] = [
    *acting.ROWS,
    *sampling.ROWS,
    *learning.ROWS,
    *networks.ROWS,
    *replay.ROWS,
    *off_policy.ROWS,
    *offline.ROWS,
    *traces.ROWS,
    *starting.ROWS,
]
