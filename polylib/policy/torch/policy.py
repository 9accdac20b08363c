"""The torch policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from polylib.models.networks import NetworkSpec
from polylib.policy.gradients import summarize
from polylib.policy.policy import Policy, Stats, Weights
from polylib.policy.torch import ops
from polylib.policy.torch.custom import seeded
from polylib.policy.torch.models import make_network
from polylib.policy.torch.recorded import Found, Recorded
from polylib.policy.torch.stack import Learner
from polylib.policy.torch.trained import Trained
from polylib.policy.torch.updates import Updates
from polylib.policy.torch.views import TorchModelView

# Bytes of a row from which on rows are computed in parts of so many bytes.
_LARGE_ROW, _PART = 1024, 512 * 1024


def _tensor(array: np.ndarray) -> torch.Tensor:
    # torch knows no negative strides, and warns of arrays that can't be written to, such as those from Ray's store.
    return torch.from_numpy(array if array.flags.writeable and array.flags.c_contiguous else array.copy())


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: _tensor(x) for name, x in arrays.items()}


def _parts(inputs: Mapping[str, np.ndarray]) -> list[slice]:
    """Rows to compute at a time: all of them, unless they are large."""
    rows = len(next(iter(inputs.values())))
    size = sum(x.nbytes for x in inputs.values()) // max(rows, 1)
    step = max(rows, 1) if size < _LARGE_ROW else max(1, _PART // size)
    return [slice(start, start + step) for start in range(0, max(rows, 1), step)]


def _to_canonical(tensor: torch.Tensor, axes: tuple[int, ...] | None) -> np.ndarray:
    """A copy in the canonical layout: kernels `[in, out]`, torch's are `[out, in]`; see `TorchNetwork.axes`."""
    array = tensor.detach().numpy()
    return np.array(array if axes is None else array.transpose(axes), np.float32, order="C")


def _from_canonical(array: np.ndarray, axes: tuple[int, ...] | None) -> torch.Tensor:
    return torch.from_numpy(np.array(array if axes is None else array.transpose(np.argsort(axes)), order="C"))


def _clip_by_global_norm(gradients: tuple[torch.Tensor, ...], limit: float) -> tuple[tuple[torch.Tensor, ...], float]:
    """As `polylib.policy.gradients.clip_by_global_norm`, in fewer calls; within the limit nothing is scaled."""
    if len(gradients) == 1:
        norm = torch.linalg.vector_norm(gradients[0]).item()
    else:
        norm = torch.stack(torch._foreach_norm(gradients)).norm().item()
    if norm <= limit or limit == math.inf:
        return gradients, norm
    # In this order NaN stays NaN.
    return torch._foreach_mul(gradients, limit / min(max(norm, 1e-12), 3e38)), norm


@torch.no_grad()
def _floats(stats: Mapping[str, Any]) -> Stats:
    """Numbers; all tensors among them are read at once."""
    tensors = [x for x in stats.values() if isinstance(x, torch.Tensor)]
    tensors = [x if x.dtype == torch.float32 else x.float() for x in tensors]
    found = iter(torch.stack(tensors).tolist() if tensors else ())
    return {name: next(found) if isinstance(x, torch.Tensor) else float(x) for name, x in stats.items()}


class TorchPolicy(Policy):
    """`framework="torch"`."""

    framework = "torch"
    mirror_rows = math.inf

    def _build(self) -> None:
        with seeded(self.spec.seed):  # users' networks draw their weights from torch's generator
            self.nets = {name: make_network(spec) for name, spec in self.network_specs.items()}
        self._variables = {key: p for net in self.nets.values() for key, p in net.variables().items()}
        self._axes = {key: axes for net in self.nets.values() for key, axes in net.axes.items()}
        self._group_keys = {
            group: [key for name in item.networks for key in self.nets[name].trainable_keys()]
            for group, item in self.groups.items()
        }
        hooks, compiles = self.objective.update_hooks, self.config.get("torch_compile_learner")
        self._set_learners(joined=not (hooks or compiles or self.objective.sees_variables))
        trained = [key for keys in self._group_keys.values() for key in keys]
        self._updates = Updates(hooks, {key: self._variables[key] for key in trained}) if hooks else None
        self._compiled = torch.compile(self._losses, dynamic=False) if compiles else None
        self._move_targets(1.0)  # users' networks keep their first weights, so that a target has to take them over

    def _set_learners(self, joined: bool) -> None:
        """Chooses what losses are given.

        Args:
            joined: networks whose dense layers lie in one vector; else the networks as they are, for those who look at
                their variables.
        """
        self._joined = joined
        self._learners: dict[str, Any] = {
            name: Learner(net) if joined and len(getattr(net, "stack", ())) else net for name, net in self.nets.items()
        }
        self._trained = {
            group: Trained((self._learners[name] for name in item.networks), item.epsilon)
            for group, item in self.groups.items()
        }
        pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for target, source in self._target_keys().items():
            pairs[target] = self._variables[target], self._variables[source]
        for name, item in self.network_specs.items():
            target = self._learners[name]
            if item.copy_of is not None and isinstance(target, Learner):
                pairs = {key: pair for key, pair in pairs.items() if key not in target.keys}
                pairs[name] = target.vector, self._learners[item.copy_of].vector
        # Counters of batch norm have no way between two of them.
        self._counters = [pair for pair in pairs.values() if not pair[0].is_floating_point()]
        moving = (pair for pair in pairs.values() if pair[0].is_floating_point())
        self._targets = tuple(zip(*moving, strict=True))
        own = all(isinstance(x, NetworkSpec) for x in self.network_specs.values())
        often = joined and own and self.objective.updates_often
        self._recorded = Recorded(self._differentiated) if often else None

    def _get_model(self) -> Any:
        """A view of the main network, or the user's own module."""
        if self._joined:
            # Whoever has the model may give its parameters other memory.
            old = self._trained
            self._set_learners(joined=False)
            for group, trained in self._trained.items():
                trained.take(old[group].adam.steps, old[group].moments())
        name, description = next(iter(self.network_specs.items()))
        network: Any = self.nets[name]
        if isinstance(description, NetworkSpec) or network.headed:
            return self.model_view(network)
        return network.model

    def _ops(self) -> Any:
        return ops

    def model_view(self, network: Any, training: bool = False, defaults: Mapping[str, Any] | None = None) -> Any:
        """A `ModelView` of the main network, of tensors."""
        description = next(iter(self.network_specs.values()))
        return TorchModelView(self.objective, description, network, training, defaults)

    @torch.inference_mode()
    def _act(self, inputs: dict[str, np.ndarray], noise: np.ndarray, extras: bool) -> dict[str, np.ndarray]:
        act = self.objective.act if extras else self.objective.choose
        out = act(ops, self.nets, _tensors(inputs), torch.from_numpy(noise), self.coefficients)
        return {name: x.numpy() for name, x in out.items()}

    @torch.inference_mode()
    def _values(self, inputs: dict[str, np.ndarray]) -> np.ndarray | None:
        parts = []
        # Of many pictures a few at a time: what convolutions leave in between stays in the cache.
        for rows in _parts(inputs):
            values = self.objective.values(ops, self.nets, _tensors({name: x[rows] for name, x in inputs.items()}))
            if values is None:
                return None
            parts.append(values.numpy())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @torch.inference_mode()
    def _log_likelihoods(self, inputs: dict[str, np.ndarray], actions: dict[str, np.ndarray]) -> np.ndarray:
        dist_inputs = self.objective.dist_inputs(ops, self.nets, _tensors(inputs))
        return self.objective.log_likelihoods(ops, dist_inputs, self.objective.taken(_tensors(actions))).numpy()

    # --- learning, on tensors

    def _backward(
        self, batch: dict[str, torch.Tensor], noise: dict[str, torch.Tensor]
    ) -> tuple[dict[str, Sequence[torch.Tensor]], dict[str, Any], dict[str, torch.Tensor]]:
        """Clipped gradients of each group's tensors, stats and per-row tensors."""
        c: Any = self.coefficients
        own, limit = self._updates, c["grad_clip"]
        if own is not None and own.computes:
            limit = math.inf
        if self._recorded is None:
            losses, stats, rows, found = self._differentiated(c, batch, noise)
        else:
            losses, stats, rows, found = self._recorded(c, torch.from_numpy(self._c), batch, noise)
        gradients: dict[str, Sequence[torch.Tensor]] = {}
        norms: dict[str, Any] = {}
        for group in self._trained:
            gradients[group], norms[group] = _clip_by_global_norm(tuple(found[group]), limit)
        lrs = {group: item.lr for group, item in self.groups.items()}
        with torch.no_grad():
            summary = summarize(losses, stats, norms, c, lrs)
        if own is not None:
            summary["cur_lr"] = own.learning_rate(summary["cur_lr"])
        return gradients, summary, rows

    def _differentiated(self, c: Any, batch: Any, noise: Any) -> Found:
        """Losses, stats, rows, and gradients as they are."""
        if self._compiled is None:
            losses, stats, rows = self._losses(ops, self._learners, batch, noise, c)
        else:
            # As tensors: a Python number would be compiled in, and compiled again when it changes.
            c = dict(zip(c, torch.from_numpy(self._c).unbind(), strict=True))
            losses, stats, rows = self._compiled(ops, self._learners, batch, noise, c)
        own = self._updates
        gradients: dict[str, Sequence[torch.Tensor]] = {}
        for group, trained in self._trained.items():
            if own is not None and own.computes:
                gradients[group] = own.gradients(losses[group])
            else:
                gradients[group] = torch.autograd.grad(
                    losses[group],
                    trained.tensors,
                    retain_graph=len(self.groups) > 1,
                    allow_unused=True,
                    materialize_grads=True,
                )
        return losses, stats, rows, gradients

    def _step(self, gradients: Mapping[str, Sequence[torch.Tensor]]) -> None:
        for group, trained in self._trained.items():
            due = self.groups[group].due
            if due is not None and not self.coefficients[due] > 0.5:
                continue  # a step of 0 would still move the moments
            lr = self.coefficients[self.groups[group].lr]
            if self._updates is None:
                trained.adam.step(gradients[group], lr)
            else:
                self._updates.apply(list(gradients[group]), partial(trained.adam.step, lr=lr))
        if "tau" in self.coefficients:
            self._move_targets(self.coefficients["tau"])

    @torch.no_grad()
    def _move_targets(self, tau: float) -> None:
        if not self._targets:
            return
        targets, sources = self._targets
        if tau == 1.0:
            torch._foreach_copy_(targets, sources)
        else:
            torch._foreach_lerp_(targets, sources, tau)
        for counter, source in self._counters:
            counter.copy_(source)

    def _learn(self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]) -> tuple[Stats, dict[str, np.ndarray]]:
        gradients, stats, rows = self._backward(_tensors(batch), _tensors(noise))
        self._step(gradients)
        return _floats(stats), {name: x.detach().numpy() for name, x in rows.items()}

    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        data, draws = _tensors(batch), _tensors(noise)
        out: list[Stats] = []
        for i, rows in enumerate(torch.from_numpy(indices.astype(np.int64))):
            minibatch = {name: x.index_select(0, rows) for name, x in data.items()}
            gradients, stats, _ = self._backward(minibatch, {name: x[i] for name, x in draws.items()})
            self._step(gradients)
            out.append(_floats(stats))
        return {name: np.array([stats[name] for stats in out], np.float32) for name in out[0]}

    def _gradients(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]
    ) -> tuple[Weights, Stats, dict[str, np.ndarray]]:
        gradients, stats, rows = self._backward(_tensors(batch), _tensors(noise))
        return (
            {
                key: _to_canonical(g, self._axes.get(key))
                for group, found in gradients.items()
                for key, g in self._trained[group].by_key(found).items()
            },
            _floats(stats),
            {name: x.detach().numpy() for name, x in rows.items()},
        )

    def _apply(self, gradients: Weights) -> None:
        found = {key: _from_canonical(g, self._axes.get(key)) for key, g in gradients.items()}
        self._step({group: trained.gathered(found) for group, trained in self._trained.items()})

    def _acting_weights(self, keys: list[str]) -> Weights:
        # Views: they follow every update, and cost nothing.
        found = {}
        for key in keys:
            array, axes = self._variables[key].detach().numpy(), self._axes.get(key)
            found[key] = array if axes is None else array.transpose(axes)
        return found

    def _weights_changed(self) -> None:
        self._perturbed = {}  # the others are views

    # --- weights

    def _get_weights(self) -> Weights:
        return {key: _to_canonical(p, self._axes.get(key)) for key, p in self._variables.items()}

    def _set_weights(self, weights: Weights) -> None:
        with torch.no_grad():
            for key, value in weights.items():
                self._variables[key].copy_(_from_canonical(value, self._axes.get(key)))

    def _get_optimizer(self) -> Weights:
        if self._updates is not None and self._updates.own is not None:
            return self._updates.get_state()
        out: Weights = {}
        for group, trained in self._trained.items():
            out[f"{group}/step"] = np.array(trained.adam.steps, np.float32)
            moments = trained.moments()
            for key in self._group_keys[group]:
                for name, moment in zip("mv", moments[key], strict=True):
                    out[f"{key}/{name}"] = _to_canonical(moment, self._axes.get(key))
        return out

    def _optimizer_shapes(self, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        if self._updates is not None and self._updates.own is not None:
            return self._updates.shapes(given)
        return super()._optimizer_shapes(given)

    def _set_optimizer(self, state: Mapping[str, np.ndarray]) -> None:
        if self._updates is not None and self._updates.own is not None:
            self._updates.set_state(state)
            return
        for group, trained in self._trained.items():
            keys = self._group_keys[group]
            m, v = (
                {key: _from_canonical(state[f"{key}/{name}"], self._axes.get(key)) for key in keys} for name in "mv"
            )
            trained.take(int(state[f"{group}/step"]), {key: (m[key], v[key]) for key in keys})
