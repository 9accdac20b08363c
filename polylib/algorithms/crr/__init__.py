"""Critic regularized regression (arXiv:2006.15134) from recorded experience, for Box and Discrete actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.crr.config import CRRConfig

if TYPE_CHECKING:
    from polylib.algorithms.crr.crr import CRR

__all__ = ["CRR", "CRRConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "CRR":
        from polylib.algorithms.crr.crr import CRR

        return CRR
    raise AttributeError(name)
