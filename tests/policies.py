"""PPO policies with small networks, and batches for them, for tests of policies and of PPO."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tree

from polylib.algorithms.ppo.config import PPOConfig
from polylib.algorithms.ppo.loss import PPOObjective
from polylib.models.spaces import flatten, mask_column, unflatten
from polylib.policy.backends import make_policy
from polylib.policy.objective import Objective, PolicySpec
from polylib.policy.policy import Policy
from polylib.policy.testing import sample_space

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(3, start=5)
MULTI = gym.spaces.MultiDiscrete([3, 2], start=[5, 7])
TORQUE = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)


def make_spec(
    obs_space: gym.Space = BOX,
    action_space: gym.Space = DISCRETE,
    objective: type[Objective] = PPOObjective,
    seed: int | None = 0,
    hiddens: tuple[int, ...] = (8,),
    share: bool = False,
    activation: str | None = "tanh",
    model: dict[str, Any] | None = None,
    **config: Any,
) -> PolicySpec:
    """A spec with PPO's defaults but for a small network; `model` has further keys of the config's `model`."""
    resolved = PPOConfig().to_dict()
    small = {"fcnet_hiddens": list(hiddens), "vf_share_layers": share, "fcnet_activation": activation}
    resolved["model"].update(small, **(model or {}))
    return PolicySpec(obs_space, action_space, objective, {**resolved, **config}, seed=seed)


def make(mode: tuple[str, bool], *args: Any, **kwargs: Any) -> Policy:
    """A policy of a mode; other arguments are those of `make_spec`."""
    return make_policy(make_spec(*args, **kwargs), *mode)


def random_batch(spec: PolicySpec, size: int, seed: int = 0, masked: bool = False, wild: float = 1.0) -> dict[str, Any]:
    """A batch whose old policy differs from any new one, so that every term of the loss is at work.

    Args:
        spec: for its spaces.
        size: rows.
        seed: of everything.
        masked: add `action_mask`; the old policy kept to it.
        wild: scale of the old policy's inputs.
    """
    from polylib.policy import numpy_ops

    rng = np.random.default_rng(seed)
    dist = spec.objective_class(spec).dist
    obs = sample_space(spec.observation_space, size, seed)
    inputs = (wild * rng.standard_normal((size, dist.inputs_size))).astype(np.float32)
    obs = tree.map_structure(lambda x: x.astype(np.float32) if x.dtype == np.float64 else x, obs)
    batch: dict[str, Any] = {"obs": obs}
    column = mask_column(spec.observation_space)
    if column is not None:
        inputs = dist.mask(numpy_ops, inputs, flatten(spec.observation_space, obs)[column].reshape(size, -1) != 0)
    if masked:
        batch["action_mask"] = rng.random(inputs.shape) < 0.7
        batch["action_mask"][:, [0, -1]] = True  # at least one choice of each component in these tests
        inputs = dist.mask(numpy_ops, inputs, batch["action_mask"])
    actions, raw = dist.sample(numpy_ops, inputs, dist.noise(rng, size))
    batch.update(
        actions=unflatten(spec.action_space, actions, "actions") if isinstance(actions, dict) else actions,
        action_dist_inputs=inputs,
        action_logp=dist.logp(numpy_ops, inputs, actions, raw).astype(np.float32),
        advantages=rng.standard_normal(size, np.float32),
        value_targets=3 * rng.standard_normal(size, np.float32),
    )
    if raw is not None:
        batch["action_raw"] = raw
    return batch
