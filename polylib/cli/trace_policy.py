"""A checkpoint's policy beside logged steps: what it would do now, and how often that is what was done."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from polylib.algorithms.algorithm_config import FRAMEWORK_PACKAGES
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.process import import_quietly
from polylib.cli.stored import read_stored
from polylib.cli.trace_choices import choices
from polylib.errors import FrameworkError, PolylibError
from polylib.models.spaces import is_nested, leaves, unflatten
from polylib.offline.episodes import Columns, Episode
from polylib.policy import columns as c
from polylib.policy.policy import ActionOutput, Policy

# Box actions agree where they differ by no more than this part of what the space is wide.
TOLERANCE = 0.05
_ROWS = 4096


@dataclass
class Overlay:
    """What a policy would do at the steps of an episode.

    Attributes:
        actions: its most likely actions `[B, ...]`, nested ones by part.
        agrees: `[B] bool`, where they are what was done; of Box actions, where no part differs by more than
            `TOLERANCE` of what the space is wide.
        dist_inputs: of its action distribution `[B, k]`; None: it has none.
        logp: `[B]` of its most likely action, as it gives it.
        taken: `[B]`, its probability or density for the action that was done; None where it has none.
        values: `[B]`, of the observations; None where it has none.
        difference: between its Box actions and those that were done, the mean of `|difference|`; None without any.
    """

    actions: Columns
    agrees: np.ndarray
    dist_inputs: np.ndarray | None
    logp: np.ndarray | None
    taken: np.ndarray | None
    values: np.ndarray | None
    difference: float | None


class PolicyBeside:
    """The policy of a checkpoint, or its policies by id.

    Args:
        line: with `--policy`, `--framework`, `--model`, `--actions-normalized`.

    Attributes:
        name: the checkpoint, as it was given.
        framework: in which it runs.
        filtered: whether a policy filters observations: those in traces are taken as filtered.
    """

    def __init__(self, line: CommandLine) -> None:
        self.name = str(line["policy"])
        self._normalized = bool(line["actions-normalized"])
        found, self.framework = _load(line)
        self._policies: dict[str, Policy] = found if isinstance(found, dict) else {"": found}
        self.filtered = any(not policy.filter.identity for policy in self._policies.values())

    def close(self) -> None:
        """Ends what the policies hold."""
        for policy in self._policies.values():
            policy.close()

    def of(self, episode: Episode) -> Overlay:
        """What the policy would do at each of an episode's steps.

        Raises:
            UsageError: the episode's observations or actions aren't those of the policy.
        """
        policy = self._policy(episode.key.policy_id)
        columns = dict(episode.columns)
        try:
            if self._normalized:
                for name, space in leaves(policy.action_space, c.ACTIONS).items():
                    columns[name] = _to_units(columns[name], space)
            obs = _nested(columns, policy.observation_space, c.OBS)
            done = _nested(columns, policy.action_space, c.ACTIONS)
            outputs = list(self._act(policy, obs, done, columns, len(episode)))
        except UsageError:
            raise
        except (PolylibError, LookupError, ValueError) as error:
            raise UsageError(f"--policy: it can't act on episode {episode.key.label}: {_text(error)}") from error
        actions = {
            name: np.concatenate([_part(out.actions, name) for out in outputs])
            for name in leaves(policy.action_space, c.ACTIONS)
        }
        agrees, difference = _agreement(policy.action_space, actions, columns)
        inputs, logp, taken = (_joined(outputs, name) for name in (c.ACTION_DIST_INPUTS, c.ACTION_LOGP, "taken"))
        if c.ACTIONS in actions and inputs is not None:
            found = choices(actions[c.ACTIONS], inputs, logp)
            if found is not None and found.scores:
                taken = None  # Q-values: no action has a probability
        return Overlay(actions, agrees, inputs, logp, taken, _joined(outputs, "values"), difference)

    def _policy(self, policy_id: str) -> Policy:
        if policy_id in self._policies:
            return self._policies[policy_id]
        if len(self._policies) > 1:
            raise UsageError(
                f"--policy: {self.name} has policies {', '.join(map(repr, self._policies))}, the traces have "
                f"{policy_id!r}: show those of one policy with --policy-id"
            )
        return next(iter(self._policies.values()))

    @staticmethod
    def _act(policy: Policy, obs: Any, done: Any, columns: Columns, rows: int) -> Any:
        """The outputs of parts of the rows one after another; of a recurrent policy, each step's."""
        state: Any = policy.get_initial_state() if policy.is_recurrent() else []
        state = [np.asarray(part)[None] for part in state]
        previous = _previous(policy, columns, done) if policy.inputs.previous else {}
        mask = columns.get(c.ACTION_MASK)
        step = 1 if state else _ROWS
        for start in range(0, rows, step):
            some = slice(start, start + step)
            before = {name: _rows(value, some) for name, value in previous.items()}
            masked = None if mask is None else mask[some]
            args = (
                _rows(obs, some),
                state or None,
                masked,
                before.get(c.PREV_ACTIONS),
                before.get(c.PREV_REWARDS),
            )
            # Recorded observations are as networks see them: filtered already.
            out = policy.act(policy.inputs.acting(*args), explore=False)
            with contextlib.suppress(PolylibError, NotImplementedError):
                logp = policy.compute_log_likelihoods(_rows(done, some), *args)
                out.extras["taken"] = np.exp(np.minimum(np.asarray(logp, np.float64), 700.0))
            with contextlib.suppress(PolylibError, NotImplementedError):
                out.extras["values"] = policy.compute_values(args[0], args[1], *args[3:])
            state = out.state
            yield out


def _load(line: CommandLine) -> tuple[Any, str]:
    """The checkpoint's policy or policies, and the framework that they run in."""
    stored = read_stored(line["policy"])
    config = stored.config.copy()
    if line["model"] is not None:
        config.update_from_dict({"model": {"custom_model": line["model"]}}, source="--model")
    stored.check_model(config)
    model = config["model"]["custom_model"]
    own = model is not None or config["model"]["custom_action_dist"] is not None
    chosen = line["framework"] or (str(stored.header.get("framework")) if own else "numpy")
    try:
        return Policy.from_checkpoint(stored.folder, framework=_imported(chosen), custom_model=model), chosen
    except FrameworkError:
        if line["framework"] or own:
            raise
    chosen = str(stored.header.get("framework"))
    return Policy.from_checkpoint(stored.folder, framework=_imported(chosen), custom_model=model), chosen


def _imported(framework: str) -> str:
    import_quietly(FRAMEWORK_PACKAGES.get(framework, ()))
    return framework


def _nested(columns: Columns, space: gym.Space[Any], name: str) -> Any:
    missing = [part for part in leaves(space, name) if part not in columns]
    if missing:
        has = ", ".join(part for part in columns if part.partition("/")[0] == name) or f"no {name!r}"
        raise UsageError(f"--policy: it takes {missing[0]!r}, and the traces have {has}")
    return unflatten(space, columns, name)


def _previous(policy: Policy, columns: Columns, done: Any) -> dict[str, Any]:
    """`prev_actions` and `prev_rewards`, recorded or those of the rows before."""
    found: dict[str, Any] = {}
    first = policy.inputs.first_previous(c.PREV_ACTIONS, 1)
    if not is_nested(policy.action_space):
        actions = np.asarray(done)
        found[c.PREV_ACTIONS] = np.concatenate([first[c.PREV_ACTIONS].astype(actions.dtype), actions[:-1]])
    else:
        parts = {
            name.replace(c.ACTIONS, c.PREV_ACTIONS, 1): columns[name] for name in leaves(policy.action_space, c.ACTIONS)
        }
        moved = {name: np.concatenate([first[name].astype(part.dtype), part[:-1]]) for name, part in parts.items()}
        found[c.PREV_ACTIONS] = unflatten(policy.action_space, moved, c.PREV_ACTIONS)
    rewards = np.asarray(columns.get(c.REWARDS, np.zeros(len(next(iter(columns.values()))))), np.float32)
    found[c.PREV_REWARDS] = np.concatenate([[0.0], rewards[:-1]]).astype(np.float32)
    return {name: value for name, value in found.items() if name in policy.inputs.previous}


def _rows(value: Any, some: slice) -> Any:
    if isinstance(value, dict):
        return {key: _rows(part, some) for key, part in value.items()}
    return tuple(_rows(part, some) for part in value) if isinstance(value, tuple) else value[some]


def _part(actions: Any, name: str) -> np.ndarray:
    for key in name.split("/")[1:]:
        actions = actions[int(key)] if isinstance(actions, tuple) else actions[key]
    return np.asarray(actions)


def _joined(outputs: list[ActionOutput], name: str) -> np.ndarray | None:
    parts = [out.extras[name] for out in outputs if name in out.extras]
    return np.concatenate(parts) if len(parts) == len(outputs) else None


def _agreement(space: gym.Space[Any], actions: Columns, done: Columns) -> tuple[np.ndarray, float | None]:
    """Where actions are those that were done `[B] bool`, and how far apart those of Box spaces are."""
    rows = len(next(iter(actions.values())))
    agrees, distances = np.ones(rows, np.bool_), []
    for name, part in leaves(space, c.ACTIONS).items():
        mine, theirs = actions[name].reshape(rows, -1), np.asarray(done[name]).reshape(rows, -1)
        if not isinstance(part, gym.spaces.Box):
            agrees &= (mine == theirs).all(1)
            continue
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (part.low, part.high))
        width, apart = high - low, np.abs(mine.astype(np.float64) - theirs)
        # Without bounds the space says nothing of what is near.
        width = np.where(np.isfinite(width), width, np.maximum(np.ptp(theirs, axis=0), 1e-6))
        agrees &= (apart <= TOLERANCE * width).all(1)
        distances.append(float(apart.mean()))
    return agrees, float(np.mean(distances)) if distances else None


def _to_units(column: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    if not isinstance(space, gym.spaces.Box) or not (space.is_bounded("both")):
        return column
    low, high = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
    return ((column + 1) / 2 * (high - low) + low).astype(space.dtype)


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, PolylibError) else f"{type(error).__name__}: {error}"
