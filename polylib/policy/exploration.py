"""Exploration: how a policy departs from the action it thinks best (`exploration_config`), over `ops`.

All randomness is drawn on the host and comes in as a noise array `[B, noise_size]`, and everything that changes with
time as coefficients, so that every backend takes the same actions. The first column of the noise, below 1, decides
between a random action and the strategy's own; it is 1 in rows that don't explore.

A strategy also says how likely it was to do what it did (`Exploration.log_probs`), which is what logs are worth to
off-policy estimators.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from polylib.errors import ConfigError, ConfigTypeError, NotBuiltError, UnknownKeyError, did_you_mean
from polylib.models.distributions import Distribution
from polylib.policy import numpy_ops
from polylib.policy.ops import Array
from polylib.schedules import PiecewiseSchedule, Schedule, make_schedule

Actions = tuple[Any, Array | None]  # actions, and for a Box what was drawn, before it was scaled, squashed or clipped
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class RandomActions:
    """Uniform actions of a space from noise.

    Args:
        space: Discrete, or a Box; unbounded dimensions of it get standard normal numbers.

    Raises:
        ConfigError: for any other space.
    """

    def __init__(self, space: gym.Space[Any], who: str) -> None:
        self.space = space
        self.discrete = isinstance(space, gym.spaces.Discrete)
        if isinstance(space, gym.spaces.Discrete):
            self.noise_size, self._start = int(space.n), int(space.start)
        elif isinstance(space, gym.spaces.Box):
            self.noise_size = int(np.prod(space.shape))
            low, high = space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32)
            self._bounded = np.isfinite(low) & np.isfinite(high)
            self._low = np.where(self._bounded, low, 0.0).astype(np.float32)
            self._range = np.where(self._bounded, high - self._low, 1.0).astype(np.float32)
            self._normal = (~self._bounded).astype(np.float32)
            widths = self._range[self._bounded & (self._range > 0)].astype(np.float64)
            self._log_density = -float(np.log(widths).sum()) - _HALF_LOG_2PI * float(self._normal.sum())
        else:
            raise ConfigError(
                f"config key 'exploration_config': {who} takes uniform actions, which there are for Discrete and Box "
                f"action spaces, not for {space}"
            )

    def noise(self, rng: np.random.Generator, rows: int, before: int = 0) -> np.ndarray:
        """Numbers for `sample`, `[rows, noise_size]`; with `before` as many columns of uniform numbers before them."""
        found = rng.random((rows, before + self.noise_size), dtype=np.float32)
        if not self.discrete and not self._bounded.all():
            normal = rng.standard_normal((rows, self.noise_size), dtype=np.float32)
            found[:, before:] = np.where(self._bounded, found[:, before:], normal)
        return found

    def sample(self, ops: Any, noise: Array, allowed: Array | None = None) -> Any:
        """Actions `[B, *action_shape]`.

        Args:
            ops: the backend's `Ops`.
            noise: what `noise` drew.
            allowed: `[B, n] bool`, the discrete actions to choose from; None: all.
        """
        if self.discrete:
            # The largest of independent numbers of one distribution is as likely to be any of them.
            choice = ops.argmax(noise if allowed is None else ops.where(allowed, noise, -1.0))
            return choice + self._start if self._start else choice
        scaled = ops.constant(self._low) + noise * ops.constant(self._range)
        return ops.reshape(scaled, (-1, *(self.space.shape or ())))

    def logp(self, ops: Any, actions: Any, allowed: Array | None = None) -> Array:
        """How likely `sample` was to give these actions: log-probabilities, for a Box log-densities, `[B]`.

        Args:
            ops: the backend's `Ops`.
            actions: `[B, *action_shape]`.
            allowed: the discrete actions `[B, n] bool` that it chose from; of a Box None.
        """
        if not self.discrete:
            numbers = ops.reshape(actions, (-1, self.noise_size))
            return self._log_density - 0.5 * ops.sum(ops.square(numbers) * ops.constant(self._normal), 1)
        return -ops.log(ops.sum(ops.to_float(allowed), 1))


class Exploration(ABC):
    """A strategy. Stateless but for what `noise` carries from step to step.

    Args:
        config: the config's `exploration_config`, without `type`.
        space: of the actions.
        dist: the action distribution.
        worker: `(worker_index, num_workers)`.
    """

    #: Keys of `exploration_config` and their defaults.
    keys: ClassVar[Mapping[str, Any]] = {}
    #: Whether acting goes by perturbed copies of the weights; see `ParameterNoise`.
    perturbs: ClassVar[bool] = False
    #: Whether its own actions are drawn from the distribution: the policy is that distribution, not its best action.
    samples: ClassVar[bool] = False

    def __init__(
        self, config: Mapping[str, Any], space: gym.Space[Any], dist: Distribution, worker: tuple[int, int] = (0, 0)
    ) -> None:
        name = type(self).__name__
        for key in dict(config):
            if key not in self.keys:
                raise UnknownKeyError(
                    f"config key 'exploration_config': {name} has no key {key!r}."
                    f"{did_you_mean(key, list(self.keys))} It has "
                    f"{', '.join(self.keys) or 'none'}"
                )
        self.settings = {**self.keys, **config}
        self.space, self.dist, self.worker = space, dist, worker
        self.random: RandomActions | None = None
        self._setup()

    def _setup(self) -> None:  # noqa: B027  (strategies without settings have nothing to do)
        """Checks settings."""

    def _number(self, key: str, high: float = math.inf) -> float:
        value = self.settings[key]
        number = not isinstance(value, bool) and isinstance(value, int | float | np.number)
        if number and 0 <= value <= high and value < math.inf:
            return float(value)
        expected = "a number >= 0" if high == math.inf else f"a number from 0 to {high:g}"
        kind = ConfigError if number else ConfigTypeError
        raise kind(f"config key 'exploration_config.{key}': got {value!r}, expected {expected}")

    def get_state(self) -> dict[str, Any]:
        """What the strategy remembers from step to step, for checkpoints: NumPy and JSON; most remember nothing."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:  # noqa: B027
        """Goes on from `get_state()`; without what it needs, anew."""

    @property
    def inner(self) -> Exploration:
        """What chooses actions from the distribution's inputs: itself, unless it stands around another."""
        return self

    def _own_size(self) -> int:
        return self.dist.noise_size

    @property
    def noise_size(self) -> int:
        """Columns of the noise."""
        return 1 + (self.random.noise_size if self.random else 0) + self._own_size()

    def coefficients(self, timestep: int) -> dict[str, float]:
        """What changes with time, at `timestep` environment steps of all workers."""
        return {}

    def noise(self, rng: np.random.Generator, rows: int, explore: bool) -> np.ndarray:
        """`[rows, noise_size] float32`."""
        if not explore:
            quiet = np.zeros((rows, self.noise_size), np.float32)
            quiet[:, 0] = 1.0
            return quiet
        first = np.zeros((rows, 1), np.float32) if self.random is None else self.random.noise(rng, rows, before=1)
        return np.concatenate([first, self._own_noise(rng, rows)], 1) if self._own_size() else first

    def _own_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return self.dist.noise(rng, rows)

    def actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        """Chooses actions.

        Args:
            ops: the backend's `Ops`.
            dist_inputs: `[B, inputs_size]` of the action distribution.
            noise: what `noise` drew.
            c: coefficients.
        """
        first = self._first_own
        actions, raw = self._own_actions(ops, dist_inputs, noise[:, first:], c)
        if self.random is None:
            return actions, raw
        randomly = noise[:, 0] < self._random_share(c)
        if ops.framework == "numpy" and not np.count_nonzero(randomly):
            return actions, raw  # as most of the time; in a graph nobody knows
        anything = self.random.sample(ops, noise[:, 1:first], self._allowed(dist_inputs))
        shape = tuple(getattr(self.space, "shape", ()) or ())
        mixed = ops.where(ops.reshape(randomly, (-1, *[1] * len(shape))), anything, actions)
        if raw is None:
            return mixed, None
        return mixed, ops.where(ops.reshape(randomly, (-1, 1)), self._drawn(ops, anything), raw)

    def log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        """How likely `actions` was to choose what it chose, given the observation and what happened before.

        The log-probability `[B]`, or of a Box the log-density: in the environment's units, and of what was drawn,
        before bounds clip it. An action that is taken for certain has 0, and a Box action NaN, since a point has no
        density. A strategy that doesn't know says NaN, as this one does.

        Args:
            ops: as `actions` got it.
            dist_inputs: likewise.
            noise: likewise.
            c: likewise.
            actions: what it returned.
            raw: what it returned beside them.
        """
        return ops.zeros_like(dist_inputs[:, 0]) + math.nan

    @property
    def untold(self) -> str:
        """Why `log_probs` doesn't know how likely exploring was, to be read after its name; "" if it does."""
        return "doesn't say how likely its actions are"

    def extras(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> dict[str, Array]:
        """What is recorded of actions: `action_logp`, and of a Box `action_raw`. Takes what `log_probs` takes."""
        found = {"action_logp": self.log_probs(ops, dist_inputs, noise, c, actions, raw)}
        return found if raw is None else {**found, "action_raw": self._in_network_units(ops, raw)}

    def _drawn(self, ops: Any, actions: Array) -> Array:
        """What would have had to be drawn to get to Box actions."""
        return self.dist.to_drawn(ops, actions)  # type: ignore[attr-defined]

    def _in_network_units(self, ops: Any, drawn: Array) -> Array:
        """What was drawn, as `action_raw` has it."""
        return drawn

    def unless_random(self, ops: Any, logp: Array, noise: Array, c: Mapping[str, Array]) -> Array:
        """`logp` with NaN in rows that explore otherwise than by nothing but uniform actions.

        For what acts by weights drawn at random: how likely an action is over all these draws isn't known, unless it
        doesn't depend on them.
        """
        share = 0.0 if self.random is None else self._random_share(c)
        explores = (noise[:, 0] < 1.0) & (noise[:, 0] * 0.0 + share < 1.0)
        return ops.where(explores, math.nan, logp)

    @property
    def _first_own(self) -> int:
        """The first column of the noise that is the strategy's own."""
        return 1 + (self.random.noise_size if self.random else 0)

    def _allowed(self, dist_inputs: Array) -> Array | None:
        """The discrete actions that uniform ones are chosen from: a mask makes the inputs of what it forbids low."""
        return dist_inputs > -1e8 if self.random is not None and self.random.discrete else None

    def _certain(self, ops: Any, dist_inputs: Array) -> Array:
        """`log_probs` of actions that are taken for certain."""
        return ops.zeros_like(dist_inputs[:, 0]) + (math.nan if isinstance(self.space, gym.spaces.Box) else 0.0)

    def at_random(self, noise: np.ndarray, allowed: np.ndarray | None, c: Mapping[str, float]) -> np.ndarray | None:
        """What `actions` chooses where that is a random action in every row; None where it isn't.

        Args:
            noise: what `noise` drew `[B, noise_size]`.
            allowed: an action mask `[B, n] bool`, or None.
            c: coefficients.
        """
        if self.random is None or np.count_nonzero(noise[:, 0] < self._random_share(c)) < len(noise):
            return None
        return self.random.sample(numpy_ops, noise[:, 1 : 1 + self.random.noise_size], allowed)

    @abstractmethod
    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        """The strategy's own actions."""

    def _random_share(self, c: Mapping[str, Array]) -> Array:
        return c["random"]


class _RandomFirst(Exploration):
    """Strategies that begin with `random_timesteps` steps of uniform actions."""

    keys: ClassVar[Mapping[str, Any]] = {"random_timesteps": 0}

    def _setup(self) -> None:
        self.random_timesteps = self._number("random_timesteps")
        if self.random_timesteps:
            self.random = RandomActions(self.space, type(self).__name__)

    def coefficients(self, timestep: int) -> dict[str, float]:
        """`random`: 1 while actions are uniform."""
        return {"random": float(timestep < self.random_timesteps)} if self.random else {}

    def log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        """Uniform in the first steps, then the strategy's own."""
        own = self._own_log_probs(ops, dist_inputs, noise, c, actions, raw)
        if self.random is None:
            return own
        uniform = self.random.logp(ops, actions, self._allowed(dist_inputs))
        return ops.where(noise[:, 0] < self._random_share(c), uniform, own)

    @abstractmethod
    def _own_log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        """`log_probs` of the strategy's own actions."""

    @property
    def untold(self) -> str:
        """"": it is known."""
        return ""


class StochasticSampling(_RandomFirst):
    """Samples the action distribution; what is most likely in it has its likelihood there, too."""

    samples = True

    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        return self.dist.sample(ops, dist_inputs, noise)

    def _own_log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        return self.dist.logp(ops, dist_inputs, actions, raw)


class Random(_RandomFirst):
    """Uniform actions, always."""

    keys: ClassVar[Mapping[str, Any]] = {}

    def _setup(self) -> None:
        self.random = RandomActions(self.space, "Random")

    def _own_log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        return self._certain(ops, dist_inputs)

    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        return self.dist.sample(ops, dist_inputs, noise * 0.0)

    def coefficients(self, timestep: int) -> dict[str, float]:
        """`random`: always 1."""
        return {"random": 1.0}


class EpsilonGreedy(Exploration):
    """A uniform action with probability epsilon, else the one with the highest value."""

    keys: ClassVar[Mapping[str, Any]] = {
        "initial_epsilon": 1.0,
        "final_epsilon": 0.05,
        "warmup_timesteps": 0,
        "epsilon_timesteps": 100_000,
        "epsilon_schedule": None,
    }

    def _setup(self) -> None:
        self.random = RandomActions(self.space, type(self).__name__)
        self.schedule = self._schedule()

    def _schedule(self) -> Schedule:
        given = make_schedule(self.settings["epsilon_schedule"], "exploration_config.epsilon_schedule")
        if given is not None:
            return given
        warmup, steps = self._number("warmup_timesteps"), max(1.0, self._number("epsilon_timesteps"))
        first, last = self._number("initial_epsilon", 1.0), self._number("final_epsilon", 1.0)
        points = [[warmup, first], [warmup + steps, last]]
        return PiecewiseSchedule(points, name="exploration_config")

    def _own_size(self) -> int:
        return 0

    def _own_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.zeros((rows, 0), np.float32)

    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        return self.dist.sample(ops, dist_inputs, dist_inputs * 0.0)

    def coefficients(self, timestep: int) -> dict[str, float]:
        """`epsilon`."""
        return {"epsilon": self.schedule(timestep)}

    def _random_share(self, c: Mapping[str, Array]) -> Array:
        return c["epsilon"]

    def log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        """`log(epsilon / n + (1 - epsilon) [it is the best action])`, of n actions that are allowed."""
        allowed = self._allowed(dist_inputs)
        if allowed is None:
            return super().log_probs(ops, dist_inputs, noise, c, actions, raw)
        # Not `==`, which compares identities in a TF1 graph.
        best = ops.to_float(ops.abs(actions - self._own_actions(ops, dist_inputs, noise, c)[0]) < 1)
        epsilon = c["epsilon"] * ops.to_float(noise[:, 0] < 1.0)
        return ops.log(epsilon / ops.sum(ops.to_float(allowed), 1) + (1.0 - epsilon) * best)

    @property
    def untold(self) -> str:
        """A Box's best action has a probability, all others a density."""
        return "" if isinstance(self.space, gym.spaces.Discrete) else "mixes one action with all others of a Box"


class PerWorkerEpsilonGreedy(EpsilonGreedy):
    """Every worker its own constant epsilon, `0.4 ** (1 + 7 i / (N - 1))` (arXiv:1803.00933, section 4)."""

    def _schedule(self) -> Schedule:
        index, count = self.worker
        if index < 1 or count < 1:
            return super()._schedule()
        epsilon = 0.4 ** (1.0 + 7.0 * (index - 1) / max(count - 1, 1))
        return PiecewiseSchedule([[0, epsilon], [1, epsilon]], name="exploration_config")


class SoftQ(_RandomFirst):
    """Samples actions by the softmax of their values over `temperature`."""

    keys: ClassVar[Mapping[str, Any]] = {**_RandomFirst.keys, "temperature": 1.0}
    samples = True

    def _setup(self) -> None:
        super()._setup()
        if not isinstance(self.space, gym.spaces.Discrete):
            raise ConfigError(f"config key 'exploration_config': SoftQ needs a Discrete action space, not {self.space}")
        self.temperature = self._number("temperature")
        if self.temperature == 0:
            raise ConfigError("config key 'exploration_config.temperature': got 0, expected a number > 0")

    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        # Scaling the noise instead of the values: masked ones stay as low as they are.
        return self.dist.sample(ops, dist_inputs, noise * self.temperature)

    def _own_log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        return ops.where(noise[:, 0] < 1.0, self.policy_logp(ops, dist_inputs, actions), 0.0)

    def policy_logp(self, ops: Any, dist_inputs: Array, actions: Array) -> Array:
        """The log of the softmax `[B]` at the actions."""
        return self.dist.logp(ops, dist_inputs / self.temperature, actions)


class GaussianNoise(_RandomFirst):
    """Adds normal noise to the best action, in units of half the range of a bounded dimension.

    Bounds clip the sum. What is recorded is, as for a policy's own normal distribution, the sum itself (`action_raw`)
    and its density: the clipped action has none where it lies on a bound.
    """

    keys: ClassVar[Mapping[str, Any]] = {
        "random_timesteps": 1000,
        "stddev": 0.1,
        "initial_scale": 1.0,
        "final_scale": 0.02,
        "scale_timesteps": 10_000,
        "scale_schedule": None,
    }

    def _setup(self) -> None:
        super()._setup()
        if not isinstance(self.space, gym.spaces.Box):
            raise ConfigError(
                f"config key 'exploration_config': {type(self).__name__} needs a Box action space, not {self.space}"
            )
        self.size = int(np.prod(self.space.shape))
        self.stddev = self._number("stddev") if "stddev" in self.keys else 0.0
        steps = max(1.0, self._number("scale_timesteps"))
        start = self.random_timesteps
        points = [[start, self._number("initial_scale")], [start + steps, self._number("final_scale")]]
        given = make_schedule(self.settings["scale_schedule"], "exploration_config.scale_schedule")
        self.schedule = given or PiecewiseSchedule(points, name="exploration_config")
        low, high = self.space.low.ravel().astype(np.float64), self.space.high.ravel().astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high)
        self._half = np.where(bounded, (np.where(bounded, high, 1) - np.where(bounded, low, -1)) / 2, 1.0).astype(
            np.float32
        )
        self._low, self._high = self.space.low.ravel(), self.space.high.ravel()
        self._deviation = self._unit_deviation() * self._half

    def _unit_deviation(self) -> float:
        """The noise's standard deviation, given the noise before, at a scale of 1 and half a range of 1."""
        return self.stddev

    def _own_size(self) -> int:
        return self.size

    def _own_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.float32(self.stddev) * rng.standard_normal((rows, self.size), dtype=np.float32)

    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        best, _ = self.dist.sample(ops, dist_inputs, dist_inputs[:, : self.dist.noise_size] * 0.0)
        moved = ops.reshape(best, (-1, self.size)) + c["scale"] * noise[:, : self.size] * ops.constant(self._half)
        bound = ops.minimum(ops.maximum(moved, ops.constant(self._low)), ops.constant(self._high))
        return ops.reshape(bound, (-1, *(self.space.shape or ()))), moved

    def coefficients(self, timestep: int) -> dict[str, float]:
        """`scale` of the noise, and `random`."""
        return {**super().coefficients(timestep), "scale": self.schedule(timestep)}

    def _own_log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        deviation = c["scale"] * ops.constant(self._deviation)
        # Without noise there is no density.
        log_deviation = ops.where(deviation > 0, ops.log(ops.maximum(deviation, 1e-30)), math.nan)
        terms = -0.5 * ops.square(self._standard(noise[:, self._first_own :])) - log_deviation - _HALF_LOG_2PI
        return ops.where(noise[:, 0] < 1.0, ops.sum(terms, 1), math.nan)

    def _standard(self, noise: Array) -> Array:
        """The standard normal numbers `[B, k]` that made the strategy's own noise."""
        return noise * (1.0 / self.stddev if self.stddev else 0.0)

    def _drawn(self, ops: Any, actions: Array) -> Array:
        return ops.reshape(actions, (-1, self.size))  # noise is added in the environment's units

    def _in_network_units(self, ops: Any, drawn: Array) -> Array:
        return self.dist.to_raw(ops, drawn)  # type: ignore[attr-defined]

    @property
    def untold(self) -> str:
        """Nothing, but of noise that is none."""
        return "" if (self._deviation > 0).all() else "adds no noise"


class OrnsteinUhlenbeckNoise(GaussianNoise):
    """Noise that drifts back to 0 slowly: `x += theta * (0 - x) + sigma * N(0, 1)` (arXiv:1509.02971, section 7).

    The density that is recorded is that of a step's noise given the noise before it, which follows from what was done
    before: products of these ratios over an episode are right, as they are for any policy that remembers.
    """

    keys: ClassVar[Mapping[str, Any]] = {
        "random_timesteps": 1000,
        "ou_theta": 0.15,
        "ou_sigma": 0.2,
        "ou_base_scale": 0.1,
        "initial_scale": 1.0,
        "final_scale": 0.02,
        "scale_timesteps": 10_000,
        "scale_schedule": None,
    }

    def _setup(self) -> None:
        self.theta, self.sigma = self._number("ou_theta"), self._number("ou_sigma")
        self.base_scale = self._number("ou_base_scale")
        super()._setup()
        self.state = np.zeros((0, self.size), np.float32)

    def _unit_deviation(self) -> float:
        return self.base_scale * self.sigma

    def _own_size(self) -> int:
        return 2 * self.size  # the noise, and what its last step drew

    def _standard(self, noise: Array) -> Array:
        return noise[:, self.size :]

    def _own_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        if len(self.state) != rows:
            self.state = np.zeros((rows, self.size), np.float32)
        draw = rng.standard_normal((rows, self.size), dtype=np.float32)
        self.state = self.state + np.float32(self.theta) * (0.0 - self.state) + np.float32(self.sigma) * draw
        return np.concatenate([np.float32(self.base_scale) * self.state, draw], 1)

    def get_state(self) -> dict[str, Any]:
        """The noise `[rows, size]` as it is now."""
        return {"state": self.state.copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from `get_state()`; without it from 0."""
        self.state = np.array(state.get("state", ()), np.float32).reshape(-1, self.size)


class ParameterNoise(Exploration):
    """Acts by weights with normal noise on them, another draw for each episode (arXiv:1706.01905).

    The noise's standard deviation grows as long as perturbed actions are close to the others, and shrinks where they
    aren't: discrete ones by the KL divergence of the values' softmax, against that of epsilon-greedy with the epsilon
    of `sub_exploration`; Box actions by their distance, against 0.2 (or `ou_sigma`) times the scale of
    `sub_exploration`. Perturbed networks act on NumPy in every mode.

    Keys: `initial_stddev`; `sub_exploration`, which explores on top of it, by default only in the first
    `random_timesteps`.
    """

    perturbs = True
    keys: ClassVar[Mapping[str, Any]] = {"initial_stddev": 1.0, "random_timesteps": 10_000, "sub_exploration": None}
    _FACTOR = 1.01

    def _setup(self) -> None:
        self.stddev, wait = self._number("initial_stddev"), self._number("random_timesteps")
        self._discrete = isinstance(self.space, gym.spaces.Discrete)
        sub = self.settings["sub_exploration"]
        if sub is None and self._discrete:
            sub = {"type": "EpsilonGreedy", "epsilon_schedule": [[0, 1.0], [wait + 1, 1.0], [wait + 2, 0.01]]}
        elif sub is None:
            sub = {"type": "GaussianNoise", "random_timesteps": wait, "stddev": 0.0}
        if not isinstance(sub, Mapping):
            raise ConfigTypeError(
                f"config key 'exploration_config.sub_exploration': got {sub!r}, expected a dict or None"
            )
        self.sub = make_exploration(sub, self.space, self.dist, self.worker)
        if self.sub.perturbs:
            raise ConfigError("config key 'exploration_config': ParameterNoise can't stand inside of itself")
        self.random = self.sub.random
        self._seed: int | None = None
        self._recent: dict[str, np.ndarray] = {}

    # --- what is done to the weights

    def draw(self, rng: np.random.Generator) -> None:
        """Chooses other noise."""
        self._seed = int(rng.integers(1 << 63))

    def perturbed(self, weights: Mapping[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """The weights with the present noise on them; `rng` draws the first one."""
        if self._seed is None:
            self.draw(rng)
        own, stddev = np.random.default_rng(self._seed), np.float32(self.stddev)
        return {key: w + stddev * own.standard_normal(w.shape, dtype=np.float32) for key, w in weights.items()}

    def saw(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Keeps what was acted on last, to compare actions there."""
        self._recent = dict(inputs)

    @property
    def recent(self) -> dict[str, np.ndarray]:
        """What was acted on last; {} if nothing was."""
        return self._recent

    def adapt(self, clean: np.ndarray, noisy: np.ndarray, c: Mapping[str, float]) -> None:
        """Moves the standard deviation by how far the distribution's inputs `[B, inputs_size]` are apart."""
        if self._discrete:
            one, other = (numpy_ops.log_softmax(np.maximum(x, -1e9)) for x in (clean, noisy))
            distance = float((np.exp(one) * (one - other)).sum(1).mean())
            epsilon = c.get("epsilon", 0.0)
            limit = -math.log(max(1e-6, 1.0 - epsilon + epsilon / clean.shape[1]))
        else:
            best, moved = (self.dist.sample(numpy_ops, x, self.dist.zero_noise(len(x)))[0] for x in (clean, noisy))
            distance = float(np.sqrt(np.square(best - moved).mean()))
            limit = float(self.sub.settings.get("ou_sigma", 0.2)) * c.get("scale", 1.0)
        self.stddev = self.stddev * self._FACTOR if distance <= limit else self.stddev / self._FACTOR

    def get_state(self) -> dict[str, Any]:
        """Noise, its standard deviation, and what the strategy on top remembers."""
        # Not what was acted on last: an episode's last step comes before its end.
        return {"seed": self._seed, "stddev": self.stddev, "sub": self.sub.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from `get_state()`; without it from the beginning."""
        self._seed = state.get("seed")
        self.stddev = float(state.get("stddev", self._number("initial_stddev")))
        self._recent = {}
        self.sub.set_state(state.get("sub", {}))

    # --- the strategy on top

    @property
    def noise_size(self) -> int:
        """That of the strategy on top."""
        return self.sub.noise_size

    def coefficients(self, timestep: int) -> dict[str, float]:
        """Those of the strategy on top."""
        return self.sub.coefficients(timestep)

    def noise(self, rng: np.random.Generator, rows: int, explore: bool) -> np.ndarray:
        """That of the strategy on top."""
        return self.sub.noise(rng, rows, explore)

    def actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        """What the strategy on top makes of the perturbed networks' outputs."""
        return self.sub.actions(ops, dist_inputs, noise, c)

    @property
    def inner(self) -> Exploration:
        """The strategy on top."""
        return self.sub

    def log_probs(
        self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array], actions: Any, raw: Array | None
    ) -> Array:
        """NaN unless actions are uniform: the weights' noise decides, and nobody knows how likely its choices are."""
        return self.unless_random(ops, self.sub.log_probs(ops, dist_inputs, noise, c, actions, raw), noise, c)

    @property
    def untold(self) -> str:
        """The weights' noise."""
        return "acts by weights drawn at random, over which nobody knows how likely an action is"

    def _in_network_units(self, ops: Any, drawn: Array) -> Array:
        return self.sub._in_network_units(ops, drawn)

    def _random_share(self, c: Mapping[str, Array]) -> Array:
        return self.sub._random_share(c)

    def _own_actions(self, ops: Any, dist_inputs: Array, noise: Array, c: Mapping[str, Array]) -> Actions:
        return self.sub._own_actions(ops, dist_inputs, noise, c)


_TYPES: dict[str, type[Exploration]] = {
    cls.__name__: cls
    for cls in (
        StochasticSampling,
        Random,
        EpsilonGreedy,
        PerWorkerEpsilonGreedy,
        SoftQ,
        GaussianNoise,
        OrnsteinUhlenbeckNoise,
        ParameterNoise,
    )
}
# What `polylib.policy.intrinsic` makes, and what RLlib has beside all these.
_WRAPPERS = ("RND", "Curiosity")
_NOT_BUILT = (
    *("PerWorkerGaussianNoise", "PerWorkerOrnsteinUhlenbeckNoise", "RE3"),
    *("SlateEpsilonGreedy", "SlateSoftQ", "ThompsonSampling", "UpperConfidenceBound"),
)


def make_exploration(
    config: Mapping[str, Any], space: gym.Space[Any], dist: Distribution, worker: tuple[int, int] = (0, 0)
) -> Exploration:
    """The strategy of a config's `exploration_config`.

    Args:
        config: `type` and the strategy's keys.
        space: of the actions.
        dist: the action distribution.
        worker: `(worker_index, num_workers)`.

    Raises:
        ConfigError: naming the type, key or space that doesn't fit.
    """
    kind = config.get("type", "StochasticSampling")
    if isinstance(kind, str):
        name = kind.rpartition(".")[2]
        if name in _NOT_BUILT:
            raise NotBuiltError(
                f"config key 'exploration_config': type {name!r} isn't in this version; there are "
                f"{', '.join([*_TYPES, *_WRAPPERS])}"
            )
        if name in _WRAPPERS:
            raise ConfigError(
                f"config key 'exploration_config': {name!r} stands around another type, not inside of one"
            )
        if name not in _TYPES:
            known = [*_TYPES, *_WRAPPERS]
            raise ConfigError(
                f"config key 'exploration_config': there is no type {kind!r}.{did_you_mean(name, known)} Known: "
                f"{', '.join(known)}"
            )
        kind = _TYPES[name]
    if not (isinstance(kind, type) and issubclass(kind, Exploration)):
        raise ConfigTypeError(
            f"config key 'exploration_config': type is {kind!r}, expected a name or a subclass of "
            "polylib.policy.exploration.Exploration"
        )
    return kind({key: value for key, value in config.items() if key != "type"}, space, dist, worker)


def check_sampling_only(config: Mapping[str, Any] | None, who: str) -> None:
    """Checks the `exploration_config` of an algorithm whose losses need the likelihood of what was done.

    Raises:
        ConfigError: if actions were to come from anything but the action distribution.
    """
    given = dict(config or {})
    kind = given.pop("type", "StochasticSampling")
    name = kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    if name != "StochasticSampling":
        raise ConfigError(
            f"config key 'exploration_config': {who} learns from the actions of its own distribution and takes type "
            f"'StochasticSampling' only, not {name!r}"
        )
    for key, value in given.items():
        if key not in StochasticSampling.keys:
            raise UnknownKeyError(
                f"config key 'exploration_config': StochasticSampling has no key {key!r}."
                f"{did_you_mean(key, list(StochasticSampling.keys))} It has {', '.join(StochasticSampling.keys)}"
            )
        if value:
            raise ConfigError(
                f"config key 'exploration_config.{key}': got {value!r}; {who} learns from the actions of its own "
                "distribution and can't begin with uniform ones: leave it at 0"
            )
