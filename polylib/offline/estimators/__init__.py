"""Off-policy evaluation: what a policy would earn, estimated from what another one did."""

from polylib.offline.estimators.bootstrap import Estimate
from polylib.offline.estimators.direct_method import DirectMethod, ModelBasedEstimator
from polylib.offline.estimators.doubly_robust import DoublyRobust
from polylib.offline.estimators.fqe import FittedQEvaluation
from polylib.offline.estimators.importance_sampling import (
    ImportanceSampling,
    PerDecisionImportanceSampling,
    WeightedImportanceSampling,
    WeightedPerDecisionImportanceSampling,
)
from polylib.offline.estimators.logged import Logged
from polylib.offline.estimators.off_policy_estimator import OffPolicyEstimator
from polylib.offline.estimators.q_models import LinearQ, QModel, TabularQ

__all__ = [
    "DirectMethod",
    "DoublyRobust",
    "Estimate",
    "FittedQEvaluation",
    "ImportanceSampling",
    "LinearQ",
    "Logged",
    "ModelBasedEstimator",
    "OffPolicyEstimator",
    "PerDecisionImportanceSampling",
    "QModel",
    "TabularQ",
    "WeightedImportanceSampling",
    "WeightedPerDecisionImportanceSampling",
]
