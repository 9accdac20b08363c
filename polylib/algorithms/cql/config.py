"""CQL's keys: RLlib 2.6's names and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from polylib.algorithms.options import Option, boolean, integer, number
from polylib.algorithms.replay_options import OFFLINE_DEFAULTS
from polylib.algorithms.sac.config import SACConfig


class CQLConfig(SACConfig):
    """Settings of CQL.

    Example:
        >>> config = CQLConfig().environment("Pendulum-v1").offline_data(input="traces").training(bc_iters=0)
        >>> algo = config.build()  # doctest: +SKIP
    """

    algo_name: ClassVar[str] = "CQL"
    options: ClassVar[tuple[Option, ...]] = (
        *SACConfig.options,
        Option("bc_iters", "training", 20_000, integer(0), "Updates in which the policy imitates at first."),
        Option("temperature", "training", 1.0, number(0, above=True), "Of the soft maximum over actions."),
        Option("num_actions", "training", 10, integer(1), "Actions in it: so many uniform, of now, of next."),
        Option("lagrangian", "training", False, boolean(), "Learn the conservative term's weight."),
        Option("lagrangian_thresh", "training", 5.0, number(), "The gap that this weight lets pass."),
        Option("min_q_weight", "training", 5.0, number(0), "Weight of the conservative term."),
    )
    defaults: ClassVar[dict[str, Any]] = {**SACConfig.defaults, **OFFLINE_DEFAULTS}
