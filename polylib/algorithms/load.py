"""`polylib.load_policy`: act from a checkpoint, without Ray."""

from __future__ import annotations

import os

from polylib.algorithms.registry import get_objective_class
from polylib.policy import checkpoint
from polylib.policy.policy import Policy


def load_policy(
    path: str | os.PathLike[str], framework: str = "numpy", policy_id: str | None = None, eager_tracing: bool = True
) -> Policy:
    """A policy from a checkpoint, to act with: no Ray, no environment, and by default no TensorFlow or torch either.

    Args:
        path: a checkpoint of an algorithm or of a policy.
        framework: `"numpy"` (acts only), `"tf"`, `"tf2"` or `"torch"`, whichever saved it.
        policy_id: which policy of an algorithm's checkpoint; its only one by default.
        eager_tracing: for `"tf2"`.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or foreign.
        FrameworkError: if the framework isn't installed.

    Example:
        >>> policy = polylib.load_policy("checkpoint_000010")  # doctest: +SKIP
        >>> action = policy.compute_single_action(obs, explore=False)  # doctest: +SKIP
    """
    return checkpoint.load_policy(path, framework, get_objective_class, policy_id, eager_tracing)
