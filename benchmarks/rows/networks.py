"""Networks with memory, and for pictures: sampling and updates against RLlib."""

from __future__ import annotations

import time
from typing import Any

from peers.pixels import PIXELS, Pixels
from peers.protocol import Calls

from rows.algo import ENV, Built
from rows.spec import Bound, Row

_LSTM = {"use_lstm": True, "lstm_cell_size": 256, "max_seq_len": 20}
_ALL = ("torch", "tf", "tf2-traced", "tf2")
_SAMPLING = {"rllib": {"": Bound(3, 5), "tf2": Bound(3, 5)}}
_LEARNING = {"rllib": {"": Bound(1.5, 2), "tf2": Bound(1.5, 2)}}


def _row(name: str, title: str, kind: str, network: str, settings: dict[str, Any], few: dict[str, Any]) -> Row:
    return Row(
        name,
        title,
        "steps/s" if kind == "sample" else "rows/s",
        "rate",
        f"network_{kind}",
        {"": {"network": network, **settings}, "tf2": few},
        modes=_ALL,
        peers=_SAMPLING if kind == "sample" else _LEARNING,
        one_process=True,
    )


_UPDATES = {"rows": 2000, "minibatch": 200, "epochs": 2}
ROWS = [
    _row("lstm-sample", "LSTM, sampling, 8 envs", "sample", "lstm", {"envs": 8, "steps": 1600}, {"steps": 400}),
    _row("lstm-sgd", "LSTM, rows trained in minibatches of 200", "sgd", "lstm", _UPDATES, {"epochs": 1}),
    _row("vision-sample", "42x42x4 pictures, sampling, 8 envs", "sample", "vision", {"envs": 8, "steps": 1600}, {}),
    _row("vision-sgd", "42x42x4 pictures, rows trained in minibatches of 200", "sgd", "vision", _UPDATES, {}),
]


def _built(mode: str, network: str, envs: int, rows: int, **training: Any) -> dict[str, Any]:
    if network == "vision":
        from polylib import register_env

        register_env(PIXELS, Pixels)
    env = ENV if network == "lstm" else PIXELS
    model = _LSTM if network == "lstm" else {}
    return {"mode": mode, "envs": envs, "env": env, "train_batch_size": rows, "model": model, **training}


class NetworkSample(Built):
    """Sampling in this process, postprocessing included."""

    def __init__(self, mode: str, network: str, envs: int, steps: int) -> None:
        super().__init__(**_built(mode, network, envs, steps))
        self.worker = self.algo.workers.local_worker()

    def window(self, n: int, k: int) -> tuple[float, float]:
        start = time.perf_counter()
        steps = sum(self.worker.sample().count for _ in range(n))
        return time.perf_counter() - start, steps


class NetworkSGD(Built):
    """Epochs of minibatch updates on one training batch."""

    def __init__(self, mode: str, network: str, rows: int, minibatch: int, epochs: int) -> None:
        from polylib.algorithms.ppo.loss import standardized
        from polylib.execution.sgd import synchronous_sample, train_minibatches

        super().__init__(**_built(mode, network, 8, rows))
        policy, rng = self.algo.get_policy(), self.algo.rng
        batch, _ = synchronous_sample(self.algo.workers, rows)
        batch["advantages"] = standardized(batch["advantages"])
        call = lambda: train_minibatches(policy, batch, minibatch, epochs, rng)  # noqa: E731
        self.window = Calls(call, epochs * batch.count).window  # type: ignore[method-assign]
