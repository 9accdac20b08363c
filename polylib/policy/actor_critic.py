"""ActorCritic: the part of an objective that acts by one network with logits and a value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from polylib.models.custom import CustomNetwork, custom_network
from polylib.models.default_networks import actor_critic
from polylib.models.networks import NetworkSpec
from polylib.policy.exploration import check_sampling_only
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.ops import Array
from polylib.schedules import ConstantSchedule, Schedule, make_schedule


class ActorCritic(Objective):
    """One network, `policy`, with outputs `logits` and `value`: what a policy gradient loss needs around it.

    A subclass writes `losses` and `postprocess`.
    """

    #: Config keys, besides lr, that may be schedules and are fed as coefficients.
    schedules: tuple[str, ...] = ()

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__(spec)
        check_sampling_only(self.config.get("exploration_config"), type(self).__name__.removesuffix("Objective"))
        self._schedules: dict[str, Schedule] = {}
        for key in ("lr", *self.schedules):
            # RLlib 2.6 has a key of its own for the schedule, newer versions put it into the value's place.
            points = self.config.get(f"{key}_schedule") or self.config[key]
            self._schedules[key] = make_schedule(points, key) or ConstantSchedule(0.0)

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """One network, `policy`: `logits` and `value`, with or without shared layers, or the user's own."""
        spec, size, model = self.spec, self.dist.inputs_size, self.config["model"]
        outputs = {"logits": size, "value": 1}
        custom = custom_network("policy", spec.observation_space, spec.action_space, outputs, model)
        default = custom or actor_critic("policy", spec.observation_space, size, model, spec.action_space)
        return {"policy": default}

    def coefficients(self) -> dict[str, float]:
        """`lr`, `grad_clip`, and the keys in `schedules`."""
        limit = self.config.get("grad_clip")
        return {
            **{key: schedule(0) for key, schedule in self._schedules.items()},
            "grad_clip": math.inf if limit is None else limit,
        }

    def scheduled(self, timestep: int) -> dict[str, float]:
        """`lr` and the keys in `schedules`, at `timestep`."""
        return {key: schedule(timestep) for key, schedule in self._schedules.items()}

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The masked logits."""
        return self.dist.mask(ops, nets["policy"](inputs, ("logits",))["logits"], inputs.get("action_mask"))

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Samples from the policy's distribution; values wait for the whole fragment."""
        network = nets["policy"]
        out = network(inputs, ("logits", *network.state_outputs))
        dist_inputs = self.dist.mask(ops, out.pop("logits"), inputs.get("action_mask"))
        return {**out, **self.sampled(ops, dist_inputs, noise)}

    def sampled(self, ops: Any, dist_inputs: Array, noise: Array) -> dict[str, Array]:
        """Actions, and what acting returns beside them, from the inputs of the action distribution."""
        actions, raw = self.dist.sample(ops, dist_inputs, noise)
        out = self.named_actions(actions)
        out = dict(out, action_logp=self.dist.logp(ops, dist_inputs, actions, raw), action_dist_inputs=dist_inputs)
        return out if raw is None else dict(out, action_raw=raw)

    def values(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """The value branch."""
        return nets["policy"](inputs, ("value",))["value"][:, 0]
