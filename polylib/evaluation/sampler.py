"""Sampler: steps a vector environment with a policy and collects fragments.

Gymnasium's vector environments reset their sub-environments in one of three ways. In all of them the rows handed out are
steps the policy took, and the observation kept for the bootstrap is the episode's true last one:

* DISABLED (what polylib makes itself): the sampler resets finished environments right away;
* SAME_STEP: the returned observation is the new episode's first, the last one stands in `info["final_obs"]`;
* NEXT_STEP: the step after an episode's end only resets; its row is marked invalid and never leaves the collector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from polylib.env.vector_env import autoreset_mode
from polylib.errors import EnvError
from polylib.evaluation.collector import Collector
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.policy.columns import resolve
from polylib.policy.fragment import Fragment
from polylib.policy.policy import Policy

# Episode ids of different workers never meet: a worker's start at its index times this.
_IDS_PER_WORKER = 1 << 40


class Sampler:
    """Collects fragments of experience from one vector environment.

    Args:
        env: the environments.
        policy: acts in all of them.
        fragment_length: rows per environment and `sample()`.
        complete_episodes: hand out whole episodes only.
        explore: sample actions, or take the most likely ones.
        worker_index: of the worker, for ids and messages.
        env_name: for messages.
        seed: of the first reset; None: not seeded.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        policy: Policy,
        *,
        fragment_length: int,
        complete_episodes: bool = False,
        explore: bool | None = None,
        worker_index: int = 0,
        env_name: str = "",
        seed: int | None = None,
    ) -> None:
        self.env, self.policy, self.explore = env, policy, explore
        self.fragment_length, self.complete_episodes = fragment_length, complete_episodes
        self.worker_index, self.env_name = worker_index, env_name
        self.mode = autoreset_mode(env)
        n = env.num_envs
        self.collector = Collector(n, fragment_length)
        dist_size = policy.objective.dist.inputs_size
        for name in ("obs", "rewards", "terminateds", "truncateds", "eps_id", "t"):
            self.collector.column(name, *resolve(name, policy.observation_space, policy.action_space, dist_size))
        self.episodes: list[EpisodeMetrics] = []
        first_id = worker_index * _IDS_PER_WORKER
        self._eps_id, self._next_id = np.arange(first_id, first_id + n), first_id + n
        self._next_unroll = first_id
        self._t, self._return = np.zeros(n, np.int64), np.zeros(n, np.float64)
        self._resetting = np.zeros(n, np.bool_)  # NEXT_STEP: whose next step only resets
        self._open_rows, self._complete_rows = np.zeros(n, np.int64), 0
        self._obs: Any = None
        self._seed = seed

    def sample(self) -> Fragment:
        """Steps the environments until there are `fragment_length` rows for each of them, on average.

        Raises:
            EnvError: if an environment raises or returns NaN.
        """
        if self._obs is None:
            self._obs = self._call("reset", seed=self._seed)[0]
        target, rows = self.fragment_length * self.env.num_envs, 0
        self._complete_rows = 0
        while (self._complete_rows if self.complete_episodes else rows) < target:
            rows += self._step()
        self._check_finite()
        current = self._obs.astype(self.collector.columns["obs"].dtype, copy=False)
        fragment = self.collector.fragment(current, self.complete_episodes, self._next_unroll)
        self._next_unroll += len(fragment.starts)
        return fragment

    def pop_episodes(self) -> list[EpisodeMetrics]:
        """The episodes finished since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def _step(self) -> int:
        """One step of all environments; returns how many of them it was a real step for."""
        collector = self.collector
        row = collector.next_row()
        columns = collector.columns
        columns["obs"][row] = self._obs
        out = self.policy.compute_actions(columns["obs"][row], explore=self.explore)
        columns["eps_id"][row] = self._eps_id
        columns["t"][row] = self._t
        collector.put(row, "actions", out.actions)
        for name, values in out.extras.items():
            collector.put(row, name, values)
        obs, rewards, terminateds, truncateds, infos = self._call("step", out.actions)
        columns["rewards"][row] = rewards
        columns["terminateds"][row] = terminateds
        columns["truncateds"][row] = truncateds
        self._obs = obs
        real = self.env.num_envs
        if self.mode is AutoresetMode.NEXT_STEP and self._resetting.any():
            real = self._skip_resets(row)
        else:
            self._t += 1
            self._return += rewards
            self._open_rows += 1
        done = terminateds | truncateds
        if done.any():
            self._end_episodes(row, np.flatnonzero(done), obs, infos)
        return real

    def _skip_resets(self, row: int) -> int:
        """NEXT_STEP: marks the rows of environments whose step was a reset, and counts the others'."""
        stepped = ~self._resetting
        self.collector.valid[row] = stepped
        self._t += stepped
        self._return += self.collector.columns["rewards"][row] * stepped
        self._open_rows += stepped
        self._resetting[:] = False
        return int(stepped.sum())

    def _end_episodes(self, row: int, finished: np.ndarray, obs: np.ndarray, infos: dict[str, Any]) -> None:
        for env in finished.tolist():
            self.collector.end_episode(row, env, self._true_last_obs(env, obs, infos))
            self.episodes.append(EpisodeMetrics(float(self._return[env]), int(self._t[env])))
            self._eps_id[env] = self._next_id
            self._next_id += 1
        self._complete_rows += int(self._open_rows[finished].sum())
        self._t[finished] = self._open_rows[finished] = 0
        self._return[finished] = 0.0
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting[finished] = True
        elif self.mode is AutoresetMode.DISABLED:
            mask = np.zeros(self.env.num_envs, np.bool_)
            mask[finished] = True
            self._obs = self._call("reset", options={"reset_mask": mask})[0]

    def _true_last_obs(self, env: int, obs: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
        if self.mode is not AutoresetMode.SAME_STEP:
            return obs[env]
        finals = infos.get("final_obs", infos.get("final_observation"))
        if finals is None or finals[env] is None:
            raise EnvError(
                f"environment {self.env_name!r} resets in the same step but gives no info['final_obs'] for the episode that "
                f"ended in sub-environment {env}; without it truncated episodes can't be bootstrapped"
            )
        return finals[env]

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, method)(*args, **kwargs)
        except Exception as error:
            if method == "step":
                self._check_finite()  # NaN observations make NaN actions, which is what the environment chokes on
            text = " ".join(str(error).split())
            raise EnvError(
                f"environment {self.env_name!r} raised in {method}(): {type(error).__name__}: {text} "
                f"(worker {self.worker_index}, {self.env.num_envs} sub-environments, observation space "
                f"{self.env.single_observation_space}, action space {self.env.single_action_space})"
            ) from error

    def _check_finite(self) -> None:
        for name, bad in (("obs", np.isnan), ("rewards", lambda x: ~np.isfinite(x))):
            column = self.collector.columns[name][: self.collector.size]
            if not np.issubdtype(column.dtype, np.floating):
                continue
            wrong = bad(column)
            if wrong.any():
                row, env = (int(i) for i in np.argwhere(wrong)[0][:2])
                what = {"obs": "a NaN observation", "rewards": "a reward that is not finite"}[name]
                raise EnvError(
                    f"environment {self.env_name!r} returned {what}: {column[row, env]} at step "
                    f"{int(self.collector.columns['t'][row, env])} of an episode (worker {self.worker_index}, "
                    f"sub-environment {env})"
                )
