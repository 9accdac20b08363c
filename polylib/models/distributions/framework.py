"""Distributions of the user's own framework: TensorFlow Probability's or torch's, inside polylib's losses."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError, EnvError, FrameworkError
from polylib.models.distributions.base import BoxUnits, OnHost
from polylib.models.spaces import is_nested, unusable_rows
from polylib.policy.ops import Array

# What the configuration calls a framework -> what its ops and its bridge are called.
_FRAMEWORKS = {"tf": "tf", "tf2": "tf", "torch": "torch"}
_PACKAGES = {"tf": "tensorflow", "torch": "torch"}


def _bridge(framework: str) -> Any:
    # Here, since it imports the policies, which import this package.
    from polylib.policy.backends import distribution_bridge

    return distribution_bridge(framework)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True)
class FrameworkFactory:
    """What `framework_distribution` returns; call it with an action space."""

    factory: Callable[[Any], Any]
    inputs_size: int | Callable[[gym.Space[Any]], int]

    def __call__(
        self, space: gym.Space[Any], normalize: bool = True, clip: bool = False, framework: str | None = None
    ) -> FrameworkDistribution:
        """The distribution of an action space."""
        size = self.inputs_size(space) if callable(self.inputs_size) else self.inputs_size
        return FrameworkDistribution(self.factory, size, space, normalize, clip, framework)


def framework_distribution(
    factory: Callable[[Any], Any], inputs_size: int | Callable[[gym.Space[Any]], int]
) -> FrameworkFactory:
    """Makes a distribution of the framework in use a `custom_action_dist`.

        def studentt(inputs):  # [B, 2], a TensorFlow tensor
            return tfp.distributions.StudentT(df=4.0, loc=inputs[:, :1], scale=tf.nn.softplus(inputs[:, 1:]))

        config["model"]["custom_action_dist"] = framework_distribution(studentt, inputs_size=2)

    The factory is called in the loss, so gradients flow through it, and on the host to sample. Its batch and event
    shape together have to be `[B, *action_shape]`; log-probabilities of dimensions that are not in the event are
    added up. For a Box it works in [-1, 1] of bounded dimensions if `normalize_actions` is set, and in the
    environment's units otherwise; for Discrete and MultiDiscrete it counts from 0, whatever the space's start.

    Args:
        factory: takes inputs `[B, inputs_size]`, returns a `tfp.distributions.Distribution` where the framework is
            "tf" or "tf2", a `torch.distributions.Distribution` where it is "torch".
        inputs_size: how many numbers per row the network gives it, or a function of the action space.
    """
    return FrameworkFactory(factory, inputs_size)


class FrameworkDistribution(OnHost):
    """Wraps the factory of a framework's distributions; see `framework_distribution`.

    The deterministic action is the mode, or the mean of distributions that have no mode.

    Args:
        factory: inputs to a framework's distribution.
        inputs_size: of the factory's argument.
        space: of actions; any but Dict and Tuple.
        normalize: scale bounded dimensions of a Box.
        clip: clip actions to the bounds of a Box.
        framework: "tf", "tf2" or "torch", to check the factory at once; None finds out when NumPy first needs it.

    Raises:
        ConfigError: if `inputs_size` is no positive number, or what the factory returns has another shape than actions.
        EnvError: for a Dict or Tuple.
        FrameworkError: if the factory doesn't return a distribution of the framework.
    """

    def __init__(
        self,
        factory: Callable[[Any], Any],
        inputs_size: int,
        space: gym.Space[Any],
        normalize: bool = True,
        clip: bool = False,
        framework: str | None = None,
    ) -> None:
        self.factory, self.space, self.shape = factory, space, tuple(space.shape or ())
        self.name = getattr(factory, "__qualname__", type(factory).__name__)
        if isinstance(inputs_size, bool) or not isinstance(inputs_size, int | np.integer) or inputs_size < 1:
            raise ConfigError(f"custom_action_dist {self.name}: inputs_size is {inputs_size!r}, expected an int > 0")
        if is_nested(space):
            raise EnvError(
                f"action space {space}: {self.name} is one distribution; a Dict or Tuple takes a custom_action_dist "
                "(action_space) -> Product(action_space, parts)"
            )
        self.inputs_size = int(inputs_size)
        floats = isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating)
        self.units = BoxUnits(space, normalize, clip) if floats else None  # type: ignore[arg-type]
        self.raw_size = self.units.size if self.units else 0
        self.discrete = isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        self.start = np.asarray(getattr(space, "start", 0), np.int64)
        self.framework = _FRAMEWORKS.get(framework or "")
        if self.framework:
            self.draw(np.random.default_rng(0), np.zeros((2, self.inputs_size), np.float32))

    # --- the framework's object

    def _object(self, ops: Any, inputs: Array) -> Any:
        bridge = _bridge(ops.framework)
        what = f"custom_action_dist {self.name} under framework {ops.framework!r}"
        try:
            found = self.factory(inputs)
        except Exception as error:  # whatever a user's code raises, or TensorFlow's given a torch tensor
            raise FrameworkError(
                f"{what} raised {_one_line(error)}; expected a callable (inputs: {bridge.TENSOR} [B, "
                f"{self.inputs_size}]) -> {bridge.DISTRIBUTION}"
            ) from error
        if not bridge.is_distribution(found):
            kind = type(found)
            raise FrameworkError(
                f"{what} returned {kind.__module__}.{kind.__qualname__}, expected a {bridge.DISTRIBUTION}: pass a "
                f"callable (inputs: {bridge.TENSOR} [B, {self.inputs_size}]) that returns one"
            )
        return found

    def _ask(self, ops: Any, what: str, f: Callable[[], Any]) -> Any:
        """Entropies and KLs that a framework lacks."""
        try:
            return f()
        except NotImplementedError:
            raise FrameworkError(
                f"custom_action_dist {self.name} under framework {ops.framework!r}: its distribution has no {what}, "
                "which losses need; define it in a subclass, or write a polylib.models.distributions.Distribution"
            ) from None

    def _per_row(self, ops: Any, x: Array) -> Array:
        return x if len(x.shape) == 1 else ops.sum(ops.reshape(x, (-1, int(np.prod(x.shape[1:])))), -1)

    def _host(self, method: Callable[..., Any], *arrays: np.ndarray | None) -> Any:
        """`method(ops, *arrays)` in the framework, of and to NumPy arrays."""
        self.framework = self.framework or self._find_framework()
        return _bridge(self.framework).on_host(method, *arrays)

    def _find_framework(self) -> str:
        installed = [name for name, package in _PACKAGES.items() if importlib.util.find_spec(package)]
        problems: list[str] = []
        # The one that is loaded is likely the one; a second one takes seconds.
        for name in sorted(installed, key=lambda name: _PACKAGES[name] not in sys.modules):
            try:
                _bridge(name).on_host(
                    lambda ops, x: (self._object(ops, x), None)[1], np.zeros((2, self.inputs_size), np.float32)
                )
                return name
            except FrameworkError as error:
                problems.append(str(error))
        raise FrameworkError("; ".join(problems) or "custom_action_dist: neither TensorFlow nor torch is installed")

    # --- values as the framework's distribution has them

    def _value(self, ops: Any, actions: Array, raw: Array | None) -> Array:
        if self.units is not None:
            return ops.reshape(self.units.to_raw(ops, actions) if raw is None else raw, (-1, *self.shape))
        if self.discrete:
            return ops.to_int(actions) - ops.constant(self.start)
        return ops.to_float(actions)

    def _actions(self, ops: Any, value: Array) -> tuple[Array, Array | None]:
        if self.units is not None:
            raw = ops.reshape(ops.to_float(value), (-1, self.units.size))
            return self.units.to_actions(ops, raw), raw
        if self.discrete:
            return ops.to_int(value) + ops.constant(self.start), None
        if isinstance(self.space, gym.spaces.MultiBinary):
            one, zero = np.ones((), np.int8), np.zeros((), np.int8)
            return ops.where(ops.to_float(value) > 0.5, ops.constant(one), ops.constant(zero)), None
        return ops.to_float(value), None

    def _logp(self, ops: Any, found: Any, value: Array) -> Array:
        logp = self._per_row(ops, found.log_prob(value))
        return logp if self.units is None else logp - self.units.log_scale

    def _entropy(self, ops: Any, found: Any) -> Array:
        entropy = self._per_row(ops, self._ask(ops, "entropy", found.entropy))
        return entropy if self.units is None else entropy + self.units.log_scale

    def _kl(self, ops: Any, p: Any, q: Any) -> Array:
        kl = _bridge(ops.framework).kl
        return self._per_row(ops, self._ask(ops, "KL divergence", lambda: kl(p, q)))

    # --- Distribution

    def sample(self, ops: Any, inputs: Array, noise: Array) -> tuple[Array, Array | None]:
        """The mode, or else the mean; for a Box its raw sample `[B, k]`, too."""
        if ops.framework == "numpy":
            return self._host(lambda ops, x: self.sample(ops, x, None), inputs)
        return self._actions(ops, _bridge(ops.framework).mode(self._object(ops, inputs)))

    def draw(
        self, rng: np.random.Generator, inputs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """Samples of the framework, seeded by `rng`; its own random state stays as it is."""
        seed = rng.integers(2**31, size=2)

        def body(ops: Any, x: Array) -> tuple[Array, Array | None, Array]:
            found = self._object(ops, x)
            value = _bridge(ops.framework).sample(found, seed)
            if tuple(value.shape) != (len(inputs), *self.shape):
                shape = ", ".join(map(str, ("B", *self.shape)))
                raise ConfigError(
                    f"custom_action_dist {self.name}: for inputs {list(inputs.shape)} it samples "
                    f"{list(value.shape)}, expected [{shape}] for action space {self.space}"
                )
            actions, raw = self._actions(ops, value)
            return actions, raw, self._logp(ops, found, self._value(ops, actions, raw))

        drawn = self._host(body, inputs)
        if self.discrete and unusable_rows(np.asarray(drawn[0])[None], self.space).any():
            raise ConfigError(
                f"custom_action_dist {self.name}: it samples {np.asarray(drawn[0]).tolist()[:3]}, ..., which action "
                f"space {self.space} doesn't have"
            )
        return drawn

    def logp(self, ops: Any, inputs: Array, actions: Array, raw: Array | None = None) -> Array:
        """The framework's `log_prob`, summed to rows; a density in the environment's units."""
        if ops.framework == "numpy":
            return self._host(self.logp, inputs, actions, raw)
        return self._logp(ops, self._object(ops, inputs), self._value(ops, actions, raw))

    def entropy(self, ops: Any, inputs: Array) -> Array:
        """The framework's."""
        if ops.framework == "numpy":
            return self._host(self.entropy, inputs)
        return self._entropy(ops, self._object(ops, inputs))

    def kl(self, ops: Any, inputs: Array, other: Array) -> Array:
        """The framework's."""
        if ops.framework == "numpy":
            return self._host(self.kl, inputs, other)
        return self._kl(ops, self._object(ops, inputs), self._object(ops, other))

    def loss_terms(
        self, ops: Any, inputs: Array, old_inputs: Array, actions: Array, raw: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """All from one object."""
        if ops.framework == "numpy":
            return self._host(self.loss_terms, inputs, old_inputs, actions, raw)
        new, old = self._object(ops, inputs), self._object(ops, old_inputs)
        logp = self._logp(ops, new, self._value(ops, actions, raw))
        return logp, self._kl(ops, old, new), self._entropy(ops, new)
