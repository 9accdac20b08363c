"""polylib: reinforcement learning with one policy interface for TensorFlow, Keras and PyTorch, scaled on Ray.

The public names load on demand: importing polylib loads no TensorFlow, no torch and no Ray.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Algorithm": "polylib.algorithms.algorithm",
    "AlgorithmConfig": "polylib.algorithms.algorithm_config",
    "PPO": "polylib.algorithms.ppo",
    "PPOConfig": "polylib.algorithms.ppo",
    "Policy": "polylib.policy.policy",
    "SampleBatch": "polylib.policy.sample_batch",
    "MultiAgentBatch": "polylib.policy.sample_batch",
    "build_algorithm": "polylib.algorithms.from_policy",
    "build_tf_policy": "polylib.policy.builders",
    "build_torch_policy": "polylib.policy.builders",
    "load_policy": "polylib.algorithms.load",
    "register_action_dist": "polylib.registry",
    "register_algorithm": "polylib.algorithms.registry",
    "register_env": "polylib.registry",
    "register_input": "polylib.registry",
    "register_model": "polylib.registry",
    "RolloutWorker": "polylib.evaluation.rollout_worker",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'polylib' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
