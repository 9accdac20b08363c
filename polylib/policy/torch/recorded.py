"""Losses and their gradients as recorded operations: what is the same in every update isn't found out every time.

Updates of small networks are some 150 short operations, of which Python and autograd take more time than the
arithmetic. Where updates of the same shape come often, one is recorded as the operations that it consisted of, those of
autograd among them; from then on these run one after another, without either. They are the same operations on the same
memory, so that the results are the same; they are compared before anybody relies on them.

As in traced TensorFlow, whatever changes from update to update has to be a tensor: batches, noise, coefficients and
variables.
"""

from __future__ import annotations

import functools
import logging
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from polylib.models.networks import SEQ_MASK

logger = logging.getLogger(__name__)

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor]
#: Losses, stats, rows, and the gradients of each group.
Found = tuple[dict[str, Any], dict[str, Any], dict[str, Tensor], dict[str, Sequence[Tensor]]]

# Updates of one shape before one is recorded, which takes about as long as a thousand of them; and how many of those
# that follow are computed in both ways. torch keeps some 3 MB of each recording for good, so there are few.
_OFTEN, _CHECKS, _MOST = 256, 2, 4
# torch replaces methods of its classes meanwhile.
_LOCK = threading.Lock()

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def _flat(found: Found) -> list[Any]:
    losses, stats, rows, gradients = found
    return [*losses.values(), *stats.values(), *rows.values(), *(g for group in gradients.values() for g in group)]


def _named(names: Sequence[Any], results: Sequence[Tensor]) -> Found:
    found = iter(results)
    losses, stats, rows = ({name: next(found) for name in part} for part in names[:3])
    return losses, stats, rows, {group: [next(found) for _ in range(count)] for group, count in names[3]}


class Recorded:
    """Computes what a function computes, sooner or later from a recording.

    Args:
        compute: of coefficients, a batch and noise.

    Attributes:
        recordings: how many there were.
    """

    def __init__(self, compute: Callable[[Tensors, Tensors, Tensors], Found]) -> None:
        self._compute, self.recordings = compute, 0
        self._signature: Any = None
        self._seen = self._checks = 0
        self._run: Callable[[Sequence[Tensor]], Found] | None = None
        self._runs: dict[Any, Callable[[Sequence[Tensor]], Found]] = {}
        self._works = True

    def __call__(self, c: Mapping[str, float], values: Tensor, batch: Tensors, noise: Tensors) -> Found:
        """What the function returns.

        Args:
            c: coefficients, for the function.
            values: the same as a tensor, for a recording.
            batch: columns.
            noise: likewise.
        """
        if not self._works or SEQ_MASK in batch:
            return self._compute(c, batch, noise)  # type: ignore[arg-type]
        tensors = [values, *batch.values(), *noise.values()]
        signature = (*batch, *noise, *((x.shape, x.dtype) for x in tensors))
        if signature != self._signature:
            self._signature, self._seen, self._run = signature, 0, self._runs.get(signature)
        self._seen += 1
        if self._run is None and self._seen >= _OFTEN and self.recordings < _MOST:
            self._run, self._checks = self._recording(tensors, list(c), list(batch), list(noise)), _CHECKS
            if self._run is not None:
                self._runs[signature] = self._run
        if self._run is None:
            return self._compute(c, batch, noise)  # type: ignore[arg-type]
        with torch.no_grad():
            results = self._run(tensors)
        if self._checks:
            self._checks -= 1
            expected = self._compute(c, batch, noise)  # type: ignore[arg-type]
            if not same(_flat(results), _flat(expected)):
                self._give_up("its results differ")
            return expected
        return results

    def _give_up(self, why: Any) -> None:
        logger.info("updates aren't recorded: %s", why)
        self._run, self._works = None, False
        self._runs.clear()

    def _recording(
        self, tensors: Sequence[Tensor], c: list[str], batch: list[str], noise: list[str]
    ) -> Callable[[Sequence[Tensor]], Found] | None:
        names: list[Any] = []  # of this shape's results

        def compute(*given: Tensor) -> list[Tensor]:
            rest = iter(given[1:])
            named = [{name: next(rest) for name in names} for names in (batch, noise)]
            found = self._compute(dict(zip(c, given[0].unbind(), strict=True)), *named)
            names[:] = [*map(list, found[:3]), [(group, len(gradients)) for group, gradients in found[3].items()]]
            return [x.detach() for x in _flat(found)]

        self.recordings += 1
        try:
            with _LOCK:
                run = record(compute, tensors)
        except Exception as error:  # of whatever kind: torch promises neither of its tools to everybody
            self._give_up(error)
            return None
        return lambda given: _named(names, run(given))


def record(compute: Callable[..., list[Tensor]], tensors: Sequence[Tensor]) -> Run:
    """The operations of `compute(*tensors)`, for other tensors of the same shapes.

    Args:
        compute: of tensors; others that it uses are read anew every time.
        tensors: an example.

    Raises:
        ValueError: if the results aren't the same to the last bit.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # it takes a second

    module = make_fx(compute)(*tensors)
    nodes, used = list(module.graph.nodes), []
    start = next(node for node in nodes if node.op != "placeholder")
    for node in nodes:
        if node.op == "get_attr":
            # Not as constants, which might be computed with once and for all.
            used.append(getattr(module, node.target))
            with module.graph.inserting_before(start):
                node.replace_all_uses_with(module.graph.placeholder(f"used_{len(used)}"))
            module.graph.erase_node(node)
        elif node.target is torch.ops.aten.addmm.default and not node.kwargs:
            node.target = _affine
        elif node.target is torch.ops.mkldnn._linear_pointwise.default:
            bias, activation = node.args[2:4]
            node.target = _product if bias is None else {"none": _layer, "tanh": _tanh_layer}[activation]
            node.args = node.args[: 2 if bias is None else 3]
    module.recompile()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        traced = torch.jit.trace(module, (*tensors, *used), check_trace=False)
        # Not with the variables as they are: where biases are still 0, nobody sees how they are added.
        others = [*tensors, *map(_moved, used)]
        expected = module(*others)
        for _ in range(3):  # TorchScript optimizes what it has run
            found = traced(*others)
    if not same(found, expected):
        raise ValueError("its results differ")
    return lambda given: traced(*given, *used)


def same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether results are equal to the last bit: a restored run begins unrecorded, and goes on as the unbroken one."""
    return all(torch.allclose(x, y, rtol=0, atol=0, equal_nan=True) for x, y in zip(found, expected, strict=True))


def _moved(used: Tensor) -> Tensor:
    """A variable with other values."""
    if not used.is_floating_point():
        return used
    noise = torch.randn(used.shape, generator=torch.Generator().manual_seed(0))
    return torch.empty_like(used).copy_(used + 0.1 * noise)


def _affine(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    # As a layer: TorchScript takes `addmm` apart, which rounds differently.
    return torch.nn.functional.linear(x, weight.t(), bias)


# oneDNN's products, which a trace can't take as they are: TorchScript reads their empty list as one of numbers.
_SCRIPT = """
def layer(x, weight, bias):
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
def tanh_layer(x, weight, bias):
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "tanh", [], "")
def product(x, weight):
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
"""


@functools.cache
def _script() -> Any:
    return torch.jit.CompilationUnit(_SCRIPT)


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _script().layer(x, weight, bias)


def _tanh_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _script().tanh_layer(x, weight, bias)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return _script().product(x, weight)
