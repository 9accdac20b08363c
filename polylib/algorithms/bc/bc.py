"""BC: read a batch, take one step on it, broadcast the weights."""

from __future__ import annotations

from polylib.algorithms.bc.config import BCConfig
from polylib.algorithms.marwil.marwil import MARWIL


class BC(MARWIL):
    """Behavioural cloning: the likelihood of recorded actions."""

    config_class = BCConfig
