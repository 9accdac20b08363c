"""Adam (arXiv:1412.6980) with epsilon where TensorFlow has it: outside the bias correction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from polylib.policy.gradients import BETA_1, BETA_2, EPSILON


def _by_hand(
    variables: list[torch.Tensor],
    gradients: list[torch.Tensor],
    ms: list[torch.Tensor],
    vs: list[torch.Tensor],
    steps: int,
    lr: float,
    epsilon: float,
) -> None:
    """What `torch._fused_adam_` computes, where torch has none."""
    for x, g, m, v in zip(variables, gradients, ms, vs, strict=True):
        m.lerp_(g, 1 - BETA_1)
        v.mul_(BETA_2).addcmul_(g, g, value=1 - BETA_2)
        correction = (1 - BETA_2**steps) ** 0.5 / (1 - BETA_1**steps)
        x.addcdiv_(m, v.sqrt().add_(epsilon), value=-lr * correction)


class Adam:
    """Updates parameters in place.

    torch.optim's class has the same arithmetic, and bookkeeping that costs small networks more than that.

    Args:
        variables: float32 parameters by key.
        epsilon: keeps steps finite where gradients are small.

    Attributes:
        steps: updates so far.
        m: mean of the gradients, by key.
        v: mean of their squares, by key.
    """

    def __init__(self, variables: Mapping[str, torch.Tensor], epsilon: float = EPSILON) -> None:
        self.steps, self._epsilon = 0, epsilon
        self._variables = list(variables.values())
        self.m = {key: torch.zeros_like(x) for key, x in variables.items()}
        self.v = {key: torch.zeros_like(x) for key, x in variables.items()}
        # torch counts per parameter; all of ours are updated together.
        self._step = torch.zeros(())

    @torch.no_grad()
    def step(self, gradients: Sequence[torch.Tensor], lr: float) -> None:
        """One update.

        Args:
            gradients: in the order of the variables.
            lr: learning rate.
        """
        self.steps += 1
        # The kernel walks through memory, whatever a tensor's strides say.
        found, ms, vs = [g.contiguous() for g in gradients], list(self.m.values()), list(self.v.values())
        if not hasattr(torch, "_fused_adam_"):
            _by_hand(self._variables, found, ms, vs, self.steps, lr, self._epsilon)
            return
        torch._fused_adam_(
            self._variables,
            found,
            ms,
            vs,
            [],
            [self._step.fill_(self.steps)] * len(found),
            lr=lr,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=0.0,
            # torch adds epsilon after the bias correction, TensorFlow before: this makes the two the same.
            eps=self._epsilon / (1 - BETA_2**self.steps) ** 0.5,
            amsgrad=False,
            maximize=False,
        )
