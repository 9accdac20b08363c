"""Updates by a user's own optimizer or hooks, in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from polylib.errors import ConfigError
from polylib.policy.objective import UpdateHooks

Pairs = list[tuple[Any, Any]]


class HookOptimizer:
    """What gradient hooks are given as `optimizer`; everything else of it is the user's own optimizer's.

    Args:
        variables: parameters that learning moves.
        own: the user's optimizer, or None.
        step: takes a step along gradients, in the order of `variables`; None where gradients are computed.
    """

    def __init__(
        self, variables: Sequence[torch.Tensor], own: Any, step: Callable[[list[torch.Tensor]], Any] | None
    ) -> None:
        self.own, self._variables, self._step = own, list(variables), step

    def compute_gradients(self, loss: torch.Tensor, var_list: Sequence[torch.Tensor] | None = None) -> Pairs:
        """`[(gradient, variable), ...]`."""
        if self._step is not None:
            raise ConfigError("apply_gradients_fn has no loss: gradients are computed in compute_gradients_fn")
        chosen = self._variables if var_list is None else list(var_list)
        found = torch.autograd.grad(loss, chosen, retain_graph=True, allow_unused=True, materialize_grads=True)
        return list(zip(found, chosen, strict=True))

    def apply_gradients(self, grads_and_vars: Pairs) -> Any:
        """A step."""
        if self._step is None:
            raise ConfigError("compute_gradients_fn only computes: gradients are applied in apply_gradients_fn")
        return self._step(in_order(grads_and_vars, self._variables, "apply_gradients"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("own") is None:
            raise AttributeError(f"the optimizer has no attribute {name!r}")
        return getattr(self.own, name)


def in_order(pairs: Any, variables: Sequence[torch.Tensor], what: str) -> list[torch.Tensor]:
    """The gradients in the order of `variables`, zeros for those that are missing.

    Raises:
        ConfigError: if these aren't pairs of gradients and the policy's parameters.
    """
    try:
        found = {id(variable): gradient for gradient, variable in pairs}
    except (TypeError, ValueError):
        raise ConfigError(f"{what}: expected [(gradient, variable), ...], got {type(pairs).__name__}") from None
    if not set(found) <= {id(variable) for variable in variables}:
        raise ConfigError(f"{what}: one of the variables isn't the policy's")
    gradients = [found.get(id(variable)) for variable in variables]
    return [torch.zeros_like(v) if g is None else g.detach() for g, v in zip(gradients, variables, strict=True)]


class Updates:
    """Computes and applies gradients as `UpdateHooks` say.

    Args:
        hooks: the user's.
        variables: parameters that learning moves, by key.
    """

    def __init__(self, hooks: UpdateHooks, variables: Mapping[str, Any]) -> None:
        self._hooks, self._by_key, self._variables = hooks, dict(variables), list(variables.values())
        self.own: Any = None if hooks.optimizer is None else hooks.optimizer()
        if hooks.optimizer is not None and not isinstance(self.own, torch.optim.Optimizer):
            raise ConfigError(f"optimizer_fn returned {type(self.own).__name__}, expected a torch.optim.Optimizer")

    @property
    def computes(self) -> bool:
        """Whether gradients are the user's."""
        return self._hooks.compute is not None

    def gradients(self, loss: torch.Tensor) -> list[torch.Tensor]:
        """The user's gradients of a loss, in the variables' order."""
        pairs = self._hooks.compute(HookOptimizer(self._variables, self.own, None), loss) if self._hooks.compute else []
        return in_order(pairs, self._variables, "compute_gradients_fn")

    def apply(self, gradients: list[torch.Tensor], adam: Callable[[list[torch.Tensor]], Any]) -> None:
        """A step of the user's; `adam` is one of the house's."""

        def step(found: list[torch.Tensor]) -> None:
            if self.own is None:
                adam(found)
                return
            for variable, gradient in zip(self._variables, found, strict=True):
                variable.grad = gradient
            self.own.step()
            self.own.zero_grad(set_to_none=True)

        if self._hooks.apply is None:
            step(gradients)
        else:
            optimizer = HookOptimizer(self._variables, self.own, step)
            self._hooks.apply(optimizer, list(zip(gradients, self._variables, strict=True)))

    def learning_rate(self, default: Any) -> Any:
        """The learning rate of the user's optimizer, for stats."""
        return default if self.own is None else self.own.param_groups[0].get("lr", default)

    # --- state of the user's optimizer

    def get_state(self) -> dict[str, np.ndarray]:
        """`<key>/<name>` of every tensor or number that the optimizer keeps for a parameter; torch's layout."""
        found = {}
        for key, variable in self._by_key.items():
            for name, value in self.own.state.get(variable, {}).items():
                if isinstance(value, torch.Tensor | int | float):
                    found[f"{key}/{name}"] = np.array(torch.as_tensor(value).detach().cpu().numpy(), np.float32)
        return found

    def shapes(self, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """The shapes that a state has to have: what is kept is made by the first step, so that its names are known."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, value in given.items():
            key, _, _ = name.rpartition("/")
            if key in self._by_key:
                shapes[name] = np.shape(value) if np.ndim(value) == 0 else tuple(self._by_key[key].shape)
        return shapes

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from `get_state()`."""
        self.own.state.clear()
        for name, value in state.items():
            key, _, leaf = name.rpartition("/")
            self.own.state[self._by_key[key]][leaf] = torch.from_numpy(np.array(value, np.float32))
