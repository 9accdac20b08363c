"""Finished Keras models: a functional one is a description and weights, from which copies are made anywhere.

Keras is imported only when a copy is made: who has a finished model has imported it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from polylib.errors import ConfigError

_PASS_A_FACTORY = (
    "pass a factory (observation_space, action_space, outputs, **custom_model_config) -> keras.Model or the class "
    "itself instead of an instance"
)


def is_keras_model(model: Any) -> bool:
    """Whether it is an instance of `keras.Model`."""
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "Model") and isinstance(model, keras.Model)


def is_functional(model: Any) -> bool:
    """Whether an instance of `keras.Model` is made of layers only, without code of its user's around them."""
    return type(model).__name__ in ("Functional", "Sequential") and type(model).__module__.startswith("keras.")


def refuse_instance(model: Any, why: str) -> ConfigError:
    """The error for an instance that can't be copied where copies are needed."""
    kind = type(model).__name__
    return ConfigError(f"config key 'custom_model': got a finished {kind}, and {why}: {_PASS_A_FACTORY}")


class Recipe:
    """A factory of copies of a functional model, with its weights; can be pickled.

    Args:
        model: a functional or sequential Keras model.

    Raises:
        ConfigError: if a layer of it can't be copied.
    """

    def __init__(self, model: Any) -> None:
        keras = sys.modules["keras"]
        self.__name__ = str(model.name)
        try:
            self._description = keras.saving.serialize_keras_object(model)
        except Exception as error:  # whatever a user's layer raises
            raise self._unable(error) from error
        layers = [type(layer) for layer in model._flatten_layers(include_self=False)]
        # Classes travel along: another process may not find them by name.
        self._classes = {cls.__name__: cls for cls in layers if not cls.__module__.startswith("keras.")}
        self._built = bool(model.built)
        self._weights = [v.numpy() for v in model.variables] if model.built else []

    def _unable(self, error: Exception) -> ConfigError:
        return ConfigError(
            f"config key 'custom_model': model {self.__name__!r} can't be copied for a policy "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}): give its layers a get_config(), or "
            f"{_PASS_A_FACTORY}"
        )

    def __call__(self, observation_space: Any, action_space: Any, outputs: Any, **config: Any) -> Any:
        """A copy of the model.

        Raises:
            ConfigError: if a layer of it can't be copied, or there is a `custom_model_config`, which can't change it.
        """
        if config:
            raise ConfigError(
                f"config key 'custom_model_config': {', '.join(config)} can't change a finished model; "
                f"{_PASS_A_FACTORY}"
            )
        saving = importlib.import_module("keras").saving
        try:
            with saving.CustomObjectScope(self._classes):
                # The description never left the hands of this program.
                model = saving.deserialize_keras_object(self._description, safe_mode=False)
            if self._built:
                for variable, value in zip(model.variables, self._weights, strict=True):
                    variable.assign(value)
        except Exception as error:
            raise self._unable(error) from error
        return model


def portable(model: Any) -> Any:
    """What to send to other processes in the place of a `custom_model`.

    Raises:
        ConfigError: for a finished model that other processes can't copy.
    """
    if not is_keras_model(model):
        return model
    if not is_functional(model):
        raise refuse_instance(model, "other workers need copies of it, which code can't be copied into")
    return Recipe(model)
