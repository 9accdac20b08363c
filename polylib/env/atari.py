"""Atari games as networks take them: what the config keys is_atari, preprocessor_pref and clip_rewards do.

"deepmind" is, from the game outwards:

* Gymnasium's `AtariPreprocessing`: up to 30 no-ops at the start; 4 frames an action, the last two of them joined by
  their maximum, if the environment itself skips none; grey, scaled to `dim` x `dim`;
* `Lives`: FIRE starts the game, and lost lives are reported;
* Gymnasium's `FrameStackObservation`: the last 4 frames, as the channels of one image.

A lost life ends an episode for learning only: its row is terminated in the batch (`Sampler`), while the game goes on.
Returns and lengths in results, and the episodes of an evaluation, are those of whole games.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation

from polylib.atari_ids import is_atari_id
from polylib.env.check import one_line
from polylib.errors import EnvError
from polylib.models.preprocessors import ATARI_RAM_SHAPE, ATARI_SHAPE, AtariRamPreprocessor, GenericPixelPreprocessor

#: In a step's info, if it cost a life and the game goes on.
LIFE_LOST = "life_lost"

_NOOPS, _FRAMES_PER_ACTION, _STACK = 30, 4, 4


class Lives(gym.Wrapper[Any, Any, Any, Any]):
    """Starts each game and each further life with FIRE, where the game has that button, and reports lost lives.

    Many games wait for FIRE, and an agent that never happens to press it would wait for ever. The second action of the
    start is the one after FIRE, for games that take two.

    Gymnasium's own `terminal_on_life_loss` ends the episode for everybody, so that whoever steps the environment would
    begin a new game with each life, and never see the later ones.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        game: Any = env.unwrapped  # it has methods that Gymnasium doesn't know
        self._game, meanings = game, game.get_action_meanings()
        fire = meanings.index("FIRE") if "FIRE" in meanings else None
        self._start = () if fire is None else (fire, fire + 1) if fire + 1 < len(meanings) else (fire,)
        self._lives = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins a new game."""
        obs, info = self.env.reset(seed=seed, options=options)
        for action in self._start:
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        self._lives = self._game.ale.lives()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One action; after a lost life also those that start the next one, whose rewards count."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._game.ale.lives()
        # Qbert has 0 lives for some frames before it is over.
        if 0 < lives < self._lives and not (terminated or truncated):
            for start in self._start:
                obs, more, terminated, truncated, info = self.env.step(start)
                reward = float(reward) + float(more)
                if terminated or truncated:
                    break
            info, lives = {**info, LIFE_LOST: True}, self._game.ale.lives()
        self._lives = lives
        return obs, reward, bool(terminated), bool(truncated), info


def preprocess(env: gym.Env[Any, Any], config: Any, name: str) -> gym.Env[Any, Any]:
    """An environment with the wrappers that the config asks for; the environment itself if there are none.

    Args:
        env: any environment.
        config: with keys is_atari, preprocessor_pref, and dim, framestack, grayscale and zero_mean of its model.
        name: of the environment, for messages.

    Raises:
        EnvError: if the wrappers are asked for (`is_atari=True`) and don't fit.
    """
    how, asked, model = config["preprocessor_pref"], config["is_atari"], config["model"]
    if how is None or not (looks_raw(env) if asked is None else asked):
        return env
    space = getattr(env, "observation_space", None)
    if isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and space.shape == ATARI_RAM_SHAPE:
        ram = AtariRamPreprocessor(space)
        return TransformObservation(env, ram.transform, ram.observation_space)
    if how == "rllib":
        if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8 or space.shape != ATARI_SHAPE:
            if asked is None:
                return env  # a game with a larger screen, or one that is grey already
            raise _unfit(name, f"preprocessor_pref='rllib' takes frames of uint8 {list(ATARI_SHAPE)}", space)
        pixels = GenericPixelPreprocessor(space, model)
        return TransformObservation(env, pixels.transform, pixels.observation_space)
    if not looks_raw(env) or not _is_screen(space):
        raise _unfit(name, "preprocessor_pref='deepmind' takes a game of ale-py with its own frames", space)
    return wrap_deepmind(env, model["dim"], model["framestack"], name)


def wrap_deepmind(
    env: gym.Env[Any, Any], dim: int = 84, framestack: bool = True, name: str = "Atari"
) -> gym.Env[Any, Any]:
    """An Atari game as `preprocessor_pref="deepmind"` makes it, for loops of one's own.

    Args:
        env: a game of ale-py, not wrapped yet.
        dim: height and width of a frame in pixels.
        framestack: whether an observation is the last 4 frames, or only the last.
        name: of the environment, for messages.

    Returns:
        The game with observations uint8 [dim, dim, 4], the newest frame last, or [dim, dim, 1].

    Raises:
        EnvError: if OpenCV isn't installed, or the environment can't be wrapped.

    Example:
        >>> env = wrap_deepmind(env_creator("PongNoFrameskip-v4")({}))  # doctest: +SKIP
    """
    skips_none = getattr(env.unwrapped, "_frameskip", None) == 1
    try:
        env = AtariPreprocessing(
            env,
            noop_max=_NOOPS,
            frame_skip=_FRAMES_PER_ACTION if skips_none else 1,
            screen_size=dim,
            grayscale_newaxis=not framestack,
        )
    except gym.error.DependencyNotInstalled:
        raise EnvError(
            f"environment {name!r}: Atari's frames are scaled with OpenCV, which isn't installed: pip install "
            "'polylib[atari]'"
        ) from None
    except Exception as error:
        raise EnvError(f"environment {name!r} can't be wrapped for Atari: {one_line(error)}") from error
    env = Lives(env)
    if not framestack:
        return env
    space = gym.spaces.Box(0, 255, (dim, dim, _STACK), np.uint8)
    # A view: the frames are copied once, from here to where they are used.
    return TransformObservation(FrameStackObservation(env, _STACK), lambda frames: np.moveaxis(frames, 0, -1), space)


def looks_raw(env: gym.Env[Any, Any]) -> bool:
    """Whether `env` is a game of ale-py with the observations that it has by itself."""
    game = env.unwrapped
    is_game = hasattr(game, "ale") and hasattr(game, "get_action_meanings")
    return is_game and getattr(env, "observation_space", None) == game.observation_space


def reports_lives(env: VectorEnv[Any, Any, Any] | None) -> bool:
    """Whether these environments are games that tell of lost lives, wrapped by `wrap_deepmind`."""
    return any(_has_lives(one) for one in getattr(env, "envs", ()))


def check_native(config: Any, name: str) -> None:
    """Refuses ale-py's own vector of games where polylib's wrappers are to apply.

    Args:
        config: with keys is_atari and preprocessor_pref.
        name: of an environment that has a vectorised implementation.

    Raises:
        EnvError: if its frames would be prepared in another way than one by one.
    """
    if config["preprocessor_pref"] is not None and config["is_atari"] is not False:
        raise EnvError(
            f"config key 'vectorization_mode': ale-py's own vector of {name!r} prepares frames in its own way; leave "
            "it at 'auto', or set preprocessor_pref=None to have it as it is, with settings in env_config"
        )


def is_native_atari(env: Any) -> bool:
    """Whether an environment's own vectorised implementation would be ale-py's."""
    return isinstance(env, str) and is_atari_id(env)


def _has_lives(env: Any) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, Lives):
            return True
        env = env.env
    return False


def _is_screen(space: Any) -> bool:
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)


def _unfit(name: str, what: str, space: Any) -> EnvError:
    return EnvError(
        f"config key 'is_atari': {what}, and environment {name!r} has observations {space}; leave is_atari at None, or "
        "set preprocessor_pref=None"
    )
