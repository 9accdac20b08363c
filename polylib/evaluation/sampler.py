"""Sampler: steps a vector environment with a policy and collects fragments.

Gymnasium's vector environments reset their sub-environments in one of three ways. In all of them the rows handed out
are steps the policy took, and the observation kept for the bootstrap is the episode's true last one:

* DISABLED (what polylib makes itself): the sampler resets finished environments right away;
* SAME_STEP: the returned observation is the new episode's first, the last one stands in `info["final_obs"]`;
* NEXT_STEP: the step after an episode's end only resets; its row is marked invalid and never leaves the collector.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from polylib.env.atari import LIFE_LOST
from polylib.env.check import VectorChecks, one_line, unpacking_hint, unusable
from polylib.env.vector_env import autoreset_mode
from polylib.errors import BatchError, EnvError
from polylib.evaluation.collector import Collector
from polylib.evaluation.episode import EpisodeTracker, info_of
from polylib.evaluation.metrics import EpisodeMetrics
from polylib.evaluation.recording import UNFILTERED, infos_of
from polylib.models.filters import clip_rewards
from polylib.models.networks import batch_dtype
from polylib.models.spaces import finite, flatten, is_nested, leaves, surely_usable, unflatten, unusable_rows
from polylib.policy.columns import INFOS, REWARDS, resolve
from polylib.policy.fragment import Fragment
from polylib.policy.policy import ActionOutput, Policy

logger = logging.getLogger(__name__)

# Episode ids of different workers never meet: a worker's start at its index times this.
_IDS_PER_WORKER = 1 << 40
# complete_episodes: steps, as a multiple of those asked for and at least, before a missing end is worth a word.
_PATIENCE, _LONG = 50, 10_000


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
        tracker: calls episode callbacks, if there are any.
        reward_clip: the config's `clip_rewards`: what is learnt from; metrics count the environment's own rewards.
        by_life: a lost life (`polylib.env.atari`) ends an episode for learning: its row is terminated, other rows have
            another `eps_id`. The game goes on, and so do the network's memory, metrics and callbacks' episodes.
        extras: keep what acting says beside actions (`action_logp`, ...), as columns of fragments.
        records: keep what records need and learning doesn't (`polylib.evaluation.recording`).
    """

    #: Whether the observations count in the policy's filter.
    updates_filter = True

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
        tracker: EpisodeTracker | None = None,
        reward_clip: bool | float | None = None,
        by_life: bool = False,
        extras: bool = True,
        records: bool = False,
    ) -> None:
        self.env, self.policy, self.explore, self._extras = env, policy, explore, extras
        self._records = records
        self.tracker = tracker
        self.fragment_length, self.complete_episodes = fragment_length, complete_episodes
        self.worker_index, self.env_name = worker_index, env_name
        self.mode = autoreset_mode(env)
        self._in_turn = isinstance(env, SyncVectorEnv) and self.mode is AutoresetMode.DISABLED
        n = env.num_envs
        spaces = policy.observation_space, policy.action_space
        self._nested_actions = is_nested(policy.action_space)
        self.collector = Collector(n, fragment_length, spaces if any(map(is_nested, spaces)) else None)
        self._checks = VectorChecks(env)
        for name, space in self._checks.spaces.items():
            self.collector.column(name, tuple(space.shape or ()), batch_dtype(space))
        for name in ("rewards", "terminateds", "truncateds", "eps_id", "t"):
            self.collector.column(name, *resolve(name, *spaces, 0))
        self._action_columns = list(leaves(policy.action_space, "actions"))
        self._filter = None if policy.filter.identity else policy.filter
        self._reward_clip, self._by_life = reward_clip, by_life
        self._memory = self._first_memory(n)  # what the network takes besides observations, [N, ...] by name
        self.episodes: list[EpisodeMetrics] = []
        self._perturbs = getattr(policy, "perturbs", False) and explore is not False
        self.act_s = 0.0  # seconds in which the policy acted
        first_id = worker_index * _IDS_PER_WORKER
        self._eps_id, self._next_id = np.arange(first_id, first_id + n), first_id + n
        self._next_unroll = first_id
        self._t, self._return = np.zeros(n, np.int64), np.zeros(n, np.float64)
        self._earlier = np.zeros(n, np.int64)  # steps of the lives before this one
        self._resetting = np.zeros(n, np.bool_)  # NEXT_STEP: whose next step only resets
        self._complete_rows = 0  # of finished episodes
        self._obs: dict[str, np.ndarray] | None = None  # the environments' own, by column
        self._seed, self._resets = seed, np.zeros(n, np.int64)  # how often each environment was reset
        # The actions since each environment's last reset, with which a checkpoint's reader gets to the same state.
        self._history: list[list[dict[str, np.ndarray]]] = [[] for _ in range(n)]
        self._reset_row = np.zeros(n, np.int64)  # the collector's row in which each environment began anew; 0: in none

    @property
    def replayable(self) -> bool:
        """Whether the environments' state follows from seeds and actions, which is what a checkpoint keeps of it."""
        return self._seed is not None and self._in_turn

    def sample(self) -> Fragment:
        """Steps the environments until there are `fragment_length` rows for each of them, on average.

        Raises:
            EnvError: if an environment raises, or returns NaN or what doesn't fit its spaces. The rows collected so far
                are lost; the next call starts new episodes.
        """
        try:
            if self._obs is None:
                self._reset(np.ones(self.env.num_envs, np.bool_))
            self._collect(self.fragment_length * self.env.num_envs)
            self._check_finite()
        except BaseException:
            self._abandon()
            raise
        if self.replayable:
            self._remember()
        observed = self._observed()
        memory = {_stored(name): x for name, x in self._memory.items()}
        current = {**self._filtered(observed), **memory, **self._unfiltered(observed)}
        fragment = self.collector.fragment(current, self.complete_episodes, self._next_unroll)
        self._next_unroll += len(fragment.starts)
        return fragment

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What it takes to go on sampling as if never stopped: JSON values, and arrays by name.

        Environments aren't written: their episodes' seeds and actions are, if they are `replayable`.
        """
        values = {
            "num_envs": self.env.num_envs,
            "replayable": self.replayable,
            "resets": self._resets.tolist(),
            "eps_id": self._eps_id.tolist(),
            "next_id": int(self._next_id),
            "next_unroll": int(self._next_unroll),
            "t": self._t.tolist(),
            "return": self._return.tolist(),
            "earlier": self._earlier.tolist(),
        }
        arrays: dict[str, np.ndarray] = {}
        if self._obs is None:
            return values, arrays  # new episodes begin
        arrays.update({name: np.array(x) for name, x in self._obs.items()})
        arrays.update({f"memory/{name}": np.array(x) for name, x in self._memory.items()})
        for env, history in enumerate(self._history):
            if history and values["replayable"]:
                for name in self._action_columns:
                    taken = np.concatenate([piece[name] for piece in history])
                    arrays[f"actions/{env}{name.removeprefix('actions')}"] = taken
        for env, rows in enumerate(self.collector.carried):
            arrays.update({f"carried/{env}/{name}": column for name, column in rows.items()})
        return values, arrays

    def set_state(self, values: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
        """Goes on from `get_state()`, by replaying the unfinished episodes.

        Episode callbacks are called for the replayed steps too: what they know of an episode isn't stored.

        Returns:
            False if that isn't possible (other environments, or ones that don't repeat): episodes start anew then.
        """
        n = self.env.num_envs
        next_id, next_unroll = int(values["next_id"]), int(values["next_unroll"])
        if values["num_envs"] != n or not values["replayable"] or not self.replayable:
            self._next_id, self._next_unroll = max(next_id, self._next_id), max(next_unroll, self._next_unroll)
            self._abandon()
            return False
        resets, eps_id, t = (np.array(values[name], np.int64).reshape(n) for name in ("resets", "eps_id", "t"))
        returns = np.array(values["return"], np.float64).reshape(n)
        earlier = np.array(values.get("earlier", [0] * n), np.int64).reshape(n)
        obs = {name: arrays[name] for name in self._checks.spaces if name in arrays}
        actions: list[dict[str, np.ndarray] | None] = []
        for env in range(n):
            names = {name: f"actions/{env}{name.removeprefix('actions')}" for name in self._action_columns}
            known = all(key in arrays for key in names.values())
            actions.append({name: arrays[key] for name, key in names.items()} if known else None)
        carried: list[dict[str, np.ndarray]] = []
        for env in range(n):
            prefix = f"carried/{env}/"
            carried.append({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})
        self._next_id, self._next_unroll = next_id, next_unroll
        self._abandon()
        try:
            repeated = not obs or self._replay(resets - 1, eps_id, actions, obs)
        except EnvError as error:
            logger.info("environment %r can't be brought back to where it was: %s", self.env_name, error)
            repeated = False
        self._resets = resets  # where it isn't repeated: other seeds than before, from here on
        if not repeated:
            self._abandon()
            return False
        self._eps_id, self._t, self._return = eps_id, t, returns
        self._earlier = earlier
        self._next_id, self.collector.carried = next_id, carried
        for name in self._memory:
            if f"memory/{name}" in arrays:
                self._memory[name] = np.array(arrays[f"memory/{name}"])
        return True

    def _replay(
        self,
        resets: np.ndarray,
        eps_id: np.ndarray,
        actions: list[dict[str, np.ndarray] | None],
        expected: dict[str, np.ndarray],
    ) -> bool:
        """Steps every environment through its unfinished episode, all of them ending at the same step."""
        n = self.env.num_envs
        tracker, self.tracker = self.tracker, None  # the steps and resets in between are nobody's episode
        try:
            names = self._action_columns
            lengths = np.array([0 if a is None else len(a[names[0]]) for a in actions])
            longest = int(lengths.max())
            idle = next((a for a in actions if a is not None), {})
            self._eps_id = eps_id
            for k in range(longest + 1):
                starting = lengths == longest - k
                if k == 0 or starting.any():
                    self._resets[:] = resets
                    self._reset(np.ones(n, np.bool_) if k == 0 else starting)
                    if tracker is not None:
                        for env in np.flatnonzero(starting).tolist():
                            tracker.created(env, int(eps_id[env]))
                            tracker.started(env, self._obs_of(env), {})
                if k == longest:
                    break
                steps = (k - longest + lengths).tolist()
                picked = [(idle, 0) if a is None or t < 0 else (a, t) for a, t in zip(actions, steps, strict=True)]
                row = {name: np.stack([a[name][t] for a, t in picked]) for name in names}
                self._obs, rewards, terminateds, truncateds, infos = self._call("step", self._nest(row))
                if tracker is not None:
                    for env in np.flatnonzero(lengths >= longest - k).tolist():
                        action = self._nest({name: x[env] for name, x in row.items()})
                        tracker.stepped(env, self._obs_of(env), action, float(rewards[env]), info_of(infos, env))
                done = terminateds | truncateds
                if done.any():
                    self._reset(done)
        finally:
            self.tracker = tracker
        self._history = [[] if a is None else [a] for a in actions]
        return all(np.array_equal(np.asarray(self._observed()[name], x.dtype), x) for name, x in expected.items())

    def _nest(self, actions: dict[str, np.ndarray]) -> Any:
        """Action columns as the environment takes them."""
        return unflatten(self.policy.action_space, actions, "actions") if self._nested_actions else actions["actions"]

    def _observed(self) -> dict[str, np.ndarray]:
        if self._obs is None:
            raise EnvError(f"environment {self.env_name!r} wasn't reset yet")
        return self._obs

    def _obs_of(self, env: int, obs: dict[str, np.ndarray] | None = None) -> Any:
        """The newest observation (or `obs`) of one environment, nested as its space is."""
        found = self._observed() if obs is None else obs
        return unflatten(self._checks.space, {name: x[env] for name, x in found.items()})

    def _unfiltered(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The observations under names of their own, where records need them because a filter changes them."""
        if self._filter is None or not self._records:
            return {}
        return {UNFILTERED + name: x for name, x in obs.items()}

    def _filtered(self, obs: dict[str, np.ndarray], update: bool = False) -> dict[str, np.ndarray]:
        return obs if self._filter is None else self._filter(obs, update)

    def _first_memory(self, size: int) -> dict[str, np.ndarray]:
        """States and previous actions and rewards at an episode's start."""
        first = {f"state_{i}": np.stack([x] * size) for i, x in enumerate(self.policy.get_initial_state())}
        for name in self.policy.inputs.previous:
            first |= self.policy.inputs.first_previous(name, size)
        return first

    def _forget(self, envs: np.ndarray) -> None:
        """Environments whose episodes begin anew."""
        if self._memory:
            for name, first in self._first_memory(1).items():
                self._memory[name][envs] = first

    def _remember_step(self, out: ActionOutput, actions: dict[str, np.ndarray], rewards: np.ndarray) -> None:
        """What the network will be told in the next step."""
        memory = self._memory
        for i, state in enumerate(out.state):
            memory[f"state_{i}"] = np.array(state)  # its own: ended episodes are written over
        for name, x in actions.items():
            if f"prev_{name}" in memory:
                memory[f"prev_{name}"] = np.array(x, memory[f"prev_{name}"].dtype)
        if "prev_rewards" in memory:
            memory["prev_rewards"] = np.array(rewards, np.float32)

    def pop_episodes(self) -> list[EpisodeMetrics]:
        """The episodes finished since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes

    def _collect(self, target: int) -> None:
        rows, warn_at = 0, max(_PATIENCE * target, _LONG)
        self._complete_rows = 0
        while (self._complete_rows if self.complete_episodes else rows) < target:
            rows += self._step()
            if rows > warn_at and self.complete_episodes:
                warn_at *= 2
                logger.warning(
                    "environment %r: after %d steps only %d of the %d rows asked for are in finished episodes, which "
                    "batch_mode='complete_episodes' waits for; gymnasium.wrappers.TimeLimit makes episodes end",
                    self.env_name,
                    rows,
                    self._complete_rows,
                    target,
                )

    def _abandon(self) -> None:
        """After an error in mid-row: the rows are of no use, and the environments start anew."""
        n = self.env.num_envs
        self.collector.clear()
        self._obs, self._history = None, [[] for _ in range(n)]
        self._memory = self._first_memory(n)
        self._t[:] = self._earlier[:] = self._reset_row[:] = 0
        self._return[:] = 0.0
        self._resetting[:] = False
        self._eps_id, self._next_id = np.arange(self._next_id, self._next_id + n), self._next_id + n
        if self.tracker is not None:
            self.tracker.clear()

    def _step(self) -> int:
        """One step of all environments; returns how many of them it was a real step for."""
        collector = self.collector
        row = collector.next_row()
        columns = collector.columns
        inputs: dict[str, np.ndarray] = {}
        observed = self._observed()
        for name, values in self._filtered(observed, self.updates_filter).items():
            columns[name][row] = values
            inputs[name] = columns[name][row]
        for name, values in self._unfiltered(observed).items():
            collector.put(row, name, values)
        for name, values in self._memory.items():
            collector.put(row, _stored(name), values)
            inputs[name] = values
        start = time.perf_counter()
        out = self._act(inputs)
        self.act_s += time.perf_counter() - start
        columns["eps_id"][row] = self._eps_id
        columns["t"][row] = self._t
        nested, taken = self._nested_actions, out.actions
        actions = flatten(self.policy.action_space, taken, "actions") if nested else {"actions": taken}
        for name, values in actions.items():
            collector.put(row, name, values)
        if self._extras:
            for name, values in out.extras.items():
                collector.put(row, name, values)
        obs, rewards, terminateds, truncateds, infos = self._call("step", out.actions)
        learnt = rewards if self._reward_clip is None else clip_rewards(rewards, self._reward_clip)
        columns["rewards"][row] = learnt
        if self._records and learnt is not rewards:
            collector.put(row, UNFILTERED + REWARDS, rewards)
        columns["terminateds"][row] = terminateds
        columns["truncateds"][row] = truncateds
        self._obs = obs
        if self._memory:
            self._remember_step(out, actions, learnt)
        if self._records and infos:
            collector.put(row, INFOS, infos_of(infos, terminateds | truncateds))
        done = terminateds | truncateds
        real = self.env.num_envs
        if self.mode is AutoresetMode.NEXT_STEP and self._resetting.any():
            stepped = ~self._resetting  # the others were only reset: no step, no reward, no end
            self.collector.skip(row, stepped)
            rewards, done = np.where(stepped, rewards, 0.0), done & stepped
            self._t += stepped
            self._forget(np.flatnonzero(~stepped))
            self._resetting[:] = False
            real = int(stepped.sum())
        else:
            self._t += 1
        self._return += rewards
        if self.tracker is not None:
            self._track_step(row, self.collector.valid[row], done, rewards, infos)
        if self._by_life and LIFE_LOST in infos:
            self._end_lives(row, np.flatnonzero(np.asarray(infos[LIFE_LOST], np.bool_) & ~done), obs)
        if np.count_nonzero(done):
            self._end_episodes(row, np.flatnonzero(done), obs, infos)
        return real

    def _act(self, inputs: dict[str, np.ndarray]) -> ActionOutput:
        try:
            if self.policy.inputs.masked:
                # Environments that will only reset (NEXT_STEP) show an ended episode, in which nothing may be allowed.
                self.policy.inputs.take_mask(inputs, self._resetting)
            return self.policy.act(inputs, self.explore, self._extras)
        except BatchError as error:
            raise self._error(f"returned an action mask that allows nothing: {error}") from error

    def _end_episodes(
        self, row: int, finished: np.ndarray, obs: dict[str, np.ndarray], infos: dict[str, Any]
    ) -> None:
        for env in finished.tolist():
            last = self._true_last_obs(env, obs, infos)
            wrong = self._checks.unusable(last)
            if wrong is not None:
                self._check_finite()  # there may have been one before
                raise self._error(f"returned {wrong}", env)
            self.episodes.append(self._episode_metrics(env))
            self._close(row, env, last)
        self._earlier[finished], self._reset_row[finished] = 0, row + 1
        self._return[finished] = 0.0
        if self._perturbs:
            self.policy.new_episode()
        self._forget(finished)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resetting[finished] = True
        if self.tracker is not None and self.mode is not AutoresetMode.DISABLED:
            for env in self._tracked(finished):
                self.tracker.created(env, int(self._eps_id[env]))
                if self.mode is AutoresetMode.SAME_STEP:
                    info = {k: v for k, v in info_of(infos, env).items() if not k.startswith("final_")}
                    self.tracker.started(env, self._obs_of(env, obs), info)
        if self.mode is AutoresetMode.DISABLED:
            mask = np.zeros(self.env.num_envs, np.bool_)
            mask[finished] = True
            self._reset(mask)

    def _end_lives(self, row: int, envs: np.ndarray, obs: dict[str, np.ndarray]) -> None:
        """Lets the next row of these environments be another episode's, for learning."""
        self.collector.columns["terminateds"][row, envs] = True
        self._earlier[envs] += self._t[envs]
        for env in envs.tolist():
            self._close(row, env, {name: x[env] for name, x in obs.items()})

    def _close(self, row: int, env: int, last: dict[str, np.ndarray]) -> None:
        """Ends an episode's rows.

        Args:
            row: the last one.
            env: the environment.
            last: the observation after it, by column.
        """
        unfiltered = self._unfiltered(last)
        last = {name: x[0] for name, x in self._filtered({name: x[None] for name, x in last.items()}).items()}
        last.update(unfiltered)
        last.update({_stored(name): x[env] for name, x in self._memory.items()})
        self.collector.end_episode(row, env, last)
        self._eps_id[env] = self._next_id
        self._next_id += 1
        self._complete_rows += int(self._t[env])
        self._t[env] = 0

    def _reset(self, mask: np.ndarray) -> None:
        """Resets the environments in `mask`.

        Each episode has a seed of its own if there is one; where environments reset by themselves (some of which take
        no list of seeds), it is the first reset that is seeded.
        """
        options = {} if self._obs is None else {"options": {"reset_mask": mask}}
        tracker = self.tracker
        envs = [] if tracker is None else self._tracked(np.flatnonzero(mask))
        if tracker is not None:
            for env in envs:
                tracker.created(env, int(self._eps_id[env]))
        first = self._seed if not self._resets.any() else None
        seed = self._episode_seeds() if self.replayable else first
        self._obs, infos = self._call("reset", seed=seed, **options)
        self._resets += mask
        if tracker is not None:
            for env in envs:
                tracker.started(env, self._obs_of(env), info_of(infos, env))

    def _tracked(self, envs: np.ndarray) -> list[int]:
        """Those of `envs` whose next episodes callbacks hear of."""
        return envs.tolist()

    def _episode_seeds(self) -> list[int]:
        """The seed of each environment's next episode."""
        seeds = (self._seed or 0) + 7919 * np.arange(self.env.num_envs) + 104_729 * self._resets
        return (seeds % (1 << 31)).tolist()

    def _remember(self) -> None:
        """Appends the fragment's actions to the history of each unfinished episode."""
        size, columns = self.collector.size, self.collector.columns
        for env, start in enumerate(self._reset_row.tolist()):
            if start:
                self._history[env] = []
            if start < size:
                rows = slice(start, size)
                self._history[env].append({name: columns[name][rows, env].copy() for name in self._action_columns})
        self._reset_row[:] = 0

    def _track_step(
        self, row: int, stepped: np.ndarray, done: np.ndarray, rewards: np.ndarray, infos: dict[str, Any]
    ) -> None:
        """Tells callbacks about a step; an environment that was only reset (NEXT_STEP) starts its episode."""
        columns, tracker = self.collector.columns, self.tracker
        if tracker is None:
            return
        for env in range(self.env.num_envs):
            obs, info = self._obs_of(env), info_of(infos, env)
            if not stepped[env]:
                tracker.started(env, obs, info)
                continue
            if done[env] and self.mode is AutoresetMode.SAME_STEP:  # what it returned belongs to the next episode
                last = self._true_last_obs(env, self._observed(), infos)
                obs, info = unflatten(self._checks.space, last), info_of(infos.get("final_info", {}), env)
            action = self._nest({name: columns[name][row, env] for name in self._action_columns})
            tracker.stepped(env, obs, action, float(rewards[env]), info)

    def _episode_metrics(self, env: int) -> EpisodeMetrics:
        reward, length = float(self._return[env]), int(self._earlier[env] + self._t[env])
        if self.tracker is None:
            return EpisodeMetrics(reward, length)
        episode = self.tracker.ended(env)
        if episode is None:
            return EpisodeMetrics(reward, length)
        return EpisodeMetrics(reward, length, dict(episode.custom_metrics), dict(episode.hist_data))

    def _true_last_obs(
        self, env: int, obs: dict[str, np.ndarray], infos: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        if self.mode is not AutoresetMode.SAME_STEP:
            return {name: x[env] for name, x in obs.items()}
        finals = infos.get("final_obs", infos.get("final_observation"))
        if finals is None or finals[env] is None:
            raise EnvError(
                f"environment {self.env_name!r} resets in the same step but gives no info['final_obs'] for the episode "
                f"that ended in sub-environment {env}; without it truncated episodes can't be bootstrapped"
            )
        try:
            return self._checks.last(finals[env])
        except EnvError as error:
            raise self._error(str(error), env) from None

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """`reset` or `step`, with what it returned checked."""
        try:
            result = getattr(self.env, method)(*args, **kwargs)
        except Exception as error:
            if method == "step":
                self._check_finite()  # NaN observations make NaN actions, which is what the environment chokes on
            text = f"{type(error).__name__}: {one_line(error)}{unpacking_hint(error, method)}"
            raise self._error(f"raised in {method}(): {text}") from error
        try:
            return self._checks.step(result) if method == "step" else self._checks.reset(result)
        except EnvError as error:
            raise self._error(str(error)) from None

    def _error(self, what: str, env: int | None = None) -> EnvError:
        """An error that says which environment did `what`, where, and in which step of an episode (0: the reset).

        Args:
            what: what the environment did.
            env: the sub-environment whose last step it was; None: any of them, in the step that wasn't counted yet.
        """
        n = self.env.num_envs
        coming = 0 if self._obs is None else 1
        if n == 1 or env is not None:
            at = f"step {int(self._t[env or 0]) + (coming if env is None else 0)} of an episode"
        else:
            steps = ", ".join(map(str, (self._t[:8] + coming).tolist()))
            at = f"steps {steps}{', ...' if n > 8 else ''} of the sub-environments' episodes"
        which = f", sub-environment {env}" if n > 1 and env is not None else ""
        return EnvError(f"environment {self.env_name!r} {what} (worker {self.worker_index}{which}, {at})")

    def _check_finite(self) -> None:
        """Looks for NaN and the like in all rows at once, since looking in every step takes time.

        Raises:
            EnvError: naming the step; a row's observation came from the step before it.
        """
        size, columns, spaces = self.collector.size, self.collector.columns, self._checks.spaces
        if not all(surely_usable(columns[name][:size], space) for name, space in spaces.items()) or not finite(
            columns["rewards"][:size]
        ):
            self._find_unusable()
        for name, newest in (self._obs or {}).items():
            values = newest.astype(columns[name].dtype, copy=False)
            if surely_usable(values, spaces[name]):
                continue
            wrong = unusable_rows(values[None], spaces[name])[0]
            if wrong.any():
                env = int(np.argmax(wrong))
                raise self._error(f"returned {self._unusable(newest[env], name)}", env)

    def _find_unusable(self) -> None:
        """Raises the error of the first row with NaN or the like, if there is one."""
        collector = self.collector
        columns, valid = collector.columns, collector.valid[: collector.size]
        found: list[tuple[np.ndarray, np.ndarray, str | None]] = []
        for name, space in self._checks.spaces.items():
            values = columns[name][: collector.size]
            found.append((values, unusable_rows(values, space), name))
        rewards = columns["rewards"][: collector.size]
        found.append((rewards, ~np.isfinite(rewards), None))
        for values, wrong, part in found:
            wrong &= valid
            if wrong.any():
                row, env = (int(i) for i in np.argwhere(wrong)[0])
                value = values[row, env]
                # A row's observation came from the step before it.
                what = f"a reward that is not finite: {value}" if part is None else self._unusable(value, part)
                which = f", sub-environment {env}" if self.env.num_envs > 1 else ""
                raise EnvError(
                    f"environment {self.env_name!r} returned {what} (worker "
                    f"{self.worker_index}{which}, step {int(columns['t'][row, env]) + (part is None)} of an episode)"
                )

    def _unusable(self, value: Any, part: str) -> str:
        return unusable(value, self._checks.spaces[part]) + ("" if part == "obs" else f" (in {part!r})")


def _stored(name: str) -> str:
    """The column that keeps what the network took under `name`."""
    return f"state_in_{name.removeprefix('state_')}" if name.startswith("state_") else name
