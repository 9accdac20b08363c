"""An environment of small pictures that costs next to nothing to step. Also runs in the peers' environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

PIXELS = "benchmark-pixels"


class Pixels(gym.Env[np.ndarray, int]):
    """Random pictures of 42x42 pixels in four channels, out of a hundred; episodes of 100 steps."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (42, 42, 4), np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self.pictures = np.random.default_rng(0).integers(0, 256, (100, 42, 42, 4), np.uint8)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The first picture."""
        super().reset(seed=seed)
        self.t = 0
        return self.pictures[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """The next picture, and a reward for the first action."""
        self.t += 1
        return self.pictures[self.t % 100], float(action == 0), self.t >= 100, False, {}
