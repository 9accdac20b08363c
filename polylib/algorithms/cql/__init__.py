"""Conservative Q-learning (arXiv:2006.04779) from recorded experience, for Box and Discrete actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.cql.config import CQLConfig

if TYPE_CHECKING:
    from polylib.algorithms.cql.cql import CQL

__all__ = ["CQL", "CQLConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "CQL":
        from polylib.algorithms.cql.cql import CQL

        return CQL
    raise AttributeError(name)
