"""The estimators with normalised weights, where RLlib's users look for them."""

from polylib.offline.estimators.importance_sampling import (
    WeightedImportanceSampling,
    WeightedPerDecisionImportanceSampling,
)

__all__ = ["WeightedImportanceSampling", "WeightedPerDecisionImportanceSampling"]
