"""What the tests of the page share: traces that have everything, and what stands in a page."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from polylib.offline import JsonWriter
from polylib.policy.sample_batch import SampleBatch

# Text that would do harm if any of it became markup.
HOSTILE = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'>&amp;<!--\u2028"
_KINDS = {"f4": "<f4", "f8": "<f8", "i4": "<i4", "u1": "u1"}


def steps(eps_id: Any, n: int, seed: int = 0, **columns: Any) -> SampleBatch:
    """An episode of a discrete policy with every column that the page shows."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 3)).astype(np.float32)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    actions = rng.integers(0, 3, n)
    infos = np.empty(n, object)
    infos[:] = [{"lives": 3 - 3 * i // n, "text": HOSTILE} for i in range(n)]
    found = {
        "obs": rng.normal(size=(n, 4)).cumsum(0).astype(np.float32),
        "actions": actions,
        "rewards": rng.normal(1, 1, n).astype(np.float32),
        "terminateds": np.arange(n) == n - 1,
        "truncateds": np.zeros(n, np.bool_),
        "infos": infos,
        "eps_id": np.full(n, eps_id),
        "t": np.arange(n),
        "action_dist_inputs": logits,
        "action_logp": np.log(probabilities[np.arange(n), actions]),
        "vf_preds": rng.normal(size=n).astype(np.float32),
        "value_targets": rng.normal(size=n).astype(np.float32),
        "advantages": rng.normal(size=n).astype(np.float32),
    }
    return SampleBatch({**found, **columns})


def images(n: int, height: int = 12, width: int = 16) -> np.ndarray:
    """A dot that moves a pixel a step."""
    frames = np.zeros((n, height, width, 3), np.uint8)
    frames[np.arange(n), np.arange(n) % height, np.arange(n) % width] = (255, 128, 0)
    return frames


def write(folder: Path, *batches: SampleBatch) -> str:
    """A folder of these records."""
    with JsonWriter(folder, format="polylib") as writer:
        for batch in batches:
            writer.write(batch)
    return str(folder)


def data_in(page: str) -> dict[str, Any]:
    """The JSON in a page, by its element's id."""
    found = re.findall(r'<script type="application/json" id="([^"]*)">(.*?)</script>', page, re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def unpack(packed: dict[str, str]) -> np.ndarray:
    """Numbers as the page reads them."""
    ((kind, text),) = packed.items()
    return np.frombuffer(base64.b64decode(text), _KINDS[kind])


def lanes_in(episode: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """An episode's lanes, by the name of their first series."""
    return {lane["series"][0]["name"]: lane for group in episode["groups"] for lane in group["lanes"]}


def read_png(uri: str) -> np.ndarray:
    """The image of a data URI: grey `[H, W]` or colours `[H, W, 3]`, of PNGs without filters."""
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack(">I", data[place : place + 4])
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack(">I", data[place + 8 + size : place + 12 + size]) == (zlib.crc32(kind + content),)
        chunks[kind], place = content, place + 12 + size
    width, height, depth, colours = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8 and chunks[b"IEND"] == b""
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape((height, width, 3) if colours == 2 else (height, width))
