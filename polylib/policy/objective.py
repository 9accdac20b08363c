"""Objective: what an algorithm hands to a backend. It never imports a framework; a backend never imports it by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.models.custom import CustomNetwork
from polylib.models.distributions import Distribution, make_distribution
from polylib.models.networks import NetworkSpec
from polylib.policy import sequences
from polylib.policy.exploration import Exploration
from polylib.policy.fragment import Fragment
from polylib.policy.gradients import EPSILON
from polylib.policy.ops import Array
from polylib.policy.sample_batch import SampleBatch


@dataclass(frozen=True)
class Group:
    """Variables with an optimizer of their own.

    Attributes:
        networks: names of the networks whose variables it moves.
        lr: the coefficient that holds its learning rate.
        due: the coefficient that says (1 or 0) whether an update moves it; None: every update does.
        epsilon: Adam's.
    """

    networks: tuple[str, ...]
    lr: str = "lr"
    due: str | None = None
    epsilon: float = EPSILON


@dataclass(frozen=True)
class UpdateHooks:
    """A user's own way from a loss to new weights.

    What the hooks are given as `optimizer` has `compute_gradients(loss)` and `apply_gradients(grads_and_vars)`, and
    otherwise is the user's optimizer.

    Attributes:
        optimizer: `()` to an optimizer of the framework; None: Adam.
        compute: `(optimizer, loss)` to `[(gradient, variable), ...]`.
        apply: `(optimizer, grads_and_vars)` takes a step.
    """

    optimizer: Callable[[], Any] | None = None
    compute: Callable[[Any, Any], Any] | None = None
    apply: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class PolicySpec:
    """Everything a backend needs to build a policy; picklable, so that workers can build theirs.

    Attributes:
        observation_space: of one agent.
        action_space: of one agent.
        objective_class: the algorithm's `Objective` subclass.
        config: the algorithm's config as a dict.
        seed: of the initial weights and of the policy's random numbers.
        stream: which of the seed's independent random streams the policy draws from (workers differ, weights don't).
    """

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    objective_class: type[Objective]
    config: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    stream: int = 0


class Objective(ABC):
    """An algorithm's networks, its way of acting and its losses, over `ops`.

    Inside `act`, `values` and `losses` use only `ops.*`, arithmetic and indexing; never a Python `if` on a tensor, and
    never let `[B]` meet `[B, 1]`. Whatever changes during training comes in through `c`.

    Args:
        spec: the policy's description.
    """

    #: Columns that `losses` needs, and those it uses where a batch has them.
    columns: tuple[str, ...] = ()
    optional_columns: tuple[str, ...] = ()
    #: Names of the networks that `act` calls; empty: all.
    acting: tuple[str, ...] = ()
    #: Whether workers compute values of a fragment before it is postprocessed.
    needs_values: bool = True
    #: Whether `postprocess` then uses values of all rows, and not only of what follows them where sampling stopped.
    needs_row_values: bool = True
    #: Whether updates come every few steps, and not after a whole batch of them.
    updates_often: bool = False
    #: Whether `postprocess` takes what acting says beside actions and states (`action_logp`, ...).
    needs_extras: bool = True
    #: Whether rows read from files are postprocessed whatever the config's `postprocess_inputs` says.
    postprocesses_inputs: bool = False

    #: Whether losses look at variables, beside calling networks.
    sees_variables: bool = False

    #: Frameworks that it runs in.
    frameworks: tuple[str, ...] = ("tf", "tf2", "torch")
    #: Whether `act` runs on NumPy, too: remote workers and copies of the networks then act there.
    numpy_acting: bool = True
    #: How weights are updated, where a user does it in a way of their own.
    update_hooks: UpdateHooks | None = None
    #: How actions are explored, if not by sampling the action distribution; its state goes with the policy's.
    exploration: Exploration | None = None
    #: The `exploration_config` that suits it, where none is given below a wrapper (`polylib.policy.intrinsic`).
    default_exploration: Mapping[str, Any] = {"type": "StochasticSampling"}

    def __init__(self, spec: PolicySpec) -> None:
        self.spec, self.config = spec, spec.config
        self.dist = self.distribution()
        #: Inputs that only exploring or learning fills (the noise of noisy layers), and their shapes; else they are 0.
        self.quiet_inputs: dict[str, tuple[int, ...]] = {}

    def distribution(self) -> Distribution:
        """The action distribution: the config's `custom_action_dist`, or the default of the action space."""
        config = self.config
        return make_distribution(
            self.spec.action_space,
            config.get("normalize_actions", True),
            config.get("clip_actions", False),
            custom=config.get("model", {}).get("custom_action_dist"),
            framework=config.get("framework"),
        )

    @property
    def looks_ahead(self) -> bool:
        """Whether `postprocess` uses later rows of an episode: those that files hold apart are put together for it."""
        return False

    def bind(self, policy: Any) -> None:  # noqa: B027  (most need none)
        """Called by the policy that this is the objective of, before it builds networks; raises if it can't be one."""

    def built(self, policy: Any) -> None:  # noqa: B027
        """Called by the policy when it is complete."""

    @abstractmethod
    def networks(self) -> dict[str, NetworkSpec | CustomNetwork]:
        """The networks by name; all are built by the backend."""

    def groups(self) -> dict[str, Group]:
        """Optimizers by name; by default one for all networks together."""
        return {"default": Group(tuple(self.networks()))}

    @abstractmethod
    def coefficients(self) -> dict[str, float]:
        """First values of the scalars fed on every call: `lr`, `grad_clip`, weights of loss terms, ...

        With `tau` among them, every update moves target networks that far towards what they follow; without it they
        move when `Policy.update_target` is called.
        """

    def scheduled(self, timestep: int) -> dict[str, float]:
        """Coefficients that follow a schedule, at `timestep` environment steps sampled by all workers."""
        return {}

    def adapted(self, coefficients: Mapping[str, float], stats: Mapping[str, float]) -> dict[str, float]:
        """Coefficients that follow what learning measured: called after each training batch with its stats."""
        return {}

    def act_noise(self, rng: np.random.Generator, batch_size: int, explore: bool) -> np.ndarray:
        """Randomness that `act` needs, `[batch_size, ...] float32`: by default that of the action distribution."""
        return self.dist.noise(rng, batch_size) if explore else self.dist.zero_noise(batch_size)

    def noise(self, rng: np.random.Generator, batch_size: int) -> dict[str, np.ndarray]:
        """Randomness that `losses` needs per row; none by default."""
        return {}

    @abstractmethod
    def act(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Chooses actions.

        Args:
            ops: the backend's `Ops`.
            nets: networks by name: `nets[name](inputs, outputs=[...], training=...)`.
            inputs: `obs: [B, *obs_shape]` (or its parts, `obs/...`), where given `action_mask: [B, dist_inputs] bool`,
                `state_i: [B, *state_shape]`, `prev_actions` and `prev_rewards`.
            noise: what `act_noise` drew.
            c: coefficients.

        Returns:
            `actions` (or its parts, `actions/...`), `action_logp: [B]`, `action_dist_inputs: [B, dist_inputs]`, for Box
            `action_raw: [B, k]`, and `state_out_i` for recurrent networks.
        """

    def choose(
        self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array], noise: Array, c: Mapping[str, Array]
    ) -> dict[str, Array]:
        """`act` for those who take nothing but actions and states; what else there is may be left out."""
        return self.act(ops, nets, inputs, noise, c)

    def choose_blindly(
        self, inputs: Mapping[str, np.ndarray], noise: np.ndarray, c: Mapping[str, float]
    ) -> dict[str, np.ndarray] | None:
        """What `choose` returns, in NumPy, where it doesn't depend on the networks; None where it does."""
        return None

    @property
    def untold(self) -> str:
        """Why acting can't say how likely its explored actions are (`action_logp` is NaN); "" if it can."""
        return ""

    def log_likelihoods(self, ops: Any, dist_inputs: Array, actions: Any) -> Array:
        """Log-probabilities `[B]` of actions under the policy, which the action distribution is by default.

        Args:
            ops: the backend's `Ops`.
            dist_inputs: what `dist_inputs` returned.
            actions: as `taken` returns them.
        """
        return self.dist.logp(ops, dist_inputs, actions)

    def taken(self, batch: Mapping[str, Array]) -> Any:
        """The actions of flat columns as the distribution takes them: an array, or the parts of a Dict or Tuple."""
        if "actions" in batch:
            return batch["actions"]
        return {name: x for name, x in batch.items() if name.startswith("actions/")}

    @staticmethod
    def named_actions(actions: Any) -> dict[str, Array]:
        """The inverse of `taken`: what the distribution sampled, as flat columns."""
        return actions if isinstance(actions, dict) else {"actions": actions}

    @abstractmethod
    def dist_inputs(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array:
        """Inputs of the action distribution, `[B, dist_inputs]`."""

    def values(self, ops: Any, nets: Mapping[str, Any], inputs: Mapping[str, Array]) -> Array | None:
        """Values `[B]` of observations; None for algorithms without a value function."""
        return None

    @abstractmethod
    def losses(
        self,
        ops: Any,
        nets: Mapping[str, Any],
        batch: Mapping[str, Array],
        noise: Mapping[str, Array],
        c: Mapping[str, Array],
        training: bool,
    ) -> tuple[dict[str, Array], dict[str, Array], dict[str, Array]]:
        """The losses to minimise.

        Args:
            ops: the backend's `Ops`.
            nets: networks by name.
            batch: `columns` and those of `optional_columns` that are there, `[B, ...]`. Of a recurrent policy B = S * T
                rows of S padded sequences, with `seq_mask: [S, T]` and `state_i: [S, ...]`: means are to be taken by
                `row_mean`.
            noise: what `noise()` drew.
            c: coefficients, scalars.
            training: passed to the networks.

        Returns:
            A scalar per group; scalar stats by name; arrays `[B]` per row by name (such as TD errors).
        """

    def other_columns(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Columns `[B, ...]` of a batch that `losses` uses and only the objective knows; none by default."""
        return {}

    @abstractmethod
    def postprocess(self, fragment: Fragment) -> SampleBatch:
        """Turns a sampled fragment into training rows, in NumPy, on the worker that sampled it."""


def next_inputs(batch: Mapping[str, Array]) -> dict[str, Array]:
    """The columns of `new_obs` under the names by which networks know observations."""
    return {f"obs{name[len('new_obs'):]}": x for name, x in batch.items() if name.partition("/")[0] == "new_obs"}


def ahead(
    ops: Any,
    network: Any,
    now: Mapping[str, Array],
    then: Mapping[str, Array],
    outputs: tuple[str, ...],
    training: bool = False,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """A network's outputs for `now`, and as constants those for `then`: in one pass where the backend can."""
    both = getattr(network, "ahead", None)
    found = None if both is None else both(now, then, outputs, training)
    if found is None:
        later = ops.no_gradient(lambda: network(then, outputs))
        found = network(now, outputs, training), later  # last the call whose losses count, see `Network.penalties`
    return found


def frozen(network: Any) -> Any:
    """A network whose weights a loss doesn't move: its gradient goes to what goes in only, where backends can tell."""
    return getattr(network, "frozen", network)


def row_mean(ops: Any, batch: Mapping[str, Array]) -> Callable[[Array], Array]:
    """The mean over a batch's real rows that are no `burn_in`: a function of an array `[B]`, or of a number."""
    mask = sequences.row_mask(ops, batch)
    if "burn_in" in batch:
        learnt = 1.0 - ops.to_float(batch["burn_in"])
        mask = learnt if mask is None else mask * learnt
    if mask is None:
        return ops.mean
    total = ops.sum(mask)
    return lambda x: ops.sum(x * mask) / total
