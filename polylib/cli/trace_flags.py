"""The flags of `polylib trace` and its help."""

from __future__ import annotations

from polylib.cli.evaluate_flags import FRAMEWORKS
from polylib.cli.flags import Flag
from polylib.cli.help import HELP, VERBOSE, render_help

SORTS = ("order", "return", "length", "id")
DEFAULT_EMBEDDED = 100

TRACE_FLAGS = (
    Flag("episode", "What to show", "Steps through one episode: its id, or the beginning of it.", "ID", ("e",)),
    Flag("from", "What to show", "With --episode: the first step.", "T", low=0),
    Flag("to", "What to show", "With --episode: the last step.", "T", low=0),
    Flag("full", "What to show", "With --episode: every column of each step, infos too.", default=False),
    Flag("policy-id", "What to show", "Only the episodes of this policy.", "ID"),
    Flag("compare", "What to show", "Shows two folders, or files, side by side.", default=False),
    Flag(
        "sort",
        "What to show",
        "The order of the list: order (as recorded), return and length (largest first) or id.",
        "NAME",
        default="order",
        choices=SORTS,
    ),
    Flag("limit", "What to show", "Lists so many episodes; the summary counts all. Default: all.", "N", low=0),
    Flag("columns", "What to show", "Lists the columns of each episode too. Default: for up to 3 episodes."),
    Flag("html", "As what", "Writes one page that a browser opens without a network.", "FILE"),
    Flag(
        "embed",
        "As what",
        "How many episodes the page has step by step, from the best to the worst; it lists the others.",
        "N",
        default=DEFAULT_EMBEDDED,
        low=1,
    ),
    Flag("json", "As what", "Prints JSON for programs.", default=False),
    Flag(
        "policy",
        "A policy beside it",
        "A checkpoint: what its policy would do now at each logged step, and how often that is what was done.",
        "CHECKPOINT",
        ("p",),
    ),
    Flag(
        "framework",
        "A policy beside it",
        "numpy (the default for standard networks), tf, tf2 or torch, whichever wrote the checkpoint.",
        "NAME",
        choices=FRAMEWORKS,
    ),
    Flag(
        "model",
        "A policy beside it",
        "The network, where the checkpoint was trained with --model or another one of your own: it is code, which is "
        "run only if you say so.",
        "MODULE:NAME",
    ),
    Flag(
        "actions-normalized",
        "A policy beside it",
        "Box actions in the files are in [-1, 1], as RLlib writes them, and not in the environment's units.",
        default=False,
    ),
)

_USAGE = """\
usage: polylib trace PATH... [flags]
       polylib trace --compare A B [flags]

Shows what recorded episodes hold: lengths, returns, actions, columns, and what is wrong with them. PATH is a file, a
folder (its *.json) or a pattern, as polylib and RLlib write them, or a data set as polylib convert takes it. Opening
them runs nothing.
"""

_EXAMPLES = """\
Examples
  polylib trace /tmp/debug
  polylib trace /tmp/debug --sort return --limit 10
  polylib trace /tmp/debug --episode 17 --from 100 --to 120 --full
  polylib trace /tmp/debug --html report.html --policy checkpoint_000030
  polylib trace --compare before after --html compared.html

Lines that aren't whole are left out and named on stderr. Exit status: 0 done, 2 the command line was wrong, or there
was nothing to read, 130 interrupted.
"""


def help_text() -> str:
    """What `polylib trace --help` prints."""
    flagfile = ("    --flagfile FILE", "Help", "Reads flags from a file, one a line.")
    return render_help(_USAGE, TRACE_FLAGS, (flagfile, VERBOSE, HELP), (_EXAMPLES,))
