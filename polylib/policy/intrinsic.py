"""Rewards from within, around any algorithm's objective: RND (arXiv:1810.12894) and Curiosity (arXiv:1705.05363).

`exploration_config={"type": "RND", "sub_exploration": {...}, ...}` (or `"Curiosity"`) stands around an algorithm's
objective: the wrapper adds networks, an optimizer group of their own and its loss, and a bonus to the rewards.
Algorithms that replay get the bonus in their losses, by the newest networks; those that learn from what they just
sampled get it when a fragment is postprocessed, on NumPy, on the worker that sampled it. Metrics count the
environment's rewards alone.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError, ConfigTypeError, UnknownKeyError, did_you_mean
from polylib.models.custom import CustomNetwork
from polylib.models.default_networks import feature_network, mlp_network
from polylib.models.networks import NetworkSpec
from polylib.models.numpy_network import NumpyNetwork
from polylib.models.spaces import flatten
from polylib.policy import numpy_ops
from polylib.policy.fragment import Fragment
from polylib.policy.objective import Group, Objective, PolicySpec, next_inputs, row_mean
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


class Intrinsic(Objective):
    """A wrapper: stands before an algorithm's objective class among the bases of a class that `wrapped` makes.

    Both share one instance, so what the wrapper keeps for itself has names of its own (`__`).
    """

    #: Keys of `exploration_config` and their defaults.
    keys: ClassVar[Mapping[str, Any]] = {}
    #: The networks that the wrapper's optimizer moves.
    trained: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: PolicySpec) -> None:
        given = {key: value for key, value in spec.config["exploration_config"].items() if key != "type"}
        known = {"sub_exploration": None, "lr": 1e-3, **self.keys}
        for key in given:
            if key not in known:
                raise UnknownKeyError(
                    f"config key 'exploration_config': {self.title()} has no key {key!r}."
                    f"{did_you_mean(key, list(known))} It has {', '.join(known)}"
                )
        self.settings = {**known, **given}
        sub = self.settings["sub_exploration"]
        if not isinstance(sub, Mapping | None):
            raise ConfigTypeError(
                f"config key 'exploration_config.sub_exploration': got {sub!r}, expected a dict or None"
            )
        sub = dict(self.default_exploration if sub is None else sub)
        super().__init__(replace(spec, config={**spec.config, "exploration_config": sub}))
        #: Whether the losses take rewards; otherwise what is learnt from them is computed before.
        self.__replays = "rewards" in self.columns
        self.columns = tuple(dict.fromkeys((*self.columns, "new_obs")))
        self.acting = self.acting or tuple(super().networks())  # type: ignore[safe-super]
        self.__policy: Any = None
        self._check()

    @classmethod
    def title(cls) -> str:
        """The name of its type in `exploration_config`."""
        return next(name for name, kind in KINDS.items() if issubclass(cls, kind))

    def _check(self) -> None:
        """Checks settings and spaces."""

    def number(self, key: str, low: float = 0.0, high: float = math.inf) -> float:
        """A setting that is a number.

        Raises:
            ConfigError: naming the key.
        """
        value = self.settings[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            limit = f">= {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ConfigError(f"config key 'exploration_config.{key}': got {value!r}, expected a number {limit}")
        return float(value)

    def size(self, key: str) -> int:
        """A setting that is a width.

        Raises:
            ConfigError: naming the key.
        """
        value = self.settings[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"config key 'exploration_config.{key}': got {value!r}, expected an integer >= 1")
        return value

    def model(self, key: str) -> dict[str, Any]:
        """The config's `model` with a setting's keys over it; no memory.

        Raises:
            ConfigError: naming the key.
        """
        value, model = self.settings[key], self.config["model"]
        if not isinstance(value, Mapping) or not set(value) <= set(model):
            extra = sorted(set(value) - set(model)) if isinstance(value, Mapping) else ""
            raise ConfigError(
                f"config key 'exploration_config.{key}': got {value!r}, expected a dict of keys of 'model'"
                f"{f', which has no {extra[0]!r}' if extra else ''}"
            )
        plain = {"use_lstm": False, "use_gru": False, "use_attention": False, "fcnet_activation": "relu"}
        return {**model, **plain, **value}

    # --- the objective

    @abstractmethod
    def own_networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """The wrapper's networks."""

    @abstractmethod
    def measured(self, ops: Any, nets: Mapping[str, Any], batch: Mapping[str, Array]) -> tuple[Array, Array]:
        """The bonus and the wrapper's loss, both `[N]`, of rows with `obs`, `actions` and `new_obs`."""

    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """The algorithm's, and the wrapper's after them."""
        return {**super().networks(), **self.own_networks()}  # type: ignore[safe-super]

    def groups(self) -> dict[str, Group]:
        """The algorithm's, and `intrinsic`."""
        own = self.own_networks()
        kept = {
            name: replace(group, networks=tuple(net for net in group.networks if net not in own))
            for name, group in super().groups().items()
        }
        return {**kept, "intrinsic": Group(self.trained, "intrinsic_lr")}

    def coefficients(self) -> dict[str, float]:
        """The algorithm's, and `intrinsic_lr`."""
        return {**super().coefficients(), "intrinsic_lr": self.number("lr")}  # type: ignore[safe-super]

    def built(self, policy: Any) -> None:
        """Keeps the policy, for its weights."""
        super().built(policy)
        self.__policy = policy

    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """The algorithm's, with the bonus in the rewards where it takes them, and the wrapper's."""
        bonus, errors = self.measured(ops, nets, batch)
        given = {**batch, "rewards": batch["rewards"] + ops.stop_gradient(bonus)} if self.__replays else batch
        losses, stats, rows = super().losses(ops, nets, given, noise, c, training)  # type: ignore[safe-super]
        mean = row_mean(ops, batch)
        loss = mean(errors)
        stats = {**stats, "intrinsic_loss": loss, "intrinsic_reward": mean(bonus)}
        return {**losses, "intrinsic": loss}, stats, rows

    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """The algorithm's, with the bonus in the rewards where its losses don't take them."""
        if self.__replays:
            return super().postprocess(fragment)  # type: ignore[safe-super]
        batch = fragment.with_new_obs()
        batch["rewards"] = (batch["rewards"] + self.bonus(batch)).astype(np.float32)
        return super().postprocess(replace(fragment, batch=batch))  # type: ignore[safe-super]

    def bonus(self, batch: Mapping[str, Any]) -> np.ndarray:
        """The bonus `[B]` of rows, by the policy's weights as they are now, on NumPy."""
        specs = {name: net for name, net in self.own_networks().items() if isinstance(net, NetworkSpec)}
        weights = self.__policy.weights_of([key for net in specs.values() for key in net.shapes()])
        nets = {name: NumpyNetwork(net, weights) for name, net in specs.items()}
        columns: dict[str, Any] = {"actions": batch["actions"]}
        for name in ("obs", "new_obs"):
            columns |= flatten(self.spec.observation_space, batch[name], name)
        return self.measured(numpy_ops, nets, columns)[0]


class RND(Intrinsic):
    """Random network distillation: the bonus is how badly a network predicts what a fixed random one says of a state.

    Keys: `embed_dim` (outputs of both networks), `distill_net_config` (keys of `model`, for both), `lr`,
    `intrinsic_reward_coeff` (times the mean squared error), `sub_exploration` (what chooses actions).
    """

    keys: ClassVar[Mapping[str, Any]] = {
        "embed_dim": 128,
        "distill_net_config": {"fcnet_hiddens": [256, 256]},
        "intrinsic_reward_coeff": 5e-3,
    }
    trained = ("rnd_predictor",)

    def own_networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """The predictor, and what it predicts."""
        size, model, space = self.size("embed_dim"), self.model("distill_net_config"), self.spec.observation_space
        return {name: feature_network(name, space, size, model) for name in ("rnd_predictor", "rnd_target")}

    def measured(self, ops: Any, nets: Mapping[str, Any], batch: Mapping[str, Array]) -> tuple[Array, Array]:
        """The squared error, mean over `embed_dim`; the bonus is `intrinsic_reward_coeff` times that."""
        following = next_inputs(batch)
        target = ops.stop_gradient(nets["rnd_target"](following)["features"])
        error = ops.mean(ops.square(nets["rnd_predictor"](following)["features"] - target), 1)
        return self.number("intrinsic_reward_coeff") * error, error


class Curiosity(Intrinsic):
    """The intrinsic curiosity module: the bonus is how badly the next state's features are predicted.

    The features are trained to tell which action led from one state to the next, so that what has nothing to do with
    actions doesn't count. Keys: `eta` (times the error), `beta` (the forward loss' weight; `1 - beta` the inverse
    one's), `feature_dim`, `feature_net_config` (keys of `model`), `inverse_net_hiddens`, `inverse_net_activation`,
    `forward_net_hiddens`, `forward_net_activation`, `lr`, `sub_exploration` (what chooses actions).
    """

    keys: ClassVar[Mapping[str, Any]] = {
        "eta": 1.0,
        "beta": 0.2,
        "feature_dim": 288,
        "feature_net_config": {},
        "inverse_net_hiddens": (256,),
        "inverse_net_activation": "relu",
        "forward_net_hiddens": (256,),
        "forward_net_activation": "relu",
    }
    trained = ("icm_features", "icm_inverse", "icm_forward")

    def _check(self) -> None:
        space = self.spec.action_space
        if not isinstance(space, gym.spaces.Discrete | gym.spaces.Box):
            raise ConfigError(f"config key 'exploration_config': Curiosity needs Discrete or Box actions, not {space}")
        if self.config.get("n_step", 1) > 1:
            raise ConfigError("config key 'n_step': Curiosity predicts the next step; set n_step=1")
        self.__discrete = isinstance(space, gym.spaces.Discrete)
        self.__width = int(space.n) if isinstance(space, gym.spaces.Discrete) else math.prod(space.shape)
        self.columns = tuple(dict.fromkeys((*self.columns, "actions")))
        self.__eta, self.__beta = self.number("eta"), self.number("beta", 0.0, 1.0)

    def own_networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """Features of a state; from two states' features to the action; from features and action to the next ones."""
        size, settings = self.size("feature_dim"), self.settings
        model = self.model("feature_net_config")
        return {
            "icm_features": feature_network("icm_features", self.spec.observation_space, size, model),
            "icm_inverse": mlp_network(
                "icm_inverse",
                2 * size,
                settings["inverse_net_hiddens"],
                settings["inverse_net_activation"],
                self.__width,
            ),
            "icm_forward": mlp_network(
                "icm_forward",
                size + self.__width,
                settings["forward_net_hiddens"],
                settings["forward_net_activation"],
                size,
            ),
        }

    def measured(self, ops: Any, nets: Mapping[str, Any], batch: Mapping[str, Array]) -> tuple[Array, Array]:
        """Forward: `|f(phi, a) - phi'|^2 / 2` (eq. 5); inverse: `-log p(a | phi, phi')` (eq. 3), squared for a Box."""
        now = nets["icm_features"](batch)["features"]
        then = nets["icm_features"](next_inputs(batch))["features"]
        inferred = nets["icm_inverse"]({"given": ops.concat([now, then], 1)})["out"]
        if self.__discrete:
            index = batch["actions"] - int(self.spec.action_space.start)  # type: ignore[attr-defined]
            done = ops.one_hot(index, self.__width)
            inverse = -ops.pick(ops.log_softmax(inferred), index)
        else:
            done = self.dist.to_raw(ops, batch["actions"])  # type: ignore[attr-defined]
            inverse = 0.5 * ops.sum(ops.square(inferred - done), 1)
        predicted = nets["icm_forward"]({"given": ops.concat([now, done], 1)})["out"]
        forward = 0.5 * ops.sum(ops.square(predicted - then), 1)
        return self.__eta * forward, self.__beta * forward + (1.0 - self.__beta) * inverse


KINDS: dict[str, Any] = {"RND": RND, "Curiosity": Curiosity}


@functools.cache
def _combined(wrapper: type[Intrinsic], objective_class: type[Objective]) -> type[Objective]:
    return type(f"{wrapper.__name__}{objective_class.__name__}", (wrapper, objective_class), {})


def wrapped(objective_class: type[Objective], config: Mapping[str, Any]) -> type[Objective]:
    """The objective class that a config asks for: the algorithm's own, or one around it.

    Args:
        objective_class: the algorithm's.
        config: the algorithm's config.
    """
    kind = (config.get("exploration_config") or {}).get("type")
    name = kind.rpartition(".")[2] if isinstance(kind, str) else None
    if name not in KINDS or issubclass(objective_class, Intrinsic):
        return objective_class
    return _combined(KINDS[name], objective_class)
