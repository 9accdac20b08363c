"""The flags of `polylib train` and its help."""

from __future__ import annotations

from polylib.cli.flags import Flag
from polylib.cli.help import HELP, VERBOSE, render_help

FRAMEWORKS = ("tf", "tf2", "torch")

TRAIN_FLAGS = (
    Flag("algo", "What to train", "The algorithm.", "NAME", ("a", "r"), ("run",)),
    Flag(
        "env",
        "What to train",
        "The environment: a Gymnasium id or module:Class. It counts before the config's env. Where the config's input "
        "is recorded experience, it is for evaluation and may be left out.",
        "NAME",
        ("e",),
    ),
    Flag(
        "model",
        "What to train",
        "Your own network: a function or class (observation_space, action_space, outputs, **custom_model_config) in a "
        "module, such as my_pkg.nets:my_net. The same as model.custom_model in --config.",
        "MODULE:NAME",
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
    Flag("checkpoint-freq", "Checkpoints", "Writes a checkpoint every N iterations; 0: none.", "N", default=0, low=0),
    Flag(
        "checkpoint-at-end",
        "Checkpoints",
        "Writes one when the run ends; this is the default, --no-checkpoint-at-end turns it off.",
        default=True,
    ),
    Flag(
        "keep-checkpoints-num",
        "Checkpoints",
        "Keeps only this many: the best ones, or the newest. The last one written always stays.",
        "N",
        low=1,
    ),
    Flag(
        "checkpoint-score-attr",
        "Checkpoints",
        "The result key that says which is best: the largest, or with min- in front of it the smallest. "
        "Nested keys have slashes: min-info/learner/default_policy/learner_stats/kl.",
        "KEY",
    ),
    Flag(
        "restore",
        "Checkpoints",
        "Goes on from a checkpoint, in a new run: with its weights, optimizer and counters, and with its settings "
        "where this command says nothing else. --stop counts from where it was.",
        "CHECKPOINT",
    ),
    Flag(
        "resume",
        "Checkpoints",
        "Goes on with the interrupted experiment that -n names, from its trials' last checkpoints. Tune keeps "
        "experiments as pickles, which can run code when they are read: resume only what you trust.",
        default=False,
    ),
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
    Flag(
        "profile",
        "How to run",
        "Writes profiles of the trial's process and of one worker into the trial's folder (text and HTML).",
        default=False,
    ),
    Flag("print-config", "Help", "Prints every setting and where its value comes from, and exits.", default=False),
)

_FLAGFILE = ("    --flagfile FILE", "How to run", "Reads flags from a file, one a line; for jobs on clusters.")

_USAGE = """\
usage: polylib train --algo NAME --env NAME [flags]
       polylib train file EXPERIMENT.py [flags]
       polylib train file EXPERIMENT.yaml [flags]
       polylib train --resume -n NAME

Trains an agent through Ray Tune. A Python file has a variable `config` (a config object, or a dict beside a variable
`algo`) and perhaps `stop`; a YAML file has entries `name: {env: .., run: .., stop: {..}, config: {..}}`
and perhaps checkpoint_freq, checkpoint_at_end, keep_checkpoints_num, checkpoint_score_attr.
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
  polylib train --algo DQN --env CartPole-v1 --stop '{"training_iteration": 30}'
  polylib train -a PPO -e Pendulum-v1 --framework torch -c '{"num_workers": 2, "lr": 0.001}' -s '{"time_total_s": 600}'
  polylib train -a PPO -e CartPole-v1 --model my_pkg.nets:my_net -c '{"model": {"custom_model_config": {"units": 64}}}'
  polylib train -a BC --env CartPole-v1 -c '{"input": "FOLDER", "evaluation_interval": 10}' \\
      -s '{"evaluation/episode_reward_mean": 150}'
  polylib train --restore CHECKPOINT --config '{"lr": 1e-5}' --stop '{"training_iteration": 200}'

Ctrl-C and SIGTERM wait for the end of the iteration, write a checkpoint and print the line that goes on from it; the
second one stops at once.

Exit status: 0 done, 1 the run failed, 2 the command line was wrong, 130 interrupted, 143 terminated.
"""


def help_text() -> str:
    """What `polylib train --help` prints."""
    return render_help(_USAGE, TRAIN_FLAGS, (_FLAGFILE, VERBOSE, HELP), (_MODES, _EXAMPLES))
