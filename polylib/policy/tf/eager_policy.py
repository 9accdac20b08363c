"""TF2 policies: plain eager, for debugging (prints and breakpoints fire), and traced with tf.function."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from polylib.errors import RetraceError
from polylib.models.networks import NetworkSpec
from polylib.policy.policy import Stats, Weights
from polylib.policy.tf.callables import concrete_callable, to_tensor
from polylib.policy.tf.core import LEARN, TFPolicy, specs


def _to_tensors(args: Any) -> Any:
    return tree.map_structure(tf.convert_to_tensor, args)


def _to_numpy(result: Any) -> Any:
    return tree.map_structure(lambda x: x.numpy(), result)


def _view(tensor: Any) -> np.ndarray:
    """The tensor's own memory; `numpy()` copies it."""
    return np.asarray(memoryview(tensor))


def _learnt(result: Any) -> Any:
    """Stats, rows, and views of weights."""
    stats, rows, weights = result
    return (
        stats.numpy(),
        {name: x.numpy() for name, x in rows.items()},
        {key: _view(tensor) for key, tensor in weights.items()},
    )


class EagerPolicy(TFPolicy):
    """`framework="tf2"`, `eager_tracing=False`: every operation runs as the body reaches it."""

    framework = "tf2"

    def _build(self) -> None:
        users = self._make_users()  # outside of the scope, in which tapes don't record
        with tf.init_scope():
            self._make_networks(users)

    def _get_model(self) -> Any:
        """A view of the main network, or the user's own Keras model where that is all there is."""
        name, description = next(iter(self.network_specs.items()))
        network = self.nets[name]
        if isinstance(description, NetworkSpec) or network.headed:
            return self.model_view(network)
        return network.model

    def _compile(
        self, name: str, body: Callable[..., Any], args: tuple[Any, ...], free: tuple[int, ...]
    ) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            result = body(*_to_tensors(arrays))
            return None if result is None else _to_numpy(result)

        return call

    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Update by update, so that a breakpoint in the loss sees one minibatch."""
        steps = [
            self._learn({k: x[rows] for k, x in batch.items()}, {k: x[i] for k, x in noise.items()})[0]
            for i, rows in enumerate(indices)
        ]
        return {key: np.array([step[key] for step in steps], np.float32) for key in steps[0]}

    def _assign(self, variables: dict[str, Any], values: Weights) -> None:
        for key, value in values.items():
            variables[key].assign(value)

    def _get_weights(self) -> Weights:
        return {key: np.array(v.numpy()) for key, v in self._variables.items()}

    def _acting_weights(self, keys: list[str]) -> Weights:
        # The variables' own memory, as in graphs.
        return {key: _view(self._read(key)) for key in keys}

    def _read(self, key: str) -> Any:
        return tf.raw_ops.ReadVariableOp(resource=self._variables[key].value.handle, dtype=tf.float32)

    def _get_optimizer(self) -> Weights:
        return {key: np.array(v.numpy()) for key, v in self._slots.items()}


class TracedPolicy(EagerPolicy):
    """`framework="tf2"`, `eager_tracing=True`: each body is traced once and then runs as a graph.

    Attributes:
        traces: how often each body was traced.
    """

    traces: Counter[str]
    mirror_rows = math.inf

    def _build(self) -> None:
        super()._build()
        self.traces = Counter()
        self._last_trace: dict[str, str] = {}

    def _compile(
        self, name: str, body: Callable[..., Any], args: tuple[Any, ...], free: tuple[int, ...]
    ) -> Callable[..., Any]:
        def counted(*tensors: Any) -> Any:
            self._count_trace(name, tensors)
            return body(*tensors)

        # Only specs of any batch size are traced, so that a shorter last batch finds the same trace.
        traced = tf.function(counted, autograph=False, reduce_retracing=True)
        expected = specs(args, free)
        # Frequent updates are small ones: handing them to other threads takes longer than these would save.
        small = self.objective.updates_often and name in ("learn", "targets")
        direct = concrete_callable(traced.get_concrete_function(*expected), small)
        tensor, fetched = to_tensor(), _learnt if name == "learn" else _to_numpy
        # Arguments are arrays or flat dicts of them, in the order in which TensorFlow flattens them.
        keys = [sorted(arg) if isinstance(arg, dict) else None for arg in expected]
        fits = [(x.dtype.as_numpy_dtype, x.shape.rank, tuple(x.shape)) for x in tf.nest.flatten(expected)]

        def flattened(arrays: tuple[Any, ...]) -> list[Any] | None:
            """The arrays in order; None if they aren't what was traced."""
            flat: list[Any] = []
            for arg, order in zip(arrays, keys, strict=True):
                if order is None:
                    flat.append(arg)
                elif len(arg) != len(order):
                    return None
                else:
                    flat += [arg.get(key) for key in order]
            for x, (dtype, rank, shape) in zip(flat, fits, strict=True):
                if not isinstance(x, np.ndarray | np.generic) or x.dtype != dtype or x.ndim != rank:
                    return None
                if any(size is not None and size != own for size, own in zip(shape, x.shape, strict=True)):
                    return None
            return flat

        def call(*arrays: Any) -> Any:
            flat = None if direct is None else flattened(arrays)
            if direct is None or flat is None:
                result = traced(*_to_tensors(arrays))
            else:
                result = direct([tensor(x) for x in flat])
            return None if result is None else fetched(result)

        return call

    def _learn_and_read_body(self, batch: Any, noise: Any, c: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        stats, rows = self._learn_body(batch, noise, c)
        return stats, rows, {key: self._read(key) for key in self._mirror_keys}

    def _learn(self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]) -> tuple[Stats, dict[str, np.ndarray]]:
        """The weights that act next come with the update: reading one by one takes longer."""
        args = (batch, noise, self._c)
        stats, rows, weights = self._run("learn", tuple(batch), self._learn_and_read_body, args, LEARN)
        for net in self._mirror.values():
            net.weights.update(weights)
        self._mirror_is_old = False
        return self._named_stats(stats), rows

    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        """All updates in one call."""
        return TFPolicy._learn_minibatches(self, batch, noise, indices)

    def _count_trace(self, name: str, tensors: Any) -> None:
        self.traces[name] += 1
        limit = self.config.get("eager_max_retraces")
        signature = ", ".join(
            f"{'/'.join(map(str, path))}: {x.dtype.name}{list(x.shape)}"
            for path, x in tree.flatten_with_path(tensors)
        )
        if limit is not None and self.traces[name] - 1 > limit:
            raise RetraceError(
                f"the policy's {name} step was traced {self.traces[name]} times, eager_max_retraces is {limit}. "
                f"Its inputs changed from ({self._last_trace.get(name, '')}) to ({signature}): keep columns, dtypes "
                "and ranks the same from call to call, or raise eager_max_retraces"
            )
        self._last_trace[name] = signature
