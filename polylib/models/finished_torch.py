"""torch modules that users finished: TorchScript for other processes, where it is saved and loaded; who can't use them.

torch is imported only when one is loaded: who has one has imported it.
"""

from __future__ import annotations

import importlib
import io
import sys
from typing import Any

from polylib.errors import ConfigError, FrameworkError


class Script:
    """A factory of copies of a TorchScript module, with its weights; can be pickled.

    Args:
        model: a `torch.jit.ScriptModule`.
    """

    def __init__(self, model: Any) -> None:
        self.__name__ = type(model).__name__
        file = io.BytesIO()
        sys.modules["torch"].jit.save(model, file)
        self._bytes = file.getvalue()

    def __call__(self, observation_space: Any, action_space: Any, outputs: Any, **config: Any) -> Any:
        """A copy of the module.

        Raises:
            ConfigError: if there is a `custom_model_config`, which can't change it.
        """
        if config:
            raise ConfigError(
                f"config key 'custom_model_config': {sorted(config)} are for a factory or class; custom_model is a "
                f"finished {self.__name__}"
            )
        return importlib.import_module("torch").jit.load(io.BytesIO(self._bytes))


def portable_script(model: Any) -> Any:
    """What to send to other processes in the place of a `custom_model`: TorchScript as `Script`, others as they are."""
    torch = sys.modules.get("torch")
    return Script(model) if torch is not None and isinstance(model, torch.jit.ScriptModule) else model


def refuse_module(model: Any) -> None:
    """Raises FrameworkError for a module or a class of modules, where Keras models are expected."""
    nn = getattr(sys.modules.get("torch"), "nn", None)
    kind: Any = getattr(nn, "Module", ())
    if isinstance(model, kind) or (isinstance(model, type) and issubclass(model, kind)):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise FrameworkError(
            f"custom_model is the torch.nn.Module {name!r}: frameworks 'tf' and 'tf2' take Keras models; choose "
            "framework 'torch'"
        )
