"""A2C's objective (arXiv:1602.01783, algorithm S3, with its actors in step), written once over `ops`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polylib.evaluation.postprocessing import postprocess_fragment
from polylib.policy.actor_critic import ActorCritic
from polylib.policy.fragment import Fragment
from polylib.policy.objective import row_mean
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


class A2CObjective(ActorCritic):
    """Policy gradient with a value function as baseline, a squared value error and an entropy bonus."""

    columns = ("obs", "actions", "advantages", "value_targets")
    optional_columns = ("action_mask", "action_raw")
    schedules = ("entropy_coeff",)

    def coefficients(self) -> dict[str, float]:
        """Everything that changes or can be changed while training."""
        weight = self.config["vf_loss_coeff"] if self.config["use_critic"] else 0.0
        return {**super().coefficients(), "vf_loss_coeff": weight}

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """`mean(-logp * advantage + vf_loss_coeff * (V - target)^2 / 2 - entropy_coeff * entropy)`."""
        out = nets["policy"](batch, training=training)
        dist_inputs = self.dist.mask(ops, out["logits"], batch.get("action_mask"))
        logp = self.dist.logp(ops, dist_inputs, self.taken(batch), batch.get("action_raw"))
        entropy = self.dist.entropy(ops, dist_inputs)
        policy_loss = -logp * batch["advantages"]
        value_error = 0.5 * ops.square(out["value"][:, 0] - batch["value_targets"])
        mean = row_mean(ops, batch)
        loss = mean(policy_loss + c["vf_loss_coeff"] * value_error - c["entropy_coeff"] * entropy)
        stats = {
            "policy_loss": mean(policy_loss),
            "vf_loss": mean(value_error),
            "policy_entropy": mean(entropy),
            "entropy_coeff": c["entropy_coeff"],
        }
        return {"default": loss}, stats, {}

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Adds `advantages` and `value_targets`."""
        config = self.config
        return postprocess_fragment(
            fragment, config["gamma"], config["lambda"], use_gae=config["use_gae"], use_critic=config["use_critic"]
        )
