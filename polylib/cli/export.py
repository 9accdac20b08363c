"""`polylib export`: the policy of a checkpoint as a file for programs without polylib."""

from __future__ import annotations

from collections.abc import Sequence

from polylib.algorithms.algorithm_config import FRAMEWORK_PACKAGES
from polylib.algorithms.load import load_policy
from polylib.cli.command import DONE, FAILED, run_command
from polylib.cli.experiment import short_path
from polylib.cli.export_flags import EXPORT_FLAGS, help_text
from polylib.cli.failures import report
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.process import import_quietly, prepared
from polylib.cli.stored import Stored, read_stored
from polylib.errors import ExportError, FrameworkError, PolylibError
from polylib.policy.export import FORMATS
from polylib.policy.policy import Policy


def export(argv: Sequence[str]) -> int:
    """Runs `polylib export`.

    Args:
        argv: the arguments after `export`.

    Returns:
        The exit status: 0 done, 1 the model can't be written in this format, 2 the command line or the checkpoint was
        wrong, 130 interrupted.
    """
    return run_command("export", argv, EXPORT_FLAGS, help_text, _export)


def _export(line: CommandLine) -> int:
    if len(line.words) != 1:
        got = f"got {' '.join(line.words)!r}" if line.words else "none was given"
        raise UsageError(f"which checkpoint? {got}, expected one folder: polylib export CHECKPOINT --format onnx")
    if line["format"] is None:
        raise UsageError(f"which format? Use --format NAME, one of {', '.join(FORMATS)}")
    if line["opset"] is not None and line["format"] != "onnx":
        raise UsageError(f"--opset: it is for --format onnx, not {line['format']}")
    with prepared(line.verbosity):
        try:
            stored = read_stored(line.words[0])
            if line["algo"] not in (None, stored.algo):
                raise UsageError(f"--algo {line['algo']}: {stored.folder} is a checkpoint of {stored.algo}")
            policy = _policy(stored, line)
        except UsageError:
            raise
        except PolylibError as error:
            raise UsageError(str(error)) from error
        try:
            path = policy.export_model(line["out"] or "export", line["format"], line["opset"])
        except FrameworkError as error:
            raise UsageError(str(error)) from error
        except ExportError as error:
            report("export", error, line.verbosity)
            return FAILED
        finally:
            policy.close()
    print(short_path(str(path)), flush=True)
    return DONE


def _policy(stored: Stored, line: CommandLine) -> Policy:
    """The checkpoint's policy, in the framework that writes the format where it can be moved there."""
    config = stored.config.copy()
    if line["model"] is not None:
        config.update_from_dict({"model": {"custom_model": line["model"]}}, source="--model")
    stored.check_model(config)
    custom_model = config["model"]["custom_model"]
    own, writer = str(stored.header.get("framework")), FORMATS[line["format"]].framework
    stays = own.startswith(writer) or custom_model is not None
    config.update_from_dict({"framework": own if stays else {"tf": "tf2"}.get(writer, writer)})
    framework, traced = config.resolve_framework()
    import_quietly(FRAMEWORK_PACKAGES[framework])
    return load_policy(stored.folder, framework, line["policy"], traced, custom_model)
