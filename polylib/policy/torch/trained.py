"""What an optimizer moves: variables by key, in as few tensors as they lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from polylib.policy.gradients import EPSILON
from polylib.policy.torch.adam import Adam
from polylib.policy.torch.stack import Block, Learner


def blocks(network: Any) -> list[Block]:
    """The tensors of a network that are differentiated.

    Args:
        network: a `Learner`, or one of a policy's networks, each of whose variables is a block of its own.
    """
    if isinstance(network, Learner):
        return network.blocks()
    variables = network.variables()
    return [(variables[key], {key: None}) for key in network.trainable_keys()]


class Trained:
    """The variables of an optimizer group, and their Adam.

    Args:
        networks: those of the group, or their learners.
        epsilon: Adam's.

    Attributes:
        tensors: what is differentiated.
        adam: moves it.
    """

    def __init__(self, networks: Iterable[Any], epsilon: float = EPSILON) -> None:
        self._blocks = [block for network in networks for block in blocks(network)]
        self.tensors = [tensor for tensor, _ in self._blocks]
        self.adam = Adam({str(i): tensor for i, tensor in enumerate(self.tensors)}, epsilon)

    def by_key(self, tensors: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
        """By key the parts of tensors that lie as `tensors` do, gradients or moments."""
        return {
            key: tensor if place is None else tensor.as_strided(*place)
            for tensor, (_, places) in zip(tensors, self._blocks, strict=True)
            for key, place in places.items()
        }

    def gathered(self, found: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The inverse of `by_key`."""
        tensors = [torch.empty_like(tensor, requires_grad=False) for tensor in self.tensors]
        for key, part in self.by_key(tensors).items():
            part.copy_(found[key])
        return tensors

    def moments(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Adam's `m` and `v` by key; they share its memory."""
        ms, vs = (self.by_key(x.values()) for x in (self.adam.m, self.adam.v))
        return {key: (m, vs[key]) for key, m in ms.items()}

    def take(self, steps: int, moments: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Goes on from Adam's state."""
        self.adam.steps = steps
        for key, parts in self.moments().items():
            for part, value in zip(parts, moments[key], strict=True):
                part.copy_(value)
