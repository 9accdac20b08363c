"""Networks that users bring: what they are told, and how a config names them. Backends build them in `custom.py`.

A custom model is a factory `(observation_space, action_space, outputs, **custom_model_config)`, a class that takes the
same, a finished model, or the name of one: registered with `polylib.register_model`, or "module:attribute". `outputs`
says what it has to return: `{"logits": 4, "value": 1}` asks for logits `[N, 4]` and values `[N, 1]`. What a model may
leave to polylib, a value network beside it or Q heads on its features, is added as a default network.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError
from polylib.models.default_networks import actor_critic
from polylib.models.networks import NetworkSpec, batch_dtype
from polylib.models.spaces import flatten, leaves, mask_column
from polylib.registry import named_model


def value_network(spec: CustomNetwork, widths: Mapping[str, int]) -> NetworkSpec | None:
    """The default value network beside a model that leaves values out; keys `<name>_value/...`."""
    if "value" in widths or "value" not in spec.outputs:
        return None
    settings = {**spec.settings, "vf_share_layers": False}
    full = actor_critic(f"{spec.name}_value", spec.observation_space, 1, settings, spec.action_space)
    return NetworkSpec(full.name, full.inputs, full.needed(("value",)), {"value": full.outputs["value"]})


@dataclass(frozen=True)
class CustomNetwork:
    """The description of a user's network, as `NetworkSpec` is of a default one.

    Attributes:
        name: prefix of its weight keys.
        observation_space: what it sees, nested as it is, the action mask included.
        action_space: of the agent.
        outputs: output name to width.
        model: what the config's `custom_model` names: a factory, class or finished model.
        config: keyword arguments for it, the config's `custom_model_config`.
        settings: the config's whole `model`, for the default value network that goes beside a model without values.
        optional: those of `outputs` that the model may leave out.
        any_width: those of `outputs` whose width is a suggestion.
        added: from the description and the widths of what the model returned to the network that polylib adds, which
            sees the observation's columns or these outputs; None if it adds none.
        hint: for a model whose outputs don't fit: what else could be meant.
        copy_of: as of a `NetworkSpec`.
    """

    name: str
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    outputs: dict[str, int]
    model: Any
    config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    optional: tuple[str, ...] = ("value",)
    any_width: tuple[str, ...] = ()
    added: Callable[[CustomNetwork, Mapping[str, int]], NetworkSpec | None] = value_network
    hint: str = ""
    copy_of: str | None = None

    def copy(self, name: str) -> CustomNetwork:
        """A target network of this one, called `name`."""
        return replace(self, name=name, copy_of=self.name)

    def expected(self, given: Mapping[str, Sequence[int]]) -> dict[str, tuple[Any, ...]]:
        """The shape of each output without batch axis; `given` are those that came, with it."""
        found: dict[str, tuple[Any, ...]] = {name: (width,) for name, width in self.outputs.items()}
        for name in self.any_width:
            shape = given.get(name, ())
            found[name] = (int(shape[1]) if len(shape) == 2 and shape[1] else "any width",)
        return found

    @property
    def inputs(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each input column."""
        return {
            name: (tuple(space.shape or ()), batch_dtype(space))
            for name, space in leaves(self.observation_space).items()
        }


def custom_network(
    name: str,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    outputs: dict[str, int],
    settings: dict[str, Any],
    **others: Any,
) -> CustomNetwork | None:
    """The description of the config's `custom_model`, or None if there is none.

    Args:
        name: prefix of the weight keys.
        observation_space: of the agent.
        action_space: of the agent.
        outputs: output name to width.
        settings: the config's `model`.
        **others: of a `CustomNetwork`.

    Raises:
        ConfigError: if `custom_model` names something that there isn't, or `use_lstm` and the like are set beside it.
    """
    model = settings.get("custom_model")
    if model is None:
        return None
    for key in ("use_lstm", "use_gru", "use_attention", "free_log_std", "no_final_linear"):
        if settings.get(key):
            raise ConfigError(
                f"config key {key!r} changes the default network; with custom_model set it would do nothing. Put it "
                "into your model, or leave it out"
            )
    found = named_model(model) if isinstance(model, str) else model
    config = dict(settings.get("custom_model_config") or {})
    return CustomNetwork(name, observation_space, action_space, outputs, found, config, settings, **others)


def example_inputs(spec: CustomNetwork, rows: int) -> dict[str, np.ndarray]:
    """Input columns `[rows, ...]` drawn from the observation space, to try a model on; always the same.

    Of floats none is far from 0 (bounds may be as wide as the type, and no environment gives such values), and an
    action mask allows everything.
    """
    space = copy.deepcopy(spec.observation_space)
    space.seed(0)
    drawn = [flatten(space, space.sample()) for _ in range(rows)]
    found = {}
    for name, (_, dtype) in spec.inputs.items():
        x = np.stack([np.asarray(row[name]) for row in drawn])
        if name == mask_column(space):
            x = np.ones_like(x)
        elif dtype.kind == "f":
            part: Any = leaves(space)[name]
            x = np.clip(np.clip(x, -1.0, 1.0), part.low, part.high)
        found[name] = x.astype(dtype)
    return found


def check_copy(network: Any, target: Any) -> None:
    """Checks that a user's model, made twice, has the same variables twice, for a target network.

    Args:
        network: the backend's network that learns.
        target: its second copy.

    Raises:
        ConfigError: if shapes differ, or a variable that learns is the same one.
    """
    pairs = list(zip(network.own, target.own.values(), strict=False))
    shared = [key for key, own in pairs if network.own[key] is own and key in network.trainable_keys()]
    if shared:
        raise ConfigError(
            f"config key 'custom_model': it returns the same variable {shared[0]!r} whenever it is called, and a "
            "target network needs its own: make layers inside of the function, or pass the finished model itself"
        )
    first, second = list(network.shapes().values()), list(target.shapes().values())
    if first != second:
        raise ConfigError(
            f"config key 'custom_model': the second model that it made, for the target network, has variables of "
            f"shapes {second}, the first one {first}: expected the same"
        )


def misfit(what: str, rows: Iterable[tuple[str, str, str]], hint: str = "") -> ConfigError:
    """The error for a model that doesn't fit: what was expected of each output beside what came.

    Args:
        what: the model, in words.
        rows: name, expected, got.
        hint: how to fix it.
    """
    table = [("", "expected", "got"), *rows]
    widths = [max(len(row[i]) for row in table) for i in (0, 1)]
    lines = "".join(f"\n  {name:<{widths[0]}}  {expected:<{widths[1]}}  {got}" for name, expected, got in table)
    return ConfigError(f"config key 'custom_model': {what} doesn't fit{f': {hint}' if hint else ''}{lines}")
