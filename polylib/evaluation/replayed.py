"""From a sampled fragment to the rows that replay buffers keep."""

from __future__ import annotations

import tree

from polylib.evaluation.postprocessing import n_step
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch

_KEPT = ("obs", "actions", "eps_id", "unroll_id", "t")


def replayed_rows(fragment: Fragment, gamma: float, steps: int) -> SampleBatch:
    """Rows with `new_obs`, their rewards summed over up to `steps` steps.

    Args:
        fragment: what was sampled.
        gamma: the discount factor.
        steps: how many steps a row spans at most; rows near a segment's end span fewer.

    Returns:
        `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `new_obs`, and `discounts`, each row's own `gamma^k`;
        ids, and what recurrent networks need.
    """
    batch = fragment.batch
    out = {name: batch[name] for name in batch if name in _KEPT or name.startswith(("state_in_", "prev_"))}
    folded = n_step(batch["rewards"], batch["terminateds"], fragment.starts, fragment.ends, gamma, steps)
    out |= {"rewards": folded.rewards, "terminateds": folded.terminateds, "discounts": folded.discounts}
    out["truncateds"], out["new_obs"] = batch["truncateds"], fragment.new_obs()
    if steps > 1:
        for name in ("truncateds", "new_obs"):
            out[name] = tree.map_structure(lambda x: x[folded.reached], out[name])
    return SampleBatch.of_columns(out, batch.count)
