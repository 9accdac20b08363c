"""The TF1-graph policy: its own graph and session, while eager execution stays on in the process."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from polylib.models.networks import NetworkSpec
from polylib.policy import numpy_ops
from polylib.policy.policy import Weights
from polylib.policy.tf.callables import make_callable, new_session
from polylib.policy.tf.core import TFPolicy, specs
from polylib.policy.tf.views import GraphModelView


class GraphPolicy(TFPolicy):
    """`framework="tf"`: bodies become operations of a graph, called through its session."""

    framework = "tf"
    mirror_rows = 4  # beyond, the session's callable is as fast

    def _build(self) -> None:
        self.graph = tf.Graph()
        local = self.config.get("local_tf_session_args") if self.spec.stream == 0 else None
        self.session = new_session(self.graph, {**self.config.get("tf_session_args", {}), **(local or {})})
        users = self._make_users(self.graph)
        with self.graph.as_default():
            self._make_networks(users)
            self.session.run(tf.compat.v1.global_variables_initializer())
            # Reads and writes are made once: making them per call would grow the graph.
            self._reads = [
                (list(group), [getattr(v, "value", v) if not isinstance(v, tf.Variable) else v for v in group.values()])
                for group in (self._variables, self._slots)
            ]
            fetches = [[tf.identity(v) for v in vs] for _, vs in self._reads]
            self._readers = [make_callable(self.session, [], tensors, False) for tensors in fetches]
            self._writers = {id(group): self._writer(group) for group in (self._variables, self._slots)}
        # Before the interpreter takes TensorFlow apart: a session's callables complain if they are freed after it.
        self._release = weakref.finalize(self, _free, self.session, self._functions, self._readers)

    def _writer(self, variables: dict[str, Any]) -> tuple[list[Any], Any]:
        feeds = [tf.compat.v1.placeholder(tf.float32, v.shape) for v in variables.values()]
        targets = [v if isinstance(v, tf.Variable) else v.value for v in variables.values()]
        return feeds, tf.group(
            *[v.assign(tf.cast(feed, v.dtype)) for v, feed in zip(targets, feeds, strict=True)]  # counters are integers
        )

    def _get_model(self) -> Any:
        """A view of the main network that the policy's session evaluates, or the user's own Keras model."""
        name, description = next(iter(self.network_specs.items()))
        network = self.nets[name]
        if isinstance(description, NetworkSpec) or network.headed:
            return GraphModelView(self.objective, description, network, self.graph, self.session)
        return network.session_model(self.graph, self.session)

    def _ops(self) -> Any:
        return numpy_ops  # model returns NumPy here

    def _compile(
        self, name: str, body: Callable[..., Any], args: tuple[Any, ...], free: tuple[int, ...]
    ) -> Callable[..., Any]:
        with self.graph.as_default():
            feeds = tree.map_structure(lambda s: tf.compat.v1.placeholder(s.dtype, s.shape), specs(args, free))
            # Updates go through tf.function for its automatic control dependencies; acting has no side effects.
            acting = name in ("act", "choose", "values", "logp")
            result = (body if acting else tf.function(body, autograph=False))(*feeds)
            if result is None:
                return lambda *_: None
            fetches = tree.map_structure(tf.identity, result)
        # Frequent updates are small ones: handing them to other threads takes longer than these would save.
        small = self.objective.updates_often and name in ("learn", "targets")
        call = make_callable(self.session, tree.flatten(feeds), tree.flatten(fetches), inline=acting or small)

        # Arguments are arrays or flat dicts of them, in dm-tree's order; its own flattening takes 12 us a call.
        keys = [sorted(arg) if isinstance(arg, dict) else None for arg in args]
        names = sorted(fetches) if isinstance(fetches, dict) else None

        def run(*arrays: Any) -> Any:
            flat: list[Any] = []
            for arg, order in zip(arrays, keys, strict=True):
                flat += [arg] if order is None else [arg[key] for key in order]
            results = call(*flat)
            return tree.unflatten_as(fetches, results) if names is None else dict(zip(names, results, strict=True))

        return run

    def _assign(self, variables: dict[str, Any], values: Weights) -> None:
        feeds, write = self._writers[id(variables)]
        # Copies: a variable may keep the memory of the array it was fed, and whoever passed that may write to it.
        self.session.run(write, {feed: np.array(values[key]) for feed, key in zip(feeds, variables, strict=True)})

    def _get_weights(self) -> Weights:
        return self._read(0)

    def _acting_weights(self, keys: list[str]) -> Weights:
        # The variables' own memory: what is read is only handed out, and whoever changes it later copies it before.
        name = ("weights", *keys)
        if name not in self._functions:
            with self.graph.as_default():
                tensors = [tf.identity(getattr(v, "value", v)) for v in (self._variables[key] for key in keys)]
                self._functions[name] = make_callable(self.session, [], tensors, inline=True)
        return dict(zip(keys, self._functions[name](), strict=True))

    def _get_optimizer(self) -> Weights:
        return self._read(1)

    def _read(self, which: int) -> Weights:
        return dict(zip(self._reads[which][0], map(np.array, self._readers[which]()), strict=True))

    def close(self) -> None:
        """Closes the session."""
        self._release()


def _free(session: Any, functions: dict[Any, Any], readers: list[Any]) -> None:
    functions.clear()
    readers.clear()
    session.close()
