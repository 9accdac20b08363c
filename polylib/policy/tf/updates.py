"""Updates by a user's own optimizer or hooks, in the three TensorFlow modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from polylib.errors import ConfigError
from polylib.policy.objective import UpdateHooks

Pairs = list[tuple[Any, Any]]


class HookOptimizer:
    """What gradient hooks are given as `optimizer`; everything else of it is the user's own optimizer's.

    Args:
        variables: Keras variables that learning moves.
        own: the user's optimizer, or None.
        differentiate: `(loss, tensors)` to gradients; None where there is no loss any more.
        step: takes a step along gradients, in the order of `variables`.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        own: Any,
        differentiate: Callable[[Any, list[Any]], list[Any]] | None,
        step: Callable[[list[Any]], Any] | None,
    ) -> None:
        self.own, self._variables, self._differentiate, self._step = own, list(variables), differentiate, step

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None) -> Pairs:
        """`[(gradient, variable), ...]`."""
        if self._differentiate is None:
            raise ConfigError("apply_gradients_fn has no loss: gradients are computed in compute_gradients_fn")
        chosen = self._variables if var_list is None else list(var_list)
        return list(zip(self._differentiate(loss, [tensor_of(v) for v in chosen]), chosen, strict=True))

    def apply_gradients(self, grads_and_vars: Pairs) -> Any:
        """A step."""
        if self._step is None:
            raise ConfigError("compute_gradients_fn only computes: gradients are applied in apply_gradients_fn")
        return self._step(in_order(grads_and_vars, self._variables, "apply_gradients"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("own") is None:
            raise AttributeError(f"the optimizer has no attribute {name!r}")
        return getattr(self.own, name)


def tensor_of(variable: Any) -> Any:
    """The TensorFlow variable of a Keras one."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def in_order(pairs: Any, variables: Sequence[Any], what: str) -> list[Any]:
    """The gradients in the order of `variables`, zeros for those that are missing.

    Raises:
        ConfigError: if these aren't pairs of gradients and the policy's variables.
    """
    try:
        found = {id(tensor_of(variable)): gradient for gradient, variable in pairs}
    except (TypeError, ValueError, AttributeError):
        raise ConfigError(f"{what}: expected [(gradient, variable), ...], got {type(pairs).__name__}") from None
    known = {id(tensor_of(variable)) for variable in variables}
    if not set(found) <= known:
        raise ConfigError(f"{what}: one of the variables isn't the policy's")
    gradients = [found.get(id(tensor_of(variable))) for variable in variables]
    return [
        tf.zeros(v.shape) if g is None else tf.convert_to_tensor(g) for g, v in zip(gradients, variables, strict=True)
    ]


class Updates:
    """Computes and applies gradients as `UpdateHooks` say.

    Args:
        hooks: the user's.
        variables: Keras variables that learning moves, by key.

    Attributes:
        slots: the optimizer's variables by key; None without an optimizer.
    """

    def __init__(self, hooks: UpdateHooks, variables: dict[str, Any]) -> None:
        self._hooks, self._variables = hooks, list(variables.values())
        self.slots: dict[str, Any] | None = None
        self.own: Any = None
        if hooks.optimizer is not None:
            self.own = own = hooks.optimizer()
            if not hasattr(own, "build") or not hasattr(own, "apply"):
                got = type(own).__name__
                raise ConfigError(f"optimizer_fn returned {got}, expected a keras.optimizers.Optimizer")
            own.build(self._variables)  # now: a step mustn't make variables
            self.slots = {f"optimizer/{i:03d}": variable for i, variable in enumerate(own.variables)}

    @property
    def computes(self) -> bool:
        """Whether gradients are the user's."""
        return self._hooks.compute is not None

    def gradients(self, tape: Any, loss: Any) -> list[Any]:
        """The user's gradients of a loss, in the variables' order."""
        zero = tf.UnconnectedGradients.ZERO
        optimizer = HookOptimizer(
            self._variables, self.own, lambda x, over: tape.gradient(x, over, unconnected_gradients=zero), None
        )
        pairs = self._hooks.compute(optimizer, loss) if self._hooks.compute else []
        return in_order(pairs, self._variables, "compute_gradients_fn")

    def apply(self, gradients: list[Any], adam: Callable[[list[Any]], Any]) -> Any:
        """A step of the user's; `adam` is one of the house's."""

        def step(found: list[Any]) -> Any:
            return adam(found) if self.own is None else self.own.apply(found, self._variables)

        if self._hooks.apply is None:
            return step(gradients)
        optimizer = HookOptimizer(self._variables, self.own, None, step)
        return self._hooks.apply(optimizer, list(zip(gradients, self._variables, strict=True)))

    def learning_rate(self, default: Any) -> Any:
        """The learning rate of the user's optimizer, for stats."""
        found = getattr(self.own, "learning_rate", None)
        return default if found is None else tf.convert_to_tensor(found)
