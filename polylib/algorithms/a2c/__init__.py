"""Advantage actor-critic, synchronous (arXiv:1602.01783)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.a2c.config import A2CConfig

if TYPE_CHECKING:
    from polylib.algorithms.a2c.a2c import A2C

__all__ = ["A2C", "A2CConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "A2C":
        from polylib.algorithms.a2c.a2c import A2C

        return A2C
    raise AttributeError(name)
