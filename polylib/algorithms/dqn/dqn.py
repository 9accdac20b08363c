"""DQN and SimpleQ: act, replay, learn."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from polylib.algorithms.dqn.config import DQNConfig, SimpleQConfig
from polylib.algorithms.dqn.loss import DQNObjective
from polylib.algorithms.off_policy import OffPolicyAlgorithm

logger = logging.getLogger(__name__)


class DQN(OffPolicyAlgorithm):
    """Deep Q-networks, arXiv:1312.5602, and Rainbow's extensions, arXiv:1710.02298."""

    config_class = DQNConfig
    objective_class = DQNObjective

    def _after_update(self, batch: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """New priorities, and a warning where the range of returns is too small."""
        super()._after_update(batch, info)
        share = info["learner_stats"].get("clipped_share", 0.0)
        if share > 0.0 and not self._counters["warned_of_clipped_returns"]:
            self._counters["warned_of_clipped_returns"] = 1
            logger.warning(
                "config keys 'v_min' and 'v_max': %.0f %% of a batch's targets (rewards and the value after them) lie "
                "outside [%g, %g] and are clipped: these are the returns that the distribution can express; widen the "
                "range",
                100 * share,
                self.config["v_min"],
                self.config["v_max"],
            )


class SimpleQ(DQN):
    """DQN without its extensions."""

    config_class = SimpleQConfig
