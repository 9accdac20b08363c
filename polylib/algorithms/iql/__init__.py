"""Implicit Q-learning (arXiv:2110.06169) from recorded experience, for Box and Discrete actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.iql.config import IQLConfig

if TYPE_CHECKING:
    from polylib.algorithms.iql.iql import IQL

__all__ = ["IQL", "IQLConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "IQL":
        from polylib.algorithms.iql.iql import IQL

        return IQL
    raise AttributeError(name)
