"""SimpleQ, under the name it has in RLlib; it is built in `polylib.algorithms.dqn`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.dqn.config import SimpleQConfig

if TYPE_CHECKING:
    from polylib.algorithms.dqn.dqn import SimpleQ

__all__ = ["SimpleQ", "SimpleQConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "SimpleQ":
        from polylib.algorithms.dqn.dqn import SimpleQ

        return SimpleQ
    raise AttributeError(name)
