"""Small environments that a network of the right kind solves in minutes, and one of the wrong kind doesn't."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class StatelessCartPole(gym.ObservationWrapper[np.ndarray, int, np.ndarray]):
    """CartPole-v1 without velocities: `[cart position, pole angle]`. Balancing takes memory."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(gym.make("CartPole-v1"))
        space = self.env.observation_space
        self.observation_space = gym.spaces.Box(space.low[[0, 2]], space.high[[0, 2]], dtype=np.float32)  # type: ignore[attr-defined]

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Leaves out the velocities."""
        return observation[[0, 2]]


class PixelCatch(gym.Env[np.ndarray, int]):
    """A ball falls through a picture, and a paddle at the bottom catches it: reward 1, or -1.

    Keys of `config`:
        size: height and width in pixels, 42 by default.
        cells: columns and rows of the game, 7 by default.
    """

    def __init__(self, config: Any = None) -> None:
        config = dict(config or {})
        self.size, self.cells = int(config.get("size", 42)), int(config.get("cells", 7))
        self.observation_space = gym.spaces.Box(0, 255, (self.size, self.size, 1), np.uint8)
        self.action_space = gym.spaces.Discrete(3)

    def _picture(self) -> np.ndarray:
        game = np.zeros((self.cells, self.cells), np.uint8)
        game[-1, self.paddle] = 128
        game[self.row, self.column] = 255
        scale = self.size // self.cells
        picture = np.zeros((self.size, self.size, 1), np.uint8)
        big = np.kron(game, np.ones((scale, scale), np.uint8))
        picture[: len(big), : len(big), 0] = big
        return picture

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Drops a new ball."""
        super().reset(seed=seed)
        self.row, self.column = 0, int(self.np_random.integers(self.cells))
        self.paddle = self.cells // 2
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Moves the paddle by `action - 1` and the ball down by one."""
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, self.cells - 1))
        self.row += 1
        over = self.row == self.cells - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if over else 0.0
        return self._picture(), reward, over, False, {}
