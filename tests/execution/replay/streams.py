"""Streams of experience as samplers hand it over, and a buffer so simple that it is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from polylib.evaluation.postprocessing import n_step
from polylib.policy.fragment import Fragment
from polylib.policy.sample_batch import SampleBatch, concat_samples

GAMMA = 0.5


class Env:
    """Episodes of random length whose observations are images, some of them black, and a vector."""

    def __init__(
        self, rng: np.random.Generator, ids: Iterator[int], image: int, longest: int, black: float = 0.3
    ) -> None:
        self.rng, self.ids, self.image, self.longest, self.black = rng, ids, image, longest, black
        self.reset()

    def observe(self) -> dict[str, np.ndarray]:
        black = self.rng.random() < self.black
        shape = (self.image, self.image)
        camera = np.zeros(shape, np.uint8) if black else self.rng.integers(0, 256, shape, dtype=np.uint8)
        return {"camera": camera, "place": np.float32(self.rng.integers(0, 2, 2))}

    def reset(self) -> None:
        self.eps_id, self.t = next(self.ids), 0
        self.length = int(self.rng.integers(1, self.longest + 1))
        self.obs = self.observe()

    def steps(self, count: int) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """Rows, and the observation after each."""
        rows = []
        for _ in range(count):
            ends = self.t + 1 == self.length
            terminated = bool(ends and self.rng.random() < 0.5)
            after = self.observe()
            row = {
                "obs": self.obs,
                "actions": self.rng.integers(0, 4),
                "rewards": np.float32(self.rng.integers(-3, 4)),
                "terminateds": terminated,
                "truncateds": ends and not terminated,
                "eps_id": self.eps_id,
                "t": np.int32(self.t),
            }
            rows.append((row, after))
            self.obs, self.t = after, self.t + 1
            if ends:
                self.reset()
        return rows


def stacked(items: list[Any]) -> Any:
    if isinstance(items[0], dict):
        return {key: stacked([item[key] for item in items]) for key in items[0]}
    return np.stack(items)


def fragment_of(rows: list[tuple[dict[str, Any], dict[str, np.ndarray]]]) -> Fragment:
    """Rows of one environment as a fragment: segments end with an episode, the last one where the rows do."""
    batch = SampleBatch({key: stacked([row[key] for row, _ in rows]) for key in rows[0][0]})
    done = batch["terminateds"] | batch["truncateds"]
    done[-1] = True
    ends = np.flatnonzero(done) + 1
    return Fragment(batch, np.append(0, ends[:-1]), ends, stacked([rows[end - 1][1] for end in ends]))


def transitions(fragment: Fragment, n: int) -> SampleBatch:
    """What an off-policy algorithm adds: rows with `new_obs`, rewards and discounts over up to n steps."""
    batch = fragment.with_new_obs()
    found = n_step(batch["rewards"], batch["terminateds"], fragment.starts, fragment.ends, GAMMA, n)
    new_obs = batch["new_obs"]
    batch["new_obs"] = {key: x[found.reached] for key, x in new_obs.items()}
    batch["rewards"], batch["terminateds"], batch["discounts"] = found.rewards, found.terminateds, found.discounts
    batch["truncateds"] = batch["truncateds"][found.reached]
    return batch


def stream(
    seed: int, envs: int = 3, n: int = 1, image: int = 33, longest: int = 9, most: int = 6, black: float = 0.3
) -> Iterator[SampleBatch]:
    """Endless batches: every time some steps of each environment, the rows of one after those of another."""
    rng = np.random.default_rng(seed)
    ids = iter(range(100, 10**9))
    all_envs = [Env(rng, ids, image, longest, black) for _ in range(envs)]
    while True:
        count = int(rng.integers(1, most + 1))
        yield concat_samples([transitions(fragment_of(env.steps(count)), n) for env in all_envs])


class Naive:
    """The last rows of a list."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.rows = capacity, []
        self.added = 0

    def add(self, batch: SampleBatch) -> None:
        kept = batch[-self.capacity :] if batch.count > self.capacity else batch
        self.rows += list(kept.copy().rows())
        self.added += kept.count
        self.rows = self.rows[-self.capacity :]

    def row(self, number: int) -> dict[str, Any]:
        return self.rows[number - self.added + len(self.rows)]


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where}/{key}")
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype, where
        np.testing.assert_array_equal(found, expected, where)
