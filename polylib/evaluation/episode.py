"""Episodes as callbacks see them. Made only when a callback overrides an episode hook."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree

from polylib.callbacks import CallbackError, Callbacks


class Episode:
    """A running episode.

    Attributes:
        episode_id: the `eps_id` of its rows.
        env_id: index of its environment in the worker.
        length: steps so far.
        total_reward: undiscounted return so far.
        user_data: a callback's own notes.
        custom_metrics: numbers that go into the results when the episode ends.
        hist_data: lists that go into `hist_stats`.
    """

    def __init__(self, episode_id: int, env_id: int, worker: Any) -> None:
        self.episode_id, self.env_id, self.worker = episode_id, env_id, worker
        self.length, self.total_reward = 0, 0.0
        self.user_data: dict[str, Any] = {}
        self.custom_metrics: dict[str, float] = {}
        self.hist_data: dict[str, list[float]] = {}
        self._last: dict[str, Any] = {"observation": None, "action": None, "reward": 0.0, "info": {}}

    def last_observation_for(self, agent_id: Any = None) -> Any:
        """The newest observation."""
        return self._last["observation"]

    def last_action_for(self, agent_id: Any = None) -> Any:
        """The newest action."""
        return self._last["action"]

    def last_reward_for(self, agent_id: Any = None) -> float:
        """The newest reward."""
        return self._last["reward"]

    def last_info_for(self, agent_id: Any = None) -> dict[str, Any]:
        """The newest info dict."""
        return self._last["info"]


class EpisodeTracker:
    """Keeps an `Episode` per environment and calls the episode hooks; knows only those whose beginning it was told.

    Args:
        callbacks: of the worker.
        worker: the worker.
    """

    def __init__(self, callbacks: Callbacks, worker: Any) -> None:
        self.callbacks, self.worker = callbacks, worker
        self.episodes: dict[int, Episode] = {}

    def _call(self, hook: str, env: int) -> None:
        self.callbacks.call(
            hook,
            worker=self.worker,
            base_env=self.worker.env,
            policies=self.worker.policy_map,
            episode=self.episodes[env],
            env_index=env,
        )

    def created(self, env: int, episode_id: int) -> None:
        """An environment is about to be reset."""
        self.episodes[env] = Episode(episode_id, env, self.worker)
        self._call("on_episode_created", env)

    def started(self, env: int, obs: Any, info: dict[str, Any]) -> None:
        """An environment was reset."""
        if env not in self.episodes:
            return
        self.episodes[env]._last.update(observation=_copied(obs), info=info)
        self._call("on_episode_start", env)

    def stepped(self, env: int, obs: Any, action: Any, reward: float, info: dict[str, Any]) -> None:
        """An environment made a step."""
        if env not in self.episodes:
            return
        episode = self.episodes[env]
        episode.length += 1
        episode.total_reward += reward
        episode._last = {"observation": _copied(obs), "action": _copied(action), "reward": reward, "info": info}
        self._call("on_episode_step", env)

    def ended(self, env: int) -> Episode | None:
        """An environment's episode ended."""
        if env not in self.episodes:
            return None
        self._call("on_episode_end", env)
        episode = self.episodes.pop(env)
        for name, value in episode.custom_metrics.items():
            if isinstance(value, bool | str) or not np.isscalar(value):
                raise CallbackError(f"custom metric {name!r} of an episode is {value!r}, expected a number")
        return episode

    def clear(self) -> None:
        """Forgets all running episodes."""
        self.episodes.clear()


def _copied(value: Any) -> Any:
    """Arrays of one's own, nested as the value is: environments write to theirs."""
    return tree.map_structure(np.array, value)


def info_of(infos: Any, env: int) -> dict[str, Any]:
    """One environment's info out of Gymnasium's dict of arrays, or dicts of them (`_key` says who has `key`)."""
    found: dict[str, Any] = {}
    if not isinstance(infos, dict):
        return found  # some vector environments of other people have another kind
    for key, values in infos.items():
        here = infos.get(f"_{key}")
        if str(key).startswith("_") or (here is not None and not here[env]):
            continue
        if isinstance(values, dict):
            found[key] = info_of(values, env)
        else:
            one_each = isinstance(values, np.ndarray | list | tuple) and len(values) > env
            found[key] = values[env] if one_each else values
    return found
