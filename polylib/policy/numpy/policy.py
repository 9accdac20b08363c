"""A policy that acts on plain NumPy: for rollout workers, scripts, servers and robots. It doesn't learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from polylib.errors import FrameworkError
from polylib.models.networks import NetworkSpec
from polylib.models.numpy_network import NumpyNetwork
from polylib.policy import numpy_ops as ops
from polylib.policy.model_view import ModelView
from polylib.policy.policy import Policy, Stats, Weights


class NumpyPolicy(Policy):
    """`framework="numpy"`: acts alike with the policies it gets its weights from, and imports no framework."""

    framework = "numpy"

    def _build(self) -> None:
        specs = {name: spec for name, spec in self.network_specs.items() if isinstance(spec, NetworkSpec)}
        if len(specs) < len(self.network_specs):
            raise FrameworkError("a user's own model runs in its framework only: 'numpy' has the default networks")
        self._weights: Weights = {
            key: np.zeros(shape, np.float32) for spec in specs.values() for key, shape in spec.shapes().items()
        }
        self.nets = {name: NumpyNetwork(spec, self._weights) for name, spec in specs.items()}
        for net in self.nets.values():
            net.weights = self._weights  # one dict for all networks: setting weights changes what they see
        # Unused here, but kept, so that a checkpoint passes through unchanged.
        self._optimizer: Weights = {f"{group}/step": np.zeros((), np.float32) for group in self.groups}
        for key, shape in self._trainable_keys().items():
            self._optimizer.update({f"{key}/{leaf}": np.zeros(shape, np.float32) for leaf in "mv"})

    def _get_model(self) -> ModelView:
        """A view of the main network."""
        name, description = next(iter(self.network_specs.items()))
        return ModelView(self.objective, description, self.nets[name], ops, lambda: self._named(name), self.nets[name])

    def model_view(
        self, network: Any, training: bool = False, defaults: Mapping[str, Any] | None = None
    ) -> ModelView:
        """A `ModelView` of the main network, of arrays."""
        description = next(iter(self.network_specs.values()))
        return ModelView(self.objective, description, network, ops, training=training, defaults=defaults)

    def _optimizer_shapes(self, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        hooks = self.objective.update_hooks
        if hooks is not None and hooks.optimizer is not None:  # only its framework knows what it keeps
            return {key: np.shape(value) for key, value in given.items()}
        return super()._optimizer_shapes(given)

    def _named(self, name: str) -> Weights:
        return {key: self._weights[key] for key in self.nets[name].shapes()}

    def _ops(self) -> Any:
        return ops

    def _act(self, inputs: dict[str, np.ndarray], noise: np.ndarray, extras: bool) -> dict[str, np.ndarray]:
        act = self.objective.act if extras else self.objective.choose
        return act(ops, self.nets, inputs, noise, self.coefficients)

    def _values(self, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        return self.objective.values(ops, self.nets, inputs)

    def _log_likelihoods(self, inputs: dict[str, np.ndarray], actions: dict[str, np.ndarray]) -> np.ndarray:
        dist_inputs = self.objective.dist_inputs(ops, self.nets, inputs)
        return self.objective.log_likelihoods(ops, dist_inputs, self.objective.taken(actions))

    def _refuse(self) -> NoReturn:
        raise FrameworkError("a NumPy policy only acts: build it with framework 'tf', 'tf2' or 'torch' to learn")

    def _learn(self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]) -> tuple[Stats, dict[str, np.ndarray]]:
        self._refuse()

    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        self._refuse()

    def _gradients(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]
    ) -> tuple[Weights, Stats, dict[str, np.ndarray]]:
        self._refuse()

    def _apply(self, gradients: Weights) -> None:
        self._refuse()

    def _move_targets(self, tau: float) -> None:
        self._refuse()

    def _get_weights(self) -> Weights:
        return {key: value.copy() for key, value in self._weights.items()}

    def _set_weights(self, weights: Weights) -> None:
        for key, value in weights.items():
            self._weights[key] = np.array(value, np.float32)

    def _get_optimizer(self) -> Weights:
        return {key: value.copy() for key, value in self._optimizer.items()}

    def _set_optimizer(self, state: Mapping[str, np.ndarray]) -> None:
        self._optimizer = {key: np.array(value, np.float32) for key, value in state.items()}
