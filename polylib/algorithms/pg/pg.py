"""PG: sample a batch on all workers, take one step on it, broadcast the weights."""

from __future__ import annotations

from polylib.algorithms.a2c.a2c import A2C
from polylib.algorithms.pg.config import PGConfig
from polylib.algorithms.pg.loss import PGObjective


class PG(A2C):
    """Vanilla policy gradient: A2C's loop without its critic."""

    config_class = PGConfig
    objective_class = PGObjective
