"""Batches from single steps, for logs that were not made by polylib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polylib.errors import BatchError
from polylib.offline.checks import cast, check_single
from polylib.policy import columns as c
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch


class SampleBatchBuilder:
    """Collects steps one by one and makes a batch of them.

    Rows are checked when they come, and columns that polylib knows get its dtypes. An old `dones` becomes
    `terminateds`.

    Attributes:
        count: The rows collected so far.
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}
        self.count = 0

    def add_values(self, **values: Any) -> None:
        """Adds a step.

        Args:
            **values: Its columns, the same in every step: `obs`, `actions`, `rewards`, `terminateds`, ... An
                observation or action may be an array, a number, or a dict or tuple of arrays.

        Raises:
            BatchError: The step has other columns than those before.
        """
        if not self.count:
            self._columns = {name: [] for name in values}
        elif values.keys() != self._columns.keys():
            extra = sorted(values.keys() ^ self._columns.keys())
            what = "lacks" if extra[0] in self._columns else "has"
            raise BatchError(
                f"step {self.count} {what} the column {extra[0]!r}, unlike those before: all steps of a batch need "
                "the same columns"
            )
        for name, value in values.items():
            self._columns[name].append(_kept(value))
        self.count += 1

    def add_batch(self, batch: SampleBatch) -> None:
        """Adds the rows of a batch."""
        for row in batch.rows():
            self.add_values(**row)

    def build_and_reset(self) -> SampleBatch:
        """A batch of all steps; the builder is empty afterwards.

        Raises:
            BatchError: A column's values don't fit together, or aren't what the column holds; the message names it.
                The steps are kept.
        """
        batch = self.build()
        self._columns, self.count = {}, 0
        return batch

    def build(self) -> SampleBatch:
        """As `build_and_reset`; the steps are kept."""
        batch = SampleBatch({name: _column(name, values) for name, values in self._columns.items()})
        if c.DONES in batch and c.TERMINATEDS not in batch:
            batch = SampleBatch({c.TERMINATEDS if name == c.DONES else name: x for name, x in batch.items()})
            if c.TRUNCATEDS not in batch:
                batch[c.TRUNCATEDS] = np.zeros(batch.count, np.bool_)
        return batch


class MultiAgentSampleBatchBuilder:
    """Collects the steps of several agents, one by one, and makes a batch for each policy of them.

    In a policy's batch the steps of an agent stand together, one agent after another. `agent_index` says which agent a
    row is of, unless the steps say it themselves.
    """

    def __init__(self) -> None:
        self._builders: dict[tuple[Any, str], SampleBatchBuilder] = {}
        self._agents: dict[Any, int] = {}

    @property
    def count(self) -> int:
        """The rows collected so far, of all agents."""
        return sum(builder.count for builder in self._builders.values())

    def add_values(self, agent_id: Any, policy_id: str, **values: Any) -> None:
        """Adds a step of an agent.

        Args:
            agent_id: Who acted.
            policy_id: The policy that the agent acted with.
            **values: The columns of the step, as for `SampleBatchBuilder.add_values`.

        Raises:
            BatchError: The step has other columns than those of this agent before.
        """
        index = self._agents.setdefault(agent_id, len(self._agents))
        builder = self._builders.get((agent_id, policy_id))
        if builder is None:
            builder = self._builders[agent_id, policy_id] = SampleBatchBuilder()
        try:
            builder.add_values(**{c.AGENT_INDEX: index, **values})
        except BatchError as e:
            raise BatchError(f"agent {agent_id!r}, policy {policy_id!r}: {e}") from None

    def build_and_reset(self, env_steps: int | None = None) -> MultiAgentBatch:
        """A batch of all steps; the builder is empty afterwards.

        Args:
            env_steps: How many steps of the environment they are. None: as many as there are different pairs of
                `eps_id` and `t`, or, without these columns, as many as the agent with most steps has.

        Raises:
            BatchError: As for `SampleBatchBuilder.build_and_reset`, or the agents of a policy have different columns.
                The steps are kept.
        """
        batches: dict[str, SampleBatch] = {}
        most, told = 0, True
        steps: set[tuple[int, int]] = set()
        for (agent_id, policy_id), builder in self._builders.items():
            try:
                batch = builder.build()
                batches[policy_id] = batches[policy_id].concat(batch) if policy_id in batches else batch
            except BatchError as e:
                raise BatchError(f"agent {agent_id!r}, policy {policy_id!r}: {e}") from None
            most = max(most, batch.count)
            told = told and c.EPS_ID in batch and c.T in batch
            if told:
                steps.update(zip(batch[c.EPS_ID].tolist(), batch[c.T].tolist(), strict=True))
        self._builders, self._agents = {}, {}
        if env_steps is None:
            env_steps = len(steps) if told else most
        return MultiAgentBatch(batches, env_steps)


def _kept(value: Any) -> Any:
    """A value that stays as it is: environments write into the arrays they gave."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _kept(part) for key, part in value.items()}
    return tuple(_kept(part) for part in value) if isinstance(value, tuple) else value


def _column(name: str, values: Sequence[Any]) -> Any:
    known = c.COLUMNS.get(name)
    try:
        if known is not None and known.dtype == np.object_:
            array = np.empty(len(values), np.object_)
            array[:] = values
            return array
        column = _stacked(values)
        check_single(name, column)
        if known is not None and known.dtype is not None and isinstance(column, np.ndarray):
            return cast(column, known.dtype)
        return column
    except (ValueError, TypeError) as e:
        raise BatchError(f"column {name!r}: {e}") from None


def _stacked(values: Sequence[Any]) -> Any:
    """The rows of a column as an array [B, ...], or dicts and tuples of arrays."""
    first = values[0]
    if isinstance(first, dict):
        if not all(isinstance(value, dict) and value.keys() == first.keys() for value in values):
            raise ValueError(f"its rows don't all have the parts {', '.join(map(repr, first))}")
        return {key: _stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        if not all(isinstance(value, tuple) and len(value) == len(first) for value in values):
            raise ValueError(f"its rows don't all have {len(first)} parts")
        return tuple(_stacked(part) for part in zip(*values, strict=True))
    array = np.asarray(values)
    if array.dtype == np.object_:
        raise ValueError(f"its rows can't be made an array; the first is of type {type(first).__name__}")
    return array
