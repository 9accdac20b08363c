"""Deep Q-networks and their family, up to Rainbow (arXiv:1710.02298)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.dqn.config import DQNConfig, SimpleQConfig

if TYPE_CHECKING:
    from polylib.algorithms.dqn.dqn import DQN, SimpleQ

__all__ = ["DQN", "DQNConfig", "SimpleQ", "SimpleQConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name in ("DQN", "SimpleQ"):
        from polylib.algorithms.dqn import dqn

        return getattr(dqn, name)
    raise AttributeError(name)
