"""Proximal policy optimization (arXiv:1707.06347)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.ppo.config import PPOConfig

if TYPE_CHECKING:
    from polylib.algorithms.ppo.ppo import PPO

__all__ = ["PPO", "PPOConfig"]


def __getattr__(name: str) -> Any:
    # PPO is a Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "PPO":
        from polylib.algorithms.ppo.ppo import PPO

        return PPO
    raise AttributeError(name)
