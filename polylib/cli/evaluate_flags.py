"""The flags of `polylib evaluate` and its help."""

from __future__ import annotations

from polylib.cli.flags import Flag
from polylib.cli.help import HELP, VERBOSE, render_help

FRAMEWORKS = ("numpy", "tf", "tf2", "torch")

EVALUATE_FLAGS = (
    Flag("algo", "What to evaluate", "Checked against the checkpoint's algorithm.", "NAME", ("a", "r"), ("run",)),
    Flag(
        "env",
        "What to evaluate",
        "The environment: a Gymnasium id or module:Class; default: the checkpoint's. Needed where that is code.",
        "NAME",
        ("e",),
    ),
    Flag(
        "model",
        "What to evaluate",
        "The network, where the checkpoint was trained with --model or another one of your own: it is code, which is "
        "run only if you say so.",
        "MODULE:NAME",
    ),
    Flag(
        "config",
        "What to evaluate",
        "Settings to change, as JSON or in a file: env_config, explore (default false: the most likely actions), "
        "num_envs_per_worker, seed. They count before the checkpoint's evaluation_config.",
        "JSON",
        ("c",),
    ),
    Flag("episodes", "How much", "Episodes. Default: 10, or as many as --steps takes.", "N", low=1),
    Flag("steps", "How much", "No new episode begins after this many environment steps.", "N", low=1),
    Flag(
        "seed",
        "How much",
        "Episode k (from 0) is seeded with N + k. Default: the checkpoint's seed, or 0.",
        "N",
        low=0,
    ),
    Flag(
        "framework",
        "Framework",
        "numpy (the default for standard networks: needs neither TensorFlow nor torch), tf, tf2 or torch, whichever "
        "wrote the checkpoint.",
        "NAME",
        choices=FRAMEWORKS,
    ),
    Flag("trace", "Framework", "Compile tf2 with tf.function; --no-trace for plain eager, as with train."),
    Flag("render", "Results", "Shows the environment in a window.", default=False),
    Flag("out", "Results", "Writes a line of JSON per episode: episode, seed, return, length.", "FILE", ("o",)),
)

_USAGE = """\
usage: polylib evaluate CHECKPOINT [flags]

Runs episodes with the policy of a checkpoint, without Ray, and prints what came of them. CHECKPOINT is a folder that
`polylib train` or `algo.save()` wrote.
"""

_EXAMPLES = """\
Examples
  polylib evaluate ~/ray_results/NAME/TRIAL/checkpoint_000030 --algo PPO
  polylib evaluate checkpoint_000030 --episodes 100 --out returns.json --config '{"explore": true}'

Exit status: 0 done, 1 the environment failed, 2 the command line or the checkpoint was wrong, 130 interrupted.
"""


def help_text() -> str:
    """What `polylib evaluate --help` prints."""
    flagfile = ("    --flagfile FILE", "Help", "Reads flags from a file, one a line.")
    return render_help(_USAGE, EVALUATE_FLAGS, (flagfile, VERBOSE, HELP), (_EXAMPLES,))
