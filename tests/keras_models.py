"""Keras models as users write them, without a base class of polylib's; for tests of custom models."""

from __future__ import annotations

import keras


def functional(observation_space, action_space, outputs, units=8):
    """An MLP with a head for each output."""
    x = inputs = keras.Input(observation_space.shape)
    x = keras.layers.Dense(units, "tanh")(x)
    return keras.Model(inputs, {name: keras.layers.Dense(n, name=name)(x) for name, n in outputs.items()})


def logits_only(observation_space, action_space, outputs):
    return keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(outputs["logits"])])


class Normalised(keras.Model):
    """A frozen layer, batch norm, dropout: D1's model."""

    def __init__(self, observation_space, action_space, outputs, rate=0.0):
        super().__init__()
        self.frozen = keras.layers.Dense(8, "tanh", trainable=False)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.dropout = keras.layers.Dropout(rate)
        self.logits = keras.layers.Dense(outputs["logits"])
        self.value = keras.layers.Dense(outputs["value"])

    def call(self, obs, training=False):
        x = self.dropout(self.norm(self.frozen(obs), training=training), training=training)
        return {"logits": self.logits(x), "value": self.value(x)}


def lstm(observation_space, action_space, outputs, units=4, unroll=True):
    """Recurrent: the state goes in and out."""
    obs = keras.Input(observation_space.shape, name="obs")
    states = [keras.Input((units,), name=f"state_{i}") for i in range(2)]
    x = keras.layers.Reshape((1, -1))(obs)
    x, *new = keras.layers.LSTM(units, return_state=True, unroll=unroll)(x, initial_state=states)
    heads = [keras.layers.Dense(n)(x) for n in outputs.values()]
    return keras.Model([obs, *states], [*heads, *new])


class Memory(keras.Model):
    """Recurrent, a subclass: it says what its state is like."""

    def __init__(self, observation_space, action_space, outputs, units=4):
        super().__init__()
        self.state_shapes = [(units,)]
        self.cell = keras.layers.GRUCell(units)
        self.heads = {name: keras.layers.Dense(n) for name, n in outputs.items()}

    def call(self, inputs):
        x, (state,) = self.cell(inputs["obs"], [inputs["state_0"]])
        return {**{name: head(x) for name, head in self.heads.items()}, "state_out_0": state}


NOT_CALLABLE = 3
