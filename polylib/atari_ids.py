"""Atari games by name: what ale-py registers, and the classic ids that it no longer does.

A classic id is `GAME[-ram][FLAVOUR]-VERSION`, which says how the game is played:

    FLAVOUR                 an action lasts                       VERSION   the last action is repeated instead with
    (none)                  2, 3 or 4 frames, at random           v0        probability 0.25 in each frame
    Deterministic           4 frames (3 in SpaceInvaders)         v4        never
    NoFrameskip             1 frame

Today's ids, `ALE/GAME-v5`, have 4 frames and 0.25.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

import gymnasium

from polylib.errors import EnvError

#: Games that have classic ids, as ale-py calls them.
CLASSIC_GAMES = (
    *("adventure", "air_raid", "alien", "amidar", "assault", "asterix", "asteroids", "atlantis", "bank_heist"),
    *("battle_zone", "beam_rider", "berzerk", "bowling", "boxing", "breakout", "carnival", "centipede"),
    *("chopper_command", "crazy_climber", "defender", "demon_attack", "double_dunk", "elevator_action", "enduro"),
    *("fishing_derby", "freeway", "frostbite", "gopher", "gravitar", "hero", "ice_hockey", "jamesbond"),
    *("journey_escape", "kangaroo", "krull", "kung_fu_master", "montezuma_revenge", "ms_pacman", "name_this_game"),
    *("phoenix", "pitfall", "pong", "pooyan", "private_eye", "qbert", "riverraid", "road_runner", "robotank"),
    *("seaquest", "skiing", "solaris", "space_invaders", "star_gunner", "tennis", "time_pilot", "tutankham"),
    *("up_n_down", "venture", "video_pinball", "wizard_of_wor", "yars_revenge", "zaxxon"),
)
_GAMES = {game.title().replace("_", ""): game for game in CLASSIC_GAMES}
_FRAMES: dict[str, Any] = {"": (2, 5), "Deterministic": 4, "NoFrameskip": 1}
# At four frames an action, SpaceInvaders' shots, which blink, would never be seen.
_FRAMES_OF = {("space_invaders", "Deterministic"): 3}
_REPEATS = {"v0": 0.25, "v4": 0.0}
_CLASSIC = re.compile(r"([A-Za-z]+?)(-ram|)(Deterministic|NoFrameskip|)-(v0|v4)")
_FRAMES_PER_EPISODE = 108_000  # half an hour


def is_atari_id(env: str) -> bool:
    """Whether an id is that of an Atari game, whether or not there is such a game."""
    return env.startswith("ALE/") or _parts(env) is not None


def resembles_atari(env: str) -> bool:
    """Whether somebody who writes `env` may have an Atari game in mind."""
    return env.startswith(("ALE/", *_GAMES))


def classic_ids() -> list[str]:
    """All classic ids."""
    return [
        f"{name}{ram}{flavour}-{version}"
        for name in _GAMES
        for ram in ("", "-ram")
        for flavour in _FRAMES
        for version in _REPEATS
    ]


def register_atari(env: str) -> None:
    """Makes Gymnasium know `env`, if there is such a game.

    Args:
        env: an id for which `is_atari_id` holds.

    Raises:
        EnvError: if ale-py isn't installed.
    """
    if env in gymnasium.registry:
        return
    try:
        # Not at the module's top: it is optional. Importing it registers its own ids.
        ale_py = importlib.import_module("ale_py")
    except Exception as error:  # its compiled part may not fit this machine
        if isinstance(error, ModuleNotFoundError) and error.name == "ale_py":
            raise EnvError(
                f"environment {env!r} is an Atari game, which needs ale-py, and that isn't installed: pip install "
                "'polylib[atari]'"
            ) from None
        text = " ".join(str(error).split())
        raise EnvError(f"environment {env!r}: can't import ale-py: {type(error).__name__}: {text}") from error
    # Otherwise every process greets with two lines when it makes its first game.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)
    parts = _parts(env)
    if env in gymnasium.registry or parts is None:
        return
    game, ram, flavour, version = parts
    gymnasium.register(
        env,
        "ale_py.env:AtariEnv",
        kwargs={
            "game": game,
            "obs_type": "ram" if ram else "rgb",
            "repeat_action_probability": _REPEATS[version],
            "full_action_space": False,
            "frameskip": _FRAMES_OF.get((game, flavour), _FRAMES[flavour]),
            "max_num_frames_per_episode": _FRAMES_PER_EPISODE,
        },
    )


def _parts(env: str) -> tuple[str, str, str, str] | None:
    """Game, "-ram" or "", flavour and version of a classic id; None for others."""
    match = _CLASSIC.fullmatch(env)
    if match is None or match[1] not in _GAMES:
        return None
    return _GAMES[match[1]], match[2], match[3], match[4]
