"""The flags of `polylib convert` and its help."""

from __future__ import annotations

from polylib.cli.flags import Flag
from polylib.cli.help import HELP, VERBOSE, render_help
from polylib.offline.formats.convert import ENCODINGS, WRITABLE
from polylib.offline.formats.open import FORMATS

CONVERT_FLAGS = (
    Flag(
        "from-format",
        "Formats",
        f"Of FROM: {', '.join(FORMATS)}. Default: as it looks.",
        "NAME",
        ("f",),
        choices=FORMATS,
    ),
    Flag(
        "to-format",
        "Formats",
        f"Of TO: {', '.join(WRITABLE)}. Default: parquet for NAME.parquet, minari for minari:ID, else json.",
        "NAME",
        ("t",),
        choices=WRITABLE,
    ),
    Flag(
        "encoding",
        "Formats",
        "Of JSON traces: lists (RLlib reads them, too), lz4 (observations packed) or packed (all columns as bytes, the "
        "fastest). Default: lists.",
        "NAME",
        choices=ENCODINGS,
    ),
    Flag(
        "columns",
        "Content",
        'Names in FROM that aren\'t polylib\'s, as JSON: \'{"state": "obs", "act": "actions"}\'.',
        "JSON",
    ),
    Flag(
        "env",
        "Content",
        "The Gymnasium environment that the episodes come from: its spaces are what rows must fit, and a Minari data "
        "set names it.",
        "ID",
    ),
)

_USAGE = """\
usage: polylib convert FROM TO [flags]

Writes recorded episodes in another format. FROM is a file or folder of JSON traces (polylib's or RLlib's), of Parquet
files, an HDF5 file (d3rlpy's, D4RL's), or a Minari data set (its folder, or minari:ID). TO is a folder for JSON traces,
NAME.parquet, or minari:ID. Nothing that exists is overwritten.
"""

_EXAMPLES = """\
Examples
  polylib convert /tmp/debug debug.parquet
  polylib convert minari:D4RL/pendulum/expert-v0 traces --encoding packed
  polylib convert /tmp/debug minari:cartpole/mine-v0 --env CartPole-v1
  polylib convert theirs.parquet traces --columns '{"state": "obs", "act": "actions"}'

Exit status: 0 done, 1 something couldn't be read or written, 2 the command line was wrong, 130 interrupted.
"""


def help_text() -> str:
    """What `polylib convert --help` prints."""
    flagfile = ("    --flagfile FILE", "Help", "Reads flags from a file, one a line.")
    return render_help(_USAGE, CONVERT_FLAGS, (flagfile, VERBOSE, HELP), (_EXAMPLES,))
