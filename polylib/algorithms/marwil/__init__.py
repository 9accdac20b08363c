"""MARWIL: monotonic advantage re-weighted imitation learning (Wang et al., NeurIPS 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polylib.algorithms.marwil.config import MARWILConfig

if TYPE_CHECKING:
    from polylib.algorithms.marwil.marwil import MARWIL

__all__ = ["MARWIL", "MARWILConfig"]


def __getattr__(name: str) -> Any:
    # A Tune Trainable: its module imports Ray, so it waits until somebody asks for it.
    if name == "MARWIL":
        from polylib.algorithms.marwil.marwil import MARWIL

        return MARWIL
    raise AttributeError(name)
