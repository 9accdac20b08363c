"""Acting: an action with its log-probability for one observation, and for batches of them."""

from __future__ import annotations

from peers.protocol import Calls

from rows.algo import Built
from rows.spec import Bound, Row

SINGLE_RLLIB = {
    "torch": Bound(10, 40),
    "tf": Bound(10, 30),
    "tf2-traced": Bound(10, 50),
    "tf2": Bound(4, 5),
}
ROWS = [
    Row(
        "act-1",
        "single action with logp",
        "us",
        "latency",
        "act",
        {"": {"batch": 1}},
        modes=("torch", "tf", "tf2-traced", "tf2"),
        peers={"rllib": SINGLE_RLLIB, "sb3": {"": Bound(4, 14)}},
        windows=15,
        window_s=0.05,
        one_process=True,
    ),
    Row(
        "act-32",
        "32 actions with logp",
        "us",
        "latency",
        "act",
        {"": {"batch": 32}},
        peers={"rllib": {"": Bound(4, 8)}, "sb3": {"": Bound(None, 5)}},
        windows=15,
        window_s=0.05,
        one_process=True,
    ),
    Row(
        "act-256",
        "256 actions with logp",
        "us",
        "latency",
        "act",
        {"": {"batch": 256}},
        peers={"rllib": {}, "sb3": {}},
        windows=15,
        window_s=0.05,
        one_process=True,
    ),
]


class Act(Built):
    """`compute_single_action` with everything it knows, or `compute_actions`."""

    def __init__(self, mode: str, batch: int) -> None:
        import numpy as np

        super().__init__(mode)
        policy = self.algo.get_policy()
        obs = np.random.default_rng(0).uniform(-0.05, 0.05, (batch, 4)).astype(np.float32)
        if batch == 1:
            calls = Calls(lambda: policy.compute_single_action(obs[0], explore=True, full_fetch=True))
        else:
            calls = Calls(lambda: policy.compute_actions(obs, explore=True))
        self.window = calls.window  # type: ignore[method-assign]
