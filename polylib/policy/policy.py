"""Policy: the contract that every backend keeps, checked by `polylib.policy.testing.PolicyContract`.

Public methods validate and prepare NumPy arrays; the backend's private methods (`_act`, `_learn`, ...) only compute.
What goes in and comes out is NumPy: tensors never leave a backend, but through `policy.model` and `policy.dist_class`,
which are there for people who look inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np

from polylib.errors import BatchError, ConfigError, WeightsError, did_you_mean
from polylib.models.distributions import BoundDistribution
from polylib.models.numpy_network import NumpyNetwork
from polylib.policy import columns as col
from polylib.policy import numpy_ops
from polylib.policy.objective import PolicySpec

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
    """

    framework: str = ""
    #: Up to how many rows the backend acts through NumPy copies of its networks, which is where that is faster.
    mirror_rows: ClassVar[float] = 0

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.config = spec, spec.config
        self.observation_space: gym.Space[Any] = spec.observation_space
        self.action_space: gym.Space[Any] = spec.action_space
        self.objective = spec.objective_class(spec)
        self.network_specs = self.objective.networks()
        self.groups = self.objective.groups()
        self.rng = random_stream(spec.seed, 1, spec.stream)
        self.num_updates = self.global_timestep = 0
        self.coefficients: dict[str, float] = dict(self.objective.coefficients())
        self.set_coefficients(**self.coefficients)
        self.set_coefficients(**self.objective.scheduled(0))
        self._obs_shape, self._obs_dtype = self._column("obs")
        self._state_shapes = [shape for net in self.network_specs.values() for shape in net.state]
        self._columns = {name: self._column(name) for name in self.objective.columns + self.objective.optional_columns}
        self._mirroring = self.mirror_rows > 0
        self._mirror: dict[str, NumpyNetwork] = {}  # empty: to be made from the weights
        self._build()
        rng = random_stream(spec.seed, 0)
        self._set_weights({k: w for net in self.network_specs.values() for k, w in net.initial_weights(rng).items()})

    # --- acting

    def compute_actions(
        self,
        obs: Any,
        state: Sequence[np.ndarray] | None = None,
        explore: bool | None = None,
        action_mask: np.ndarray | None = None,
    ) -> ActionOutput:
        """Chooses an action per observation.

        Args:
            obs: `[B, *obs_shape]`.
            state: recurrent state, a list of `[B, *state_shape]`; None: zeros. Feed-forward policies take None or [].
            explore: sample (True) or take the most likely action (False); None: the config's `explore`.
            action_mask: `[B, dist_inputs] bool`, False for discrete actions not to take.

        Raises:
            BatchError: if a shape doesn't fit the spaces, or a row of `action_mask` allows no action.
        """
        inputs = self._inputs(obs, state, action_mask)
        size = len(inputs["obs"])
        if explore is None:
            explore = self.config.get("explore", True)
        dist = self.objective.dist
        noise = dist.noise(self.rng, size) if explore else dist.zero_noise(size)
        mirrored = self._mirroring and size <= self.mirror_rows
        out = self._act_in_numpy(inputs, noise) if mirrored else self._act(inputs, noise)
        actions = out.pop("actions")
        if actions.dtype != self._action_dtype:
            actions = actions.astype(self._action_dtype)
        elif "action_raw" in out and np.may_share_memory(actions, out["action_raw"]):
            actions = actions.copy()  # an environment may write to its action; that must not change what is learnt from
        return ActionOutput(actions, [out.pop(f"state_out_{i}") for i in range(len(self._state_shapes))], out)

    def compute_single_action(
        self,
        obs: Any,
        state: Sequence[np.ndarray] | None = None,
        explore: bool | None = None,
        full_fetch: bool = False,
        action_mask: np.ndarray | None = None,
    ) -> Any:
        """Chooses the action of one observation.

        Args:
            obs: `[*obs_shape]`.
            state: recurrent state, a list of `[*state_shape]`; None: zeros.
            explore: as in `compute_actions`.
            full_fetch: return `(action, state, extras)` also for a feed-forward policy.
            action_mask: `[dist_inputs] bool`.

        Returns:
            The action; `(action, state, extras)` if `state` or `full_fetch` is given or the policy is recurrent.

        Raises:
            BatchError: if a shape doesn't fit the spaces.
        """
        batch = np.asarray(obs)[None]
        self.check_observations(batch)
        out = self.compute_actions(
            batch,
            None if state is None else [np.asarray(s)[None] for s in state],
            explore,
            None if action_mask is None else np.asarray(action_mask)[None],
        )
        action = out.actions[0]
        if state is None and not full_fetch and not self._state_shapes:
            return action
        return ActionOutput(action, [s[0] for s in out.state], {k: v[0] for k, v in out.extras.items()})

    def check_observations(self, obs: Any) -> None:
        """Checks values that people pass, `[B, *obs_shape]`; samplers check theirs a fragment at a time.

        Raises:
            BatchError: naming the row that holds NaN, an infinity, or a class that a Discrete space hasn't.
        """
        array, space = np.asarray(obs), self.observation_space
        if isinstance(space, gym.spaces.Discrete):
            wrong = (array < space.start) | (array >= space.start + space.n)
        else:
            wrong = ~np.isfinite(array) if array.dtype.kind == "f" else np.zeros(array.shape, np.bool_)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            raise BatchError(f"observation {array[row]} (row {row}): not finite, or not in the space {space}")

    def compute_log_likelihoods(
        self, actions: Any, obs: Any, state: Sequence[np.ndarray] | None = None, action_mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Log-probability `[B]` of actions `[B, *action_shape]` (the environment's units) under the current policy.

        Args:
            actions: what was done.
            obs: `[B, *obs_shape]`.
            state: recurrent state.
            action_mask: `[B, dist_inputs] bool`.

        Raises:
            BatchError: if a shape doesn't fit the spaces, or an action is outside a discrete space.
        """
        inputs = self._inputs(obs, state, action_mask)
        cast = self._cast("actions", actions, *self._column("actions"))
        _count_rows({"obs": inputs["obs"], "actions": cast})
        self.objective.dist.check_actions(cast)
        return self._log_likelihoods(inputs, cast)

    def compute_values(self, obs: Any, state: Sequence[np.ndarray] | None = None) -> np.ndarray:
        """Values `[B] float32` of observations `[B, *obs_shape]`.

        Raises:
            BatchError: if a shape doesn't fit the spaces, or the algorithm has no value function.
        """
        values = self._values(self._inputs(obs, state, None))
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
        prepared, size = self._prepare(batch)
        stats, rows = self._learn(prepared, self.objective.noise(self.rng, size))
        self._mirror = {}
        self.num_updates += 1
        return self._info(stats, rows)

    def learn_on_minibatches(self, batch: Mapping[str, Any], indices: np.ndarray) -> dict[str, np.ndarray]:
        """A gradient step per row of `indices`, in one call where the backend can.

        Args:
            batch: the objective's columns, `[B, ...]`.
            indices: `[U, M] int32`: the rows of `batch` that each of U updates uses.

        Returns:
            Stats of every update, `[U] float32` by name.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        prepared, size = self._prepare(batch)
        indices = np.asarray(indices)
        if indices.ndim != 2 or not indices.size or indices.dtype.kind not in "iu":
            raise BatchError(f"indices must be [U, M] integers, got {indices.dtype}{list(indices.shape)}")
        if indices.min() < 0 or indices.max() >= size:
            raise BatchError(f"indices from {indices.min()} to {indices.max()}: the batch has rows 0 to {size - 1}")
        indices = np.ascontiguousarray(indices, np.int32)
        flat = self.objective.noise(self.rng, indices.size)
        noise = {name: x.reshape(*indices.shape, *x.shape[1:]) for name, x in flat.items()}
        stats = self._learn_minibatches(prepared, noise, indices)
        self._mirror = {}
        self.num_updates += len(indices)
        return stats

    def compute_gradients(self, batch: Mapping[str, Any]) -> tuple[Weights, dict[str, Any]]:
        """Clipped gradients by weight key, in the canonical layout, and what `learn_on_batch` returns.

        Raises:
            BatchError: naming the column that is missing or doesn't fit.
        """
        prepared, size = self._prepare(batch)
        grads, stats, rows = self._gradients(prepared, self.objective.noise(self.rng, size))
        return grads, self._info(stats, rows)

    def apply_gradients(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Takes a step along gradients that `compute_gradients` returned, here or on another worker.

        Raises:
            WeightsError: naming the variable that is missing or has another shape.
        """
        self._apply(self._check_weights(gradients, "gradients", self._trainable_keys()))
        self._mirror = {}
        self.num_updates += 1

    def set_coefficients(self, **values: float) -> None:
        """Changes coefficients; the next call uses them, without retracing anything.

        Raises:
            ConfigError: naming one that the objective doesn't have.
        """
        self.coefficients.update(self._check_coefficients(values))
        self._c = np.fromiter(self.coefficients.values(), np.float32, len(self.coefficients))

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
        self.set_coefficients(**self.objective.scheduled(self.global_timestep))

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
        self._mirror = {}

    def get_state(self) -> dict[str, Any]:
        """What training changes: weights, optimizer, coefficients, counters, random state. NumPy and JSON."""
        return {
            "weights": self._get_weights(),
            "optimizer": self._get_optimizer(),
            "coefficients": dict(self.coefficients),
            "num_updates": self.num_updates,
            "global_timestep": self.global_timestep,
            "rng": self.rng.bit_generator.state,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from `get_state()` of a policy of any framework.

        Raises:
            WeightsError: if the weights or the optimizer don't fit; nothing is set then.
            ConfigError: if there is no such coefficient; nothing is set then.
        """
        weights = self._check_weights(state["weights"], "weights", self._shapes())
        slots = {key: np.shape(value) for key, value in self._get_optimizer().items()}
        optimizer = self._check_weights(state["optimizer"], "optimizer", slots)
        coefficients = self._check_coefficients(state["coefficients"])
        counters = int(state["num_updates"]), int(state["global_timestep"])
        random_stream(0).bit_generator.state = state["rng"]  # raises here if it is none
        self._set_weights(weights)
        self._mirror = {}
        self._set_optimizer(optimizer)
        self.set_coefficients(**coefficients)
        self.num_updates, self.global_timestep = counters
        self.rng.bit_generator.state = state["rng"]

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Any,
        policy_ids: Sequence[str] | None = None,
        framework: str | None = None,
        eager_tracing: bool | None = None,
    ) -> Any:
        """The policy of a checkpoint, to act and to go on learning; no Ray and no environment.

        Args:
            checkpoint: the folder of a policy's or an algorithm's checkpoint, or what `Algorithm.save()` returned.
            policy_ids: which policies of an algorithm's; None: all.
            framework: `"tf"`, `"tf2"`, `"torch"`, or `"numpy"` (acts only); None: this class' own, and on `Policy`
                itself the one that saved it.
            eager_tracing: for `"tf2"`; None: as the checkpoint's config says.

        Returns:
            The policy of a policy's checkpoint; for an algorithm's a dict of policies by id.

        Raises:
            CheckpointError: if the checkpoint is missing, damaged or foreign, or has no such policy.
            FrameworkError: if the framework isn't installed.
        """
        from polylib.policy.checkpoint import policies_from_checkpoint  # it imports this module

        if isinstance(policy_ids, str):
            policy_ids = [policy_ids]
        return policies_from_checkpoint(checkpoint, policy_ids, framework or cls.framework or None, eager_tracing)

    def get_initial_state(self) -> list[np.ndarray]:
        """Zeros for each recurrent state; [] for feed-forward policies."""
        return [np.zeros(shape, np.float32) for shape in self._state_shapes]

    def is_recurrent(self) -> bool:
        """Whether acting takes and returns state."""
        return bool(self._state_shapes)

    @property
    def model(self) -> Any:
        """The main network, to look inside: a Keras model (tf2), a torch module, or (tf) a NumPy-callable of either.

        Who has the model can change its weights, so from now on the policy acts through it and not through a copy.
        """
        self._mirroring = False
        return self._get_model()

    @property
    def dist_class(self) -> Any:
        """`dist_class(inputs)` is the action distribution for `inputs: [B, dist_inputs]` as `model` returns them."""
        return partial(BoundDistribution, self.objective.dist, self._ops(), self.rng)

    def close(self) -> None:  # noqa: B027  (most backends hold nothing)
        """Frees what the backend holds (a session); the policy can't be used afterwards."""

    # --- preparation

    def _column(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        shape, dtype = col.resolve(name, self.observation_space, self.action_space, self.objective.dist.inputs_size)
        return shape, np.dtype(np.float32) if dtype == np.float64 else dtype

    @property
    def _action_dtype(self) -> np.dtype[Any]:
        return self.action_space.dtype  # type: ignore[return-value]

    def _cast(self, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise BatchError(f"column {name!r} can't be made an array: {error}") from None
        if array.ndim == 0 or array.shape[1:] != shape:
            expected = ", ".join(map(str, ("B", *shape)))
            raise BatchError(f"column {name!r} has shape {list(array.shape)}, expected [{expected}]")
        if array.dtype == dtype:
            return array
        if not np.can_cast(array.dtype, dtype, "same_kind") and not (
            np.issubdtype(dtype, np.floating) and array.dtype.kind in "iub"
        ):
            raise BatchError(f"column {name!r} has dtype {array.dtype}, expected {dtype}")
        return array.astype(dtype)

    def _inputs(
        self, obs: Any, state: Sequence[np.ndarray] | None, action_mask: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        inputs = {"obs": self._cast("obs", obs, self._obs_shape, self._obs_dtype)}
        size = len(inputs["obs"])
        if state is not None and len(state) != len(self._state_shapes):
            raise BatchError(f"got {len(state)} state arrays, this policy has {len(self._state_shapes)}")
        for i, shape in enumerate(self._state_shapes):
            value = np.zeros((size, *shape), np.float32) if state is None else state[i]
            inputs[f"state_{i}"] = self._cast(f"state_{i}", value, shape, np.dtype(np.float32))
        if action_mask is not None:
            inputs["action_mask"] = self._cast("action_mask", action_mask, *self._column("action_mask"))
            self.objective.dist.check_mask(inputs["action_mask"])
        if len(inputs) > 1:
            _count_rows(inputs)
        return inputs

    def _prepare(self, batch: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], int]:
        """The columns that the losses use, cast and checked, and the number of rows."""
        prepared = {}
        for name, (shape, dtype) in self._columns.items():
            if name in batch:
                prepared[name] = self._cast(name, batch[name], shape, dtype)
            elif name in self.objective.columns:
                raise BatchError(
                    f"the batch has no column {name!r}, which {type(self.objective).__name__} learns from; "
                    f"it has {', '.join(sorted(batch)) or 'none'}. Was it postprocessed?"
                )
        size = _count_rows(prepared)
        if size == 0:
            raise BatchError("the batch has no rows")
        if "actions" in prepared:
            self.objective.dist.check_actions(prepared["actions"])
        if "action_mask" in prepared:
            self.objective.dist.check_mask(prepared["action_mask"])
        return prepared, size

    def _info(self, stats: Stats, rows: dict[str, np.ndarray]) -> dict[str, Any]:
        return {"learner_stats": stats, **({"rows": rows} if rows else {})}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key, in the canonical layout."""
        shapes: dict[str, tuple[int, ...]] = {}
        for net in self.network_specs.values():
            for layer in net.layers:
                if layer.kind == "dense":
                    kernel, bias = net.weight_keys()[layer.name]
                    shapes[kernel], shapes[bias] = (layer.fan_in, layer.units), (layer.units,)
        return shapes

    def _trainable_keys(self) -> dict[str, tuple[int, ...]]:
        trained = {name for group in self.groups.values() for name in group.networks}
        return {key: shape for key, shape in self._shapes().items() if key.split("/")[0] in trained}

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

    def _act_in_numpy(self, inputs: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, np.ndarray]:
        if not self._mirror:
            weights = self._get_weights()
            self._mirror = {name: NumpyNetwork(spec, weights) for name, spec in self.network_specs.items()}
        return self.objective.act(numpy_ops, self._mirror, inputs, noise, self.coefficients)

    @abstractmethod
    def _get_model(self) -> Any:
        """The main network."""

    @abstractmethod
    def _ops(self) -> Any:
        """The `Ops` that work on what `model` returns."""

    @abstractmethod
    def _act(self, inputs: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, np.ndarray]:
        """What `Objective.act` returns."""

    @abstractmethod
    def _values(self, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        """What `Objective.values` returns."""

    @abstractmethod
    def _log_likelihoods(self, inputs: dict[str, np.ndarray], actions: np.ndarray) -> np.ndarray:
        """Log-probabilities of actions."""

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
    def _get_weights(self) -> Weights:
        """All variables."""

    @abstractmethod
    def _set_weights(self, weights: Weights) -> None:
        """Sets all variables."""

    @abstractmethod
    def _get_optimizer(self) -> Weights:
        """`<group>/step`, and `<key>/m`, `<key>/v` of Adam in the canonical layout."""

    @abstractmethod
    def _set_optimizer(self, state: Mapping[str, np.ndarray]) -> None:
        """Sets what `_get_optimizer` returns; keys, shapes and dtypes were checked."""


def _count_rows(arrays: Mapping[str, np.ndarray]) -> int:
    """The number of rows that all columns have: backends would silently repeat a single row."""
    first = next(iter(arrays))
    size = len(arrays[first])
    for name, x in arrays.items():
        if len(x) != size:
            raise BatchError(f"column {name!r} has {len(x)} rows, {first!r} has {size}")
    return size
