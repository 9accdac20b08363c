"""Spaces that Gymnasium lacks."""

from polylib.utils.spaces.simplex import Simplex

__all__ = ["Simplex"]
