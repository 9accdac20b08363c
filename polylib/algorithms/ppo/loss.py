"""PPO's objective: the clipped surrogate of arXiv:1707.06347 with an adaptive KL penalty, written once over `ops`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from polylib.evaluation.postprocessing import postprocess_fragment
from polylib.policy.actor_critic import ActorCritic
from polylib.policy.fragment import Fragment
from polylib.policy.objective import row_mean
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


def ppo_loss(
    ops: Any,
    logp: Array,
    kl: Array,
    entropy: Array,
    values: Array,
    batch: Mapping[str, Array],
    c: Mapping[str, Array],
) -> tuple[Array, dict[str, Array]]:
    """The loss of PPO over a minibatch; every array is `[B]`.

    Args:
        ops: the backend's `Ops`.
        logp: log-probability of the actions under the current policy.
        kl: KL(old policy || current policy) per row.
        entropy: of the current policy per row.
        values: predicted by the current value function.
        batch: `action_logp` (old policy), `advantages`, `value_targets`.
        c: `clip_param`, `vf_clip_param`, `vf_loss_coeff`, `kl_coeff`, `entropy_coeff`.

    Returns:
        The loss, and stats `policy_loss`, `vf_loss`, `kl`, `entropy`, `vf_explained_var`.

    Source: arXiv:1707.06347, L^CLIP of eq. 7, KL penalty of eq. 8, combined as in eq. 9; the bound on a row's squared
    value error is RLlib's `vf_clip_param`.
    """
    # r_t(theta), the probability ratio of eq. 6. exp overflows at 88, and its gradient is then NaN even where the ratio
    # is clipped.
    ratio = ops.exp(ops.minimum(logp - batch["action_logp"], 80.0))
    clipped = ops.clip(ratio, 1.0 - c["clip_param"], 1.0 + c["clip_param"])
    surrogate = ops.minimum(batch["advantages"] * ratio, batch["advantages"] * clipped)
    value_error = ops.minimum(ops.square(values - batch["value_targets"]), c["vf_clip_param"])
    mean = row_mean(ops, batch)
    loss = mean(
        -surrogate + c["vf_loss_coeff"] * value_error + c["kl_coeff"] * kl - c["entropy_coeff"] * entropy
    )
    residual = batch["value_targets"] - values
    unexplained = mean(ops.square(residual - mean(residual)))
    variance = mean(ops.square(batch["value_targets"] - mean(batch["value_targets"])))
    return loss, {
        "policy_loss": -mean(surrogate),
        "vf_loss": mean(value_error),
        "kl": mean(kl),
        "entropy": mean(entropy),
        # A constant target has nothing to explain: the floor keeps the ratio finite, and -1 bounds it as in RLlib.
        "vf_explained_var": ops.maximum(1.0 - unexplained / ops.maximum(variance, 1e-8), -1.0),
    }


class PPOObjective(ActorCritic):
    """PPO for Discrete, MultiDiscrete and Box actions, with a value function as baseline."""

    columns = ("obs", "actions", "action_logp", "action_dist_inputs", "advantages", "value_targets")
    optional_columns = ("action_mask", "action_raw")
    schedules = ("entropy_coeff",)

    def coefficients(self) -> dict[str, float]:
        """Everything that changes or can be changed while training."""
        config = self.config
        return {
            **super().coefficients(),
            "clip_param": config["clip_param"],
            "vf_clip_param": config["vf_clip_param"],
            "vf_loss_coeff": config["vf_loss_coeff"] if config["use_critic"] else 0.0,
            "kl_coeff": config["kl_coeff"] if config["use_kl_loss"] else 0.0,
        }

    def adapted(self, coefficients: Mapping[str, float], stats: Mapping[str, float]) -> dict[str, float]:
        """The KL weight rises by half when KL overshoots twice its target and halves when it stays under half of it.

        Source: arXiv:1707.06347, section 4, with RLlib's factors (the paper: 2 and 1.5 the other way round).
        """
        if not self.config["use_kl_loss"]:
            return {}
        kl, target, weight = stats["kl"], self.config["kl_target"], coefficients["kl_coeff"]
        if kl > 2.0 * target:
            return {"kl_coeff": weight * 1.5}
        return {"kl_coeff": weight * 0.5} if kl < 0.5 * target else {}

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """`ppo_loss` over the network's outputs."""
        out = nets["policy"](batch, training=training)
        dist_inputs = self.dist.mask(ops, out["logits"], batch.get("action_mask"))
        logp, kl, entropy = self.dist.loss_terms(
            ops, dist_inputs, batch["action_dist_inputs"], self.taken(batch), batch.get("action_raw")
        )
        loss, stats = ppo_loss(ops, logp, kl, entropy, out["value"][:, 0], batch, c)
        return {"default": loss}, dict(stats, cur_kl_coeff=c["kl_coeff"], entropy_coeff=c["entropy_coeff"]), {}

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Adds `advantages` and `value_targets`."""
        config = self.config
        return postprocess_fragment(
            fragment, config["gamma"], config["lambda"], use_gae=config["use_gae"], use_critic=config["use_critic"]
        )


def standardized(advantages: np.ndarray) -> np.ndarray:
    """Advantages `[B]` with mean 0 and standard deviation 1 over the training batch."""
    x = advantages.astype(np.float64)
    return ((x - x.mean()) / max(1e-4, float(x.std()))).astype(np.float32)
