"""`polylib trace`: looks at recorded episodes, as text, as JSON or as a page for a browser."""

from __future__ import annotations

import difflib
import json
import logging
import os
import pydoc
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polylib.cli.command import DONE, run_command
from polylib.cli.experiment import short_path
from polylib.cli.flags import CommandLine, UsageError
from polylib.cli.process import prepared
from polylib.cli.report import Source, write_report
from polylib.cli.trace_compare import comparison
from polylib.cli.trace_flags import TRACE_FLAGS, help_text
from polylib.cli.trace_json import summary_json
from polylib.cli.trace_listing import Agreement, listing, notes_of, ordered, where
from polylib.cli.trace_numbers import printable
from polylib.cli.trace_policy import PolicyBeside
from polylib.cli.trace_steps import full_steps, step_header, step_table, steps_json, steps_of
from polylib.errors import PolylibError
from polylib.offline.episode_summary import EpisodeSummary, Summary, summarise
from polylib.offline.episodes import Episode, EpisodeKey, episodes_of
from polylib.policy import columns as c

_NOTES = 10


def trace(argv: Sequence[str]) -> int:
    """Runs `polylib trace`.

    Args:
        argv: the arguments after `trace`.

    Returns:
        The exit status: 0 done, 2 the command line was wrong or there was nothing to read, 130 interrupted.
    """
    return run_command("trace", argv, TRACE_FLAGS, help_text, _trace)


def _trace(line: CommandLine) -> int:
    _check(line)
    with prepared(line.verbosity), _quiet_reader():
        try:
            beside = None if line["policy"] is None else PolicyBeside(line)
            try:
                return _show(line, beside)
            finally:
                if beside is not None:
                    beside.close()
        except UsageError:
            raise
        except PolylibError as error:
            raise UsageError(str(error)) from error


def _check(line: CommandLine) -> None:
    if not line.words:
        raise UsageError("which traces? none were given, expected files or folders: polylib trace /tmp/debug")
    if line["compare"] and len(line.words) != 2:
        raise UsageError(f"--compare: got {' '.join(line.words)!r}, expected two folders or files: --compare A B")
    for flag in ("from", "to", "full"):
        if line.given(flag) and line["episode"] is None:
            raise UsageError(f"--{flag}: it is for one episode: say which with --episode ID")
    for flag, others in (("episode", ("compare", "html")), ("json", ("html",))):
        for other in others:
            if line[flag] and line[other]:
                raise UsageError(f"--{flag} and --{other} are two things: leave one of them out")
    if line["from"] is not None and line["to"] is not None and line["from"] > line["to"]:
        raise UsageError(f"--from {line['from']} --to {line['to']}: the first step is after the last")
    for flag in ("framework", "model", "actions-normalized"):
        if line.given(flag) and line["policy"] is None:
            raise UsageError(f"--{flag}: it is for a policy beside the traces: say which with --policy CHECKPOINT")
    if line["html"] is not None:
        _check_writable(Path(line["html"]).expanduser())


def _check_writable(path: Path) -> None:
    """Before everything is read, which may take long."""
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"--html: {str(path)!r} is a folder: give a file, such as {str(path / 'report.html')!r}")
    if not folder.is_dir():
        raise UsageError(f"--html: can't write {str(path)!r}: there is no folder {str(folder)!r}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"--html: can't write {str(path)!r}: it may not be written to")


def _show(line: CommandLine, beside: PolicyBeside | None) -> int:
    if line["episode"] is not None:
        return _one(line, beside)
    sources = [[word] for word in line.words] if line["compare"] else [line.words]
    names = [" ".join(map(short_path, words)) for words in sources]
    summaries = [_read(words, line["policy-id"]) for words in sources]
    if line["html"] is not None:
        return _html(line, beside, [Source(n, w, s) for n, w, s in zip(names, sources, summaries, strict=True)])
    agreements: list[Agreement | None] = [None] * len(sources)
    if beside is not None:
        agreements = [_agreement(words, beside, line["policy-id"]) for words in sources]
    shown = [ordered(summary.episodes, line["sort"])[: line["limit"]] for summary in summaries]
    if line["json"]:
        parts = [summary_json(*given) for given in zip(names, summaries, shown, agreements, strict=True)]
        print(json.dumps(dict(zip("ab", parts, strict=True)) if line["compare"] else parts[0], allow_nan=False))
    elif line["compare"]:
        _print(comparison(names, summaries, agreements))
    else:
        _print(listing(names[0], summaries[0], shown[0], line["columns"], agreements[0], _width()))
    return DONE


def _read(words: Sequence[str], policy_id: str | None) -> Summary:
    summary = summarise(list(words))
    _note_skipped(summary.skipped)
    for policy in sorted(summary.guessed):
        _note(f"policy {policy}: no column {c.EPS_ID!r}: episodes were told apart by where they end, and numbered")
    if policy_id is not None:
        policies = summary.policies
        summary.episodes = [episode for episode in summary.episodes if episode.key.policy_id == policy_id]
        if not summary.episodes:
            raise UsageError(f"--policy-id: got {policy_id!r}, the traces have {', '.join(map(repr, policies))}")
    if not summary.episodes:
        raise UsageError(f"{' '.join(words)}: the records hold no steps")
    _note_lacking(summary)
    return summary


def _note_lacking(summary: Summary) -> None:
    for policy_id in summary.policies:
        names = {stats.kind.name.partition("/")[0] for stats in summary.columns(policy_id)}
        for name in (c.OBS, c.ACTIONS, c.REWARDS):
            if name not in names:
                of = f"policy {policy_id}: " if len(summary.policies) > 1 else ""
                _note(f"{of}no column {name!r}: the records have {', '.join(sorted(names))}")


def _note_skipped(skipped: Sequence[str]) -> None:
    for text in skipped[:_NOTES]:
        _note(f"left out: {text}")
    if len(skipped) > _NOTES:
        _note(f"left out {len(skipped) - _NOTES} more lines; --json lists all")


def _agreement(words: Sequence[str], beside: PolicyBeside, policy_id: str | None) -> Agreement:
    found: Agreement = {}
    for episode in episodes_of(list(words), policy_id, on_error=lambda error: None):
        overlay = beside.of(episode)
        found[episode.key] = int(overlay.agrees.sum()), overlay.difference
    return found


def _html(line: CommandLine, beside: PolicyBeside | None, sources: Sequence[Source]) -> int:
    path = Path(line["html"]).expanduser()
    try:
        said = write_report(path, sources, line["embed"], beside, line["policy-id"])
    except OSError as error:
        raise UsageError(f"--html: can't write {str(path)!r}: {error.strerror or error}") from error
    for text in said:
        _note(text)
    print(short_path(str(path)), flush=True)
    return DONE


# --- one episode ------------------------------------------------------------------------------------------------------


def _one(line: CommandLine, beside: PolicyBeside | None) -> int:
    found, keys = _find(line)
    texts: list[str] = []
    values = []
    for episode in found:
        summary = Summary()
        summary.episodes = [e for e in keys.episodes if e.key.eps_id == episode.key.eps_id]
        rows = steps_of(episode, line["from"], line["to"])
        if not rows.size:
            raise UsageError(
                f"--from and --to: episode {episode.key.label} has the steps {episode.t[0]} to {episode.t[-1]}"
            )
        overlay = None if beside is None else beside.of(episode)
        if line["json"]:
            values.append(_one_json(episode, steps_json(episode, rows, overlay)))
            continue
        about = next(e for e in keys.episodes if e.key == episode.key)
        texts += [""] * bool(texts) + step_header(episode, overlay, where(episode.key, keys))
        problems = [*notes_of(about), *episode.notes]
        texts += [f"amiss: {'; '.join(problems)}"] * bool(problems) + [""]
        texts += full_steps(episode, rows, overlay) if line["full"] else step_table(episode, rows, overlay, _width())
    if line["json"]:
        print(json.dumps(values[0] if len(values) == 1 else values, allow_nan=False))
    else:
        _page(texts)
    return DONE


def _one_json(episode: Episode, steps: list[dict[str, Any]]) -> dict[str, Any]:
    key = episode.key
    return {"episode": key.label, "policy": key.policy_id, "agent": key.agent_index, "end": episode.end, "steps": steps}


def _find(line: CommandLine) -> tuple[list[Episode], Summary]:
    """The episodes that `--episode` names: several where agents share it."""
    summary = _read(line.words, line["policy-id"])
    label = _chosen(line["episode"], summary.episodes)

    def wanted(key: EpisodeKey) -> bool:
        return key.label == label

    found = episodes_of(line.words, line["policy-id"], wanted=wanted, on_error=lambda error: None)
    return sorted(found, key=lambda episode: episode.key), summary


def _chosen(text: str, episodes: Sequence[EpisodeSummary]) -> str:
    labels = list(dict.fromkeys(episode.key.label for episode in episodes))
    if text in labels:
        return text
    starting = [label for label in labels if label.startswith(text)]
    if len(starting) == 1:
        return starting[0]
    if starting:
        raise UsageError(f"--episode {text}: {len(starting)} episodes begin so: {_some(starting)}")
    near = difflib.get_close_matches(text, labels, 3, 0.5) or labels
    raise UsageError(f"--episode {text}: there is no such episode. Near it: {_some(near)}")


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:5]) + (", ..." if len(labels) > 5 else "")


# --- output -----------------------------------------------------------------------------------------------------------


def _width() -> int | None:
    """Of the terminal; None where lines may have any length."""
    return shutil.get_terminal_size((120, 24)).columns if sys.stdout.isatty() else None


def _print(lines: Sequence[str]) -> None:
    print("\n".join(map(printable, lines)), flush=True)


def _page(lines: Sequence[str]) -> None:
    """Prints; in a terminal by pages where it is too long for one."""
    if sys.stdout.isatty() and sys.stdin.isatty() and len(lines) >= shutil.get_terminal_size().lines:
        # less: keep colours and long lines, and leave what was seen on the screen.
        os.environ.setdefault("LESS", "RSX")
        pydoc.pager("\n".join(map(printable, lines)))
    else:
        _print(lines)


def _note(text: str) -> None:
    print(f"polylib trace: note: {printable(' '.join(text.split()))}", file=sys.stderr, flush=True)


@contextmanager
def _quiet_reader() -> Iterator[None]:
    """The reader's warnings become notes."""
    logger = logging.getLogger("polylib.offline")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
