"""Checkpoints of every default network, saved under each framework and restored under each: nine of nine."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from modes import has
from policies import BOX, DISCRETE, make, random_batch

from polylib.policy.checkpoint import load_policy, save_policy
from polylib.policy.testing import close, same, sample_space

F32 = np.float32
S = gym.spaces
IMAGE = S.Box(0, 255, (12, 12, 1), np.uint8)
CONV = {"conv_filters": [[2, [4, 5], 3], [3, [4, 4], 1]], "post_fcnet_hiddens": [5]}
RECURRENT = {"max_seq_len": 3, "lstm_cell_size": 4}
KINDS: dict[str, tuple[gym.Space, gym.Space, dict[str, Any]]] = {
    "mlp": (BOX, DISCRETE, {}),
    "vision": (IMAGE, DISCRETE, CONV),
    "lstm": (BOX, DISCRETE, {"use_lstm": True, "lstm_use_prev_action": True, **RECURRENT}),
    "gru": (BOX, S.Box(-1, 1, (2,), F32), {"use_gru": True, "free_log_std": True, **RECURRENT}),
    "mixed": (
        S.Dict({"eye": IMAGE, "rest": S.Tuple([BOX, S.Discrete(3)])}),
        S.Tuple([DISCRETE, S.MultiBinary(2)]),
        CONV,
    ),
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
            "max_seq_len": 3,
        },
    ),
}
FRAMEWORKS = [name for name in ("tf", "tf2", "torch") if has(name)]


def answers(policy: Any, obs_space: gym.Space) -> dict[str, Any]:
    """What the framework itself computes: not a NumPy copy of its weights."""
    policy._mirroring = False
    obs = sample_space(obs_space, 10, 1)
    rng = np.random.default_rng(2)
    states = [rng.standard_normal((10, *x.shape)).astype(F32) for x in policy.get_initial_state()]
    out = policy.compute_actions(obs, states, explore=False)
    return {"logits": out.extras["action_dist_inputs"], "state": out.state}


@pytest.mark.parametrize("kind", KINDS)
def test_nine_of_nine(tmp_path, kind):
    """The same logits to 1e-5 and states, the same weights and optimizer; and NumPy for acting alone."""
    obs_space, action_space, model = KINDS[kind]
    for framework in FRAMEWORKS:
        policy = make((framework, False), obs_space, action_space, hiddens=(6,), model=model)
        rng = np.random.default_rng(3)
        policy.set_weights({k: w + 0.3 * rng.standard_normal(w.shape) for k, w in policy.get_weights().items()})
        policy.learn_on_batch(random_batch(policy.spec, 8, seed=4))
        expected, state = answers(policy, obs_space), policy.get_state()
        assert np.ptp(expected["logits"]) > 0.1
        path = save_policy(policy, tmp_path / framework, "PPO")
        policy.close()
        for target in [*FRAMEWORKS, "numpy"]:
            restored = load_policy(path, target, eager_tracing=False)
            close(answers(restored, obs_space), expected, f"saved by {framework}, read by {target}", 0, 1e-5)
            found = restored.get_state()
            same(found["weights"], state["weights"], "weights")
            same(found["optimizer"], state["optimizer"], "optimizer")
            restored.close()
