"""`--print-config`: every setting, its value and where that comes from."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from polylib.algorithms.common_options import COMMON_OPTIONS
from polylib.cli.experiment import Experiment, describe, short_path


def config_table(experiment: Experiment) -> str:
    """A table with a line per key, in groups; values as JSON, so that they can be copied into `--config`."""
    config = experiment.config
    groups = {option.name: option.group for option in (*COMMON_OPTIONS, *config.options)}
    rows = [(groups[key.partition(".")[0]], key, _text(value), source) for key, value, source in config.explain()]
    key_width = max(len(key) for _, key, _, _ in rows)
    # One long value (a grid, a space) shouldn't push everybody's source out of sight.
    value_width = max((len(value) for _, _, value, _ in rows if len(value) <= 40), default=0)
    lines = [f"# {line}" for line in _about(experiment)]
    lines.append(f"{'key':<{key_width}}  {'value':<{value_width}}  source")
    for group, members in groupby(rows, key=lambda row: row[0]):
        lines += ["", f"# {group}"]
        lines += [f"{key:<{key_width}}  {value:<{value_width}}  {source}" for _, key, value, source in members]
    return "\n".join(lines)


def _about(experiment: Experiment) -> list[str]:
    samples = f", {experiment.num_samples} samples" if experiment.num_samples > 1 else ""
    stop = json.dumps(experiment.stop) if experiment.stop else "never"
    return [
        describe(experiment.config, experiment.mode) + samples,
        f"stop: {stop}",
        f"results: {short_path(experiment.folder)}",
    ]


def _text(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)
