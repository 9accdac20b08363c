"""What every backend does with losses and gradients, written once over `ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polylib.policy.ops import Array

# Adam's constants (arXiv:1412.6980), one set for all backends.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


def clip_by_global_norm(ops: Any, gradients: Sequence[Array], limit: Array) -> tuple[list[Array], Array]:
    """Scales gradients down to a global norm of at most `limit`; infinity leaves them alone.

    Args:
        ops: the backend's `Ops`.
        gradients: of one group.
        limit: scalar > 0.

    Returns:
        The scaled gradients, and the norm before scaling.
    """
    norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradients))
    # 0 / 0 and inf / inf would be NaN, so the norm divides as a positive, finite number.
    scale = ops.minimum(limit / ops.clip(norm, 1e-12, 3e38), 1.0)
    return [g * scale for g in gradients], norm


def summarize(
    losses: dict[str, Array], stats: dict[str, Array], norms: dict[str, Array], c: dict[str, Array], lrs: dict[str, str]
) -> dict[str, Array]:
    """The stats of one update: the objective's own, `total_loss`, and per group `grad_gnorm` and `cur_lr`.

    With several groups the names get the group as suffix: `grad_gnorm_critic`.
    """
    out = dict(stats, total_loss=sum(losses.values()))
    for group, norm in norms.items():
        suffix = "" if len(norms) == 1 else f"_{group}"
        out[f"grad_gnorm{suffix}"] = norm
        out[f"cur_lr{suffix}"] = c[lrs[group]]
    return out
