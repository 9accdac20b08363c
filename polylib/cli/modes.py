"""What `--framework` and `--trace` run.

On the command line `tf2` is eager unless somebody asks for tracing, as RLlib's users know it; in Python and in files
it is traced, which is the default of `eager_tracing`.
"""

from __future__ import annotations

from typing import Any

from polylib.algorithms.algorithm_config import AlgorithmConfig
from polylib.algorithms.options import is_search_space
from polylib.cli.flags import CommandLine, UsageError


def apply_framework_flags(config: AlgorithmConfig, line: CommandLine) -> None:
    """Sets `framework` and `eager_tracing` as the command line says.

    Args:
        config: holds what files and `--config` said, with their sources.
        line: the command line; its `--framework` and `--trace` count before the config's.

    Raises:
        UsageError: if tracing is asked for with a framework other than tf2.
    """
    source = None
    if line.given("framework"):
        source = "--framework"
        config.update_from_dict({"framework": line["framework"]}, source=source)
    elif config.sources.get("framework") == "--config":
        source = "--config"
    frameworks = choices(config["framework"])
    if line["trace"]:
        wrong = [str(framework) for framework in frameworks if framework not in (None, "tf2")]
        if wrong:
            raise UsageError(
                f"--trace: tracing is for tf2, and the framework is {' or '.join(wrong)}; "
                "leave out --trace or use --framework tf2"
            )
        if None in frameworks:
            config.update_from_dict({"framework": "tf2"}, source="--trace")
        config.update_from_dict({"eager_tracing": True}, source="--trace")
    elif line.given("trace"):
        config.update_from_dict({"eager_tracing": False}, source="--no-trace")
    elif source and "tf2" in frameworks and "eager_tracing" not in config.sources:
        config.update_from_dict({"eager_tracing": False}, source=source)


def settle_frameworks(config: AlgorithmConfig) -> str:
    """Fills in the framework where nobody chose one, and says in words what runs, such as `"tf2 (traced)"`.

    Raises:
        FrameworkError: if a framework isn't installed or the algorithm lacks it.
    """
    texts: list[str] = []
    for framework in choices(config["framework"]):
        if not isinstance(framework, str | None):
            return "chosen by Tune"
        for traced in choices(config["eager_tracing"]):
            probe = config.copy().update_from_dict({"framework": framework, "eager_tracing": bool(traced)})
            name, is_traced = probe.resolve_framework()
            text = name if name != "tf2" else f"tf2 ({'traced' if is_traced else 'eager'})"
            texts += [text] if text not in texts else []
    if config["framework"] is None:
        name = config.resolve_framework()[0]
        config.update_from_dict({"framework": name}, source="default, as installed")
    return " or ".join(texts)


def choices(value: Any) -> list[Any]:
    """The values of a `grid_search`, or the one value."""
    if isinstance(value, dict) and is_search_space(value):
        return list(value["grid_search"])
    return [value]
