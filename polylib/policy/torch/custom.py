"""Networks that torch users bring: any `nn.Module`, TorchScript modules and Keras models on torch among them.

The module is called with the observation, nested as its space is: `forward(obs)`. It returns the logits, a tuple
`(logits, value)`, or a dict by output name. A module with an attribute `state_shapes`, such as `[(64,), (64,)]`, is
recurrent: `forward(obs, state)` takes a list of tensors `[B, *shape]` and returns `(outputs, new_state)`. It sees one
step at a time; learning from sequences calls it once for every step.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from polylib.errors import ConfigError, FrameworkError
from polylib.models.custom import CustomNetwork, example_inputs, misfit
from polylib.models.finished_keras import is_keras_model
from polylib.models.finished_torch import Script
from polylib.models.networks import SEQ_MASK, NetworkSpec
from polylib.models.spaces import unflatten
from polylib.policy.policy import random_stream

# Rows of the batch that a new module is tried on; no width that a network would have.
_ROWS = 3
_STREAM = 3  # of a seed; see `random_stream`


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """torch's generator begins at a policy's seed, and goes on outside as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(random_stream(seed, _STREAM).integers(2**63 - 1)))
        yield


class CustomTorchNetwork(nn.Module):
    """A user's module as a `polylib.models.networks.Network`.

    Args:
        spec: the description; its model is a factory, a class, or a finished module, which is copied.
        make: makes the network that polylib adds: values beside the module, heads on its outputs.

    Attributes:
        model: the user's module.
        own: its variables by key: parameters, frozen ones too, and buffers of floats.
        axes: of the added network; a user's variables keep their layout.
        added: what polylib adds, None if nothing.
        headed: whether that goes on from the module's outputs.
        state: shapes of the recurrent state.
        state_outputs: names of the new states.
        widths: of the module's own outputs, in order.

    Raises:
        ConfigError: if the module can't be made, has nothing to learn, or returns what doesn't fit.
        FrameworkError: for a Keras model on another backend than torch.
    """

    def __init__(self, spec: CustomNetwork, make: Callable[[NetworkSpec], Any]) -> None:
        super().__init__()
        self.spec = spec
        self.model = _made(spec)
        self._keras = is_keras_model(self.model)
        self.what = type(self.model).__name__
        shapes = [] if self._keras else getattr(self.model, "state_shapes", None) or []
        self.state = self._checked_state(shapes)
        self.state_outputs = tuple(f"state_out_{i}" for i in range(len(self.state)))
        # Parts that the user put into eval mode, a frozen trunk with batch norm, say, stay in it while learning. A
        # module that is in eval mode as a whole is one that was used before it came here.
        parts = list(self.model.modules()) if self.model.training else []
        self._evals = [part for part in parts if not part.training]
        self._learns = True  # the mode it is in; unlike model.training, known to nobody else
        self._check_dtypes()
        given = self._try()  # before the variables are looked for: lazy modules make theirs now
        self.widths = {name: int(given[name].shape[1]) for name in spec.outputs if name in given}
        self.added = spec.added(spec, self.widths)
        self.headed = self.added is not None and not self.widths.keys().isdisjoint(self.added.inputs)
        self.addition: Any = None if self.added is None else make(self.added)
        self.own = {f"{spec.name}/{key}": tensor for key, tensor in _variables(self.model, self._keras).items()}
        self._check_variables()
        self.axes: dict[str, tuple[int, ...]] = {} if self.addition is None else dict(self.addition.axes)

    # --- Network

    def variables(self) -> dict[str, torch.Tensor]:
        """Key to variable: `policy/{i:03d}/{name}` by the order of modules, frozen ones and float buffers too."""
        return {**self.own, **({} if self.addition is None else self.addition.variables())}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every variable by key."""
        own = {key: tuple(tensor.shape) for key, tensor in self.own.items()}
        return {**own, **({} if self.addition is None else self.addition.shapes())}

    def trainable_keys(self) -> list[str]:
        """The keys of what requires gradients; none of a target network."""
        if self.spec.copy_of:
            return []
        own = [key for key, tensor in self.own.items() if tensor.requires_grad]
        return [*own, *([] if self.addition is None else self.addition.trainable_keys())]

    def initial_weights(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Of the added network; the user's variables are what the user made them."""
        return {} if self.addition is None else self.addition.initial_weights(rng)

    def penalties(self) -> Sequence[Any]:
        """What the module's `losses()` returns after a forward pass, if it has such a method."""
        losses = getattr(self.model, "losses", None)
        if losses is None or isinstance(losses, nn.Module):
            return ()
        return tuple(losses() if callable(losses) else losses if self._keras else ())

    def forward(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Any]:
        """Outputs by name, each `[N, units]`; states `[B, *state_shape]`.

        Args:
            inputs: columns of the observation, `state_i`, and for sequences `seq_mask`.
            outputs: names of the outputs wanted, all by default.
            training: whether batch norm and dropout are in their learning mode.
        """
        added = () if self.added is None else self.added.outputs
        names = [*self.spec.outputs, *added, *self.state_outputs] if outputs is None else list(outputs)
        given = {name: x if isinstance(x, torch.Tensor) else torch.as_tensor(x) for name, x in inputs.items()}
        values: dict[str, Any] = {}
        if self.headed or any(name not in added for name in names):
            self._set_mode(training)
            values = self._steps(given, training)
        wanted = [name for name in names if name in added]
        if wanted:
            values = {**values, **self.addition({**given, **values}, wanted)}
        return {name: values[name] for name in names}

    # --- the user's module

    def _set_mode(self, training: bool) -> None:
        if self._learns == training and self.model.training == training:
            return
        self._learns = training
        self.model.train(training)
        for part in self._evals:
            part.training = False

    def _steps(self, inputs: Mapping[str, torch.Tensor], training: bool) -> dict[str, Any]:
        columns = {name: inputs[name] for name in self.spec.inputs}
        states = [inputs[f"state_{i}"] for i in range(len(self.state))]
        if not self.state or SEQ_MASK not in inputs:
            return self._named(self._call(columns, states, training))
        batch, time = inputs[SEQ_MASK].shape
        sequences = {name: x.reshape(batch, time, *x.shape[1:]) for name, x in columns.items()}
        outs = []
        for t in range(time):
            out = self._named(self._call({name: x[:, t] for name, x in sequences.items()}, states, training))
            states = [out.pop(name) for name in self.state_outputs]
            outs.append(out)
        rows = {name: torch.stack([out[name] for out in outs], 1).flatten(0, 1) for name in outs[0]}
        return {**rows, **dict(zip(self.state_outputs, states, strict=True))}

    def _call(self, columns: Mapping[str, torch.Tensor], states: list[torch.Tensor], training: bool) -> Any:
        obs = unflatten(self.spec.observation_space, columns)
        if self._keras:
            return self.model(obs, training=training)
        return self.model(obs, states) if self.state else self.model(obs)

    def _named(self, result: Any) -> dict[str, Any]:
        """Outputs by name from what the module returned."""
        found: dict[str, Any] = {}
        if self.state and not isinstance(result, Mapping):
            result, new = result
            found.update(zip(self.state_outputs, new, strict=True))
        if isinstance(result, Mapping):
            return {**result, **found}
        parts = result if isinstance(result, tuple | list) else (result,)
        return {**dict(zip(self.spec.outputs, parts, strict=False)), **found}

    # --- checks

    def _checked_state(self, shapes: Any) -> tuple[tuple[int, ...], ...]:
        try:
            found = tuple(tuple(int(n) for n in shape) for shape in shapes)
            if all(n > 0 for shape in found for n in shape):
                return found
        except (TypeError, ValueError):
            pass
        raise ConfigError(
            f"config key 'custom_model': {self.what}.state_shapes is {shapes!r}, expected a list of shapes without "
            "batch axis, such as [(64,), (64,)]"
        )

    def _try(self) -> dict[str, Any]:
        """Calls the module on a few observations; the outputs that it has.

        Raises:
            ConfigError: with what was expected beside what came.
        """
        columns = {name: torch.from_numpy(x) for name, x in example_inputs(self.spec, _ROWS).items()}
        states = [torch.zeros(_ROWS, *shape) for shape in self.state]
        self._set_mode(False)
        call = "(obs, state)" if self.state else "(obs)"
        try:
            with torch.no_grad():
                result = self._call(columns, states, False)
        except Exception as error:  # whatever a user's module raises
            shown = {name: _described(_dtype(x), x.shape) for name, x in columns.items()}
            raise ConfigError(
                f"config key 'custom_model': {self.what}{call} raised {_one_line(error)}; obs was {_show(shown)}"
            ) from error
        if self.state and not isinstance(result, Mapping):
            parts = result if isinstance(result, tuple | list) else (result,)
            count = len(parts[1]) if len(parts) == 2 and isinstance(parts[1], tuple | list) else None
            if count != len(self.state):
                got = f"a state of {count} tensors" if count is not None else _kind(result)
                raise ConfigError(
                    f"config key 'custom_model': {self.what}(obs, state) has to return (outputs, new_state) with "
                    f"new_state a list of {len(self.state)} tensors, as state_shapes says; got {got}"
                )
        parts = result if isinstance(result, tuple | list) and not self.state else ()
        surplus = {f"output {i}": x for i, x in enumerate(parts) if i >= len(self.spec.outputs)}
        given = {**self._named(result), **surplus}
        self._check_outputs(given)
        return given

    def _check_outputs(self, given: Mapping[str, Any]) -> None:
        shapes = self.spec.expected({name: getattr(x, "shape", ()) for name, x in given.items()})
        shapes.update(zip(self.state_outputs, self.state, strict=True))
        rows, wrong, finite = [], False, True
        for name in dict.fromkeys([*shapes, *given]):
            x = given.get(name)
            expected = _described("float32", ("N", *shapes[name])) if name in shapes else "nothing of that name"
            if x is None:
                optional = name in self.spec.optional
                wrong |= not optional
                rows.append((name, expected, "missing (a default network is added)" if optional else "missing"))
                continue
            got = _kind(x)
            if isinstance(x, torch.Tensor):
                got = _described(_dtype(x), ["N" if i == 0 and n == _ROWS else n for i, n in enumerate(x.shape)])
                if got == expected and not torch.isfinite(x).all():
                    got, finite = f"{got} with NaN or infinite numbers", False
            wrong |= got != expected
            rows.append((name, expected, got))
        if wrong:
            asked = f"its outputs are not what is asked for{self.spec.hint}"
            hint = asked if finite else "it returns NaN for observations of the space"
            raise misfit(f"model {self.what!r}", rows, hint)

    def _check_dtypes(self) -> None:
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != torch.float32:
                raise ConfigError(
                    f"config key 'custom_model': {self.what} has {name!r} in {_dtype(tensor)}, expected float32: call "
                    ".float() on it"
                )

    def _check_variables(self) -> None:
        for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ConfigError(f"config key 'custom_model': {self.what} has NaN or infinite numbers in {name!r}")
        learns = self.headed and self.added is not None and self.added.shapes()
        if not learns and not any(tensor.requires_grad for tensor in self.own.values()):
            frozen = f": all {len(self.own)} are frozen" if self.own else ""
            raise ConfigError(
                f"config key 'custom_model': {self.what} has no trainable parameter{frozen}; at least one must have "
                "requires_grad"
            )


# --- from a config to a module


def _made(spec: CustomNetwork) -> nn.Module:
    """The user's module: a copy of a finished one, or what the factory returns."""
    model, name = spec.model, getattr(spec.model, "__name__", type(spec.model).__name__)
    if isinstance(model, nn.Module):
        if spec.config:
            raise ConfigError(
                f"config key 'custom_model_config': {sorted(spec.config)} are for a factory or class; custom_model is "
                f"a finished {name}"
            )
        made: Any = _copied(model)
    elif is_keras_model(model):
        raise _wrong_keras(model)
    elif not callable(model):
        raise ConfigError(
            f"config key 'custom_model': got {model!r} ({type(model).__name__}), expected a torch.nn.Module, or a "
            "function or class (observation_space, action_space, outputs, **custom_model_config) that makes one"
        )
    else:
        made = _called(spec, name)
    if not isinstance(made, nn.Module):
        if is_keras_model(made):
            raise _wrong_keras(made)
        raise ConfigError(
            f"config key 'custom_model': {name} returned {_kind(made)}, expected a torch.nn.Module (framework 'torch')"
        )
    return made.to("cpu")


def _copied(model: nn.Module) -> Any:
    if isinstance(model, torch.jit.ScriptModule):
        # A deep copy's parameters would be results of a computation, not leaves that gradients are taken of.
        return Script(model)(None, None, None)
    return copy.deepcopy(model)


def _called(spec: CustomNetwork, name: str) -> Any:
    args = (spec.observation_space, spec.action_space, dict(spec.outputs))
    try:
        bound = inspect.signature(spec.model).bind(*args, **spec.config)
    except ValueError:  # built in, without a signature
        bound = None
    except TypeError as error:
        raise ConfigError(
            f"config key 'custom_model': {name} is called with (observation_space, action_space, outputs"
            f"{''.join(f', {key}=...' for key in spec.config)}), which doesn't fit its arguments: {error}"
        ) from None
    try:
        return spec.model(*args, **spec.config) if bound is None else spec.model(*bound.args, **bound.kwargs)
    except (ConfigError, FrameworkError):
        raise
    except Exception as error:  # whatever a user's code raises
        raise ConfigError(
            f"config key 'custom_model': {name}(observation_space, action_space, {dict(spec.outputs)}) raised "
            f"{_one_line(error)}"
        ) from error


def _wrong_keras(model: Any) -> FrameworkError:
    backend = sys.modules["keras"].backend.backend()
    return FrameworkError(
        f"custom_model is the Keras model {model.name!r}, and Keras runs on {backend!r} here: framework 'torch' takes "
        "it when KERAS_BACKEND=torch is set before Python starts (KERAS_BACKEND=torch bin/train --framework torch "
        "...); or choose framework 'tf2'"
    )


def _variables(model: Any, keras: bool) -> dict[str, torch.Tensor]:
    """What learning and saving see of a module, by `{i:03d}/{name}`."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    count = 0
    for part in _keras_parts(model) if keras else _parts(model):
        own: dict[str, torch.Tensor] = {}
        for name, tensor in part:
            # Other integers (tables, seeds) aren't learnt, and might not survive float32.
            if id(tensor) in seen or not (tensor.is_floating_point() or name == "num_batches_tracked"):
                continue
            seen.add(id(tensor))
            i = 0
            while (leaf := f"{name}_{i}" if i else name) in own:
                i += 1
            own[leaf] = tensor
        if own:
            found.update({f"{count:03d}/{leaf}": tensor for leaf, tensor in own.items()})
            count += 1
    return found


def _parts(model: nn.Module) -> Iterator[Iterator[tuple[str, torch.Tensor]]]:
    """Parameters and saved buffers of each module, parents first."""
    for _, part in model.named_modules():
        saved = part.state_dict(keep_vars=True)
        buffers = (item for item in part.named_buffers(recurse=False) if item[0] in saved)
        yield iter((*part.named_parameters(recurse=False), *buffers))


def _keras_parts(layer: Any) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """The same of a Keras model's layers, children first: a layer lists its children's variables as well."""
    for part in getattr(layer, "layers", ()):
        yield from _keras_parts(part)
    yield [(weight.name, weight.value) for weight in layer.weights]


# --- words


def _dtype(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _described(dtype: str, shape: Iterable[Any]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _kind(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}".removeprefix("builtins.")


def _show(columns: Mapping[str, str]) -> str:
    if list(columns) == ["obs"]:
        return columns["obs"]
    return ", ".join(f"{name}: {text}" for name, text in columns.items())


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
