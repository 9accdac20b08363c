"""PG's objective: REINFORCE (Williams, 1992, https://doi.org/10.1007/BF00992696), written once over `ops`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from polylib.evaluation.postprocessing import postprocess_fragment
from polylib.models.custom import CustomNetwork
from polylib.models.networks import NetworkSpec
from polylib.policy.actor_critic import ActorCritic
from polylib.policy.fragment import Fragment
from polylib.policy.objective import row_mean
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


class PGObjective(ActorCritic):
    """The likelihood of actions, weighed with the discounted returns that followed; no value function."""

    columns = ("obs", "actions", "advantages")
    optional_columns = ("action_mask", "action_raw")
    needs_values = False

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy`, with `logits` alone."""
        network = super().networks()["policy"]
        if not isinstance(network, NetworkSpec):
            return {"policy": replace(network, outputs={"logits": self.dist.inputs_size})}
        kept = {name: layer for name, layer in network.outputs.items() if name != "value"}
        return {"policy": replace(network, layers=network.needed(kept), outputs=kept)}

    def values(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> None:
        """None."""
        return None

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """`mean(-logp * return)`."""
        logits = nets["policy"](batch, ("logits",), training)["logits"]
        dist_inputs = self.dist.mask(ops, logits, batch.get("action_mask"))
        logp = self.dist.logp(ops, dist_inputs, self.taken(batch), batch.get("action_raw"))
        loss = row_mean(ops, batch)(-logp * batch["advantages"])
        return {"default": loss}, {"policy_loss": loss}, {}

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Adds `advantages`: the discounted rewards from each row to the end of its episode (or of the fragment)."""
        return postprocess_fragment(fragment, self.config["gamma"], 1.0, use_gae=False, use_critic=False)
