"""Frameworks by name. A backend is imported when a policy of its framework is first built, never before."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from polylib.errors import FrameworkError, did_you_mean

if TYPE_CHECKING:
    from polylib.policy.objective import PolicySpec
    from polylib.policy.policy import Policy

# (framework, traced) -> "module:Class"
_BACKENDS = {
    ("tf", False): "polylib.policy.tf.graph_policy:GraphPolicy",
    ("tf2", False): "polylib.policy.tf.eager_policy:EagerPolicy",
    ("tf2", True): "polylib.policy.tf.eager_policy:TracedPolicy",
    ("torch", False): "polylib.policy.torch.policy:TorchPolicy",
    ("numpy", False): "polylib.policy.numpy.policy:NumpyPolicy",
}
# What uses a framework's own distributions.
_DISTRIBUTIONS = {"tf": "polylib.policy.tf.distributions", "torch": "polylib.policy.torch.distributions"}

# What writes policies for other programs.
_EXPORTERS = {"tf": "polylib.policy.tf.export", "torch": "polylib.policy.torch.export"}


def policy_class(framework: str, traced: bool = False) -> type[Policy]:
    """The policy class of a framework; imports the framework.

    Args:
        framework: "tf", "tf2" or "torch".
        traced: tf2 compiled with tf.function.

    Raises:
        FrameworkError: if there is no such framework or it isn't installed.
    """
    target = _BACKENDS.get((framework, traced and framework == "tf2"))
    if target is None:
        known = sorted({name for name, _ in _BACKENDS})
        hint = did_you_mean(framework, known)
        raise FrameworkError(f"unknown framework {framework!r}.{hint} Known: {', '.join(known)}")
    module, _, name = target.partition(":")
    return getattr(_load(module, framework), name)


def distribution_bridge(framework: str) -> ModuleType:
    """The module that uses a framework's own distributions; imports the framework.

    Args:
        framework: "tf" or "torch".

    Raises:
        FrameworkError: if it isn't installed.
    """
    return _load(_DISTRIBUTIONS[framework], framework)


def export_bridge(framework: str) -> ModuleType:
    """The module that writes a framework's files for other programs; imports the framework.

    Args:
        framework: "tf" or "torch".

    Raises:
        FrameworkError: if it isn't installed.
    """
    return _load(_EXPORTERS[framework], framework)


def _load(module: str, framework: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "polylib":
            raise
        extra = "torch" if framework == "torch" else "tf"
        raise FrameworkError(
            f"framework {framework!r} needs {error.name}, not installed here: pip install 'polylib[{extra}]'"
        ) from None


def make_policy(spec: PolicySpec, framework: str, traced: bool = False) -> Policy:
    """Builds a policy.

    Args:
        spec: what to build.
        framework: "tf", "tf2" or "torch".
        traced: tf2 compiled with tf.function.

    Raises:
        FrameworkError: if there is no such framework or it isn't installed.
    """
    return policy_class(framework, traced)(spec)
