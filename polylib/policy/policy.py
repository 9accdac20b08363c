"""Policy: the contract that every backend keeps, checked by `polylib.policy.testing.PolicyContract`.

Public methods validate and prepare NumPy arrays; the backend's private methods (`_act`, `_learn`, ...) only compute.
What goes in and comes out is NumPy: tensors never leave a backend, but through `policy.model` and `policy.dist_class`,
which are there for people who look inside.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, ConfigError, WeightsError, did_you_mean
from polylib.models.custom import check_copy
from polylib.models.distributions import BoundDistribution
from polylib.models.filters import make_filter
from polylib.models.networks import SEQ_MASK, NetworkSpec
from polylib.models.numpy_network import NumpyNetwork
from polylib.models.spaces import flatten, is_nested, leaves, unflatten, unusable_rows
from polylib.policy import numpy_ops, sequences
from polylib.policy.inputs import Inputs, Layout, Prepared, count_rows
from polylib.policy.intrinsic import wrapped
from polylib.policy.objective import Objective, PolicySpec

Weights = dict[str, np.ndarray]
Stats = dict[str, float]


class ActionOutput(NamedTuple):
    """What acting returns; unpacks as RLlib's `(actions, state_outs, extra_fetches)`.

    Attributes:
        actions: `[B, *action_shape]` in the environment's units.
        state: recurrent state after the step, a list of `[B, *state_shape]`; empty for feed-forward policies.
        extras: `action_logp: [B]`, `action_dist_inputs: [B, dist_inputs]`, for Box `action_raw: [B, k]`.
    """

    actions: np.ndarray
    state: list[np.ndarray]
    extras: dict[str, np.ndarray]


def random_stream(seed: int | None, *key: int) -> np.random.Generator:
    """The independent random stream number `key` of a seed; of the operating system's entropy if it is None."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Policy(ABC):
    """Maps observations to actions and learns from batches.

    Args:
        spec: the spaces, the algorithm's objective class and its config.

    Attributes:
        observation_space: of one agent.
        action_space: of one agent.
        coefficients: what changes during training (`lr`, `kl_coeff`, ...), fed on every call; see `set_coefficients`.
        num_updates: gradient steps taken.
        global_timestep: environment steps sampled by all workers when schedules were last updated.
        filter: of observations; acting applies it, samplers apply and update it.
        inputs: what goes in as flat columns, cast and checked.
    """

    framework: str = ""
    nets: Mapping[str, Any]  # the backend's networks by name, see `polylib.models.networks.Network`
    #: Up to how many rows the backend acts through NumPy copies of its networks, which is where that is faster.
    mirror_rows: ClassVar[float] = 0

    def __reduce__(self) -> tuple[Any, ...]:
        # Copied member by member, what shares memory in a backend no longer would.
        return _made_again, (type(self), self.spec, self.get_state())

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.config = spec, spec.config
        self.observation_space: gym.Space[Any] = spec.observation_space
        self.action_space: gym.Space[Any] = spec.action_space
        self.objective = wrapped(spec.objective_class, spec.config)(spec)
        self.objective.bind(self)
        self.network_specs = self.objective.networks()
        self.groups = self.objective.groups()
        self.rng = random_stream(spec.seed, 1, spec.stream)
        self.num_updates = self.global_timestep = 0
        self.coefficients: dict[str, float] = dict(self.objective.coefficients())
        self.set_coefficients(**self.coefficients)
        self.set_coefficients(**self.objective.scheduled(0))
        self.filter = make_filter(self.config.get("observation_filter", "NoFilter"), spec.observation_space)
        previous = tuple(
            name
            for name in ("prev_actions", "prev_rewards")
            if any(column.split("/")[0] == name for net in self.network_specs.values() for column in net.inputs)
        )
        self.inputs = Inputs(spec, self.objective, previous)
        self._mirroring = (
            self.mirror_rows > 0
            and self.objective.numpy_acting
            # Convolutions are faster in a framework than in NumPy, whatever it costs to get there.
            and all(isinstance(x, NetworkSpec) and not x.convolutional for x in self.network_specs.values())
        )
        self._mirror: dict[str, NumpyNetwork] = {}  # empty: to be made
        keys = [key for spec in self._acting_specs().values() for key in spec.shapes()]
        self._mirror_keys: list[str] = keys if self._mirroring else []
        self._mirror_is_old = False  # its weights are to be read again
        # Where leaving them out saves nothing, one way to act is enough.
        self._always_extras = self.objective.dist.on_host or type(self.objective).choose is Objective.choose
        #: Whether exploring goes by perturbed weights, and `new_episode` is to be called.
        self.perturbs = self.objective.exploration is not None and self.objective.exploration.perturbs
        self._perturbed: dict[str, NumpyNetwork] = {}  # empty: to be made from the weights
        self._model: Any = None  # made when somebody looks inside
        self._build()
        acting = [self.nets[name] for name, network in self.network_specs.items() if network.copy_of is None]
        self.inputs.state_shapes = [shape for net in acting for shape in net.state]
        rng = random_stream(spec.seed, 0)
        first = {k: w for net in self.nets.values() for k, w in net.initial_weights(rng).items()}
        first.update({target: first[source] for target, source in self._target_keys().items() if source in first})
        self._set_weights(first)
        self.objective.built(self)

    # --- acting

    def compute_actions(
        self,
        obs: Any,
        state: Sequence[np.ndarray] | None = None,
        explore: bool | None = None,
        action_mask: np.ndarray | None = None,
        prev_actions: Any = None,
        prev_rewards: Any = None,
    ) -> ActionOutput:
        """Chooses an action per observation, as the environment gives them: the policy's filter is applied here.

        Args:
            obs: `[B, *obs_shape]`, nested as the observation space is.
            state: recurrent state, a list of `[B, *state_shape]`; None: zeros. Feed-forward policies take None or [].
            explore: sample (True) or take the most likely action (False); None: the config's `explore`.
            action_mask: `[B, dist_inputs] bool`, False for discrete actions not to take; one in a Dict observation
                counts too.
            prev_actions: `[B, *action_shape]`, the actions of the steps before, for networks that see them; None:
                zeros, as at an episode's start.
            prev_rewards: `[B]`, the rewards of the steps before, likewise.

        Raises:
            BatchError: if a shape doesn't fit the spaces, or a row of `action_mask` allows no action.
        """
        return self.act(self._acting_inputs(obs, state, action_mask, prev_actions, prev_rewards), explore)

    def _acting_inputs(self, obs: Any, *others: Any) -> dict[str, np.ndarray]:
        """What people pass, checked and filtered."""
        inputs = self.inputs.acting(obs, *others)
        if not self.filter.identity:
            columns = self.inputs.layouts["obs"]
            inputs.update(self.filter({name: inputs[name] for name in columns}, update=False))
        return inputs

    def act(
        self, inputs: dict[str, np.ndarray], explore: bool | None = None, extras: bool = True
    ) -> ActionOutput:
        """Chooses actions for inputs that are known to fit: what samplers call, step by step.

        Args:
            inputs: flat columns `[B, ...]` as networks see them: `obs` (or its parts, `obs/...`), filtered; `state_i`,
                `prev_actions`, `prev_rewards` and `action_mask` where the policy takes them.
            explore: as in `compute_actions`.
            extras: False: nobody takes them, so that there may be none.
        """
        size = len(next(iter(inputs.values())))
        if explore is None:
            explore = self.config.get("explore", True)
        noise = self.objective.act_noise(self.rng, size, explore)
        shapes = self.inputs.state_shapes
        extras = extras or self._always_extras
        out: dict[str, np.ndarray] | None = None
        if explore and self.perturbs:
            out = self._act_perturbed(inputs, noise)
        elif not extras and not shapes:
            out = self.objective.choose_blindly(inputs, noise, self.coefficients)
        if out is None and self._mirroring and size <= self.mirror_rows:
            out = self._act_in_numpy(inputs, noise, extras)
        elif out is None:
            out = self._act(inputs, noise, extras)
        if explore and self.objective.dist.on_host:
            self._draw_on_host(out)
        state = [out.pop(f"state_out_{i}") for i in range(len(shapes))] if shapes else []
        if self.inputs.nested_actions:
            actions = unflatten(self.action_space, self._pop_actions(out), "actions")
        else:
            actions = self._own(out.pop("actions"), self.action_space.dtype, out)  # type: ignore[arg-type]
        return ActionOutput(actions, state, out)

    @staticmethod
    def _own(actions: np.ndarray, dtype: np.dtype[Any], out: Mapping[str, np.ndarray]) -> np.ndarray:
        """Actions in their dtype: an environment may write to its action; that must not change what is learnt from."""
        if actions.dtype != dtype:
            return actions.astype(dtype)
        return actions.copy() if "action_raw" in out and np.may_share_memory(actions, out["action_raw"]) else actions

    def _pop_actions(self, out: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        spaces = leaves(self.action_space, "actions")
        return {
            name: self._own(out.pop(name), space.dtype, out)  # type: ignore[arg-type]
            for name, space in spaces.items()
        }

    def _draw_on_host(self, out: dict[str, np.ndarray]) -> None:
        """Replaces deterministic actions by drawn ones, for distributions that no noise from outside can sample."""
        actions, raw, logp = self.objective.dist.draw(self.rng, out["action_dist_inputs"])
        out.update(actions if isinstance(actions, Mapping) else {"actions": actions})
        out["action_logp"] = logp
        if raw is not None:
            out["action_raw"] = raw

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[np.ndarray] | None = None,
        explore: bool | None = None,
        full_fetch: bool = False,
        action_mask: np.ndarray | None = None,
        prev_action: Any = None,
        prev_reward: float | None = None,
    ) -> Any:
        """Chooses the action of one observation.

        Args:
            obs: `[*obs_shape]`.
            state: recurrent state, a list of `[*state_shape]`; None: zeros.
            explore: as in `compute_actions`.
            full_fetch: return `(action, state, extras)` also for a feed-forward policy.
            action_mask: `[dist_inputs] bool`.
            prev_action: `[*action_shape]`, the action of the step before, for networks that see it; None: zeros.
            prev_reward: the reward of the step before, likewise.

        Returns:
            The action; `(action, state, extras)` if `state` or `full_fetch` is given or the policy is recurrent.

        Raises:
            BatchError: if a shape doesn't fit the spaces.
        """
        batch = self._one_row(self.observation_space, obs, "obs") if self.inputs.nested_obs else np.asarray(obs)[None]
        self.check_observations(batch)
        inputs = self._acting_inputs(
            batch,
            None if state is None else [np.asarray(s)[None] for s in state],
            None if action_mask is None else np.asarray(action_mask)[None],
            None if prev_action is None else self._one_row(self.action_space, prev_action, "prev_actions"),
            None if prev_reward is None else np.array([prev_reward], np.float32),
        )
        bare = state is None and not full_fetch and not self.inputs.state_shapes
        out = self.act(inputs, explore, extras=not bare)
        if self.inputs.nested_actions:
            flat = flatten(self.action_space, out.actions, "actions")
            action = unflatten(self.action_space, {name: x[0] for name, x in flat.items()}, "actions")
        else:
            action = out.actions[0]
        if bare:
            return action
        return ActionOutput(action, [s[0] for s in out.state], {k: v[0] for k, v in out.extras.items()})

    @staticmethod
    def _one_row(space: gym.Space[Any], value: Any, name: str) -> Any:
        if not is_nested(space):
            return np.asarray(value)[None]
        flat = flatten(space, value, name)
        return unflatten(space, {key: np.asarray(x)[None] for key, x in flat.items()}, name)

    def check_observations(self, obs: Any) -> None:
        """Checks values that people pass, `[B, *obs_shape]`; samplers check theirs a fragment at a time.

        Raises:
            BatchError: naming the row that holds NaN, an infinity, or a class that a discrete space hasn't.
        """
        for name, value in (flatten(self.observation_space, obs) if self.inputs.nested_obs else {"obs": obs}).items():
            array, space = np.asarray(value), self.inputs.spaces[name]
            if array.ndim != 1 + len(space.shape or ()):
                continue  # acting names it
            if array.dtype.kind == "f" and np.isfinite(array).all():
                continue
            wrong = unusable_rows(array[None], space)[0]
            if wrong.any():
                row, part = int(np.argmax(wrong)), "" if name == "obs" else f" of {name!r}"
                raise BatchError(f"observation {array[row]}{part} (row {row}): not finite, or not in the space {space}")

    def compute_log_likelihoods(
        self,
        actions: Any,
        obs: Any,
        state: Sequence[np.ndarray] | None = None,
        action_mask: np.ndarray | None = None,
        prev_actions: Any = None,
        prev_rewards: Any = None,
    ) -> np.ndarray:
        """Log-probability `[B]` of actions `[B, *action_shape]` (the environment's units) under the current policy.

        Args:
            actions: what was done.
            obs: `[B, *obs_shape]` as batches hold it: filtered, if the policy has a filter.
            state: recurrent state.
            action_mask: `[B, dist_inputs] bool`.
            prev_actions: as in `compute_actions`.
            prev_rewards: as in `compute_actions`.

        Raises:
            BatchError: if a shape doesn't fit the spaces, or an action is outside a discrete space.
        """
        inputs = self.inputs.acting(obs, state, action_mask, prev_actions, prev_rewards)
        cast = self.inputs.cast_all("actions", actions, self.inputs.layouts["actions"])
        count_rows({**inputs, **cast})
        self.objective.dist.check_actions(self.objective.taken(cast))
        return self._log_likelihoods(inputs, cast)

    def compute_values(
        self, obs: Any, state: Sequence[np.ndarray] | None = None, prev_actions: Any = None, prev_rewards: Any = None
    ) -> np.ndarray:
        """Values `[B] float32` of observations `[B, *obs_shape]` as batches hold them (filtered).

        Raises:
            BatchError: if a shape doesn't fit the spaces, or the algorithm has no value function.
        """
        # Without the mask: where an episode has ended it may allow nothing.
        values = self._values(self.inputs.acting(obs, state, None, prev_actions, prev_rewards, choosing=False))
        if values is None:
            raise BatchError(f"{type(self.objective).__name__} has no value function")
        return values

    # --- learning

    def learn_on_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """One gradient step on a batch: the same as `apply_gradients(compute_gradients(batch)[0])`.

        Args:
            batch: the objective's columns, `[B, ...]`.

        Returns:
            `learner_stats`: scalars by name; `rows`: arrays `[B]` by name (such as TD errors), if there are any.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        prepared = self.inputs.prepare(batch)
        self._before_update()
        self._weights_changed()  # a backend may say what they are then
        stats, rows = self._learn(prepared.columns, self._learning_noise(prepared, (prepared.size,)))
        self.num_updates += 1
        return self._info(stats, rows, prepared)

    def learn_on_minibatches(
        self, batch: Mapping[str, Any] | Prepared, indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        """A gradient step per row of `indices`, in one call where the backend can.

        Args:
            batch: the objective's columns, `[B, ...]`, or what `prepare` made of them.
            indices: `[U, M] int32`: the rows of `batch` (of a recurrent policy: the sequences) that each of U updates
                uses.

        Returns:
            Stats of every update, `[U] float32` by name.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        prepared = self.inputs.prepare(batch)
        size = prepared.size
        indices = np.asarray(indices)
        if indices.ndim != 2 or not indices.size or indices.dtype.kind not in "iu":
            raise BatchError(f"indices must be [U, M] integers, got {indices.dtype}{list(indices.shape)}")
        if indices.min() < 0 or indices.max() >= size:
            raise BatchError(f"indices from {indices.min()} to {indices.max()}: the batch has rows 0 to {size - 1}")
        indices = np.ascontiguousarray(indices, np.int32)
        noise = self._learning_noise(prepared, indices.shape)
        self._before_update()
        stats = self._learn_minibatches(prepared.columns, noise, indices)
        self._weights_changed()
        self.num_updates += len(indices)
        return stats

    def compute_gradients(self, batch: Mapping[str, Any]) -> tuple[Weights, dict[str, Any]]:
        """Clipped gradients by weight key, in the canonical layout, and what `learn_on_batch` returns.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        prepared = self.inputs.prepare(batch)
        noise = self._learning_noise(prepared, (prepared.size,))
        grads, stats, rows = self._gradients(prepared.columns, noise)
        return grads, self._info(stats, rows, prepared)

    def apply_gradients(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Takes a step along gradients that `compute_gradients` returned, here or on another worker.

        Raises:
            WeightsError: naming the variable that is missing or has another shape.
        """
        self._apply(self._check_weights(gradients, "gradients", self._trainable_keys()))
        self._weights_changed()
        self.num_updates += 1

    def set_coefficients(self, **values: float) -> None:
        """Changes coefficients; the next call uses them, without retracing anything.

        Raises:
            ConfigError: naming one that the objective doesn't have.
        """
        self.coefficients.update(self._check_coefficients(values))
        self._c = np.fromiter(self.coefficients.values(), np.float32, len(self.coefficients))
        self._scheduled: Mapping[str, float] | None = None  # what the schedules said, if nothing was set since

    def _check_coefficients(self, values: Mapping[str, float]) -> dict[str, float]:
        for name in values:
            if name not in self.coefficients:
                raise ConfigError(
                    f"this policy has no coefficient {name!r}.{did_you_mean(name, self.coefficients)} "
                    f"It has {', '.join(self.coefficients)}"
                )
        return {name: float(np.float32(value)) for name, value in values.items()}

    def set_timestep(self, timestep: int) -> None:
        """Moves schedules to `timestep` environment steps sampled by all workers."""
        self.global_timestep = int(timestep)
        values = self.objective.scheduled(self.global_timestep)
        if values != self._scheduled:  # most schedules stand still most of the time
            self.set_coefficients(**values)
            self._scheduled = values

    def update_target(self, tau: float = 1.0) -> None:
        """Moves target networks towards those they follow: `target = (1 - tau) * target + tau * source`."""
        self._move_targets(float(tau))
        self._weights_changed()

    def _target_keys(self) -> dict[str, str]:
        """The variables of target networks, and those they follow."""
        found: dict[str, str] = {}
        for name, spec in self.network_specs.items():
            if spec.copy_of is not None:
                source, target = self.nets[spec.copy_of], self.nets[name]
                if not isinstance(spec, NetworkSpec):
                    check_copy(source, target)
                found.update(zip(target.shapes(), source.shapes(), strict=True))
        return found

    def adapt_coefficients(self, stats: Mapping[str, float]) -> None:
        """Moves adaptive coefficients (PPO's KL weight) after a training batch with these stats."""
        self.set_coefficients(**self.objective.adapted(self.coefficients, stats))

    # --- weights and state

    def get_weights(self) -> Weights:
        """All variables by canonical key, as copies (float32)."""
        return self._get_weights()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Sets all variables.

        Args:
            weights: arrays by canonical key, from a policy of any framework.

        Raises:
            WeightsError: naming the variable that is missing, unknown or has another shape; nothing is set then.
        """
        self._set_weights(self._check_weights(weights, "weights", self._shapes()))
        self._weights_changed()

    def get_state(self) -> dict[str, Any]:
        """What training changes: weights, optimizer, coefficients, counters, random state. NumPy and JSON."""
        return {
            "weights": self._get_weights(),
            "optimizer": self._get_optimizer(),
            "coefficients": dict(self.coefficients),
            "num_updates": self.num_updates,
            "global_timestep": self.global_timestep,
            "rng": self.rng.bit_generator.state,
            "filter": self.filter.get_state(),
            **({"exploration": explored} if (explored := self.exploration_state()) else {}),
        }

    def exploration_state(self) -> dict[str, Any]:
        """What the exploration remembers from step to step; {} if nothing."""
        exploration = self.objective.exploration
        return {} if exploration is None else exploration.get_state()

    def set_exploration_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from `exploration_state()`."""
        if self.objective.exploration is not None:
            self.objective.exploration.set_state(state)
            self._perturbed = {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state()` of a policy of any framework.

        Raises:
            WeightsError: if the weights or the optimizer don't fit; nothing is set then.
            ConfigError: if there is no such coefficient; nothing is set then.
        """
        weights = self._check_weights(state["weights"], "weights", self._shapes())
        optimizer = self._check_weights(
            state["optimizer"], "optimizer", self._optimizer_shapes(state["optimizer"])
        )
        coefficients = self._check_coefficients(state["coefficients"])
        counters = int(state["num_updates"]), int(state["global_timestep"])
        random_stream(0).bit_generator.state = state["rng"]  # raises here if it is none
        if "filter" in state:
            self.filter.set_state(state["filter"])  # raises here if it doesn't fit
        self._set_weights(weights)
        self._weights_changed()
        self._set_optimizer(optimizer)
        self.set_coefficients(**coefficients)
        self.num_updates, self.global_timestep = counters
        self.rng.bit_generator.state = state["rng"]
        self.set_exploration_state(state.get("exploration", {}))

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Any,
        policy_ids: Sequence[str] | None = None,
        framework: str | None = None,
        eager_tracing: bool | None = None,
        custom_model: Any = None,
    ) -> Any:
        """The policy of a checkpoint, to act and to go on learning; no Ray and no environment.

        Args:
            checkpoint: the folder of a policy's or an algorithm's checkpoint, or what `Algorithm.save()` returned.
            policy_ids: which policies of an algorithm's; None: all.
            framework: `"tf"`, `"tf2"`, `"torch"`, or `"numpy"` (acts only); None: this class' own, and on `Policy`
                itself the one that saved it.
            eager_tracing: for `"tf2"`; None: as the checkpoint's config says.
            custom_model: the user's network that it was trained with, where it isn't registered.

        Returns:
            The policy of a policy's checkpoint; for an algorithm's a dict of policies by id.

        Raises:
            CheckpointError: if the checkpoint is missing, damaged or foreign, or has no such policy.
            FrameworkError: if the framework isn't installed.
        """
        from polylib.policy.checkpoint import policies_from_checkpoint  # it imports this module

        if isinstance(policy_ids, str):
            policy_ids = [policy_ids]
        chosen = framework or cls.framework or None
        return policies_from_checkpoint(checkpoint, policy_ids, chosen, eager_tracing, custom_model)

    def export_model(
        self, export_dir: str | os.PathLike[str], format: str | None = None, opset: int | None = None
    ) -> Path:
        """Writes the model into a file that other programs load without polylib.

        It takes observations as the environment gives them (the observation filter is part of it) and returns `logits`,
        `value`, `actions` (the most likely) and new states. `FILE.json` beside it lists its inputs and outputs. The
        file is loaded once more and compared with the policy before it counts.

        Args:
            export_dir: the folder to write to; made if it isn't there. A file of the same name is replaced.
            format: `"keras"` (`model.keras`), `"saved_model"` (`saved_model/`), `"torchscript"` (`model.pt`),
                `"torch_export"` (`model.pt2`) or `"onnx"` (`model.onnx`); None: `"saved_model"` of TensorFlow policies,
                `"torch_export"` of torch ones. Default networks are converted to the framework that writes the format.
            opset: of `"onnx"`; None: 18.

        Returns:
            What was written: a file, or the folder of a SavedModel.

        Raises:
            ConfigError: if there is no such format.
            ExportError: if the model can't be written in this format, or what was written isn't the policy.
            FrameworkError: if a package that it needs isn't installed.
        """
        from polylib.policy.export import export_policy  # it imports this module

        return export_policy(self, export_dir, format, opset)

    def export_layout(self) -> Layout:
        """What an exported model takes, by column: observations, previous actions and rewards, states."""
        layout: Layout = {}
        for name in ("obs", *self.inputs.previous):
            layout.update(self.inputs.layouts[name])
        states = enumerate(self.inputs.state_shapes)
        return layout | {f"state_{i}": (shape, np.dtype(np.float32)) for i, shape in states}

    def get_initial_state(self) -> list[np.ndarray]:
        """Zeros for each recurrent state; [] for feed-forward policies."""
        return [np.zeros(shape, np.float32) for shape in self.inputs.state_shapes]

    def is_recurrent(self) -> bool:
        """Whether acting takes and returns state."""
        return bool(self.inputs.state_shapes)

    @property
    def model(self) -> Any:
        """The main network, to look inside: `policy.model({"obs": obs}) -> (logits, state_out)`.

        Of a default network, or heads on a user's model, a `polylib.policy.model_view.ModelView`; of a user's model
        alone that model. It takes and returns the backend's tensors; in `tf` mode a view evaluates in the policy's
        session and returns NumPy.

        Who has the model can change its weights, so from now on the policy acts through it and not through a copy.
        """
        self._mirroring = False
        if self._model is None:
            self._model = self._get_model()
        return self._model

    @property
    def dist_class(self) -> Any:
        """`dist_class(inputs)` is the action distribution for `inputs: [B, dist_inputs]` as `model` returns them."""
        return partial(BoundDistribution, self.objective.dist, self._ops(), self.rng)

    def close(self) -> None:  # noqa: B027  (most backends hold nothing)
        """Frees what the backend holds (a session); the policy can't be used afterwards."""

    # --- learning, inside

    def _learning_noise(self, prepared: Prepared, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Randomness for the losses, `[*shape, ...]`; `[*shape, T, ...]` for sequences."""
        full = shape if prepared.mask is None else (*shape, prepared.steps)
        flat = self.objective.noise(self.rng, math.prod(full))
        return {name: x.reshape(*full, *x.shape[1:]) for name, x in flat.items()}

    def _losses(self, ops: Any, nets: Mapping[str, Any], batch: Any, noise: Any, c: Any) -> Any:
        """The objective's losses, on rows: what backends differentiate."""
        if SEQ_MASK in batch:
            noise = {name: ops.reshape(x, (-1, *x.shape[2:])) for name, x in noise.items()}
            batch = sequences.as_rows(ops, batch)
        losses, stats, rows = self.objective.losses(ops, nets, batch, noise, c, training=True)
        for group, item in self.groups.items():
            for penalty in (x for name in item.networks for x in nets[name].penalties()):
                losses = {**losses, group: losses[group] + penalty}
        return losses, stats, rows

    def _info(self, stats: Stats, rows: dict[str, np.ndarray], prepared: Prepared) -> dict[str, Any]:
        if prepared.mask is not None:
            rows = {name: x[prepared.mask.ravel()] for name, x in rows.items()}
        return {"learner_stats": stats, **({"rows": rows} if rows else {})}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key, in the canonical layout."""
        return {key: shape for net in self.nets.values() for key, shape in net.shapes().items()}

    def _trainable_keys(self) -> dict[str, tuple[int, ...]]:
        trained = [self.nets[name] for group in self.groups.values() for name in group.networks]
        keys = {key for net in trained for key in net.trainable_keys()}
        return {key: shape for key, shape in self._shapes().items() if key in keys}

    def _check_weights(
        self, weights: Mapping[str, np.ndarray], what: str, shapes: dict[str, tuple[int, ...]]
    ) -> Weights:
        unknown = sorted(set(weights) - set(shapes))
        if unknown:
            raise WeightsError(f"{what}: this policy has no variable {unknown[0]!r}; it has {', '.join(shapes)}")
        checked = {}
        for key, shape in shapes.items():
            if key not in weights:
                raise WeightsError(f"{what}: variable {key!r} is missing")
            value = np.asarray(weights[key])
            if value.shape != shape:
                expected = list(shape)
                raise WeightsError(f"{what}: variable {key!r} has shape {list(value.shape)}, this policy's {expected}")
            if value.dtype.kind not in "fiu":
                raise WeightsError(f"{what}: variable {key!r} has dtype {value.dtype}, expected float32")
            checked[key] = value.astype(np.float32, copy=False)
        return checked

    # --- what a backend implements

    @abstractmethod
    def _build(self) -> None:
        """Makes networks and optimizers; weights are set right after."""

    def _act_in_numpy(self, inputs: dict[str, np.ndarray], noise: np.ndarray, extras: bool) -> dict[str, np.ndarray]:
        if not self._mirror:
            self._mirror = self._numpy_networks()
        elif self._mirror_is_old:
            weights = self._acting_weights(self._mirror_keys)
            for net in self._mirror.values():
                net.weights.update(weights)
        self._mirror_is_old = False
        act = self.objective.act if extras else self.objective.choose
        return act(numpy_ops, self._mirror, inputs, noise, self.coefficients)

    def _acting_specs(self) -> dict[str, NetworkSpec]:
        return {
            name: spec
            for name, spec in self.network_specs.items()
            if isinstance(spec, NetworkSpec) and (not self.objective.acting or name in self.objective.acting)
        }

    def _numpy_networks(self, change: Callable[[Weights], Weights] | None = None) -> dict[str, NumpyNetwork]:
        """The networks that act, on NumPy."""
        specs = self._acting_specs()
        weights = self._acting_weights([key for spec in specs.values() for key in spec.shapes()])
        weights = weights if change is None else change(weights)
        return {name: NumpyNetwork(spec, weights) for name, spec in specs.items()}

    def _act_perturbed(self, inputs: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, np.ndarray]:
        exploration: Any = self.objective.exploration
        if not self._perturbed:
            self._perturbed = self._numpy_networks(lambda weights: exploration.perturbed(weights, self.rng))
        exploration.saw(inputs)
        return self.objective.act(numpy_ops, self._perturbed, inputs, noise, self.coefficients)

    def new_episode(self) -> None:
        """Other noise on the weights, where exploring goes by perturbed ones: samplers call it when episodes end."""
        exploration: Any = self.objective.exploration
        if not self.perturbs or not exploration.recent:
            return
        if not self._perturbed:
            self._perturbed = self._numpy_networks(lambda weights: exploration.perturbed(weights, self.rng))
        seen = exploration.recent | self.inputs.quiet(count_rows(exploration.recent))
        clean, noisy = (
            self.objective.dist_inputs(numpy_ops, nets, seen)
            for nets in (self._numpy_networks(), self._perturbed)
        )
        exploration.adapt(clean, noisy, self.coefficients)
        exploration.draw(self.rng)
        self._perturbed = {}

    def weights_of(self, keys: list[str]) -> Weights:
        """Some variables, to be read right away: they may be views."""
        return self._acting_weights(keys)

    def _acting_weights(self, keys: list[str]) -> Weights:
        """The variables that acting in NumPy needs; they may be views that change with the policy's own."""
        weights = self._get_weights()
        return {key: weights[key] for key in keys}

    def _weights_changed(self) -> None:
        """Copies of the weights are old now."""
        self._mirror_is_old, self._perturbed = True, {}

    def _before_update(self) -> None:  # noqa: B027
        """Called before weights are updated: views of them may be given up here."""

    @abstractmethod
    def _get_model(self) -> Any:
        """The main network."""

    @abstractmethod
    def model_view(self, network: Any, training: bool = False, defaults: Mapping[str, Any] | None = None) -> Any:
        """A `ModelView` of the main network in the backend's own tensors, for a user's loss.

        Args:
            network: one of `nets`.
            training: passed to it.
            defaults: flat columns for calls that lack them.
        """

    @abstractmethod
    def _ops(self) -> Any:
        """The `Ops` that work on what `model` returns."""

    @abstractmethod
    def _act(self, inputs: dict[str, np.ndarray], noise: np.ndarray, extras: bool) -> dict[str, np.ndarray]:
        """What `Objective.act` returns, or without extras `choose`."""

    @abstractmethod
    def _values(self, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        """What `Objective.values` returns."""

    @abstractmethod
    def _log_likelihoods(self, inputs: dict[str, np.ndarray], actions: dict[str, np.ndarray]) -> np.ndarray:
        """Log-probabilities of actions, flat columns."""

    @abstractmethod
    def _learn(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]
    ) -> tuple[Stats, dict[str, np.ndarray]]:
        """One gradient step: stats and per-row arrays."""

    @abstractmethod
    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        """A gradient step per row of indices: stats of each."""

    @abstractmethod
    def _gradients(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]
    ) -> tuple[Weights, Stats, dict[str, np.ndarray]]:
        """Clipped gradients, stats and per-row arrays."""

    @abstractmethod
    def _apply(self, gradients: Weights) -> None:
        """One optimizer step."""

    @abstractmethod
    def _move_targets(self, tau: float) -> None:
        """Moves the variables of `_target_keys` towards those they follow."""

    @abstractmethod
    def _get_weights(self) -> Weights:
        """All variables."""

    @abstractmethod
    def _set_weights(self, weights: Weights) -> None:
        """Sets all variables."""

    @abstractmethod
    def _get_optimizer(self) -> Weights:
        """`<group>/step`, and `<key>/m`, `<key>/v` of Adam in the canonical layout."""

    def _optimizer_shapes(self, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """The shapes that the optimizer's state has to have; `given` is the one to be set."""
        return {key: np.shape(value) for key, value in self._get_optimizer().items()}

    @abstractmethod
    def _set_optimizer(self, state: Mapping[str, np.ndarray]) -> None:
        """Sets what `_get_optimizer` returns; keys, shapes and dtypes were checked."""


def _made_again(cls: type[Policy], spec: PolicySpec, state: dict[str, Any]) -> Policy:
    """A copy of a policy, made as it was and in the same state."""
    policy = cls(spec)
    policy.set_state(state)
    return policy
