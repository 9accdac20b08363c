"""Policy gradient: REINFORCE (Williams, 1992)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.pg.config import PGConfig

if TYPE_CHECKING:
    from polylib.algorithms.pg.pg import PG

__all__ = ["PG", "PGConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "PG":
        from polylib.algorithms.pg.pg import PG

        return PG
    raise AttributeError(name)
