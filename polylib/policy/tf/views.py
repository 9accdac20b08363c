"""`policy.model` of default networks, and of heads on a user's model, in the three TensorFlow modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from polylib.policy import numpy_ops
from polylib.policy.model_view import Columns, ModelView
from polylib.policy.objective import Objective
from polylib.policy.tf import ops
from polylib.policy.tf.models import GraphModel


class TFModelView(ModelView):
    """Takes NumPy arrays and tensors, returns tensors; for people eagerly, for a user's loss in every mode."""

    def __init__(
        self, objective: Objective, description: Any, network: Any, training: bool = False, defaults: Any = None
    ) -> None:
        base = getattr(network, "model", None)
        super().__init__(
            objective, description, network, ops, lambda: network.variables, base, training, defaults
        )

    def _tensor(self, x: Any, dtype: np.dtype[Any]) -> Any:
        x = tf.convert_to_tensor(x if tf.is_tensor(x) else np.asarray(x, dtype))
        return x if x.dtype == dtype else tf.cast(x, dtype)

    def get_weights(self) -> list[np.ndarray]:
        """The variables' values, in creation order; copies."""
        return [np.array(x.numpy()) for x in self.variables()]

    def _assign(self, variable: Any, value: np.ndarray) -> None:
        variable.assign(value)


class GraphModelView(ModelView):
    """NumPy in, NumPy out: evaluates a graph's network in the policy's session."""

    def __init__(self, objective: Objective, description: Any, network: Any, graph: Any, session: Any) -> None:
        self._whole = GraphModel(network, graph, session)
        own = getattr(network, "session_model", None)  # a user's model below heads
        base = self._whole if own is None else own(graph, session)
        super().__init__(objective, description, network, numpy_ops, lambda: network.variables, base)

    def _run(self, inputs: Columns) -> Columns:
        return self._whole.evaluate(inputs)

    def get_weights(self) -> list[np.ndarray]:
        """The variables' values, in creation order; copies."""
        return self._whole.get_weights()
