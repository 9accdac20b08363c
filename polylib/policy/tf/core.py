"""What the three TensorFlow modes share: networks, Adam, and one body per operation.

`EagerPolicy` calls the bodies, `TracedPolicy` wraps them in tf.function, `GraphPolicy` puts them into its own graph.
They differ only in `_compile`: how a body becomes a function of NumPy arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from polylib.errors import ConfigError, PolylibError
from polylib.models.custom import CustomNetwork
from polylib.policy.gradients import BETA_1, BETA_2, summarize
from polylib.policy.policy import Policy, Stats, Weights
from polylib.policy.tf import ops
from polylib.policy.tf.models import make_network
from polylib.policy.tf.updates import Updates
from polylib.policy.tf.views import TFModelView

# How many leading axes of each argument may change from call to call.
_ACT = (1, 1, 0)
LEARN = (1, 1, 0)
_PHASE = (1, 2, 0, 2)


class TFPolicy(Policy):
    """Base of the three TensorFlow policies."""

    nets: dict[str, Any]

    # --- building blocks

    def _make_users(self, graph: Any = None) -> dict[str, Any]:
        """Networks around users' models: made eagerly in every mode, so that their constructors may look at values."""
        return {
            name: make_network(spec, self.spec.seed, graph)
            for name, spec in self.network_specs.items()
            if isinstance(spec, CustomNetwork)
        }

    def _make_networks(self, made: Mapping[str, Any] | None = None) -> None:
        """Networks (but for those that are made) and optimizer slots, under the mode's graph or eagerly."""
        self.nets = {
            name: made[name] if made and name in made else make_network(spec)
            for name, spec in self.network_specs.items()
        }
        self._variables = {key: v for net in self.nets.values() for key, v in net.variables.items()}
        self._group_keys = {
            group: [key for name in item.networks for key in self.nets[name].trainable_keys()]
            for group, item in self.groups.items()
        }
        # What was made frozen and is trained nevertheless: tapes don't see it by themselves.
        self._unseen = [
            self._variables[key].value
            for keys in self._group_keys.values()
            for key in keys
            if not self._variables[key].value.trainable
        ]
        self._slots: dict[str, Any] = {}
        for group, keys in self._group_keys.items():
            self._slots[f"{group}/step"] = tf.Variable(0.0, trainable=False)
            for key in keys:
                shape = self._variables[key].shape
                self._slots[f"{key}/m"] = tf.Variable(tf.zeros(shape), trainable=False)
                self._slots[f"{key}/v"] = tf.Variable(tf.zeros(shape), trainable=False)
        hooks, trained = self.objective.update_hooks, [key for keys in self._group_keys.values() for key in keys]
        self._updates = Updates(hooks, {key: self._variables[key] for key in trained}) if hooks else None
        if self._updates is not None and self._updates.slots is not None:
            self._slots = self._updates.slots
        pairs = ((self._variables[a].value, self._variables[b].value) for a, b in self._target_keys().items())
        self._targets = [(a, b) for a, b in pairs if a is not b]  # frozen parts of users' models may be shared
        self._stat_names: list[str] = []
        self._functions: dict[Any, Callable[..., Any]] = {}

    def _named(self, c: Any) -> dict[str, Any]:
        return dict(zip(self.coefficients, tf.unstack(c, num=len(self.coefficients)), strict=True))

    # --- bodies: the same code in every mode

    def _act_body(self, inputs: Any, noise: Any, c: Any) -> Any:
        return self.objective.act(ops, self.nets, inputs, noise, self._named(c))

    def _choose_body(self, inputs: Any, noise: Any, c: Any) -> Any:
        return self.objective.choose(ops, self.nets, inputs, noise, self._named(c))

    def _values_body(self, inputs: Any) -> Any:
        return self.objective.values(ops, self.nets, inputs)

    def _logp_body(self, inputs: Any, actions: Any) -> Any:
        dist_inputs = self.objective.dist_inputs(ops, self.nets, inputs)
        return self.objective.log_likelihoods(ops, dist_inputs, self.objective.taken(actions))

    def _gradients_body(self, batch: Any, noise: Any, c: Any) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        coefficients = self._named(c)
        own = self._updates
        with tf.GradientTape(persistent=len(self.groups) > 1 or own is not None) as tape:
            for variable in self._unseen:
                tape.watch(variable)
            losses, stats, rows = self._losses(ops, self.nets, batch, noise, coefficients)
        gradients: dict[str, Any] = {}
        norms: dict[str, Any] = {}
        for group, keys in self._group_keys.items():
            if own is not None and own.computes:
                found, limit = own.gradients(tape, losses[group]), tf.constant(np.inf)
            else:
                variables = [self._variables[key].value for key in keys]
                found = tape.gradient(losses[group], variables)
                if all(gradient is None for gradient in found):
                    raise ConfigError("the loss doesn't depend on the model: nothing can be learned from it")
                found = [tf.zeros_like(v) if g is None else g for g, v in zip(found, variables, strict=True)]
                limit = coefficients["grad_clip"]
            clipped, norms[group] = _clip_by_global_norm(found, limit)
            gradients.update(zip(keys, clipped, strict=True))
        lrs = {group: item.lr for group, item in self.groups.items()}
        summary = summarize(losses, stats, norms, coefficients, lrs)
        if own is not None:
            summary["cur_lr"] = own.learning_rate(summary["cur_lr"])
        self._stat_names = list(summary)
        return gradients, tf.stack([tf.cast(value, tf.float32) for value in summary.values()]), rows

    def _apply_body(self, gradients: Any, c: Any) -> Any:
        coefficients = self._named(c)
        for group, keys in self._group_keys.items():
            due = self.groups[group].due
            if due is None:
                self._step(group, keys, gradients, coefficients)
            else:
                # Leaving a step out is not a step of 0: moments would still move.
                tf.cond(
                    coefficients[due] > 0.5,
                    lambda group=group, keys=keys: self._step(group, keys, gradients, coefficients),
                    lambda: tf.constant(0.0),
                )
        if "tau" in coefficients:
            self._move_body(coefficients["tau"])
        return c[0]  # a function must return something

    def _move_body(self, tau: Any) -> Any:
        for target, source in self._targets:
            target.assign((1.0 - tau) * target + tau * source)
        return tau

    def _step(self, group: str, keys: list[str], gradients: Any, coefficients: Mapping[str, Any]) -> Any:
        if self._updates is None:
            return self._adam(group, keys, gradients, coefficients)

        def adam(found: list[Any]) -> Any:
            return self._adam(group, keys, dict(zip(keys, found, strict=True)), coefficients)

        self._updates.apply([gradients[key] for key in keys], adam)
        return tf.constant(0.0)

    def _adam(self, group: str, keys: list[str], gradients: Any, coefficients: Mapping[str, Any]) -> Any:
        step = self._slots[f"{group}/step"].assign_add(1.0)
        power_1, power_2 = tf.pow(BETA_1, step), tf.pow(BETA_2, step)
        for key in keys:
            tf.raw_ops.ResourceApplyAdam(
                var=self._variables[key].value.handle,
                m=self._slots[f"{key}/m"].handle,
                v=self._slots[f"{key}/v"].handle,
                beta1_power=power_1,
                beta2_power=power_2,
                lr=coefficients[self.groups[group].lr],
                beta1=BETA_1,
                beta2=BETA_2,
                epsilon=self.groups[group].epsilon,
                grad=gradients[key],
            )
        return step

    def _learn_body(self, batch: Any, noise: Any, c: Any) -> tuple[Any, dict[str, Any]]:
        gradients, stats, rows = self._gradients_body(batch, noise, c)
        self._apply_body(gradients, c)
        return stats, rows

    def _phase_body(self, batch: Any, noise: Any, c: Any, indices: Any) -> Any:
        """A loop inside the graph: the batch is fed once, every update gathers its rows."""
        count = tf.shape(indices)[0]
        def step(i: Any, stats: Any) -> tuple[Any, Any]:
            rows = {name: tf.gather(x, indices[i]) for name, x in batch.items()}
            return i + 1, stats.write(i, self._learn_body(rows, {name: x[i] for name, x in noise.items()}, c)[0])

        stats = tf.TensorArray(tf.float32, count)
        return tf.while_loop(lambda i, _: i < count, step, [tf.constant(0), stats], parallel_iterations=1)[1].stack()

    def _compiled_phase_body(self, batch: Any, noise: Any, c: Any, indices: Any) -> Any:
        """The same, compiled with XLA as a whole; anew for each number of rows and updates."""
        return tf.function(self._phase_body, autograph=False, jit_compile=True)(batch, noise, c, indices)

    # --- the policy's private methods

    def _before_update(self) -> None:
        # While somebody looks at a variable's memory, TensorFlow copies it before each update.
        for net in self._mirror.values():
            net.weights.clear()
        self._mirror_is_old = True

    def _ops(self) -> Any:
        return ops

    def model_view(self, network: Any, training: bool = False, defaults: Mapping[str, Any] | None = None) -> Any:
        """A `ModelView` of the main network, of tensors."""
        description = next(iter(self.network_specs.values()))
        return TFModelView(self.objective, description, network, training, defaults)

    def _act(self, inputs: dict[str, np.ndarray], noise: np.ndarray, extras: bool) -> dict[str, np.ndarray]:
        name, body = ("act", self._act_body) if extras else ("choose", self._choose_body)
        return self._run(name, tuple(inputs), body, (inputs, noise, self._c), _ACT)

    def _values(self, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        return self._run("values", tuple(inputs), self._values_body, (inputs,), (1,))

    def _log_likelihoods(self, inputs: dict[str, np.ndarray], actions: dict[str, np.ndarray]) -> np.ndarray:
        return self._run("logp", tuple(inputs), self._logp_body, (inputs, actions), (1, 1))

    def _learn(self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]) -> tuple[Stats, dict[str, np.ndarray]]:
        stats, rows = self._run("learn", tuple(batch), self._learn_body, (batch, noise, self._c), LEARN)
        return self._named_stats(stats), rows

    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        body = self._compiled_phase_body if self.config.get("tf_xla") else self._phase_body
        stats = self._run("phase", tuple(batch), body, (batch, noise, self._c, indices), _PHASE)
        return dict(zip(self._stat_names, stats.T, strict=True))

    def _gradients(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]
    ) -> tuple[Weights, Stats, dict[str, np.ndarray]]:
        args = (batch, noise, self._c)
        gradients, stats, rows = self._run("gradients", tuple(batch), self._gradients_body, args, LEARN)
        return gradients, self._named_stats(stats), rows

    def _apply(self, gradients: Weights) -> None:
        self._run("apply", (), self._apply_body, (gradients, self._c), (0, 0))

    def _move_targets(self, tau: float) -> None:
        self._run("targets", (), self._move_body, (np.float32(tau),), (0,))

    def _named_stats(self, stats: np.ndarray) -> Stats:
        return dict(zip(self._stat_names, stats.tolist(), strict=True))

    # --- how a body runs

    def _run(
        self,
        name: str,
        structure: tuple[str, ...],
        body: Callable[..., Any],
        args: tuple[Any, ...],
        free: tuple[int, ...],
    ) -> Any:
        """Calls `body` on NumPy arrays, compiled once per `(name, structure)`."""
        function = self._functions.get((name, structure))
        if function is None:
            function = self._functions[name, structure] = self._compile(name, self._guarded(name, body), args, free)
        return function(*args)

    def _guarded(self, name: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """`body`, in which creating a variable is an error: it would be a new one on every call or be trained never."""

        def refuse(next_creator: Any, **kwargs: Any) -> Any:
            raise PolylibError(
                f"the policy's {name} step creates a variable ({kwargs.get('name') or 'unnamed'}): make all layers and "
                "variables when the network is built, not when it is called"
            )

        def guarded(*args: Any) -> Any:
            with ExitStack() as scopes:
                scopes.enter_context(tf.variable_creator_scope(refuse))
                with tf.init_scope():  # where layers lift their variables to, out of a function's graph
                    scopes.enter_context(tf.variable_creator_scope(refuse))
                return body(*args)

        return guarded

    @abstractmethod
    def _compile(
        self, name: str, body: Callable[..., Any], args: tuple[Any, ...], free: tuple[int, ...]
    ) -> Callable[..., Any]:
        """A function of NumPy arrays, nested like `args`, that runs `body`; leading `free` axes may change size."""

    def _set_optimizer(self, state: Mapping[str, np.ndarray]) -> None:
        self._assign(self._slots, dict(state))

    def _set_weights(self, weights: Weights) -> None:
        self._assign(self._variables, weights)

    @abstractmethod
    def _assign(self, variables: dict[str, Any], values: Weights) -> None:
        """Sets variables by key."""


def _clip_by_global_norm(gradients: list[Any], limit: Any) -> tuple[list[Any], Any]:
    """As `polylib.policy.gradients.clip_by_global_norm`; `l2_loss` squares and sums in one pass."""
    norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(g) for g in gradients]))
    scale = tf.minimum(limit / tf.clip_by_value(norm, 1e-12, 3e38), 1.0)
    return [g * scale for g in gradients], norm


def specs(args: tuple[Any, ...], free: tuple[int, ...]) -> list[Any]:
    """The TensorSpec of each array in `args`, with `free` leading axes of any size."""
    return [
        tree.map_structure(lambda x, n=n: tf.TensorSpec([None] * n + list(x.shape[n:]), x.dtype), arg)
        for arg, n in zip(args, free, strict=True)
    ]
