"""Small policies of every algorithm, batches for them, and what their losses are on NumPy in float64."""

from __future__ import annotations

import functools
import math
from typing import Any

import gymnasium as gym
import numpy as np
import tree
from modes import MODES, has

from polylib.algorithms.registry import get_config_class, get_objective_class
from polylib.models.numpy_network import NumpyNetwork
from polylib.models.spaces import mask_column
from polylib.policy import numpy_ops, sequences
from polylib.policy.backends import make_policy
from polylib.policy.inputs import Prepared
from polylib.policy.intrinsic import wrapped
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.policy import Policy
from polylib.policy.testing import sample_space

F32 = np.float32
S = gym.spaces
OBS = S.Box(-1.0, 1.0, (3,), np.float32)
CHOICE = S.Discrete(3, start=5)
TORQUE = S.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 1.0]), dtype=np.float32)
MASKED = S.Dict({"action_mask": S.MultiBinary(3), "seen": OBS})
AVAILABLE = [mode for mode in MODES if has(mode[0])]

_SMALL = {"fcnet_hiddens": [4], "fcnet_activation": "tanh"}
_LSTM = {"use_lstm": True, "lstm_cell_size": 2, "max_seq_len": 4, "fcnet_hiddens": [2], "fcnet_activation": "tanh"}
#: Keys that make an algorithm's networks small.
SMALL: dict[str, dict[str, Any]] = {
    "DQN": {"model": _SMALL, "hiddens": [4]},
    "SimpleQ": {"model": _SMALL},
    "SAC": {"q_model_config": _SMALL, "policy_model_config": _SMALL},
    "DDPG": {"actor_hiddens": [4], "critic_hiddens": [4]},
    "TD3": {"actor_hiddens": [4], "critic_hiddens": [4]},
    "CQL": {"q_model_config": _SMALL, "policy_model_config": _SMALL, "num_actions": 2},
    "CRR": {"actor_hiddens": [4], "critic_hiddens": [4]},
    "IQL": {"actor_hiddens": [4], "critic_hiddens": [4]},
    "A2C": {"model": _SMALL},
    "PG": {"model": _SMALL},
    "PPO": {"model": _SMALL},
    "BC": {"model": _SMALL},
    "MARWIL": {"model": _SMALL},
}
#: For A2C, PG, BC and MARWIL, whose networks may have state.
LSTM = {"model": _LSTM}
#: For DDPG, TD3, CRR and IQL.
TANH = {"actor_hidden_activation": "tanh", "critic_hidden_activation": "tanh"}


def small_config(algo: str, **keys: Any) -> Any:
    """An algorithm's config with small networks; `keys` go over that."""
    config = get_config_class(algo)().update_from_dict(SMALL[algo])
    return config.update_from_dict(keys)


def spec_of(algo: str, obs_space: Any = OBS, action_space: Any = CHOICE, seed: int = 0, **keys: Any) -> PolicySpec:
    """What a policy of an algorithm is built from."""
    config = small_config(algo, **keys)
    values = config.to_dict()
    objective_class = wrapped(get_objective_class(algo, config), values)
    return PolicySpec(obs_space, action_space, objective_class, values, seed)


def build(mode: tuple[str, bool], algo: str, *args: Any, **kwargs: Any) -> Policy:
    """A policy of an algorithm in a mode; other arguments are those of `spec_of`."""
    return make_policy(spec_of(algo, *args, **kwargs), *mode)


@functools.cache
def _cached(mode: tuple[str, bool], algo: str, obs_space: int, action_space: int, key: str) -> Any:
    keys = _KEYS[key]
    policy = build(mode, algo, _SPACES[obs_space], _SPACES[action_space], **keys)
    return policy, policy.get_state()


_KEYS: dict[str, dict[str, Any]] = {}
_SPACES: dict[int, Any] = {}


def shared(mode: tuple[str, bool], algo: str, obs_space: Any = OBS, action_space: Any = CHOICE, **keys: Any) -> Policy:
    """As `build`, but the same policy for all that ask for the same, in its first state: building takes time."""
    name = repr(sorted(keys.items()))
    _KEYS[name] = keys
    _SPACES.update({id(space): space for space in (obs_space, action_space)})
    policy, state = _cached(mode, algo, id(obs_space), id(action_space), name)
    policy.set_state(state)
    return policy


def random_rows(spec: PolicySpec, size: int, seed: int = 3) -> dict[str, Any]:
    """A batch in which every term of the losses counts: rewards, ends and discounts of all kinds."""
    rng = np.random.default_rng(seed)
    objective = spec.objective_class(spec)
    obs, new_obs = (sample_space(spec.observation_space, size, seed + i) for i in range(2))
    mask, first = mask_column(spec.observation_space), getattr(spec.action_space, "start", 0)
    rows: dict[str, Any] = {
        "obs": obs,
        # Where there is a mask, the first action is always allowed.
        "actions": sample_space(spec.action_space, size, seed) if mask is None else np.full(size, first),
        "new_obs": new_obs,
        "rewards": rng.normal(0.5, 2.0, size).astype(F32),
        "terminateds": rng.random(size) < 0.3,
        "discounts": F32(0.9) ** rng.integers(1, 4, size).astype(F32),
        "weights": rng.uniform(0.2, 1.0, size).astype(F32),
        "advantages": rng.standard_normal(size, F32),
        "value_targets": 3 * rng.standard_normal(size, F32),
    }
    kept = {name: rows[name] for name in (*objective.columns, *objective.optional_columns) if name in rows}
    if "burn_in" in objective.optional_columns and spec.config["model"]["use_lstm"]:
        kept["burn_in"] = np.arange(size) % 5 == 0
    return kept


def setting(spec: PolicySpec, size: int = 12) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Weights that aren't the first ones (targets differ from what they follow), and a batch; sequences of 5, 4, 3."""
    rng = np.random.default_rng(7)
    weights: dict[str, np.ndarray] = {}
    for net in spec.objective_class(spec).networks().values():
        for key, w in net.initial_weights(rng).items():
            scale = 0.5 / math.sqrt(max(1, w.shape[0]))
            weights[key] = (w + scale * rng.standard_normal(w.shape)).astype(F32)
    batch = random_rows(spec, size)
    if spec.config["model"]["use_lstm"]:
        batch["seq_lens"] = np.array([4, 1, 4, 3])
        for i in range(2):
            batch[f"state_in_{i}"] = rng.standard_normal((4, 2)).astype(F32)
    return weights, batch


class Held:
    """`numpy_ops`, whose `stop_gradient` holds what it was given first: central differences don't go through it."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._next: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy_ops, name)

    def again(self) -> Held:
        """The same calls once more, for other weights."""
        self._next = 0
        return self

    def stop_gradient(self, x: Any) -> Any:
        if self._next is None:
            self._held.append(np.copy(x))
            return x
        self._next += 1
        return self._held[self._next - 1]

    def no_gradient(self, compute: Any) -> Any:
        return tree.map_structure(self.stop_gradient, compute())


class Oracle:
    """Losses of an objective on NumPy, in float64.

    Args:
        spec: the policy's.
        weights: of all networks.
        prepared: the batch as the policy prepares it.
        noise: what the losses draw.
    """

    def __init__(self, spec: PolicySpec, weights: dict, prepared: Prepared, noise: dict[str, np.ndarray]) -> None:
        def wide(x: np.ndarray) -> np.ndarray:
            return x.astype(np.float64) if x.dtype == F32 else x

        self.objective: Objective = spec.objective_class(spec)
        self.specs = self.objective.networks()
        self.weights = {key: w.astype(np.float64) for key, w in weights.items()}
        columns = sequences.as_rows(numpy_ops, prepared.columns)
        self.batch = {name: wide(np.asarray(x)) for name, x in columns.items()}
        self.noise = {name: wide(x) for name, x in noise.items()}
        self.c = self.objective.coefficients()

    def losses(self, ops: Any = numpy_ops) -> Any:
        nets = {name: NumpyNetwork(spec, self.weights) for name, spec in self.specs.items()}
        return self.objective.losses(ops, nets, self.batch, self.noise, self.c, True)

    def gradients(self, step: float = 1e-6) -> dict[str, np.ndarray]:
        """Central differences: of each group's loss by the weights of that group's networks."""
        found, held = {}, Held()
        self.losses(held)
        for name, group in self.objective.groups().items():
            keys = [key for net in group.networks for key in self.specs[net].shapes()]
            for key in keys:
                w = self.weights[key]
                found[key] = np.zeros_like(w)
                for index in np.ndindex(w.shape):
                    kept, ends = w[index], []
                    for sign in (1, -1):
                        w[index] = kept + sign * step
                        ends.append(self.losses(held.again())[0][name])
                    w[index] = kept
                    found[key][index] = (ends[0] - ends[1]) / (2 * step)
        return found


@functools.cache
def _answers(key: tuple) -> Any:
    spec = _SPECS[key]
    weights, batch = setting(spec)
    reference = make_policy(spec, "numpy", False)
    prepared = reference.inputs.prepare(batch)
    rows = prepared.size * prepared.steps
    noise = reference.objective.noise(np.random.default_rng(11), rows)
    oracle = Oracle(spec, weights, prepared, noise)
    losses, stats, per_row = oracle.losses()
    mask = None if prepared.mask is None else prepared.mask.ravel()
    per_row = {name: x if mask is None else x[mask] for name, x in per_row.items()}
    return weights, batch, losses, stats, per_row, oracle.gradients()


_SPECS: dict[tuple, PolicySpec] = {}


def check_parity(mode: tuple[str, bool], algo: str, obs_space: Any, action_space: Any, keys: dict[str, Any]) -> None:
    """Loss, stats, gradients and TD errors of a mode are those of NumPy: rtol 1e-5."""
    spec = spec_of(algo, obs_space, action_space, **keys)
    key = (algo, str(obs_space), str(action_space), repr(sorted(keys.items())))
    _SPECS.setdefault(key, spec)
    weights, batch, losses, stats, per_row, gradients = _answers(key)
    policy = shared(mode, algo, obs_space, action_space, **keys)
    policy.set_weights(weights)
    policy.set_coefficients(grad_clip=math.inf)
    policy.rng = np.random.default_rng(11)
    found, info = policy.compute_gradients(batch)
    expected = {**stats, "total_loss": sum(losses.values())}
    for name, value in expected.items():
        assert info["learner_stats"][name] == approx(value), name
    assert set(info.get("rows", {})) == set(per_row)
    for name, rows in per_row.items():
        np.testing.assert_allclose(info["rows"][name], rows, rtol=1e-5, atol=2e-6, err_msg=name)
    assert set(found) == set(gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5, atol=3e-6, err_msg=name)
    moving = sum(bool(np.any(g)) for g in gradients.values())
    assert moving == len(gradients), [name for name, g in gradients.items() if not np.any(g)]


def approx(value: Any) -> Any:
    """As precise as float32 allows."""
    import pytest

    return pytest.approx(float(value), rel=1e-5, abs=3e-6)


def check_learning(algo: str, obs_space: Any, action_space: Any, keys: dict[str, Any], updates: int = 8) -> None:
    """After some updates weights, targets and optimizers agree in all modes, and so do the actions then."""
    spec = spec_of(algo, obs_space, action_space, **keys)
    weights, batch = setting(spec, 12)
    ends, outs, rows = {}, {}, {}
    for mode in AVAILABLE:
        policy = shared(mode, algo, obs_space, action_space, **keys)
        policy.set_weights(weights)
        policy.rng = np.random.default_rng(2)
        for update in range(updates):
            if "due_actor" in policy.coefficients:
                due = float(update % 2)
                policy.set_coefficients(due_actor=due, tau=0.1 * due)
            info = policy.learn_on_batch(batch)
            if update == 3 and "tau" not in policy.coefficients:
                policy.update_target(0.5)
        ends[mode], rows[mode] = policy.get_state(), info.get("rows", {})
        policy.set_timestep(100)
        explored = [policy.compute_actions(sample_space(obs_space, 5, i)).actions for i in range(3)]
        outs[mode] = (explored, policy.compute_actions(batch["obs"], explore=False).actions)
    first = AVAILABLE[0]
    moved = max(np.abs(ends[first]["weights"][key] - w).max() for key, w in weights.items())
    assert moved > 1e-3, "the weights have moved by more than is compared"
    for mode in AVAILABLE[1:]:
        for part in ("weights", "optimizer"):
            for key, value in ends[first][part].items():
                np.testing.assert_allclose(ends[mode][part][key], value, rtol=1e-3, atol=2e-5, err_msg=f"{mode}: {key}")
        for name, value in rows[first].items():
            np.testing.assert_allclose(rows[mode][name], value, rtol=1e-3, atol=1e-5, err_msg=f"{mode}: {name}")
        for found, wanted in zip(outs[mode][0] + [outs[mode][1]], outs[first][0] + [outs[first][1]], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5, err_msg=str(mode))


def check_targets(mode: tuple[str, bool], algo: str, obs_space: Any, action_space: Any, keys: dict[str, Any]) -> None:
    """`target = (1 - tau) target + tau source`, on demand, and after each update where `tau` is a coefficient."""
    spec = spec_of(algo, obs_space, action_space, **keys)
    weights, batch = setting(spec)
    policy = shared(mode, algo, obs_space, action_space, **keys)
    pairs = policy._target_keys()
    assert pairs and all(key.startswith("target_") for key in pairs)
    policy.set_weights(weights)
    policy.update_target(0.25)
    found = policy.get_weights()
    for key, w in weights.items():
        expected = 0.75 * w + 0.25 * weights[pairs[key]] if key in pairs else w
        np.testing.assert_allclose(found[key], expected, rtol=1e-6, atol=1e-7, err_msg=key)
    policy.update_target()
    found = policy.get_weights()
    assert all(np.array_equal(found[key], found[source]) for key, source in pairs.items())
    policy.set_weights(weights)
    tau = 0.2 if "tau" in policy.coefficients else 0.0
    if tau:
        policy.set_coefficients(tau=tau)
    policy.learn_on_batch(batch)
    found = policy.get_weights()
    for key, source in pairs.items():
        # Towards the new weights, not those before the update.
        expected = (1 - tau) * weights[key] + tau * found[source]
        np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=1e-6, err_msg=key)
        assert tau == 0 or not np.array_equal(found[key], weights[key])


def nets_of(objective: Objective, given: dict[str, dict[str, Any]]) -> dict[str, NumpyNetwork]:
    """Networks on NumPy whose weights are 0 but for those of some layers.

    Args:
        objective: whose networks.
        given: by network and layer: the bias, or the weights by leaf.
    """
    nets = {}
    for name, spec in objective.networks().items():
        weights = {key: np.zeros(shape, np.float64) for key, shape in spec.shapes().items()}
        for layer, values in given.get(name, {}).items():
            keys = {key.rsplit("/", 1)[1]: key for key in spec.weight_keys()[layer]}
            only = "bias" if "bias" in keys else next(iter(keys))
            for leaf, value in (values if isinstance(values, dict) else {only: values}).items():
                weights[keys[leaf]] = np.asarray(value, np.float64).reshape(spec.shapes()[keys[leaf]])
        nets[name] = NumpyNetwork(spec, weights)
    return nets


def losses_of(
    spec: PolicySpec, given: dict[str, dict[str, Any]], batch: dict[str, Any], noise: Any = None, **c: float
) -> Any:
    """Losses, stats and per-row arrays of `nets_of` for a batch; observations are zeros where it has none."""
    objective = spec.objective_class(spec)
    rows = len(batch["actions"])
    obs = {name: np.zeros((rows, 3)) for name in ("obs", "new_obs")}
    ends = {"terminateds": np.zeros(rows, bool), "rewards": np.zeros(rows), "discounts": np.ones(rows)}
    filled = {**obs, **ends, **{name: np.asarray(x) for name, x in batch.items()}}
    nets = nets_of(objective, given)
    return objective.losses(numpy_ops, nets, filled, noise or {}, {**objective.coefficients(), **c}, True)
