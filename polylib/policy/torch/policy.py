"""The torch policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from polylib.models.networks import NetworkSpec
from polylib.policy.gradients import summarize
from polylib.policy.policy import Policy, Stats, Weights
from polylib.policy.torch import ops
from polylib.policy.torch.adam import Adam
from polylib.policy.torch.custom import seeded
from polylib.policy.torch.models import make_network
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


def _clip_by_global_norm(
    gradients: tuple[torch.Tensor, ...], limit: float
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """As `polylib.policy.gradients.clip_by_global_norm`, in fewer calls; without a limit nothing is scaled."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    if limit == math.inf:
        return gradients, norm
    return torch._foreach_mul(gradients, torch.clamp(limit / norm.clamp(1e-12, 3e38), max=1.0)), norm


def _stacked(stats: Mapping[str, Any]) -> torch.Tensor:
    return torch.stack([torch.as_tensor(x, dtype=torch.float32).detach() for x in stats.values()])


def _floats(stats: Mapping[str, Any]) -> Stats:
    return dict(zip(stats, _stacked(stats).tolist(), strict=True))


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
        self._optimizers = {
            group: Adam({key: self._variables[key] for key in keys}) for group, keys in self._group_keys.items()
        }
        self._targets = [(self._variables[a].data, self._variables[b].data) for a, b in self._target_keys().items()]
        self._move_targets(1.0)  # users' networks keep their first weights, so that a target has to take them over
        hooks, trained = self.objective.update_hooks, [key for keys in self._group_keys.values() for key in keys]
        self._updates = Updates(hooks, {key: self._variables[key] for key in trained}) if hooks else None
        compiles = self.config.get("torch_compile_learner")
        self._compiled = torch.compile(self._losses, dynamic=False) if compiles else None

    def _get_model(self) -> Any:
        """A view of the main network, or the user's own module."""
        name, description = next(iter(self.network_specs.items()))
        network: Any = self.nets[name]
        if isinstance(description, NetworkSpec):
            return self.model_view(network)
        return network.model

    def _ops(self) -> Any:
        return ops

    def model_view(self, network: Any, training: bool = False, defaults: Mapping[str, Any] | None = None) -> Any:
        """A `ModelView` of the main network, of tensors."""
        description = next(iter(self.network_specs.values()))
        return TorchModelView(self.objective, description, network, training, defaults)

    @torch.inference_mode()
    def _act(self, inputs: dict[str, np.ndarray], noise: np.ndarray) -> dict[str, np.ndarray]:
        out = self.objective.act(ops, self.nets, _tensors(inputs), torch.from_numpy(noise), self.coefficients)
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
        return self.objective.dist.logp(ops, dist_inputs, self.objective.taken(_tensors(actions))).numpy()

    # --- learning, on tensors

    def _backward(
        self, batch: dict[str, torch.Tensor], noise: dict[str, torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Clipped gradients by key in torch's layout, stats and per-row tensors."""
        c: Any = self.coefficients
        if self._compiled is None:
            losses, stats, rows = self._losses(ops, self.nets, batch, noise, c)
        else:
            # As tensors: a Python number would be compiled in, and compiled again when it changes.
            c = dict(zip(c, torch.from_numpy(self._c).unbind(), strict=True))
            losses, stats, rows = self._compiled(ops, self.nets, batch, noise, c)
            c = self.coefficients
        gradients: dict[str, torch.Tensor] = {}
        norms: dict[str, Any] = {}
        own = self._updates
        for group, keys in self._group_keys.items():
            limit = c["grad_clip"]
            if own is not None and own.computes:
                found, limit = tuple(own.gradients(losses[group])), math.inf
            else:
                params = [self._variables[key] for key in keys]
                found = torch.autograd.grad(
                    losses[group], params, retain_graph=len(self.groups) > 1, allow_unused=True, materialize_grads=True
                )
            clipped, norms[group] = _clip_by_global_norm(found, limit)
            gradients.update(zip(keys, clipped, strict=True))
        lrs = {group: item.lr for group, item in self.groups.items()}
        summary = summarize(losses, stats, norms, c, lrs)
        if own is not None:
            summary["cur_lr"] = own.learning_rate(summary["cur_lr"])
        return gradients, summary, rows

    def _step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        for group, keys in self._group_keys.items():
            due = self.groups[group].due
            if due is not None and not self.coefficients[due] > 0.5:
                continue  # a step of 0 would still move the moments
            lr = self.coefficients[self.groups[group].lr]
            adam = partial(self._optimizers[group].step, lr=lr)
            if self._updates is None:
                adam([gradients[key] for key in keys])
            else:
                self._updates.apply([gradients[key] for key in keys], adam)
        if "tau" in self.coefficients:
            self._move_targets(self.coefficients["tau"])

    @torch.no_grad()
    def _move_targets(self, tau: float) -> None:
        if self._targets:
            targets, sources = zip(*self._targets, strict=True)
            torch._foreach_mul_(targets, 1.0 - tau)
            torch._foreach_add_(targets, sources, alpha=tau)

    def _learn(self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]) -> tuple[Stats, dict[str, np.ndarray]]:
        gradients, stats, rows = self._backward(_tensors(batch), _tensors(noise))
        self._step(gradients)
        return _floats(stats), {name: x.detach().numpy() for name, x in rows.items()}

    def _learn_minibatches(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray], indices: np.ndarray
    ) -> dict[str, np.ndarray]:
        data, draws = _tensors(batch), _tensors(noise)
        names: list[str] = []
        out = []
        for i, rows in enumerate(torch.from_numpy(indices.astype(np.int64))):
            minibatch = {name: x.index_select(0, rows) for name, x in data.items()}
            gradients, stats, _ = self._backward(minibatch, {name: x[i] for name, x in draws.items()})
            self._step(gradients)
            names = list(stats)
            out.append(_stacked(stats))
        return dict(zip(names, torch.stack(out).numpy().T, strict=True))

    def _gradients(
        self, batch: dict[str, np.ndarray], noise: dict[str, np.ndarray]
    ) -> tuple[Weights, Stats, dict[str, np.ndarray]]:
        gradients, stats, rows = self._backward(_tensors(batch), _tensors(noise))
        return (
            {key: _to_canonical(g, self._axes.get(key)) for key, g in gradients.items()},
            _floats(stats),
            {name: x.detach().numpy() for name, x in rows.items()},
        )

    def _apply(self, gradients: Weights) -> None:
        self._step({key: _from_canonical(g, self._axes.get(key)) for key, g in gradients.items()})

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
        for group, optimizer in self._optimizers.items():
            out[f"{group}/step"] = np.array(optimizer.steps, np.float32)
            for key in self._group_keys[group]:
                out[f"{key}/m"] = _to_canonical(optimizer.m[key], self._axes.get(key))
                out[f"{key}/v"] = _to_canonical(optimizer.v[key], self._axes.get(key))
        return out

    def _optimizer_shapes(self, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        if self._updates is not None and self._updates.own is not None:
            return self._updates.shapes(given)
        return super()._optimizer_shapes(given)

    def _set_optimizer(self, state: Mapping[str, np.ndarray]) -> None:
        if self._updates is not None and self._updates.own is not None:
            self._updates.set_state(state)
            return
        for group, optimizer in self._optimizers.items():
            optimizer.steps = int(state[f"{group}/step"])
            for key in self._group_keys[group]:
                optimizer.m[key] = _from_canonical(state[f"{key}/m"], self._axes.get(key))
                optimizer.v[key] = _from_canonical(state[f"{key}/v"], self._axes.get(key))
