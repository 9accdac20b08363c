"""MARWIL: read a batch, take one step on it, broadcast the weights."""

from __future__ import annotations

from typing import ClassVar

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.marwil.config import MARWILConfig
from polylib.algorithms.marwil.loss import MARWILObjective
from polylib.algorithms.offline_algorithm import OfflineAlgorithm
from polylib.policy.objective import Objective


class MARWIL(OfflineAlgorithm):
    """Monotonic advantage re-weighted imitation learning: imitates what went better than expected more."""

    config_class: ClassVar[type[AlgorithmConfig]] = MARWILConfig
    objective_class: ClassVar[type[Objective]] = MARWILObjective
