"""Soft actor-critic (arXiv:1812.05905), for Box and Discrete actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.sac.config import SACConfig

if TYPE_CHECKING:
    from polylib.algorithms.sac.sac import SAC

__all__ = ["SAC", "SACConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "SAC":
        from polylib.algorithms.sac.sac import SAC

        return SAC
    raise AttributeError(name)
