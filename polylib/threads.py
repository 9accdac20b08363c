"""Thread counts of the numeric libraries, which are process-wide.

With the default thread count and one busy neighbour a small network's forward pass takes hundreds of times longer than
on one thread, so Ray workers and the command line call `limit_threads(1)`. Importing polylib or building a policy never
does: a user's process keeps its own settings.
"""

from __future__ import annotations

import os
import sys

_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)


def limit_threads(count: int = 1) -> None:
    """Limits NumPy's BLAS, TensorFlow and torch to `count` threads where the user hasn't set a number.

    TensorFlow and BLAS read the environment at their first use, so call this before. torch is told directly if it is
    already loaded.

    Args:
        count: threads per library, at least 1.
    """
    for name in _VARIABLES:
        os.environ.setdefault(name, str(count))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
