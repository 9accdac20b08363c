"""TD3 (arXiv:1802.09477), under the name it has in RLlib; it is built in `polylib.algorithms.ddpg`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.ddpg.config import TD3Config

if TYPE_CHECKING:
    from polylib.algorithms.ddpg.ddpg import TD3

__all__ = ["TD3", "TD3Config"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "TD3":
        from polylib.algorithms.ddpg.ddpg import TD3

        return TD3
    raise AttributeError(name)
