"""The dense layers of a network as one step of autograd's, with their weights and their gradient in one vector.

Updates of small networks are many short calls, of which Python and autograd take more time than the arithmetic. Losses
that call networks, and don't look at their variables, are given `Learner`s instead: what these compute is the same, but
autograd sees one function of one vector. Layers that stand side by side on the same source, such as the heads of a
dueling network, become one product.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from polylib.models.networks import Layer, NetworkSpec
from polylib.models.recurrent import CELLS
from polylib.policy.torch.fused import SLOPES, SLOPES_IN_PLACE, dense, product

Tensor = torch.Tensor
# Layers up to this many units have what they work on side by side with others.
_NARROW = 32
#: Sizes, strides and offset of a part of a vector.
Place = tuple[Sequence[int], Sequence[int], int]
#: A tensor that is differentiated, and the variables in it: all of it if the place is None.
Block = tuple[Tensor, Mapping[str, Place | None]]


def place_of(part: Tensor) -> Place:
    """Where a part of a vector lies."""
    return tuple(part.shape), part.stride(), int(part.storage_offset())


@dataclass(frozen=True)
class Step:
    """Layers side by side: one source, one product, one activation.

    Attributes:
        source: what goes in.
        names: of the layers; their results lie side by side.
        widths: of each.
        activation: of all.
        weight: `[units, fan_in]`, a part of the stack's vector.
        bias: `[units]`, likewise.
        inner: whether the source comes from another step.
        places: sizes, strides and offset of weight and bias in the vector.
    """

    source: str
    names: tuple[str, ...]
    widths: tuple[int, ...]
    activation: str
    weight: Tensor
    bias: Tensor
    inner: bool
    places: tuple[Place, Place]

    def forward(self, values: dict[str, Tensor]) -> Tensor:
        """Adds the layers' results to `values`, and returns them side by side `[N, units]`."""
        y = dense(values[self.source], self.weight, self.bias, self.activation)
        if len(self.names) == 1:
            values[self.names[0]] = y
        else:
            values.update(zip(self.names, y.split_with_sizes(self.widths, 1), strict=True))
        return y

    def before_activation(
        self, found: Mapping[str, Tensor], own: Container[str], x: Tensor, y: Tensor | None
    ) -> Tensor | None:
        """The gradient `[N, units]` before the activation; None where nothing depends on the layers.

        Args:
            found: gradients of the layers' results, by name.
            own: names of those that nobody else has.
            x: what went in.
            y: what `forward` returned; None without an activation.
        """
        parts = [found.get(name) for name in self.names]
        g = parts[0]
        if len(parts) > 1 and any(part is not None for part in parts):
            sized = zip(parts, self.widths, strict=True)
            g = torch.cat([x.new_zeros(len(x), width) if part is None else part for part, width in sized], 1)
        if g is None or y is None:
            return g
        return (SLOPES_IN_PLACE if len(parts) > 1 or self.names[0] in own else SLOPES)[self.activation](g, y)

    def put(self, vector: Tensor, g: Tensor | None, x: Tensor) -> None:
        """Writes the gradients of weight and bias to their places in `vector`."""
        weight, bias = (vector.as_strided(*place) for place in self.places)
        if g is None:
            weight.zero_()
            bias.zero_()
        else:
            product(g.t(), x.t(), weight)
            torch.sum(g, 0, out=bias)


@dataclass(frozen=True)
class Plan:
    """How some of a network's outputs are computed.

    Attributes:
        names: the outputs.
        before: layers that steps need.
        steps: in order.
        sources: what goes into steps from outside.
        results: what leaves them.
        after: layers that need steps.
        size: of the stack's vector.
        whole: whether the steps have all of it.
    """

    names: tuple[str, ...]
    before: tuple[Layer, ...]
    steps: tuple[Step, ...]
    sources: tuple[str, ...]
    results: tuple[str, ...]
    after: tuple[Layer, ...]
    size: int
    whole: bool


class Stack:
    """The dense layers of a network that need its inputs, what is made of these without weights, and each other.

    Args:
        spec: the network's description.

    Attributes:
        vector: the weights `[P]`; the network's parameters are parts of it.
        parts: layer name to `(weight [units, fan_in], bias [units])`, parts of the vector.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        self._spec = spec
        self._order = {name: i for i, name in enumerate((*spec.inputs, *(layer.name for layer in spec.layers)))}
        self._encoded, self._layers = set(spec.inputs), dict[str, Layer]()
        # Layers without weights that differ in nothing but their names, such as the inputs of twins: computed once.
        first: dict[Layer, str] = {}
        self._same: dict[str, str] = {}
        for layer in spec.layers:
            if layer.kind == "dense":
                if (layer.activation or "none") in SLOPES and {*layer.sources} <= self._encoded | set(self._layers):
                    self._layers[layer.name] = layer
            elif layer.kind not in CELLS and {*layer.sources} <= self._encoded:
                self._encoded.add(layer.name)
                if not layer.leaves():
                    self._same[layer.name] = first.setdefault(replace(layer, name=""), layer.name)
        self.vector = torch.zeros(
            sum(layer.units * (layer.fan_in + 1) for layer in self._layers.values()), dtype=torch.float32, device="cpu"
        )
        self.parts: dict[str, tuple[Tensor, Tensor]] = {}
        # Matrices first: their sizes are mostly such that all of them begin where vector instructions like it.
        start, bias = 0, sum(layer.units * layer.fan_in for layer in self._layers.values())
        for group in self._groups(self._layers):
            for layer in group:
                units, fan_in = layer.units, layer.fan_in
                self.parts[layer.name] = self._part(start, units, fan_in), self.vector[bias : bias + units]
                start, bias = start + units * fan_in, bias + units
        self._plans: dict[tuple[str, ...], Plan] = {}

    def __len__(self) -> int:
        return len(self._layers)

    def _source(self, layer: Layer) -> str:
        return self._same.get(layer.source, layer.source)

    def _part(self, start: int, units: int, fan_in: int) -> Tensor:
        return self.vector[start : start + units * fan_in].view(units, fan_in)

    def _groups(self, names: Iterable[str]) -> list[list[Layer]]:
        """The layers, those with the same source and activation together; sources come before their users."""

        def kind(layer: Layer) -> tuple[int, str]:
            return self._order[self._source(layer)], layer.activation or ""

        layers = sorted((self._layers[name] for name in names), key=lambda x: (kind(x), self._order[x.name]))
        groups = [list(group) for _, group in itertools.groupby(layers, kind)]
        # Results side by side have gaps between their rows, which slows down large products of them.
        large = {x.source for x in self._layers.values() if x.units > _NARROW}
        return [
            part
            for group in groups
            for part in ([[x] for x in group] if any(x.name in large for x in group) else [group])
        ]

    def plan(self, outputs: Iterable[str]) -> Plan:
        """How to compute some outputs."""
        names = tuple(outputs)
        if names not in self._plans:
            self._plans[names] = self._plan(names)
        return self._plans[names]

    def _plan(self, names: tuple[str, ...]) -> Plan:
        needed = self._spec.needed(names)
        mine = [layer.name for layer in needed if layer.name in self._layers]
        after = tuple(x for x in needed if x.name not in self._layers and x.name not in self._encoded)
        steps = [step for group in self._groups(mine) for step in self._steps(group)]
        before = {self._same.get(layer.name, layer.name) for layer in needed if layer.name in self._encoded}
        leaving = {self._spec.outputs[name] for name in names} | {name for layer in after for name in layer.sources}
        return Plan(
            names,
            tuple(x for x in self._spec.layers if x.name in before),
            tuple(steps),
            tuple(dict.fromkeys(step.source for step in steps if not step.inner)),
            tuple(name for name in mine if name in leaving),
            after,
            self.vector.numel(),
            len(mine) == len(self._layers),
        )

    def _steps(self, group: list[Layer]) -> Iterable[Step]:
        """One for layers whose weights lie one after another; others may stand between them that aren't needed."""
        runs: list[list[Layer]] = []
        for layer in group:
            weight = self.parts[layer.name][0]
            last = self.parts[runs[-1][-1].name][0] if runs else None
            if last is not None and last.storage_offset() + last.numel() == weight.storage_offset():
                runs[-1].append(layer)
            else:
                runs.append([layer])
        for run in runs:
            units = sum(layer.units for layer in run)
            start, bias_start = (int(part.storage_offset()) for part in self.parts[run[0].name])
            weight = self._part(start, units, run[0].fan_in)
            bias = self.vector[bias_start : bias_start + units]
            yield Step(
                self._source(run[0]),
                tuple(layer.name for layer in run),
                tuple(layer.units for layer in run),
                run[0].activation or "none",
                weight,
                bias,
                run[0].source in self._layers,
                (place_of(weight), place_of(bias)),
            )


class _Steps(torch.autograd.Function):
    """The steps of a plan, as a function of the stack's vector and of what goes in.

    The first `learnt` rows have gradients, all of them if it is None. Gradients of gradients there are none.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, learnt: int | None, vector: Tensor | None, *sources: Tensor) -> Any:
        values = dict(zip(plan.sources, sources, strict=True))
        kept: list[Tensor | None] = []
        for step in plan.steps:
            y = step.forward(values)
            kept += (values[step.source], None if step.activation == "none" else y)
        # Not as attributes: results among them would keep themselves alive.
        ctx.save_for_backward(*kept)
        ctx.plan, ctx.learnt = plan, learnt
        ctx.set_materialize_grads(False)
        results = [values[name] for name in plan.results]
        if learnt is None:
            return tuple(results)
        halves = [x.split_with_sizes((learnt, len(x) - learnt)) for x in results]
        others = [half[1] for half in halves]
        ctx.mark_non_differentiable(*others)
        return (*(half[0] for half in halves), *others)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        plan, learnt, kept = ctx.plan, ctx.learnt, ctx.saved_tensors
        needs_vector, needs = ctx.needs_input_grad[2], ctx.needs_input_grad[3:]
        wanted = {name for name, need in zip(plan.sources, needs, strict=True) if need}
        found = {name: g for name, g in zip(plan.results, grads, strict=False) if g is not None}
        vector: Any = None
        if needs_vector:
            vector = torch.empty(plan.size) if plan.whole else torch.zeros(plan.size)
        own: set[str] = set()  # names in `found` of gradients that aren't autograd's
        for i in range(len(plan.steps) - 1, -1, -1):
            step, x, y = plan.steps[i], kept[2 * i], kept[2 * i + 1]
            if learnt is not None:
                x, y = x[:learnt], None if y is None else y[:learnt]
            g = step.before_activation(found, own, x, y)
            if needs_vector:
                step.put(vector, g, x)
            if g is not None and (step.inner or step.source in wanted):
                dx = product(g, step.weight.t())
                found[step.source] = dx.add_(found[step.source]) if step.source in found else dx
                own.add(step.source)
        return None, None, vector, *(found.get(name) if name in wanted else None for name in plan.sources)


class Learner:
    """A network as losses see it: gradients go to the stack's vector, and to parameters that aren't in it.

    Args:
        network: a `TorchNetwork`.
        frozen: its weights have no gradients, only what goes in.

    Attributes:
        state: as the network's.
        state_outputs: as the network's.
        vector: the stack's.
        keys: of the variables in it, and their places.
    """

    def __init__(self, network: Any, frozen: bool = False) -> None:
        self._network, self._stack = network, network.stack
        self.state, self.state_outputs, self.penalties = network.state, network.state_outputs, network.penalties
        self._fixed = frozen or network.spec.copy_of is not None
        self.vector = self._stack.vector.detach().requires_grad_(not self._fixed)
        self.keys: dict[str, Place | None] = {key: place_of(x) for key, x in network.stacked().items()}
        self._joins = len(network.spec.weight_keys()) == len(self._stack)
        self._frozen = self if self._fixed else Learner(network, frozen=True)

    @property
    def frozen(self) -> Learner:
        """The same with its weights as constants."""
        return self._frozen

    def blocks(self) -> list[Block]:
        """What is differentiated: the vector, and each parameter that isn't in it."""
        variables = self._network.variables()
        found: list[Block] = [(self.vector, self.keys)]
        found += [(variables[key], {key: None}) for key in self._network.trainable_keys() if key not in self.keys]
        return found

    def __call__(
        self, inputs: Mapping[str, Any], outputs: Iterable[str] | None = None, training: bool = False
    ) -> dict[str, Tensor]:
        """Outputs by name, each `[N, units]`."""
        plan = self._plan(outputs)
        values: dict[str, Any] = dict(inputs)
        for layer in plan.before:
            self._network.compute(layer, values)
        sources = [values[name] for name in plan.sources]
        if torch.is_grad_enabled() and (not self._fixed or any(x.requires_grad for x in sources)):
            values.update(zip(plan.results, _Steps.apply(plan, None, self.vector, *sources), strict=True))
        else:
            for step in plan.steps:
                step.forward(values)
        for layer in plan.after:
            self._network.compute(layer, values)
        return self._named(plan, values)

    def ahead(
        self,
        inputs: Mapping[str, Any],
        following: Mapping[str, Any],
        outputs: Iterable[str] | None = None,
        training: bool = False,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """Outputs for `inputs`, and without gradients for `following`, in one pass; None where that isn't possible."""
        plan = self._plan(outputs)
        if not self._joins or plan.after or not torch.is_grad_enabled() or self._fixed:
            return None
        names = [name for name in self._network.spec.inputs if name in following]
        values: dict[str, Any] = {name: torch.cat([inputs[name], following[name]]) for name in names}
        for layer in plan.before:
            self._network.compute(layer, values)
        size = len(inputs[names[0]])
        found = _Steps.apply(plan, size, self.vector, *(values[name] for name in plan.sources))
        count = len(plan.results)
        now, then = (dict(zip(plan.results, part, strict=True)) for part in (found[:count], found[count:]))
        return self._named(plan, now), self._named(plan, then)

    def _plan(self, outputs: Iterable[str] | None) -> Plan:
        return self._stack.plan(self._network.spec.outputs if outputs is None else outputs)

    def _named(self, plan: Plan, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = self._network.spec.outputs
        return {name: values[own[name]] for name in plan.names}
