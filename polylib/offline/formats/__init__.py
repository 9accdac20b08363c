"""Experience in other libraries' formats: Parquet, Minari datasets, HDF5; and converting between them and traces."""

from __future__ import annotations

from polylib.offline.formats.open import FORMATS, detect_format, open_dataset
from polylib.offline.formats.pieces import PieceReader

__all__ = ["FORMATS", "PieceReader", "detect_format", "open_dataset"]
