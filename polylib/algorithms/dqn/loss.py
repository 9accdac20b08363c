"""DQN's objective (arXiv:1312.5602 and its family up to Rainbow, arXiv:1710.02298), written once over `ops`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.algorithms.replay_objective import ReplayObjective, check_memory, huber
from polylib.errors import ConfigError
from polylib.models.custom import CustomNetwork, custom_network
from polylib.models.default_networks import q_heads, q_network
from polylib.models.networks import NetworkSpec
from polylib.models.noisy import factorised_noise
from polylib.models.spaces import mask_column
from polylib.policy.exploration import SoftQ
from polylib.policy.objective import Group, PolicySpec, ahead, next_inputs, row_mean
from polylib.policy.ops import Array
from polylib.schedules import ConstantSchedule, make_schedule

logger = logging.getLogger(__name__)

#: What an action that a mask forbids is worth.
FORBIDDEN = -1e9


def dueling_values(ops: Any, advantages: Array, state_value: Array) -> Array:
    """`V + A - mean(A)` (arXiv:1511.06581, eq. 9): `[N, A]` and `[N, 1]`, or of atoms `[N, A, K]` and `[N, K]`."""
    if len(advantages.shape) == 2:
        return advantages + (state_value - ops.reshape(ops.mean(advantages, 1), (-1, 1)))
    shape = (-1, 1, int(advantages.shape[2]))
    return ops.reshape(state_value - ops.mean(advantages, 1), shape) + advantages


def projected(ops: Any, probabilities: Array, rewards: Array, discounts: Array, support: np.ndarray) -> Array:
    """The distribution of `r + discount * z` on the atoms of `support` (arXiv:1707.06887, eq. 7).

    Args:
        ops: the backend's `Ops`.
        probabilities: of each atom of the next state `[N, K]`.
        rewards: `[N]`.
        discounts: `[N]`, 0 where the episode was terminated.
        support: the atoms' returns `[K]`, evenly spaced.

    Returns:
        Probabilities `[N, K]`.
    """
    size, low, high = len(support), float(support[0]), float(support[-1])
    column = (-1, 1)
    moved = ops.reshape(rewards, column) + ops.reshape(discounts, column) * ops.constant(support[None])
    moved = ops.clip(moved, low, high)
    step = (high - low) / (size - 1)
    # How much of moved atom j goes to atom i: all at a distance of 0, nothing from one step on.
    distance = ops.abs(ops.reshape(moved, (-1, size, 1)) - ops.constant(support[None, None])) / step
    return ops.sum(ops.reshape(probabilities, (-1, size, 1)) * ops.maximum(1.0 - distance, 0.0), 1)


class DQNObjective(ReplayObjective):
    """DQN for Discrete actions: double, dueling, distributional, noisy, with n-step targets, as the config says."""

    optional_columns = ("weights", "burn_in")
    acting = ("q",)
    default_exploration = {"type": "EpsilonGreedy", "final_epsilon": 0.02, "epsilon_timesteps": 10_000}

    def __init__(self, spec: PolicySpec) -> None:
        if not isinstance(spec.action_space, gym.spaces.Discrete):
            raise ConfigError(
                f"DQN chooses among discrete actions: it needs a Discrete action space, not {spec.action_space}. For "
                "Box actions use SAC, TD3 or PPO"
            )
        super().__init__(spec)
        config = self.config
        points = config.get("lr_schedule") or config["lr"]
        self._lr = make_schedule(points, "lr") or ConstantSchedule(0.0)
        self.num_actions, self.num_atoms = int(spec.action_space.n), int(config["num_atoms"])
        self.support = np.linspace(config["v_min"], config["v_max"], self.num_atoms, dtype=np.float32)
        self._noisy: list[tuple[str, int]] = []  # columns of the noisy layers' noise, and their widths
        self._heads = ("advantages", "state_value") if config["dueling"] else ("advantages",)
        self._mask = mask_column(spec.observation_space)

    def exploration_config(self) -> Mapping[str, Any]:
        """As given; sampling by values is SoftQ."""
        exploration = dict(self.config["exploration_config"])
        if exploration.get("type", "StochasticSampling") not in ("StochasticSampling", "SoftQ"):
            return exploration
        temperature = self.config["categorical_distribution_temperature"]
        return {"temperature": temperature, **exploration, "type": "SoftQ"}

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """`q`, and `target_q` that follows it."""
        config, spec = self.config, self.spec
        sizes = {key: config[key] for key in ("hiddens", "dueling", "num_atoms", "noisy", "sigma0")}
        network: Any = self._custom(sizes)
        if network is None:
            network = q_network(
                "q", spec.observation_space, self.num_actions, config["model"], spec.action_space, **sizes
            )
            self._take_noise(network)
        return {"q": network, "target_q": network.copy("target_q")}

    def _custom(self, sizes: dict[str, Any]) -> CustomNetwork | None:
        """The user's network, if there is one: to features that heads go on from, or to all that heads would return."""
        config, spec = self.config, self.spec
        if config["model"].get("custom_model") is not None and self.exploration.perturbs:
            raise ConfigError(
                "config key 'exploration_config.type': ParameterNoise perturbs default networks only; beside "
                "custom_model use EpsilonGreedy or SoftQ, or noisy=True"
            )
        heads = bool(config["hiddens"] or config["dueling"] or config["noisy"])
        source, width = "features", int([256, *config["model"]["fcnet_hiddens"]][-1])
        hint = "; one that returns the values of all actions itself goes with hiddens=[], dueling=False, noisy=False"
        if not heads:
            source, width = "q_values", self.num_actions * self.num_atoms
            hint = "; one that returns features, which heads go on from, goes with hiddens=[256] or dueling=True"
        return custom_network(
            "q",
            spec.observation_space,
            spec.action_space,
            {source: width},
            config["model"],
            any_width=(source,) if heads else (),
            added=lambda made, widths: q_heads(
                f"{made.name}_head", source, widths[source], self.num_actions, made.copy_of, **(sizes if heads else {})
            ),
            hint=hint,
        )

    def _take_noise(self, network: NetworkSpec) -> None:
        """Notes which noise a network's layers take."""
        self._noisy = [(name, shape[0]) for name, (shape, _) in network.inputs.items() if name.startswith("noisy_")]
        self.quiet_inputs = {name: (width,) for name, width in self._noisy}

    def built(self, policy: Any) -> None:
        """Checks what is known of a user's network once it is made.

        Raises:
            ConfigError: if it has state and there are no sequences to learn from, or the other way round.
        """
        super().built(policy)
        if not isinstance(policy.network_specs["q"], CustomNetwork):
            return
        network, config = policy.nets["q"], self.config
        self._take_noise(network.added)
        check_memory(config, bool(network.state))
        if self.spec.stream == 0 and network.added.layers and network.widths["features"] == self.num_actions:
            logger.warning(
                "config key 'custom_model': your network returns %d numbers, as many as there are actions. They are "
                "taken as features that heads go on from (hiddens=%s, dueling=%s, noisy=%s). If they are the actions' "
                "values, set hiddens=[], dueling=False, noisy=False",
                self.num_actions,
                *(config[key] for key in ("hiddens", "dueling", "noisy")),
            )

    def groups(self) -> dict[str, Group]:
        """One optimizer, for `q`."""
        return {"default": Group(("q",), epsilon=self.config["adam_epsilon"])}

    def coefficients(self) -> dict[str, float]:
        """Learning rate, and what all with a replay buffer have."""
        return {"lr": self._lr(0), **super().coefficients()}

    def scheduled(self, timestep: int) -> dict[str, float]:
        """`lr` and exploration at `timestep`."""
        return {"lr": self._lr(timestep), **super().scheduled(timestep)}

    # --- values

    def _logits(self, ops: Any, network: Any, inputs: Mapping[str, Array], training: bool = False) -> Array:
        """`[N, A, K]`: of each action's atoms; with one atom `[N, A]`, the action's value."""
        return self._dueled(ops, network(inputs, self._heads, training))

    def _dueled(self, ops: Any, out: Mapping[str, Array]) -> Array:
        advantages = out["advantages"]
        if self.num_atoms > 1:
            advantages = ops.reshape(advantages, (-1, self.num_actions, self.num_atoms))
        return dueling_values(ops, advantages, out["state_value"]) if self.config["dueling"] else advantages

    def _values(self, ops: Any, logits: Array, mask: Array | None) -> Array:
        """Values `[N, A]` of `_logits`; very low where a mask forbids the action."""
        if self.num_atoms == 1:
            values = logits
        else:
            values = ops.sum(ops.exp(ops.log_softmax(logits)) * ops.constant(self.support[None, None]), 2)
        return values if mask is None else ops.where(mask, values, FORBIDDEN)

    def _cut_noise(self, noise: Array, first: int) -> dict[str, Array]:
        found = {}
        for name, width in self._noisy:
            found[name] = noise[:, first : first + width]
            first += width
        return found

    # --- acting

    def act_noise(self, rng: np.random.Generator, batch_size: int, explore: bool) -> np.ndarray:
        """The exploration's, and that of noisy layers after it."""
        noise = super().act_noise(rng, batch_size, explore)
        size = sum(width for _, width in self._noisy)
        if not size:
            return noise
        layers = factorised_noise(rng, batch_size, size) if explore else np.zeros((batch_size, size), np.float32)
        return np.concatenate([noise, layers], 1)

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The action of the highest value, or what exploration makes of it; `action_dist_inputs` are the values."""
        chosen, found, preferred = self._chosen(ops, nets, inputs, noise, c, self._heads)
        values = self._values(ops, self._dueled(ops, found), inputs.get("action_mask"))
        own = noise[:, : self.exploration.noise_size]
        logp = self.exploration.log_probs(ops, preferred, own, c, chosen["actions"], None)
        if self._noisy:
            logp = self.exploration.unless_random(ops, logp, own, c)
        return {**chosen, "action_dist_inputs": values, "action_logp": logp}

    def choose(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The same action."""
        heads = self._heads if self.num_atoms > 1 else ("advantages",)
        return self._chosen(ops, nets, inputs, noise, c, heads)[0]

    def _chosen(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        inputs: Mapping[str, Array],
        noise: Array,
        c: Mapping[str, Array],
        heads: tuple[str, ...],
    ) -> tuple[dict[str, Array], Mapping[str, Array], Array]:
        """Actions and new states; what the network says, of which `heads` are needed; values to choose by `[N, A]`."""
        own = self.exploration.noise_size
        network = nets["q"]
        given = {**inputs, **self._cut_noise(noise, own)} if self._noisy else inputs
        found = network(given, (*heads, *network.state_outputs))
        # A state's value moves those of all its actions alike, unless these are distributions.
        logits = self._dueled(ops, found) if self.num_atoms > 1 else found["advantages"]
        preferred = self._values(ops, logits, inputs.get("action_mask"))
        actions, _ = self.exploration.actions(ops, preferred, noise[:, :own], c)
        return {"actions": actions, **{name: found[name] for name in network.state_outputs}}, found, preferred

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """Values `[N, A]` of all actions, without noise."""
        return self._values(ops, self._logits(ops, nets["q"], inputs), inputs.get("action_mask"))

    def log_likelihoods(self, ops: Any, dist_inputs: Array, actions: Array) -> Array:
        """SoftQ's softmax; otherwise the policy always takes the best action: 0 for that one, -inf for all others."""
        strategy = self.exploration.inner
        if isinstance(strategy, SoftQ):
            return strategy.policy_logp(ops, dist_inputs, actions)
        best, _ = self.dist.sample(ops, dist_inputs, dist_inputs * 0.0)
        return ops.where(ops.abs(actions - best) < 1, ops.zeros_like(dist_inputs[:, 0]), -math.inf)

    @property
    def untold(self) -> str:
        """What the exploration says, or the noisy layers."""
        return "noisy=True acts by weights drawn at random" if self._noisy else super().untold

    # --- learning

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """Of noisy layers: for the learning network, for its choice of the next action, and for the target network."""
        if not self._noisy:
            return {}
        size = sum(width for _, width in self._noisy)
        # All of a row's at a time, so that one large draw is as good as several small ones.
        drawn = factorised_noise(rng, batch_size, 3 * size).reshape(batch_size, 3, size)
        return {name: drawn[:, i] for i, name in enumerate(("online", "choice", "target"))}

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """The weighted mean of `huber(TD error)`, or of the cross-entropy to the projected distribution.

        Targets: `r + gamma^k * Q_target(s', argmax_a Q(s', a))` (double, arXiv:1509.06461, eq. 4), or with
        `argmax_a Q_target(s', a)` (arXiv:1312.5602, eq. 2).
        """
        rows = {name: self._cut_noise(x, 0) for name, x in noise.items()} or dict.fromkeys(
            ("online", "choice", "target"), {}
        )
        following = self._following(ops, nets, batch)
        mask = None if self._mask is None else following.pop("next_mask")
        network, now = nets["q"], {**batch, **rows["online"]}
        if self.config["double_q"]:
            then = {**following, **self._state(ops, network, batch), **rows["choice"]}
            out, chooser = ahead(ops, network, now, then, self._heads, training)
        else:
            out, chooser = network(now, self._heads, training), None
        logits = self._dueled(ops, out)
        taken = self.taken(batch) - int(self.spec.action_space.start)  # type: ignore[attr-defined]
        values = ops.pick(self._values(ops, logits, None), taken)

        def targets() -> tuple[Array, Array]:
            """Returns `[N]`, and where there are atoms their distributions `[N, K]`."""
            given = {**following, **self._state(ops, nets["target_q"], batch), **rows["target"]}
            target_logits = self._logits(ops, nets["target_q"], given)
            target_values = self._values(ops, target_logits, mask)
            chosen = target_values if chooser is None else self._values(ops, self._dueled(ops, chooser), mask)
            best = ops.argmax(chosen)
            discounts = batch["discounts"] * (1.0 - ops.to_float(batch["terminateds"]))
            target = batch["rewards"] + discounts * ops.pick(target_values, best)
            if self.num_atoms == 1:
                return target, target
            one = ops.reshape(ops.one_hot(best, self.num_actions), (-1, self.num_actions, 1))
            following_p = ops.exp(ops.log_softmax(ops.sum(target_logits * one, 1)))
            return target, projected(ops, following_p, batch["rewards"], discounts, self.support)

        target, goal = ops.no_gradient(targets)
        stats: dict[str, Array] = {}
        mean = row_mean(ops, batch)
        if self.num_atoms == 1:
            td_error = values - target
            mse = self.config["td_error_loss_fn"] == "mse"
            errors = 0.5 * ops.square(td_error) if mse else huber(ops, td_error)
        else:
            one = ops.reshape(ops.one_hot(taken, self.num_actions), (-1, self.num_actions, 1))
            logp = ops.log_softmax(ops.sum(logits * one, 1))
            errors = td_error = -ops.sum(goal * logp, 1)
            low, high = float(self.support[0]), float(self.support[-1])
            slack = 1e-3 * (high - low)
            stats["clipped_share"] = mean(ops.to_float(target > high + slack) + ops.to_float(target < low - slack))
        weights = batch["weights"] if "weights" in batch else None
        loss = mean(errors if weights is None else weights * errors)
        values, td_error = ops.stop_gradient(values), ops.stop_gradient(td_error)
        stats.update(mean_q=mean(values), min_q=ops.min(values), max_q=ops.max(values), mean_td_error=mean(td_error))
        return {"default": loss}, stats, {"td_error": td_error}

    def _following(self, ops: Any, nets: Mapping[str, Any], batch: Mapping[str, Array]) -> dict[str, Array]:
        """What the networks see of the next states; `next_mask` where observations hold one."""
        following = next_inputs(batch)
        if self._mask is not None:
            flags = ops.to_float(ops.reshape(following[self._mask], (-1, self.num_actions)))
            following["next_mask"] = flags > 0  # `!=` compares identities in a TF1 graph
        # What comes before the next step is this one.
        following.update({f"prev_{name}": batch[name] for name in ("actions", "rewards") if f"prev_{name}" in batch})
        if "seq_mask" in batch:
            following["seq_mask"] = batch["seq_mask"]
        return following

    def _state(self, ops: Any, network: Any, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The state after each sequence's first step, where its next observations begin."""
        if not network.state_outputs:
            return {}
        time = int(batch["seq_mask"].shape[1])
        first = {
            name: x if name.startswith("state_") else ops.reshape(x, (-1, time, *x.shape[1:]))[:, 0]
            for name, x in batch.items()
            if name != "seq_mask"
        }
        out = ops.no_gradient(lambda: network(first, network.state_outputs))
        return {f"state_{i}": out[name] for i, name in enumerate(network.state_outputs)}
