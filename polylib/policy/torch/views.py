"""`policy.model` of default networks, and of heads on a user's module, in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from polylib.policy.model_view import ModelView
from polylib.policy.objective import Objective
from polylib.policy.torch import ops


class TorchModelView(ModelView):
    """Takes NumPy arrays and tensors, returns tensors with gradients."""

    def __init__(
        self, objective: Objective, description: Any, network: Any, training: bool = False, defaults: Any = None
    ) -> None:
        base = getattr(network, "model", network)
        super().__init__(objective, description, network, ops, network.variables, base, training, defaults)

    def _tensor(self, x: Any, dtype: np.dtype[Any]) -> Any:
        if not isinstance(x, torch.Tensor):
            return torch.from_numpy(np.array(x, dtype))  # a copy: torch can't do with every array's memory
        kind = getattr(torch, dtype.name)
        return x if x.dtype == kind else x.to(kind)

    def get_weights(self) -> list[np.ndarray]:
        """The parameters' values in torch's layout, in creation order; copies."""
        return [x.detach().cpu().numpy().copy() for x in self.variables()]

    @torch.no_grad()
    def _assign(self, variable: Any, value: np.ndarray) -> None:
        variable.copy_(torch.from_numpy(np.array(value)))
