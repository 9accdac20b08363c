"""Behavioural cloning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.bc.config import BCConfig

if TYPE_CHECKING:
    from polylib.algorithms.bc.bc import BC

__all__ = ["BC", "BCConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "BC":
        from polylib.algorithms.bc.bc import BC

        return BC
    raise AttributeError(name)
