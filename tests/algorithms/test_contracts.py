"""Every algorithm's policy keeps the contract in every mode. (PPO's: tests/policy/test_contract.py.)"""

from __future__ import annotations

import numpy as np
import pytest
from learners import CHOICE, MASKED, OBS, TORQUE, build
from modes import MODES, has, mode_id

from polylib.policy.testing import PolicyContract

# algorithm -> its spaces, whether exploring samples the distribution, other keys
POLICIES = {
    "DQN": (MASKED, CHOICE, False, {"noisy": True, "lr": 1e-2}),
    "SAC": (OBS, TORQUE, True, {}),
    "DDPG": (OBS, TORQUE, False, {}),
    "CQL": (OBS, TORQUE, True, {"lagrangian": True}),
    "CRR": (OBS, TORQUE, True, {}),
    "IQL": (MASKED, CHOICE, True, {}),
    "A2C": (OBS, TORQUE, True, {"lr": 1e-2}),
    "PG": (OBS, CHOICE, True, {"lr": 1e-2}),
    "BC": (OBS, TORQUE, True, {"lr": 1e-2}),
    "MARWIL": (OBS, CHOICE, True, {"lr": 1e-2}),
}


def _contract(mode: tuple[str, bool], algo: str) -> type:
    obs_space, action_space, samples, keys = POLICIES[algo]

    def make_policy(self, seed=0, **config):
        return build(mode, algo, obs_space, action_space, seed=seed, **{**keys, **config})

    name = f"Test{algo}{mode_id(*mode).title().replace('-', '')}"
    made = type(name, (PolicyContract,), {"make_policy": make_policy, "samples": samples})
    return pytest.mark.skipif(not has(mode[0]), reason=f"the package for {mode[0]!r} isn't installed")(made)


globals().update({made.__name__: made for mode in MODES for algo in POLICIES for made in [_contract(mode, algo)]})


def test_there_is_a_class_for_each_pair():
    found = [x for x in globals().values() if isinstance(x, type) and issubclass(x, PolicyContract)]
    assert len(found) == len(MODES) * len(POLICIES) + 1
    assert np.prod(OBS.shape) == 3
