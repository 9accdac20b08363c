"""Policies as files for programs without polylib: what goes into them, and how they are checked.

An exported model takes observations as the environment gives them (an observation filter is part of it), a recurrent
one its state too, and returns `logits`, `value`, `actions` (the most likely ones, in the environment's units) and the
new state. The backends' `export.py` write it; here are the formats, the names of inputs and outputs, and the check
that what was written gives the policy's numbers.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polylib import __version__
from polylib.errors import ConfigError, ExportError, FrameworkError, PolylibError, did_you_mean
from polylib.models.distributions.framework import FrameworkDistribution
from polylib.models.networks import NetworkSpec, plain_names
from polylib.models.spaces import leaves, mask_column, unflatten
from polylib.policy.backends import export_bridge, make_policy
from polylib.policy.policy import Policy, random_stream
from polylib.spaces_json import space_to_json

#: The version of ONNX' operators that is written if none is asked for.
DEFAULT_OPSET = 18
# Rows of the batch on which a file is checked, and how far its numbers may be from the policy's.
_ROWS, _TOLERANCE = 8, 1e-4


@dataclass(frozen=True)
class Format:
    """A kind of file.

    Attributes:
        framework: which backend writes it, "tf" or "torch".
        file: its name in the folder of the export.
        load: how it is loaded, for messages.
    """

    framework: str
    file: str
    load: str


FORMATS = {
    "keras": Format("tf", "model.keras", "keras.models.load_model"),
    "saved_model": Format("tf", "saved_model", "tf.saved_model.load"),
    "torchscript": Format("torch", "model.pt", "torch.jit.load"),
    "torch_export": Format("torch", "model.pt2", "torch.export.load"),
    "onnx": Format("torch", "model.onnx", "onnxruntime.InferenceSession"),
}
_DEFAULTS = {"tf": "saved_model", "tf2": "saved_model", "torch": "torch_export"}
_FAMILY = {"tf": "tf", "tf2": "tf", "torch": "torch"}


@dataclass(frozen=True)
class Input:
    """An input of an exported model.

    Attributes:
        name: letters, digits and `_`.
        column: what polylib calls it.
        shape: without batch axis.
        dtype: of its elements.
    """

    name: str
    column: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Plan:
    """What an exported model computes, over the `ops` of the backend that writes it.

    Args:
        policy: to export.

    Attributes:
        inputs: observations, for networks that see them previous actions and rewards, then states.
        nets: names of the networks: at first all but targets, once `run` was called those that it needed.
        outputs: names of the outputs in their order, once `run` was called.
    """

    outputs: tuple[str, ...] = ()

    def __init__(self, policy: Policy) -> None:
        self.policy, self.objective = policy, policy.objective
        layout = dict(policy.export_layout())
        names = plain_names(layout)
        self.inputs = [Input(names[column], column, shape, dtype) for column, (shape, dtype) in layout.items()]
        self.nets = [name for name, spec in policy.network_specs.items() if spec.copy_of is None]
        self.affine = {} if policy.filter.identity else policy.filter.affine()  # type: ignore[attr-defined]
        self._mask = mask_column(policy.observation_space)

    def run(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Any], normalize: Callable[..., Any]
    ) -> dict[str, Any]:
        """Outputs by name.

        Args:
            ops: the backend's `Ops`.
            nets: the backend's networks by name.
            inputs: `[B, ...]` by name.
            normalize: `(x, mean, scale)` to `(x - mean) * scale`, computed in float64, as float32.
        """
        columns = {item.column: inputs[item.name] for item in self.inputs}
        for column, (mean, scale) in self.affine.items():
            columns[column] = normalize(columns[column], mean, scale)
        if self._mask is not None:
            size = self.objective.dist.inputs_size
            columns["action_mask"] = ops.reshape(ops.to_float(columns[self._mask]), (-1, size)) > 0.5
        first = self.inputs[0]
        for name, shape in self.objective.quiet_inputs.items():
            rows = ops.reshape(ops.to_float(inputs[first.name]), (-1, math.prod(first.shape)))
            columns[name] = ops.zeros_like(rows[:, :1]) + ops.constant(np.zeros((1, *shape), np.float32))
        once = {name: _Once(net, columns) for name, net in nets.items()}
        logits = self.objective.dist_inputs(ops, once, columns)
        value = self.objective.values(ops, once, columns)
        # An array without numbers is no constant that exporters know.
        noise = ops.constant(self.objective.dist.zero_noise(1)) if self.objective.dist.noise_size else logits[:, :0]
        actions, _ = self.objective.dist.sample(ops, logits, noise)
        out = {"logits": logits} if value is None else {"logits": logits, "value": value}
        named = self.objective.named_actions(actions)
        plain = plain_names(named)
        out.update({plain[name]: x for name, x in named.items()})
        for net in once.values():
            if net.state_outputs and net.used:
                out.update(net(columns, net.state_outputs))
        self.outputs, self.nets = tuple(out), [name for name, net in once.items() if net.used]
        return out

    def examples(self, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Inputs by name, drawn from the spaces; states are normally distributed."""
        rng = random_stream(seed, 0)
        spaces = dict(leaves(self.policy.observation_space))
        if "prev_actions" in self.policy.inputs.previous:
            spaces.update(leaves(self.policy.action_space, "prev_actions"))
        return {item.name: self._example(item, spaces.get(item.column), rows, rng) for item in self.inputs}

    def _example(self, item: Input, space: Any, rows: int, rng: np.random.Generator) -> np.ndarray:
        if item.column == self._mask:
            return np.ones((rows, *item.shape), item.dtype)
        if space is None:
            return rng.standard_normal((rows, *item.shape)).astype(item.dtype)
        space = copy.deepcopy(space)  # its own random state is the user's
        space.seed(int(rng.integers(2**31)))
        x = np.stack([np.asarray(space.sample()) for _ in range(rows)])
        # Spaces without sensible bounds are sampled up to where everything overflows.
        return (np.clip(x, -10, 10) if x.dtype.kind == "f" else x).astype(item.dtype)

    def expected(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The policy's own `logits`, actions, new states and values for inputs by name."""
        policy = self.policy
        columns = {item.column: inputs[item.name] for item in self.inputs}
        states = [columns[f"state_{i}"] for i in range(len(policy.get_initial_state()))]
        previous: dict[str, Any] = {}
        if "prev_actions" in policy.inputs.previous:
            previous["prev_actions"] = unflatten(policy.action_space, columns, "prev_actions")
        if "prev_rewards" in policy.inputs.previous:
            previous["prev_rewards"] = columns["prev_rewards"]
        obs = unflatten(policy.observation_space, columns)
        out = policy.compute_actions(obs, states or None, explore=False, **previous)
        return {
            "logits": out.extras["action_dist_inputs"],
            **{f"state_out_{i}": state for i, state in enumerate(out.state)},
        }


class _Once:
    """A network that is computed once, whatever is asked of it how often."""

    def __init__(self, net: Any, columns: Mapping[str, Any]) -> None:
        self._net, self._columns = net, columns
        self._values: dict[str, Any] | None = None
        self.state, self.state_outputs = net.state, net.state_outputs

    @property
    def used(self) -> bool:
        """Whether anything was asked of it."""
        return self._values is not None

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Any]:
        if self._values is None:
            self._values = self._net(self._columns)
        return {name: self._values[name] for name in (self._values if outputs is None else outputs)}


def export_policy(
    policy: Policy, export_dir: str | os.PathLike[str], format: str | None = None, opset: int | None = None
) -> Path:
    """Writes a policy's model and a description of its inputs and outputs; see `Policy.export_model`."""
    name = _format_name(policy, format)
    chosen = FORMATS[name]
    if opset is not None and name != "onnx":
        raise ConfigError(f"export: opset={opset} is for format 'onnx', not {name!r}")
    bridge = _bridge(name, chosen)
    bridge.require(name)
    folder = Path(export_dir).expanduser()
    converted = _converted(policy, name, chosen)
    try:
        plan = Plan(converted)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as temporary:
            written = Path(temporary) / chosen.file
            outputs = _write(bridge, plan, name, written, opset)
            _replace(written, folder / chosen.file)
            description = Path(temporary) / "description.json"
            description.write_text(json.dumps(_description(policy, plan, name, outputs), indent=1) + "\n")
            _replace(description, folder / f"{chosen.file}.json")
    except OSError as error:
        raise ExportError(f"export: can't write to {folder}: {error.strerror or error}") from None
    finally:
        if converted is not policy:
            converted.close()
    return folder / chosen.file


def check_format(name: str) -> None:
    """Raises ConfigError, naming the nearest, unless `name` is one of FORMATS."""
    if name not in FORMATS:
        hint = did_you_mean(str(name).lower(), FORMATS)
        raise ConfigError(f"export: unknown format {name!r}, expected one of {', '.join(FORMATS)}.{hint}".rstrip("."))


def _format_name(policy: Policy, given: str | None) -> str:
    if given is None:
        given = _DEFAULTS.get(policy.framework)
        if given is None:
            raise ConfigError(f"export: which format? A {policy.framework} policy exports to {', '.join(FORMATS)}")
    check_format(given)
    return given


def _bridge(name: str, chosen: Format) -> Any:
    try:
        return export_bridge(chosen.framework)
    except FrameworkError as error:
        raise FrameworkError(f"export: format {name!r} is written by {chosen.framework}: {error}") from None


def _converted(policy: Policy, name: str, chosen: Format) -> Policy:
    """The policy, or one like it in the framework that writes the format."""
    if _FAMILY.get(policy.framework) == chosen.framework:
        return policy
    if not all(isinstance(spec, NetworkSpec) for spec in policy.network_specs.values()):
        own = [key for key, form in FORMATS.items() if form.framework == _FAMILY.get(policy.framework)]
        raise ExportError(
            f"export: format {name!r} is written by {chosen.framework}, and this policy's custom_model runs in "
            f"{policy.framework} only: choose one of {', '.join(own)}"
        )
    if isinstance(policy.objective.dist, FrameworkDistribution):
        raise ExportError(
            f"export: format {name!r} is written by {chosen.framework}, and this policy's custom_action_dist is made "
            "of another framework's objects"
        )
    made = make_policy(policy.spec, "tf2" if chosen.framework == "tf" else chosen.framework)
    made.set_weights(policy.get_weights())
    made.filter.set_state(policy.filter.get_state())
    return made


def _write(bridge: Any, plan: Plan, name: str, file: Path, opset: int | None) -> dict[str, np.ndarray]:
    """Writes a file, loads it and compares; what it gave for a few rows."""
    inputs = plan.examples(_ROWS)
    try:
        call = bridge.write(plan, name, file, DEFAULT_OPSET if opset is None else opset)
        got = call(inputs)
    except (PolylibError, OSError):
        raise
    except Exception as error:  # whatever exporters raise, given a user's code
        text = " ".join(str(error).split())
        raise ExportError(
            f"export: format {name!r} failed with {type(error).__name__}: {text[:400]}{_others(plan, name)}"
        ) from error
    for key, want in plan.expected(inputs).items():
        # Beyond float32's range numbers are infinite or NaN in all of them.
        if not np.allclose(got[key], want, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True):
            worst = float(np.nanmax(np.abs(got[key] - want)))
            raise ExportError(
                f"export: what was written as {name!r} differs from the policy by {worst:.2g} in {key!r}: a model "
                f"whose Python code branches on values or sizes can't be traced{_others(plan, name)}"
            )
    return {key: got[key] for key in plan.outputs}


def _others(plan: Plan, name: str) -> str:
    family = FORMATS[name].framework
    others = [key for key, form in FORMATS.items() if form.framework == family and key != name]
    return f"; other formats of {plan.policy.framework}: {', '.join(others)}"


def _replace(source: Path, target: Path) -> None:
    if target.is_dir() and source.is_dir():
        if not (target / "saved_model.pb").is_file() and any(target.iterdir()):
            raise ExportError(f"export: {target} is a folder of something else, and isn't replaced")
        shutil.rmtree(target)
    os.replace(source, target)


def _description(policy: Policy, plan: Plan, name: str, outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        "format": name,
        "load": FORMATS[name].load,
        "framework": policy.framework,
        "polylib_version": __version__,
        "inputs": [
            {"name": item.name, "column": item.column, "shape": [None, *item.shape], "dtype": str(item.dtype)}
            for item in plan.inputs
        ],
        "outputs": [
            {"name": key, "shape": [None, *x.shape[1:]], "dtype": str(x.dtype)} for key, x in outputs.items()
        ],
        "observation_filter": policy.config.get("observation_filter", "NoFilter"),
        "observation_space": space_to_json(policy.observation_space),
        "action_space": space_to_json(policy.action_space),
    }
