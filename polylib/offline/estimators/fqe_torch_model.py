"""Fitted Q evaluation by the name that RLlib's users know; it runs in every framework."""

from polylib.offline.estimators.fqe import FittedQEvaluation as FQETorchModel

__all__ = ["FQETorchModel"]
