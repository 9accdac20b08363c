"""Fitted Q evaluation (arXiv:1911.06854, section 3): a policy's action values, learnt from logged steps.

The network is an objective over `ops` and learns in the framework of the policy that is judged; what it is fitted to,
`r + gamma * V(s')` with the policy's own mean of the last fit's values, is computed in between.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import tree

from polylib.errors import ConfigError, ConfigTypeError, DivergedError, FrameworkError, UnknownKeyError, did_you_mean
from polylib.models.default_networks import critic_network
from polylib.models.distributions.base import BoxUnits
from polylib.models.networks import NetworkSpec
from polylib.offline.estimators.logged import Logged, take
from polylib.offline.estimators.q_models import mean_over_actions
from polylib.offline.estimators.target import CHUNK, TargetPolicy
from polylib.policy import columns as c
from polylib.policy import numpy_ops
from polylib.policy.backends import make_policy
from polylib.policy.fragment import Fragment
from polylib.policy.inputs import Prepared
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.ops import Array
from polylib.policy.policy import Policy
from polylib.policy.sample_batch import SampleBatch

logger = logging.getLogger(__name__)

# Where the policy that is judged can't learn: the first of these that is installed.
_FRAMEWORKS = (("tf2", True), ("torch", False))
_NOT_SETTINGS = ("policy", "gamma", "target", "unknown")
# Gradient steps between new targets: least and most.
_STEPS = (20, 200)
# Sampled actions for a target: noise in targets averages out over passes, unlike noise in the estimate.
_TARGET_SAMPLES = 4


class QObjective(Objective):
    """Squared error of the logged actions' values: with discrete actions one output each.

    Other actions are part of what the network sees: the observation is a Tuple of the state and the action, and the
    one output is the value of both.
    """

    columns = (c.OBS, c.ACTIONS, c.VALUE_TARGETS)
    needs_values = False
    updates_often = True

    def networks(self) -> dict[str, Any]:
        """`q`."""
        spec = self.spec
        count = self.dist.inputs_size
        network: NetworkSpec = critic_network("q", spec.observation_space, self.config["model"], num_values=count)
        return {"q": network}

    def coefficients(self) -> dict[str, float]:
        """`lr` and `grad_clip`."""
        return {"lr": self.config["lr"], "grad_clip": self.config["grad_clip"]}

    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The action of the highest value; `action_dist_inputs` are the values."""
        values = self.dist_inputs(ops, nets, inputs)
        actions, _ = self.dist.sample(ops, values, values * 0.0)
        return {"actions": actions, "action_logp": values[:, 0] * 0.0, "action_dist_inputs": values}

    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """Values `[B, A]`."""
        return nets["q"](inputs, ("q1",))["q1"]

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """Half the mean squared error."""
        start = int(self.spec.action_space.start)  # type: ignore[attr-defined]
        values = nets["q"](batch, ("q1",), training)["q1"]
        error = ops.pick(values, self.taken(batch) - start) - batch["value_targets"]
        loss = 0.5 * ops.mean(ops.square(error))
        return {"default": loss}, {"loss": loss}, {}

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Nothing: the rows come from a log."""
        return fragment.batch


class FittedQEvaluation:
    """Values of a policy's actions, fitted to logged steps; see the module.

    Args:
        policy: the policy that is judged, with spaces; its framework is used.
        gamma: the discount.
        target: what the policy does; None: as it is.
        model: keys of the config's `model` (`fcnet_hiddens`, `fcnet_activation`, `conv_filters`, ...).
        model_config: the same, by RLlib's name.
        n_iters: how often targets are made anew.
        steps_per_iter: gradient steps in between; None: one pass, but at least 20 and at most 200.
        minibatch_size: rows of a step.
        lr: of Adam; it falls to a tenth over an evaluation's iterations.
        clip_grad_norm: the largest norm of the gradient; None: any.
        polyak_coef: how far targets move towards the new values at each iteration; 1: all the way.
        min_loss_threshold: stop when an iteration's loss is below; None: never.
        action_samples: actions drawn for a state's value, where they can't be counted.
        seed: of weights and of the order of rows.
        **unknown: raises.

    Raises:
        ConfigError: naming the setting that is wrong.
    """

    def __init__(
        self,
        policy: Any,
        gamma: float,
        *,
        target: TargetPolicy | None = None,
        model: Mapping[str, Any] | None = None,
        model_config: Mapping[str, Any] | None = None,
        n_iters: int = 300,
        steps_per_iter: int | None = None,
        minibatch_size: int = 256,
        lr: float = 1e-3,
        clip_grad_norm: float | None = 100.0,
        polyak_coef: float = 1.0,
        min_loss_threshold: float | None = None,
        action_samples: int = 16,
        seed: int = 0,
        **unknown: Any,
    ) -> None:
        for key in unknown:
            known = [name for name in inspect.signature(FittedQEvaluation).parameters if name not in _NOT_SETTINGS]
            raise UnknownKeyError(
                f"q_model_config has no key {key!r}.{did_you_mean(key, known)} It has {', '.join(known)}"
            )
        for name, given in (("model", model), ("model_config", model_config)):
            if given is not None and not isinstance(given, Mapping):
                raise ConfigTypeError(f"q_model_config: {name}={given!r}, expected a dict of keys of `model`")
        if not (isinstance(polyak_coef, int | float) and 0 < polyak_coef <= 1):
            raise ConfigError(f"q_model_config: polyak_coef={polyak_coef!r}, expected a number above 0, up to 1")
        counts = {"n_iters": n_iters, "steps_per_iter": steps_per_iter or 1, "minibatch_size": minibatch_size}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"q_model_config: {name}={value!r}, expected an int >= 1")
        for name, number in (("lr", lr), ("clip_grad_norm", clip_grad_norm)):
            if number is not None and not (isinstance(number, int | float) and number > 0):
                raise ConfigError(f"q_model_config: {name}={number!r}, expected a number > 0")
        self.target = target or TargetPolicy(policy)
        self.gamma, self.lr, self.samples = float(gamma), float(lr), action_samples
        self.n_iters, self.steps, self.minibatch = n_iters, steps_per_iter, minibatch_size
        self.polyak, self.least = float(polyak_coef), min_loss_threshold
        self.rng = np.random.default_rng(seed)
        self.shift, self.scale = 0.0, 1.0
        self._scaled = False
        self._units = BoxUnits(policy.action_space) if _is_box(policy.action_space) else None
        self.policy = self._build(policy, {**(model_config or {}), **(model or {})}, clip_grad_norm, seed)

    def _build(self, policy: Any, model: Mapping[str, Any], clip: float | None, seed: int) -> Policy:
        observations, actions = policy.observation_space, policy.action_space
        if not self.target.discrete:
            units = self._units
            seen = actions if units is None else gym.spaces.Box(-np.inf, np.inf, (units.size,), np.float32)
            observations, actions = gym.spaces.Tuple((observations, seen)), gym.spaces.Discrete(1)
        network = {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu", "vf_share_layers": True, **model}
        config = {
            "model": network,
            "lr": self.lr,
            "grad_clip": math.inf if clip is None else float(clip),
            "explore": False,
            "eager_max_retraces": 20,
        }
        spec = PolicySpec(observations, actions, QObjective, config, seed=seed)
        if isinstance(policy, Policy) and policy.framework in ("tf", "tf2", "torch"):
            return type(policy)(spec)  # the same mode, too: graph, eager or traced
        return _first_installed(spec)

    # --- fitting

    def fit(self, logged: Logged) -> dict[str, Any]:
        """Fits the network to logged steps, going on from the weights of the last time.

        Returns:
            `loss`: half the mean squared error of the last iteration, in units of the rewards.

        Raises:
            DivergedError: if values are no longer finite.
        """
        rows = logged.rows
        kept, following = logged.following()
        if not self._scaled:
            self._set_scale(logged)
        goes_on = ~logged.terminateds[kept]
        following = take(following, goes_on)
        rewards, obs = logged.rewards[kept], take(rows[c.OBS], kept)
        given = self._given(obs, take(rows[c.ACTIONS], kept))
        prepared = self.policy.inputs.prepare({**given, c.VALUE_TARGETS: np.zeros(len(kept), np.float32)})
        means = _Means(self, following)
        place = np.cumsum(goes_on) - 1  # of each row among those that something comes after
        after = np.full(means.rows, np.nan)
        loss = float("nan")
        for iteration in range(self.n_iters):
            self.policy.set_coefficients(lr=self.lr * 0.1 ** (iteration / self.n_iters))
            indices = self._draw(len(kept))
            used = np.arange(len(kept)) if indices.size >= len(kept) else indices.ravel()
            looking = place[used[goes_on[used]]]
            found = means(looking)
            before = np.where(np.isnan(after[looking]), found, after[looking])
            after[looking] = before + self.polyak * (found - before)
            targets = rewards.copy()
            targets[goes_on] += self.gamma * np.nan_to_num(after)  # those that aren't known aren't used
            loss = self._regress(prepared, targets, indices)
            if self.least is not None and loss < self.least:
                break
        return {"loss": loss}

    def _draw(self, size: int) -> np.ndarray:
        """The rows of each gradient step of an iteration `[U, M]`: passes through all, or part of one."""
        minibatch = min(self.minibatch, size)
        steps = self.steps or min(max(_STEPS[0], -(-size // minibatch)), _STEPS[1])
        passes = -(-steps * minibatch // size)
        order = np.concatenate([self.rng.permutation(size) for _ in range(passes)])
        return order[: steps * minibatch].reshape(steps, minibatch)

    def _regress(self, prepared: Prepared, targets: np.ndarray, indices: np.ndarray) -> float:
        """One iteration's gradient steps."""
        prepared.columns[c.VALUE_TARGETS] = ((targets - self.shift) / self.scale).astype(np.float32)
        stats = self.policy.learn_on_minibatches(prepared, indices)
        loss = float(stats["loss"][-max(1, len(indices) // 5) :].mean()) * self.scale**2
        if not math.isfinite(loss):
            raise DivergedError(
                "fitted Q evaluation: the values are no longer finite; try a smaller lr in q_model_config, or a gamma "
                "below 1"
            )
        return loss

    def _set_scale(self, logged: Logged) -> None:
        """What the network calls 0 and 1: the middle and the spread of the logged returns from each step on."""
        to_go = np.empty(logged.rows.count)
        total = 0.0
        firsts = set(logged.starts.tolist())
        rewards = logged.rewards.tolist()
        for row in range(len(rewards) - 1, -1, -1):
            total = rewards[row] + self.gamma * total
            to_go[row] = total
            if row in firsts:
                total = 0.0
        self.shift, spread = float(to_go.mean()), float(to_go.std())
        self.scale = spread if spread > 1e-6 else 1.0
        self._scaled = True

    # --- values

    def q_values(self, obs: Any, actions: Any) -> np.ndarray:
        """Values `[N] float64` of actions `[N, *action_shape]` at observations `[N, *obs_shape]`."""
        if self.target.discrete:
            first = int(self.policy.action_space.start)  # type: ignore[attr-defined]
            return self.all_q_values(obs)[np.arange(len(actions)), np.asarray(actions, np.int64) - first]
        return self.all_q_values(self._seen(obs, actions))[:, 0]

    def v_values(self, obs: Any) -> np.ndarray:
        """Values `[N] float64` of observations: the policy's mean of `q_values`."""
        if self.target.discrete:
            return (self.target.probabilities(obs) * self.all_q_values(obs)).sum(1)
        return mean_over_actions(self.target, obs, self.q_values, self.samples)

    def all_q_values(self, obs: Any) -> np.ndarray:
        """The network's outputs `[N, A] float64`, in units of the rewards."""
        rows = len(tree.flatten(obs)[0])
        found = [np.zeros((0, self.policy.objective.dist.inputs_size))]
        for start in range(0, rows, CHUNK):
            part = take(obs, np.arange(start, min(start + CHUNK, rows)))
            inputs = self.policy.inputs.acting(part, None, None, None, None, choosing=False)
            found.append(self.policy.act(inputs, False).extras["action_dist_inputs"])
        return np.concatenate(found).astype(np.float64) * self.scale + self.shift

    def _given(self, obs: Any, actions: Any) -> dict[str, Any]:
        """The columns that the network learns from."""
        if self.target.discrete:
            return {c.OBS: obs, c.ACTIONS: actions}
        return {c.OBS: self._seen(obs, actions), c.ACTIONS: np.zeros(len(tree.flatten(obs)[0]), np.int64)}

    def _seen(self, obs: Any, actions: Any) -> tuple[Any, Any]:
        """What the network sees where actions can't be counted; of Box actions bounded dimensions are in [-1, 1]."""
        if self._units is not None:
            actions = self._units.to_raw(numpy_ops, np.asarray(actions, np.float32)).astype(np.float32)
        return obs, actions


class _Means:
    """The policy's mean values of the next observations, again and again as the network changes.

    Args:
        model: whose values.
        obs: `[K, *obs_shape]`.
    """

    def __init__(self, model: FittedQEvaluation, obs: Any) -> None:
        self._model, self._obs = model, obs
        self.rows = len(tree.flatten(obs)[0])
        # The policy stands still while its values are fitted.
        discrete = model.target.discrete and self.rows
        self._probabilities = model.target.probabilities(obs) if discrete else None

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """`[N] float64` of some of the observations."""
        model, obs = self._model, take(self._obs, rows)
        if not len(rows):
            return np.zeros(0)
        if self._probabilities is not None:
            return (self._probabilities[rows] * model.all_q_values(obs)).sum(1)
        samples = min(model.samples, _TARGET_SAMPLES)
        return mean_over_actions(model.target, obs, model.q_values, samples)


def _is_box(space: Any) -> bool:
    return isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)


def _first_installed(spec: PolicySpec) -> Policy:
    for framework, traced in _FRAMEWORKS[:-1]:
        try:
            return make_policy(spec, framework, traced)
        except FrameworkError as error:
            logger.debug("fitted Q evaluation without %s: %s", framework, error)
    return make_policy(spec, *_FRAMEWORKS[-1])
