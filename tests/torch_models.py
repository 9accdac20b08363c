"""Users' torch modules for tests; a module of its own, so that workers can import it and names can say it."""

from __future__ import annotations

import torch
from torch import nn


class TwoHeads(nn.Module):
    """Returns `(logits, value)`."""

    def __init__(self, obs_space, action_space, outputs, units=8):
        super().__init__()
        self.hidden = nn.Linear(obs_space.shape[0], units)
        self.logits, self.value = (nn.Linear(units, width) for width in outputs.values())

    def forward(self, obs):
        h = torch.tanh(self.hidden(obs))
        return self.logits(h), self.value(h)


def logits_only(obs_space, action_space, outputs, **config):
    """A factory; returns a tensor."""
    return nn.Sequential(nn.Linear(obs_space.shape[0], 8), nn.Tanh(), nn.Linear(8, outputs["logits"]))


def scripted(obs_space, action_space, outputs):
    """A factory of TorchScript."""
    return torch.jit.script(logits_only(obs_space, action_space, outputs))


class Normed(nn.Module):
    """Batch norm and dropout; a dict of outputs."""

    def __init__(self, obs_space, action_space, outputs, dropout=0.0):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(obs_space.shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout)
        )
        self.heads = nn.ModuleDict({name: nn.Linear(8, width) for name, width in outputs.items()})

    def forward(self, obs):
        h = self.trunk(obs)
        return {name: head(h) for name, head in self.heads.items()}


class Penalised(TwoHeads):
    """Adds half the square of its weights to the loss."""

    def losses(self):
        return [0.5 * self.hidden.weight.square().sum(), 0.5 * self.logits.weight.square().sum()]


class Memory(nn.Module):
    """An LSTM cell; `forward(obs, state)`."""

    state_shapes = [(5,), (5,)]

    def __init__(self, obs_space, action_space, outputs, as_dict=False):
        super().__init__()
        self.cell = nn.LSTMCell(obs_space.shape[0], 5)
        self.heads = nn.ModuleDict({name: nn.Linear(5, width) for name, width in outputs.items()})
        self.as_dict = as_dict

    def forward(self, obs, state):
        hidden, cell = self.cell(obs, tuple(state))
        out = {name: head(hidden) for name, head in self.heads.items()}
        if self.as_dict:
            return {**out, "state_out_0": hidden, "state_out_1": cell}
        return out, [hidden, cell]


class Lazy(nn.Module):
    """Its first layer learns its width from the first observations."""

    def __init__(self, obs_space, action_space, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, outputs["logits"]))

    def forward(self, obs):
        return self.layers(obs)


class Nested(nn.Module):
    """Sees a Dict of an image, a Tuple and a mask, nested as it is."""

    def __init__(self, obs_space, action_space, outputs):
        super().__init__()
        self.convolution = nn.Conv2d(1, 2, 4, 2)
        self.embedding = nn.Embedding(4, 3)
        self.logits = nn.Linear(2 * 5 * 5 + 3 + 2, outputs["logits"])

    def forward(self, obs):
        image, (arm, gear) = obs["eye"], obs["deep"]
        assert image.dtype == torch.uint8 and gear.dtype == torch.int64 and set(obs) == {"action_mask", "deep", "eye"}
        seen = self.convolution(image.permute(0, 3, 1, 2).float() / 255).flatten(1)
        return self.logits(torch.cat([seen, self.embedding(gear), arm], -1))
