"""The flags of `polylib train` and its help."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from polylib.algorithms.registry import algorithm_names
from polylib.cli.flags import Flag

FRAMEWORKS = ("tf", "tf2", "torch")

TRAIN_FLAGS = (
    Flag("algo", "What to train", "The algorithm.", "NAME", ("a", "r"), ("run",)),
    Flag(
        "env",
        "What to train",
        "The environment: a Gymnasium id or module:Class. It counts before the config's env.",
        "NAME",
        ("e",),
    ),
    Flag(
        "config",
        "What to train",
        "Settings as JSON, such as '{\"num_workers\": 2}', or a file: settings.json, settings.yaml, @FILE. "
        'A value {"grid_search": [..]} tries each.',
        "JSON",
        ("c",),
    ),
    Flag(
        "stop",
        "What to train",
        "When to stop, as JSON: keys of the results and the values to reach; the first one reached counts. "
        "Nested keys have slashes.",
        "JSON",
        ("s",),
    ),
    Flag("framework", "Framework", "tf (graph), tf2 or torch; see the table below.", "NAME", choices=FRAMEWORKS),
    Flag("trace", "Framework", "Compile tf2 with tf.function; --no-trace for plain eager."),
    Flag(
        "experiment-name",
        "Results",
        "The folder for this run's results; default: algorithm, environment and date.",
        "NAME",
        ("n",),
    ),
    Flag("local-dir", "Results", "The folder in which it lies.", "DIR", default="~/ray_results"),
    Flag("num-samples", "How to run", "Runs this often, or each combination of a grid.", "N", default=1, low=1),
    Flag("ray-address", "How to run", "Joins a Ray cluster instead of starting Ray here.", "ADDRESS"),
    Flag("ray-num-cpus", "How to run", "CPUs that the Ray started here may use.", "N", low=1),
    Flag("ray-num-gpus", "How to run", "GPUs that the Ray started here may use.", "N", low=0),
    Flag(
        "local-mode",
        "How to run",
        "One run in this very process, without Ray: prints appear and breakpoint() works.",
        default=False,
    ),
    Flag("print-config", "Help", "Prints every setting and where its value comes from, and exits.", default=False),
)

# Flags that are parsed elsewhere, for the help only: (spelling, group, text).
_OTHERS = (
    ("    --flagfile FILE", "How to run", "Reads flags from a file, one a line; for jobs on clusters."),
    ("-v, -vv", "Help", "Log more: INFO, and the workers' output; DEBUG, and tracebacks of errors."),
    ("-h, --help", "Help", "Prints this and exits."),
)

_USAGE = """\
usage: polylib train --algo NAME --env NAME [flags]
       polylib train file EXPERIMENT.py [flags]
       polylib train file EXPERIMENT.yaml [flags]

Trains an agent through Ray Tune. A Python file has a variable `config` (a config object, or a dict beside a variable
`algo`) and perhaps `stop`; a YAML file has entries `name: {env: .., run: .., stop: {..}, config: {..}}`.
"""

_MODES = """\
What --framework and --trace run
  nothing said                tf2, traced; torch where TensorFlow isn't installed
  --framework tf2             tf2, eager: slow, for debugging
  --framework tf2 --trace     tf2, traced (also --trace alone, or "eager_tracing": true in --config)
  --framework tf              TensorFlow graphs
  --framework torch           torch; --trace is an error here and with tf
"""

_EXAMPLES = """\
Examples
  polylib train --algo PPO --env CartPole-v1 --stop '{"episode_reward_mean": 150}'
  polylib train -a PPO -e Pendulum-v1 --framework torch -c '{"num_workers": 2, "lr": 0.001}' -s '{"time_total_s": 600}'

Exit status: 0 done, 1 the run failed, 2 the command line was wrong, 130 interrupted.
"""


def help_text() -> str:
    """What `polylib train --help` prints."""
    width = max(72, min(110, shutil.get_terminal_size((100, 24)).columns))
    groups: dict[str, list[tuple[str, str]]] = {}
    for flag in TRAIN_FLAGS:
        groups.setdefault(flag.group, []).append((_spelling(flag), _description(flag)))
    for spelling, group, text in _OTHERS:
        groups[group].append((spelling, text))
    parts = [_USAGE]
    for group, rows in groups.items():
        parts.append("\n".join([group, *_rows(rows, width)]) + "\n")
    return "\n".join([*parts, _MODES, _EXAMPLES])


def _spelling(flag: Flag) -> str:
    letters = "".join(f"-{letter}, " for letter in flag.short[:1])
    return f"{letters or '    '}--{flag.name}" + (f" {flag.metavar}" if flag.metavar else "")


def _description(flag: Flag) -> str:
    text = flag.help
    if flag.name == "algo":
        text += f" One of: {', '.join(algorithm_names())}."
    if isinstance(flag.default, str | int) and not flag.switch:
        text += f" Default: {flag.default}."
    others = [f"--{alias}" for alias in flag.aliases] + [f"-{letter}" for letter in flag.short[1:]]
    return text + (f" Also {', '.join(others)}." if others else "")


def _rows(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    indent = 30
    lines: list[str] = []
    for spelling, text in rows:
        first = f"  {spelling}".ljust(indent)
        lines += textwrap.wrap(text, width, initial_indent=first, subsequent_indent=" " * indent)
    return lines
