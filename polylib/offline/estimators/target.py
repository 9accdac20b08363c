"""The policy that is to be judged, as estimators see it: probabilities, densities and actions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tree

from polylib.errors import BatchError, ConfigError, ConfigTypeError
from polylib.models.distributions import Categorical, Deterministic, DiagGaussian, SquashedGaussian
from polylib.models.distributions.base import BoxUnits
from polylib.models.spaces import is_nested, unflatten
from polylib.offline.estimators.logged import Logged, take
from polylib.policy import columns as c
from polylib.policy import numpy_ops
from polylib.policy.exploration import SoftQ

#: Rows that a policy is given at a time: enough to be fast, few enough for pictures.
CHUNK = 4096
# Below this a log-probability is that of an action that a mask forbids.
_FORBIDDEN = -1e8


class TargetPolicy:
    """A policy's probabilities, with what changes them: acting greedily, or now and then at random.

    Args:
        policy: a `Policy` of any framework, or anything with `action_space` and
            `compute_log_likelihoods(actions, obs)`; Box actions of a q model also need `compute_actions`.
        epsilon_greedy: the probability of a uniform action; discrete actions only.
        greedy: whether it takes its most likely action for certain. None: if that is what its exploration departs
            from (DQN's epsilon-greedy), instead of sampling.
        filter_observations: whether the log holds the environment's own observations, so that the policy's observation
            filter is still to be applied.
        seed: of sampled actions.

    Raises:
        ConfigError: for an epsilon out of range, or one with actions that aren't discrete.
    """

    def __init__(
        self,
        policy: Any,
        epsilon_greedy: float = 0.0,
        greedy: bool | None = None,
        filter_observations: bool = False,
        seed: int = 0,
    ) -> None:
        self.policy = policy
        self.space: Any = getattr(policy, "action_space", None)
        self.observation_space: Any = getattr(policy, "observation_space", None)
        number = isinstance(epsilon_greedy, int | float | np.number) and not isinstance(epsilon_greedy, bool)
        if not number or not 0.0 <= epsilon_greedy <= 1.0:
            kind = ConfigError if number else ConfigTypeError
            raise kind(f"epsilon_greedy={epsilon_greedy!r}, expected a probability from 0 to 1")
        for name, flag in (("greedy", greedy), ("filter_observations", filter_observations)):
            if not isinstance(flag, bool | np.bool_) and (name != "greedy" or flag is not None):
                raise ConfigTypeError(f"{name}={flag!r}, expected True or False")
        self.discrete = isinstance(self.space, gym.spaces.Discrete)
        if epsilon_greedy and not self.discrete:
            raise ConfigError(
                f"epsilon_greedy={epsilon_greedy}: random actions are mixed in for Discrete action spaces only, not "
                f"for {self.space}"
            )
        self.epsilon = float(epsilon_greedy)
        self._objective: Any = getattr(policy, "objective", None)
        exploration = getattr(self._objective, "exploration", None)
        strategy = None if exploration is None else exploration.inner
        self.greedy = strategy is not None and not strategy.samples if greedy is None else bool(greedy)
        self._temperature = strategy.temperature if isinstance(strategy, SoftQ) else 1.0
        self.filters = filter_observations
        self.rng = np.random.default_rng(seed)

    @property
    def recurrent(self) -> bool:
        """Whether it has a memory."""
        return bool(getattr(getattr(self.policy, "inputs", None), "state_shapes", ()))

    @property
    def deterministic(self) -> bool:
        """Whether it always does the same."""
        greedy = self.greedy and not self.epsilon
        return greedy or isinstance(getattr(self._objective, "dist", None), Deterministic)

    # --- logged actions

    def log_probs(self, logged: Logged) -> np.ndarray:
        """Log-probability or log-density `[B] float64` of the logged actions.

        Raises:
            BatchError: if a column doesn't fit the policy's spaces, or the policy has no densities.
        """
        if not self.discrete and self.deterministic:
            raise BatchError(
                "the policy always takes the same action, so logged actions have no density under it: importance "
                "sampling needs a stochastic policy. The direct method ('dm') works"
            )
        rows = logged.rows
        if self.recurrent:
            return self._from_inputs(logged, self._stepwise(logged))
        actions, obs, mask = rows[c.ACTIONS], rows[c.OBS], rows.get(c.ACTION_MASK)
        if self.discrete and (self.greedy or self.epsilon or self._temperature != 1.0):
            return self._picked(self._log(self.probabilities(obs, mask)), actions)
        raw = self._raw(rows)
        if raw is not None:
            return self._from_inputs(logged, self._dist_inputs(obs, mask), raw)

        def chunk(part: np.ndarray) -> np.ndarray:
            given = {} if mask is None else {"action_mask": mask[part]}
            found = self.policy.compute_log_likelihoods(take(actions, part), self._filtered(take(obs, part)), **given)
            return np.asarray(found, np.float64).reshape(len(part))

        return np.where(self._clipped(rows), -np.inf, self._by_chunk(rows.count, chunk))

    def probabilities(self, obs: Any, action_mask: np.ndarray | None = None) -> np.ndarray:
        """Of each discrete action, `[N, A] float64`."""
        logp = self._by_chunk(
            len(tree.flatten(obs)[0]),
            lambda part: self._all_log_probs(take(obs, part), None if action_mask is None else action_mask[part]),
        )
        return self._mixed(logp)

    def _mixed(self, logp: np.ndarray) -> np.ndarray:
        """Probabilities from the policy's own log-probabilities `[N, A]`."""
        if self._temperature != 1.0:
            logp = logp / self._temperature
            logp = logp - np.logaddexp.reduce(logp, 1, keepdims=True)
        allowed = logp > _FORBIDDEN
        if self.greedy:
            probabilities = np.zeros_like(logp)
            probabilities[np.arange(len(logp)), logp.argmax(1)] = 1.0
        else:
            probabilities = np.exp(logp)
        if self.epsilon:
            uniform = allowed / allowed.sum(1, keepdims=True)
            probabilities = (1.0 - self.epsilon) * probabilities + self.epsilon * uniform
        return probabilities

    @staticmethod
    def _log(probabilities: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(probabilities)  # -inf: what the policy never does has the weight 0

    def _picked(self, logp: np.ndarray, actions: Any) -> np.ndarray:
        choices = np.asarray(actions)
        first, count = int(self.space.start), int(self.space.n)
        if choices.shape != (len(logp),):
            raise BatchError(
                f"column 'actions' has shape {list(choices.shape)}, expected [{len(logp)}] for {self.space}"
            )
        choices = choices.astype(np.int64) - first
        bad = (choices < 0) | (choices >= count)
        if bad.any():
            row = int(np.argmax(bad))
            raise BatchError(
                f"column 'actions': row {row} holds {choices[row] + first}, expected {first} to {first + count - 1}"
            )
        return logp[np.arange(len(logp)), choices]

    def _all_log_probs(self, obs: Any, action_mask: np.ndarray | None) -> np.ndarray:
        count, first = int(self.space.n), int(self.space.start)
        dist = getattr(self._objective, "dist", None)
        if isinstance(dist, Categorical):
            inputs = self._dist_inputs(obs, action_mask).astype(np.float64)
            return np.asarray(numpy_ops.log_softmax(np.maximum(inputs, -1e9)), np.float64)
        rows = len(tree.flatten(obs)[0])
        given = {} if action_mask is None else {"action_mask": action_mask}
        columns = [
            np.asarray(
                self.policy.compute_log_likelihoods(np.full(rows, first + a, np.int64), self._filtered(obs), **given),
                np.float64,
            ).reshape(rows)
            for a in range(count)
        ]
        return np.stack(columns, 1)

    # --- what the policy's network says

    def _filtered(self, obs: Any) -> Any:
        if not self.filters or self.policy.filter.identity:
            return obs
        inputs = self.policy.inputs
        flat = self.policy.filter(inputs.cast_all("obs", obs, inputs.layouts["obs"]), update=False)
        return unflatten(self.observation_space, flat, "obs") if inputs.nested_obs else flat["obs"]

    def _inputs(self, obs: Any, mask: Any = None, state: Any = None, actions: Any = None, rewards: Any = None) -> Any:
        return self.policy.inputs.acting(self._filtered(obs), state, mask, actions, rewards)

    def _dist_inputs(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """Inputs of the action distribution `[N, D]`."""

        def chunk(part: np.ndarray) -> np.ndarray:
            inputs = self._inputs(take(obs, part), None if mask is None else mask[part])
            return self.policy.act(inputs, False).extras["action_dist_inputs"]

        return self._by_chunk(len(tree.flatten(obs)[0]), chunk)

    def _stepwise(self, logged: Logged) -> np.ndarray:
        """Inputs of the action distribution `[B, D]` of a policy with a memory: all episodes side by side."""
        rows, order = logged.rows, np.argsort(-logged.lengths, kind="stable")
        starts, lengths = logged.starts[order], logged.lengths[order]
        mask = rows.get(c.ACTION_MASK)
        found: np.ndarray | None = None
        state: Any = None
        for step in range(int(lengths[0])):
            now = starts[: int((lengths > step).sum())] + step
            before: tuple[Any, ...] = ()
            if step:
                state = [x[: len(now)] for x in state]
                before = take(rows[c.ACTIONS], now - 1), rows[c.REWARDS][now - 1]
            masked = None if mask is None else mask[now]
            out = self.policy.act(self._inputs(take(rows[c.OBS], now), masked, state, *before), False)
            state, inputs = out.state, out.extras["action_dist_inputs"]
            found = np.zeros((rows.count, inputs.shape[1]), np.float32) if found is None else found
            found[now] = inputs
        return found if found is not None else np.zeros((0, 0), np.float32)

    def _from_inputs(self, logged: Logged, dist_inputs: np.ndarray, raw: np.ndarray | None = None) -> np.ndarray:
        """Log-probabilities of the logged actions from the inputs of the distribution."""
        policy, dist, rows = self.policy, self._objective.dist, logged.rows
        if isinstance(dist, Categorical):
            logp = np.asarray(numpy_ops.log_softmax(np.maximum(dist_inputs.astype(np.float64), -1e9)))
            return self._picked(self._log(self._mixed(logp)), rows[c.ACTIONS])
        cast = policy.inputs.cast_all(c.ACTIONS, rows[c.ACTIONS], policy.inputs.layouts[c.ACTIONS])
        actions = policy.objective.taken(cast)
        dist.check_actions(actions)
        given = None if raw is None else raw.astype(np.float64)
        return np.asarray(dist.logp(numpy_ops, dist_inputs.astype(np.float64), actions, given), np.float64)

    def _raw(self, rows: Any) -> np.ndarray | None:
        """What was drawn before clipping or squashing, if the log has it and it means the same to this policy.

        Behaviour and target have to be compared at the same point: `action_logp` is the density of what was drawn, and
        a clipped action is another.
        """
        dist = getattr(self._objective, "dist", None)
        if c.ACTION_RAW not in rows or not isinstance(dist, DiagGaussian | SquashedGaussian):
            return None
        raw = np.asarray(rows[c.ACTION_RAW], np.float64)
        units = np.tanh(raw) if isinstance(dist, SquashedGaussian) else raw
        return raw if self._leads_to_actions(rows, units) else None

    def _clipped(self, rows: Any) -> Any:
        """Where actions were clipped `[B] bool`: a distribution within the bounds never draws what was drawn there."""
        dist = getattr(self._objective, "dist", None)
        if c.ACTION_RAW not in rows or not isinstance(dist, BoxUnits) or isinstance(dist, DiagGaussian):
            return False
        units = np.asarray(rows[c.ACTION_RAW], np.float64)
        return (np.abs(units) > 1).any(1) if self._leads_to_actions(rows, units) else False

    def _leads_to_actions(self, rows: Any, units: np.ndarray) -> bool:
        """Whether `units` in [-1, 1], clipped, are the logged actions."""
        dist = self._objective.dist
        if units.shape != (rows.count, dist.size):
            return False
        actions = dist.to_actions(numpy_ops, units)
        logged = np.asarray(rows[c.ACTIONS], np.float64).reshape(actions.shape)
        size = np.maximum(1.0, np.abs(dist.scale).reshape(dist.shape))
        return bool((np.abs(actions - logged) <= 1e-4 * size).all())

    # --- what it would do

    def actions(self, obs: Any, count: int) -> Any:
        """Actions that it would take, `count` for each observation: `[N * count, *action_shape]`, row by row."""
        obs = tree.map_structure(lambda x: np.repeat(np.asarray(x), count, 0), obs)
        dist = getattr(self._objective, "dist", None)
        rows = len(tree.flatten(obs)[0])
        if dist is None:
            return self.policy.compute_actions(obs, explore=not self.greedy)[0]
        parts = []
        for start in range(0, rows, CHUNK):
            inputs = self._inputs(take(obs, np.arange(start, min(start + CHUNK, rows))))
            out = self.policy.act(inputs, False)
            if self.deterministic:
                parts.append(out.actions)
                continue
            drawn, _, _ = dist.draw(self.rng, out.extras["action_dist_inputs"])
            parts.append(unflatten(self.space, drawn, c.ACTIONS) if is_nested(self.space) else drawn)
        return tree.map_structure(lambda *xs: np.concatenate(xs), *parts)

    @staticmethod
    def _by_chunk(rows: int, f: Any) -> np.ndarray:
        return np.concatenate([f(np.arange(a, min(a + CHUNK, rows))) for a in range(0, max(rows, 1), CHUNK)])
