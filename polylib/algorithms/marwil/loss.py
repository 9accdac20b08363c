"""MARWIL's objective (Wang et al., NeurIPS 2018, algorithm 1), written once over `ops`; BC's is its `beta` of 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from polylib.errors import ConfigError
from polylib.evaluation.postprocessing import postprocess_fragment
from polylib.models.custom import CustomNetwork
from polylib.models.networks import NetworkSpec
from polylib.policy.actor_critic import ActorCritic
from polylib.policy.fragment import Fragment
from polylib.policy.objective import PolicySpec, row_mean
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch

# What a standardised advantage may be in the exponent: the weight e^x of a single row is to stay a finite number.
_LARGEST = 20.0


class MARWILObjective(ActorCritic):
    """The likelihood of recorded actions, each weighed with `exp(beta * advantage / c)`, and a squared value error."""

    columns: tuple[str, ...] = ("obs", "actions", "value_targets")
    optional_columns: tuple[str, ...] = ("action_mask",)
    updates_often = True

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        self._imitates = not self.config["beta"]
        if self._imitates:
            self.columns, self.needs_values = ("obs", "actions"), False
        self.needs_row_values = self._uses_lambda
        if self.config["bc_logstd_coeff"] and not hasattr(self.dist, "log_std"):
            raise ConfigError(
                f"config key 'bc_logstd_coeff': actions of {spec.action_space} have no standard deviation; set it to 0"
            )

    @property
    def _uses_lambda(self) -> bool:
        """Whether values of later states are mixed into returns."""
        return bool(self.config["beta"] and self.config["use_gae"] and self.config["lambda"] < 1)

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`policy`: `logits` and `value`; with `beta` 0 `logits` alone."""
        network = super().networks()["policy"]
        if not self._imitates:
            return {"policy": network}
        if not isinstance(network, NetworkSpec):
            return {"policy": replace(network, outputs={"logits": self.dist.inputs_size})}
        kept = {name: layer for name, layer in network.outputs.items() if name != "value"}
        return {"policy": replace(network, layers=network.needed(kept), outputs=kept)}

    def values(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Any:
        """The value branch; None with `beta` 0."""
        return None if self._imitates else super().values(ops, nets, inputs)

    def coefficients(self) -> dict[str, float]:
        """Weights of the terms, and c^2."""
        config = self.config
        found = {**super().coefficients(), "bc_logstd_coeff": config["bc_logstd_coeff"]}
        if self._imitates:
            return found
        return {
            **found,
            "beta": config["beta"],
            "vf_coeff": config["vf_coeff"],
            "adv_norm_update_rate": config["moving_average_sqd_adv_norm_update_rate"],
            **_in_two(config["moving_average_sqd_adv_norm_start"]),
        }

    def adapted(self, coefficients: Mapping[str, float], stats: Mapping[str, float]) -> dict[str, float]:
        """c^2 after a batch with this mean squared advantage."""
        if self._imitates:
            return {}
        before = coefficients["sqd_adv_norm"] + coefficients["sqd_adv_norm_rest"]
        # Here in float64 and by the config's rate: with the usual 1e-8 float32 would stand still.
        rate = self.config["moving_average_sqd_adv_norm_update_rate"]
        return _in_two(before + rate * (stats["sqd_adv"] - before))

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """`mean(-exp(beta * A / c) * (logp + bc_logstd_coeff * sum(log_std)) + vf_coeff * A^2 / 2)`.

        `A = R - V` with the recorded returns `R`; in the exponent it is a number, not to be learnt through, and c^2 is
        the running mean of `A^2`, this batch's included.
        """
        wanted = ("logits",) if self._imitates else ("logits", "value")
        out = nets["policy"](batch, wanted, training)
        dist_inputs = self.dist.mask(ops, out["logits"], batch.get("action_mask"))
        # The density of what was recorded: whatever sample it was before clipping belongs to another distribution.
        worth = self.dist.logp(ops, dist_inputs, self.taken(batch))
        if self.config["bc_logstd_coeff"]:
            log_std = self.dist.log_std(ops, dist_inputs)  # type: ignore[attr-defined]
            worth = worth + c["bc_logstd_coeff"] * ops.sum(log_std, -1)
        mean = row_mean(ops, batch)
        if self._imitates:
            policy_loss = mean(-worth)
            return {"default": policy_loss}, {"policy_loss": policy_loss}, {}
        targets = batch["value_targets"]
        advantages = targets - out["value"][:, 0]
        sqd_adv = mean(ops.square(advantages))
        before = c["sqd_adv_norm"] + c["sqd_adv_norm_rest"]
        norm = before + c["adv_norm_update_rate"] * (sqd_adv - before)
        exponent = c["beta"] * advantages / (1e-8 + ops.sqrt(norm))
        weights = ops.stop_gradient(ops.exp(ops.minimum(exponent, _LARGEST)))
        policy_loss, vf_loss = mean(-weights * worth), 0.5 * sqd_adv
        spread = mean(ops.square(targets - mean(targets)))
        stats = {
            "policy_loss": policy_loss,
            "vf_loss": vf_loss,
            "sqd_adv": sqd_adv,
            "moving_average_sqd_adv_norm": norm,
            "mean_weight": mean(weights),
            "vf_explained_var": 1.0 - mean(ops.square(advantages - mean(advantages))) / ops.maximum(spread, 1e-8),
        }
        return {"default": policy_loss + c["vf_coeff"] * vf_loss}, stats, {}

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Adds `value_targets`: the discounted rewards to the end of each stretch, and the value of what follows it."""
        gamma, lambda_, uses = self.config["gamma"], self.config["lambda"], self._uses_lambda
        if self._imitates:
            return fragment.batch
        return postprocess_fragment(fragment, gamma, lambda_, use_gae=uses, use_critic=uses)

    @property
    def looks_ahead(self) -> bool:
        """Returns are."""
        return not self._imitates


def _in_two(value: float) -> dict[str, float]:
    """A number as the sum of two float32: coefficients have no more digits than that."""
    high = float(np.float32(value))
    return {"sqd_adv_norm": high, "sqd_adv_norm_rest": float(np.float32(value - high))}
