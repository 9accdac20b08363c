"""`polylib.load_policy`: act from a checkpoint, without Ray."""

from __future__ import annotations

from typing import Any

from polylib.policy import checkpoint
from polylib.policy.policy import Policy


def load_policy(
    path: Any,
    framework: str = "numpy",
    policy_id: str | None = None,
    eager_tracing: bool = True,
    custom_model: Any = None,
) -> Policy:
    """A policy from a checkpoint, to act with: no Ray, no environment, and by default no TensorFlow or torch either.

    Args:
        path: the folder of a checkpoint of an algorithm or of a policy, or what `Algorithm.save()` returned.
        framework: `"numpy"` (acts only), `"tf"`, `"tf2"` or `"torch"`, whichever saved it.
        policy_id: which policy of an algorithm's checkpoint; its only one by default.
        eager_tracing: for `"tf2"`.
        custom_model: the network of your own that the policy was trained with (or its "module:attribute"), where it
            isn't registered; it runs in its framework only.

    Raises:
        CheckpointError: if the checkpoint is missing, damaged or foreign, or its network isn't given.
        FrameworkError: if the framework isn't installed.

    Example:
        >>> policy = polylib.load_policy("checkpoint_000010")  # doctest: +SKIP
        >>> action = policy.compute_single_action(obs, explore=False)  # doctest: +SKIP
    """
    return checkpoint.load_policy(path, framework, policy_id, eager_tracing, custom_model)
