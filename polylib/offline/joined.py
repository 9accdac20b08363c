"""Batches from several records as one, though their columns may differ."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import overload

from polylib.offline.json_format import Batch
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch, concat_samples

logger = logging.getLogger(__name__)


class Joiner:
    """Joins batches, and says once which columns it left out because not all batches have them."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    @overload
    def join(self, batches: Sequence[SampleBatch]) -> SampleBatch: ...
    @overload
    def join(self, batches: Sequence[Batch]) -> Batch: ...
    def join(self, batches: Sequence[Batch]) -> Batch:
        """All rows, in order, with the columns that all batches have. A single batch is returned as it is.

        Raises:
            BatchError: A column's shapes don't fit, or the batches have no column in common.
        """
        if len(batches) == 1:
            return batches[0]
        singles = [batch for batch in batches if isinstance(batch, SampleBatch)]
        if len(singles) == len(batches):
            return self._join(singles)
        multi = [batch.as_multi_agent() for batch in batches]
        policy_ids = dict.fromkeys(policy_id for batch in multi for policy_id in batch.policy_batches)
        joined = {
            policy_id: self._join([b.policy_batches[policy_id] for b in multi if policy_id in b.policy_batches])
            for policy_id in policy_ids
        }
        return MultiAgentBatch(joined, sum(batch.count for batch in multi))

    def _join(self, batches: list[SampleBatch]) -> SampleBatch:
        batches = [batch for batch in batches if batch.count] or batches[:1]
        if len(batches) == 1:
            return batches[0]
        first = batches[0].keys()
        if all(batch.keys() == first for batch in batches):
            return concat_samples(batches)
        common = [name for name in first if all(name in batch for batch in batches)]
        lost = {name for batch in batches for name in batch} - set(common)
        if not common:
            return concat_samples(batches)  # raises the error that names a column
        if lost - self._told:
            self._told |= lost
            logger.warning(
                "columns that not all records of the input have are left out: %s; put them into the files, or read "
                "files that are alike",
                ", ".join(sorted(lost)),
            )
        return concat_samples([SampleBatch({name: batch[name] for name in common}) for batch in batches])
