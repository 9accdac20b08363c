"""Networks as users bring them to DQN, in Keras and in torch, with the layers of `learners.SMALL`'s default networks.

Frameworks are imported where a model is made: the tests of each run without the other.
"""

from __future__ import annotations

import importlib

import gymnasium as gym


def maker(framework, kind):
    """A factory: `kind` is "mlp", "norm", "lstm" or "penalised"."""
    made = _torch if framework == "torch" else _keras
    return lambda observation_space, action_space, outputs: made(kind, observation_space, outputs)


def width(space):
    return (space["seen"] if isinstance(space, gym.spaces.Dict) else space).shape[0]


def _keras(kind, space, outputs):
    keras = importlib.import_module("keras")
    layers = keras.layers
    masked = isinstance(space, gym.spaces.Dict)
    obs = keras.Input((width(space),), name="seen" if masked else "obs")
    regularizer = keras.regularizers.L2(0.5) if kind == "penalised" else None
    x = layers.Dense(2 if kind == "lstm" else 4, "tanh", kernel_regularizer=regularizer)(obs)
    states, new = [], []
    if kind == "norm":
        x = layers.BatchNormalization(momentum=0.5)(x)
    if kind == "lstm":
        states = [keras.Input((2,), name=f"state_{i}") for i in range(2)]
        x = layers.Reshape((1, -1))(x)
        x, *new = layers.LSTM(2, return_state=True, unroll=True)(x, initial_state=states)
    if "q_values" in outputs:
        x = layers.Dense(outputs["q_values"])(x)
    return keras.Model([obs, *states] if states else obs, [x, *new] if new else x, name="mine")


def _torch(kind, space, outputs):
    torch = importlib.import_module("torch")
    nn = torch.nn

    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.Linear(width(space), 2 if kind == "lstm" else 4)
            if kind == "norm":
                self.norm = nn.BatchNorm1d(4, momentum=0.5)
            if kind == "lstm":
                self.state_shapes = [(2,), (2,)]
                self.gates, self.recurrent = nn.Linear(2, 8, bias=False), nn.Linear(2, 8)
            if "q_values" in outputs:
                self.head = nn.Linear(4, outputs["q_values"])

        def forward(self, obs, state=()):
            x = torch.tanh(self.hidden(obs["seen"] if isinstance(obs, dict) else obs))
            if kind == "norm":
                x = self.norm(x)
            if kind == "lstm":
                i, f, g, o = (self.gates(x) + self.recurrent(state[0])).chunk(4, 1)
                cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
                x = torch.sigmoid(o) * torch.tanh(cell)
                return x, [x, cell]
            return self.head(x) if "q_values" in outputs else x

        def losses(self):
            return [0.5 * self.hidden.weight.square().sum()] if kind == "penalised" else []

    return Mine()
