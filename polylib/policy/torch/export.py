"""Writes policies as TorchScript, `torch.export` programs and ONNX."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from polylib.errors import ExportError, FrameworkError
from polylib.policy.export import Plan
from polylib.policy.torch import ops

Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
_ONNX = ("onnx", "onnxscript")


class ExportedModel(nn.Module):
    """A plan as a module: takes a dict of inputs by name, returns a dict of outputs."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self.choose()

    def choose(self) -> None:
        """Holds the networks that the plan needs."""
        self.nets = nn.ModuleDict({name: self.plan.policy.nets[name] for name in self.plan.nets})

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Inputs and outputs by name, each `[B, ...]`."""
        out = self.plan.run(ops, dict(self.nets.items()), inputs, _normalize)
        return {name: x.detach() if name.startswith("actions") else x for name, x in out.items()}


def _normalize(x: torch.Tensor, mean: np.ndarray, scale: np.ndarray) -> torch.Tensor:
    return ((x.double() - torch.as_tensor(mean)) * torch.as_tensor(scale)).float()


def require(format: str) -> None:
    """Raises FrameworkError if a package that a format needs isn't installed."""
    if format == "onnx":
        missing = [name for name in _ONNX if importlib.util.find_spec(name) is None]
        if missing:
            raise FrameworkError(
                f"export: format 'onnx' needs {' and '.join(missing)}, not installed here: pip install 'polylib[onnx]'"
            )


def write(plan: Plan, format: str, file: Path, opset: int) -> Call:
    """Writes `file` and loads it: a function of inputs by name.

    Raises:
        ExportError: if the model can't be written in this format.
    """
    model = ExportedModel(plan).eval()
    inputs = {name: torch.from_numpy(x) for name, x in plan.examples(3).items()}
    with torch.no_grad(), _quiet():
        names = list(model(inputs))
        model.choose()
        if format == "torchscript":
            torch.jit.save(torch.jit.trace(model, (inputs,), strict=False, check_trace=False), str(file))
            return _caller(torch.jit.load(str(file)))
        program = _program(model, inputs, format)
        if format == "torch_export":
            torch.export.save(program, str(file))
            return _caller(torch.export.load(str(file)).module())
        torch.onnx.export(
            program,
            (),
            str(file),
            input_names=list(inputs),
            output_names=names,
            opset_version=opset,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return _onnx_caller(file, names, _caller(program.module()))


def _program(model: nn.Module, inputs: dict[str, torch.Tensor], format: str) -> Any:
    scripted = any(isinstance(part, torch.jit.ScriptModule) for part in model.modules())
    if scripted:
        raise ExportError(f"export: format {format!r} can't hold a TorchScript module; choose 'torchscript'")
    rows = torch.export.Dim("batch", min=1)
    return torch.export.export(
        model, (inputs,), dynamic_shapes=({name: {0: rows} for name in inputs},), strict=False
    )


def _caller(function: Any) -> Call:
    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            out = function({name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: x.detach().numpy() for name, x in out.items()}

    return call


def _onnx_caller(file: Path, names: list[str], otherwise: Call) -> Call:
    """Calls the file where a runtime is installed; elsewhere its structure is checked, and its source called."""
    if importlib.util.find_spec("onnxruntime") is None:
        import onnx

        onnx.checker.check_model(str(file))
        return otherwise
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without exporters' remarks about themselves, and without checks of values."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    validates = torch.distributions.Distribution._validate_args
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        # Distributions check their parameters' values, which tracing has none of.
        torch.distributions.Distribution.set_default_validate_args(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
