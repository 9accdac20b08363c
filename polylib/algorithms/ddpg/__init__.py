"""Deep deterministic policy gradient (arXiv:1509.02971) and its twin, TD3 (arXiv:1802.09477)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.ddpg.config import DDPGConfig, TD3Config

if TYPE_CHECKING:
    from polylib.algorithms.ddpg.ddpg import DDPG, TD3

__all__ = ["DDPG", "DDPGConfig", "TD3", "TD3Config"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name in ("DDPG", "TD3"):
        from polylib.algorithms.ddpg import ddpg

        return getattr(ddpg, name)
    raise AttributeError(name)
