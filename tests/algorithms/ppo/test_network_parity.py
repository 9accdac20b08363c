"""PPO with every kind of default network, in the four modes and on NumPy: the same loss, gradients and weights."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from modes import MODE_PARAMS, MODES, has
from networks import make_weights
from policies import BOX, DISCRETE, make, make_spec, random_batch

from polylib.models.numpy_network import NumpyNetwork
from polylib.policy import numpy_ops
from polylib.policy.policy import Policy
from polylib.policy.testing import close

F32 = np.float32
S = gym.spaces
AVAILABLE = [mode for mode in MODES if has(mode[0])]
PUSH = S.Box(-1, 2, (2,), F32)
# tanh: relu has no central difference where it bends.
CONV = {"conv_filters": [[2, [4, 5], 3], [3, [3, 3], 1]], "conv_activation": "tanh", "vf_share_layers": True}
RECURRENT = {"max_seq_len": 4, "lstm_cell_size": 3}
# name -> observation space, action space, keys of the config's `model`
KINDS: dict[str, tuple[gym.Space, gym.Space, dict[str, Any]]] = {
    "vision": (S.Box(0, 255, (12, 12, 1), np.uint8), DISCRETE, CONV),
    "lstm": (BOX, DISCRETE, {"use_lstm": True, "lstm_use_prev_action": True, **RECURRENT}),
    "gru_box": (BOX, PUSH, {"use_gru": True, "lstm_use_prev_reward": True, "free_log_std": True, **RECURRENT}),
    "lstm_vision": (S.Box(0, 255, (12, 12, 1), np.uint8), S.Discrete(2), {"use_lstm": True, **CONV, **RECURRENT}),
    "attention": (
        BOX,
        DISCRETE,
        {
            "use_attention": True,
            "attention_dim": 6,
            "attention_num_heads": 2,
            "attention_head_dim": 2,
            "attention_memory_inference": 3,
            "attention_memory_training": 3,
            "attention_position_wise_mlp_dim": 3,
            "max_seq_len": 4,
        },
    ),
    # One head with a memory as long as the default: a size at which TensorFlow's own products have been wrong.
    "attention_one_head": (
        BOX,
        DISCRETE,
        {
            "use_attention": True,
            "attention_dim": 4,
            "attention_head_dim": 2,
            "attention_memory_inference": 50,
            "attention_memory_training": 50,
            "attention_position_wise_mlp_dim": 2,
            "max_seq_len": 4,
        },
    ),
    "nested_actions": (BOX, S.Dict({"a": S.Tuple([S.Discrete(3, start=1), PUSH]), "b": S.MultiBinary(2)}), {}),
    "masked_dict": (S.Dict({"x": S.Tuple([BOX, S.Discrete(2)]), "action_mask": S.MultiBinary(3)}), DISCRETE, {}),
}
CONFIG = {"entropy_coeff": 0.01, "kl_coeff": 0.2, "vf_loss_coeff": 0.5, "vf_clip_param": 9.0, "clip_param": 0.2}


@functools.cache
def policy(kind: str, mode: tuple[str, bool]) -> Policy:
    obs_space, action_space, model = KINDS[kind]
    return make(mode, obs_space, action_space, hiddens=(4,), model=model, **CONFIG)


@functools.cache
def setting(kind: str, size: int) -> tuple[dict, dict[str, Any]]:
    """Weights that aren't the first ones, and a batch, of sequences where the network has state."""
    obs_space, action_space, model = KINDS[kind]
    spec = make_spec(obs_space, action_space, hiddens=(4,), model=model, **CONFIG)
    network = spec.objective_class(spec).networks()["policy"]
    batch = random_batch(spec, size, seed=3, wild=0.5)
    rng = np.random.default_rng(4)
    if network.state:
        batch["unroll_id"] = np.sort(rng.integers(0, size // 4, size))
        for i, shape in enumerate(network.state):
            batch[f"state_in_{i}"] = rng.standard_normal((size, *shape)).astype(F32)
    for name in ("prev_actions", "prev_rewards"):
        if name in network.inputs:
            batch[name] = np.roll(batch["actions"], 1) if name == "prev_actions" else rng.standard_normal(size, F32)
    return make_weights(network, 5), batch


@functools.cache
def oracle(kind: str, size: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Stats and gradients by central differences on NumPy, in float64."""
    weights, batch = setting(kind, size)
    p = policy(kind, ("numpy", False))
    prepared = p.inputs.prepare(batch).columns
    wide = {name: x.astype(np.float64) if x.dtype == F32 else x for name, x in prepared.items()}
    network = NumpyNetwork(p.network_specs["policy"], {key: w.astype(np.float64) for key, w in weights.items()})

    def losses() -> Any:
        return p._losses(numpy_ops, {"policy": network}, wide, {}, p.coefficients)

    loss, stats, _ = losses()
    gradients, step = {}, 1e-6
    for key, w in network.weights.items():
        gradients[key] = np.zeros_like(w)
        for index in np.ndindex(w.shape):
            kept, ends = w[index], []
            for sign in (1, -1):
                w[index] = kept + sign * step
                ends.append(losses()[0]["default"])
            w[index] = kept
            gradients[key][index] = (ends[0] - ends[1]) / (2 * step)
    return {**stats, "total_loss": loss["default"]}, gradients


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("framework", "traced"), MODE_PARAMS)
def test_loss_stats_and_gradients_are_the_oracles(framework, traced, kind):
    weights, batch = setting(kind, 12)
    stats, gradients = oracle(kind, 12)
    p = policy(kind, (framework, traced))
    p.set_weights(weights)
    found, info = p.compute_gradients(batch)
    for name, value in stats.items():
        assert info["learner_stats"][name] == pytest.approx(value, rel=2e-5, abs=2e-6), name
    assert set(found) == set(gradients)
    for key, gradient in gradients.items():
        # Layer norm multiplies float32's rounding.
        atol = 1e-4 if kind == "attention" else 1e-5
        np.testing.assert_allclose(found[key], gradient, rtol=1e-4, atol=atol, err_msg=key)
    assert sum(np.any(g) for g in gradients.values()) >= len(gradients) - 1, "each variable takes part"


@pytest.mark.parametrize("kind", KINDS)
def test_weights_agree_after_a_whole_iteration(kind):
    """Ten epochs of minibatches, of sequences where the network has state."""
    weights, batch = setting(kind, 40)
    size = policy(kind, ("numpy", False)).inputs.prepare(batch).size
    rng = np.random.default_rng(0)
    half = size // 2
    indices = np.concatenate([rng.permutation(size)[: 2 * half].reshape(2, half) for _ in range(10)]).astype(np.int32)
    found, losses = {}, {}
    for mode in AVAILABLE:
        p = policy(kind, mode)
        first = p.get_state()
        p.set_weights(weights)
        losses[mode] = p.learn_on_minibatches(batch, indices)["total_loss"]
        found[mode] = p.get_weights()
        p.set_state(first)
    reference = AVAILABLE[0]
    assert max(np.abs(found[reference][key] - w).max() for key, w in weights.items()) > 1e-3, "the weights have moved"
    for mode in AVAILABLE[1:]:
        np.testing.assert_allclose(losses[mode], losses[reference], rtol=1e-4, atol=1e-5, err_msg=str(mode))
        for key, w in found[reference].items():
            np.testing.assert_allclose(found[mode][key], w, rtol=0, atol=2e-5, err_msg=f"{mode}: {key}")


@pytest.mark.parametrize("kind", KINDS)
def test_acting_and_values_agree(kind):
    """On the same random numbers, one by one and as a batch, states included."""
    weights, batch = setting(kind, 12)
    outs: dict[Any, Any] = {}
    for mode in [*AVAILABLE, ("numpy", False)]:
        p = policy(kind, mode)
        p.set_weights(weights)
        p.rng = np.random.default_rng(5)
        states = [batch[f"state_in_{i}"] for i in range(len(p.get_initial_state()))]
        previous = {name: batch[name] for name in p.inputs.previous}
        out = p.compute_actions(batch["obs"], states, **previous)
        values = p.compute_values(batch["obs"], states, previous.get("prev_actions"), previous.get("prev_rewards"))
        outs[mode] = out, values
        logp = p.compute_log_likelihoods(out.actions, batch["obs"], states, **previous)
        if "action_raw" not in out.extras:
            np.testing.assert_allclose(logp, out.extras["action_logp"], rtol=1e-4, atol=1e-5)
    reference = outs["numpy", False]
    for mode in AVAILABLE:
        close(outs[mode], reference, str(mode), 1e-4, 1e-5)
