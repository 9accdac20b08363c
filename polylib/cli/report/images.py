"""Image observations as PNG in data URIs."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any

import numpy as np

# Longer sides are shrunk: a page isn't the place for full resolution.
MAX_SIDE = 160
_SMALLEST = 8
_MAX_TILES = 8
_MAX_FRAMES = 2000


def is_image(column: np.ndarray) -> bool:
    """Whether a column `[B, ...]` holds images: `[H, W]`, `[H, W, C]` or `[C, H, W]`."""
    shape = column.shape[1:]
    if column.dtype.kind not in "biuf" or not column.size:
        return False
    if len(shape) == 2:
        return min(shape) >= _SMALLEST
    return len(shape) == 3 and (_channels_last(shape) or _channels_first(shape))


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[2] <= 16 and min(shape[:2]) >= _SMALLEST


def _channels_first(shape: tuple[int, ...]) -> bool:
    return shape[0] <= 16 and min(shape[1:]) >= _SMALLEST


def film(name: str, column: np.ndarray, budget: int) -> dict[str, Any]:
    """The frames of an episode for the page.

    Args:
        name: of the column.
        column: images `[B, ...]`.
        budget: bytes that its frames may take; where all would take more, only every k-th is there.

    Returns:
        `frames`, data URIs, each different one once; `index`, which one belongs to step 0, k, 2k, ... `[F] int32`;
        `every`, k; `width`, `height` and how many `tiles` stand beside each other; `shrunk`, the size before, or None.
    """
    shape, rows = column.shape[1:], len(column)
    if len(shape) == 3 and not _channels_last(shape):
        column, shape = np.moveaxis(column, 1, -1), (shape[1], shape[2], shape[0])
    low, high = _scale(column)
    every = max(1, math.ceil(rows / _MAX_FRAMES))
    sample = [_frame(column[i], low, high) for i in {0, rows // 2, rows - 1}]
    size = max(len(png(image)) for image, _ in sample) * 4 // 3
    every = max(every, math.ceil(rows * size / max(budget, size)))
    known: dict[bytes, int] = {}
    frames: list[str] = []
    index, tiles = [], 1
    for row in range(0, rows, every):
        image, tiles = _frame(column[row], low, high)
        data = image.tobytes()
        if data not in known:
            known[data] = len(frames)
            frames.append("data:image/png;base64," + base64.b64encode(png(image)).decode())
        index.append(known[data])
    height, width = sample[0][0].shape[:2]
    full = (int(shape[1]), int(shape[0]))
    return {
        "name": name,
        "frames": frames,
        "index": np.array(index, np.int32),
        "every": every,
        "width": width // tiles,
        "height": height,
        "tiles": tiles,
        "shrunk": None if full == (width // tiles, height) else full,
    }


def _scale(column: np.ndarray) -> tuple[float, float]:
    """Which values are black and white."""
    if column.dtype == np.uint8:
        return 0.0, 255.0
    if column.dtype.kind == "b":
        return 0.0, 1.0
    finite = column[np.isfinite(column)] if column.dtype.kind == "f" else column
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)


def _frame(image: np.ndarray, low: float, high: float) -> tuple[np.ndarray, int]:
    """An image `[H, W]` or `[H, W, 3]` of bytes, and how many channels stand beside each other in it."""
    if image.ndim == 3 and image.shape[2] == 4 and image.dtype == np.uint8 and (image[..., 3] == 255).all():
        image = image[..., :3]  # opaque
    factor = math.ceil(max(image.shape[:2]) / MAX_SIDE)
    if factor > 1:
        height, width = (side // factor for side in image.shape[:2])
        image = image[: height * factor, : width * factor]
        image = image.reshape(height, factor, width, factor, *image.shape[2:]).mean((1, 3))
    if image.dtype != np.uint8:
        scaled = np.nan_to_num((image.astype(np.float64) - low) / ((high - low) or 1.0))
        image = np.round(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
    if image.ndim == 2:
        return image, 1
    if image.shape[2] in (1, 3):
        return (image[..., 0] if image.shape[2] == 1 else image), 1
    shown = image[..., -_MAX_TILES:]
    return np.concatenate(list(np.moveaxis(shown, -1, 0)), 1), shown.shape[2]


def png(image: np.ndarray) -> bytes:
    """A PNG of bytes `[H, W]` (grey) or `[H, W, 3]` (red, green, blue)."""
    height, width = image.shape[:2]
    rows = np.zeros((height, 1 + image[0].size), np.uint8)  # each row begins with its filter, 0: none
    rows[:, 1:] = image.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if image.ndim == 2 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
