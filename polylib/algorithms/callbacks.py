"""RLlib's import path of `polylib.callbacks`."""

from polylib.callbacks import DefaultCallbacks

__all__ = ["DefaultCallbacks"]
