"""CQL's objective (arXiv:2006.04779) on top of SAC's, written once over `ops`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import erf

from polylib.algorithms.critics import repeated, repeated_obs
from polylib.algorithms.sac.loss import Parts, SACObjective
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import variable_network
from polylib.models.networks import NetworkSpec
from polylib.policy.objective import Group
from polylib.policy.ops import Array

#: What an action that a mask forbids is worth.
_FORBIDDEN = -1e9
#: The largest weight that the Lagrangian gives to the conservative term.
_LARGEST = 1e6


class CQLObjective(SACObjective):
    """SAC whose Q functions are low where the data says nothing, and whose policy imitates the data at first."""

    named, others = "CQL", "BC or MARWIL"

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """SAC's, and with `lagrangian` the logarithm of the conservative term's weight."""
        found = super().networks()
        if self.config["lagrangian"]:
            found["alpha_prime"] = variable_network("alpha_prime", 1, 0.0)
        return found

    def groups(self) -> dict[str, Group]:
        """SAC's, and with `lagrangian` one for that weight, which learns as fast as the critic."""
        found = super().groups()
        if self.config["lagrangian"]:
            found["alpha_prime"] = Group(("alpha_prime",), "critic_lr")
        return found

    def coefficients(self) -> dict[str, float]:
        """SAC's, and `bc`: 1 while the policy imitates, 0 once it climbs the Q functions."""
        return {"bc": float(self.config["bc_iters"] > 0), **super().coefficients()}

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """SAC's, and that of the actions at which the Q functions are pushed down, `[batch_size, num_actions, k]`."""
        if self.discrete:
            return {}
        count, size = self.config["num_actions"], self.dist.noise_size
        # All of a row's at a time, so that one large draw is as good as several small ones.
        drawn = self.dist.noise(rng, (2 + 3 * count) * batch_size).reshape(batch_size, 2 + 3 * count, size)
        many = drawn[:, 2:].reshape(batch_size, 3, count, size)
        # A standard normal number through its distribution function is uniform.
        uniform = erf(many[:, 2] / np.float32(math.sqrt(2.0)))
        return {"now": drawn[:, 0], "next": drawn[:, 1], "now_too": many[:, 0], "next_too": many[:, 1], "all": uniform}

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Critic: the squared TD error and `min_q_weight` times `T log sum_a exp(Q(s, a) / T) - Q(s, a_logged)`.

        This is CQL(H), eq. 4 of arXiv:2006.04779, times two. With `lagrangian` the second term is `alpha'` times what
        it exceeds `lagrangian_thresh` by, and `alpha'` rises as long as it does (appendix F). Targets are without
        entropy. Actor: SAC's, with the log-probability of the logged action in Q's place while `bc` is 1.
        """
        parts = self.parts(ops, nets, batch, noise)
        imitated = self.dist.logp(ops, parts.dist_inputs, batch["actions"])
        goal = c["bc"] * imitated + (1.0 - c["bc"]) * parts.now_q
        losses, stats, rows = self.combined(ops, nets, batch, parts, goal, soft=False)
        weight = self.config["min_q_weight"]
        gaps = [ops.mean(gap) for gap in self._gaps(ops, nets, batch, noise, parts)]
        if self.config["lagrangian"]:
            factor = ops.clip(ops.exp(ops.mean(nets["alpha_prime"](batch)["value"])), 0.0, _LARGEST)
            excess = [weight * gap - self.config["lagrangian_thresh"] for gap in gaps]
            conservative = ops.stop_gradient(factor) * sum(excess)
            losses["alpha_prime"] = -factor * ops.stop_gradient(sum(excess) / float(len(excess)))
            stats.update(alpha_prime_value=factor, alpha_prime_loss=losses["alpha_prime"])
        else:
            conservative = weight * sum(gaps)
        losses["critic"] = 2.0 * losses["critic"] + conservative
        stats.update(
            critic_loss=losses["critic"],
            cql_loss=conservative,
            q_gap=sum(gaps) / float(len(gaps)),
            imitation_logp=ops.mean(imitated),
        )
        return losses, stats, rows

    def _gaps(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        parts: Parts,
    ) -> list[Array]:
        """By how much each Q function's soft maximum over actions exceeds its value of the logged one, `[N]`."""
        t = self.config["temperature"]
        if self.discrete:
            allowed, values = self.allowed(ops, batch), parts.outputs
            if allowed is not None:
                values = [ops.where(allowed, x, _FORBIDDEN) for x in values]
        else:
            values = self._sampled_values(ops, nets, batch, noise, parts, t)
        return [t * ops.logsumexp(x / t, 1) - q for x, q in zip(values, parts.qs, strict=True)]

    def _sampled_values(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        parts: Parts,
        temperature: float,
    ) -> list[Array]:
        """Each Q function at sampled actions, less `T` times the log of the density it was drawn from: `[N, actions]`.

        A sum of `exp(x / T)` over these, of `exp(Q / T) / density`, estimates the one over all actions (appendix F of
        arXiv:2006.04779), but for a factor that doesn't depend on Q. A third are uniform, a third from the policy, a
        third from the policy in the next state.
        """
        count, size = self.config["num_actions"], self.dist.noise_size

        def sample() -> tuple[Array, Array]:
            """Actions `[N * actions, k]`, and the logs of their densities `[N, actions]`."""
            actions, densities = [], []
            for dist_inputs, drawn in ((parts.dist_inputs, "now_too"), (parts.next_dist_inputs, "next_too")):
                flat = ops.reshape(noise[drawn], (-1, size))
                units, logp = self.drawn(ops, repeated(ops, dist_inputs, count), flat)
                actions.append(ops.reshape(units, (-1, count, size)))
                densities.append(ops.reshape(logp, (-1, count)))
            uniform = ops.zeros_like(densities[0]) - size * math.log(2.0)
            both = ops.concat([*actions, noise["all"]], 1)
            return ops.reshape(both, (-1, size)), ops.concat([*densities, uniform], 1)

        units, density = ops.no_gradient(sample)
        out = nets["q"]({**repeated_obs(ops, batch, 3 * count), "action_units": units})
        return [ops.reshape(out[name], (-1, 3 * count)) - temperature * density for name in self._qs]
