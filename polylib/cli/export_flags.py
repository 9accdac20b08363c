"""The flags of `polylib export` and its help."""

from __future__ import annotations

from polylib.cli.flags import Flag
from polylib.cli.help import HELP, VERBOSE, render_help
from polylib.policy.export import DEFAULT_OPSET, FORMATS

EXPORT_FLAGS = (
    Flag(
        "format",
        "What to write",
        "keras (model.keras), saved_model (a folder), torchscript (model.pt), torch_export (model.pt2) or onnx "
        "(model.onnx). Needed.",
        "NAME",
        ("f",),
        choices=tuple(FORMATS),
    ),
    Flag("out", "What to write", "The folder to write to. Default: export in the current folder.", "DIR", ("o",)),
    Flag("opset", "What to write", f"The version of ONNX' operators. Default: {DEFAULT_OPSET}.", "N", low=1),
    Flag("policy", "What to export", "Which policy of the checkpoint. Default: its only one.", "ID", ("p",)),
    Flag(
        "model",
        "What to export",
        "The network, where the checkpoint was trained with --model or another one of your own: it is code, which is "
        "run only if you say so.",
        "MODULE:NAME",
    ),
    Flag("algo", "What to export", "Checked against the checkpoint's algorithm.", "NAME", ("a", "r"), ("run",)),
)

_USAGE = """\
usage: polylib export CHECKPOINT --format NAME [flags]

Writes the policy of a checkpoint into a file that other programs load without polylib, and prints its path. FILE.json
beside it lists inputs and outputs. CHECKPOINT is a folder that `polylib train` or `algo.save()` wrote, under any
framework.
"""

_EXAMPLES = """\
Examples
  polylib export ~/ray_results/NAME/TRIAL/checkpoint_000030 --format onnx --out served
  polylib export checkpoint_000030 -f saved_model

Exit status: 0 done, 1 the model can't be written in this format, 2 the command line or the checkpoint was wrong, 130
interrupted.
"""


def help_text() -> str:
    """What `polylib export --help` prints."""
    flagfile = ("    --flagfile FILE", "Help", "Reads flags from a file, one a line.")
    return render_help(_USAGE, EXPORT_FLAGS, (flagfile, VERBOSE, HELP), (_EXAMPLES,))
