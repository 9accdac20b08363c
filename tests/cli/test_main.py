from __future__ import annotations

from polylib import __version__
from polylib.cli import main as cli


def test_version(call):
    outcome = call("--version")
    assert (outcome.status, outcome.out, outcome.err) == (0, f"polylib {__version__}\n", "")


def test_help_lists_the_commands(call):
    outcome = call("--help")
    assert outcome.status == 0 and outcome.err == ""
    for command in cli.COMMANDS:
        assert f"\n  {command} " in outcome.out


def test_no_command_prints_the_help_to_stderr(call):
    outcome = call()
    assert outcome.status == 2 and outcome.out == "" and outcome.err.startswith("usage: polylib ")


def test_an_unknown_command_offers_the_nearest(call):
    outcome = call("trian", "--algo", "PPO")
    assert outcome.status == 2
    assert outcome.err == "polylib: error: unknown command 'trian'. Did you mean 'train'? See polylib --help\n"


def test_train_is_main_with_the_command(capsys):
    assert cli.train(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: polylib train ")


def test_train_help(call):
    for flag in ("--help", "-h"):
        outcome = call("train", "--algo", "nonsense", flag)
        assert outcome.status == 0 and outcome.err == ""
    lines = outcome.out.splitlines()
    assert lines[0] == "usage: polylib train --algo NAME --env NAME [flags]"
    for heading in ("What to train", "Framework", "Results", "How to run", "Help", "Examples"):
        assert heading in lines
    assert "What --framework and --trace run" in lines
    flags = {word.strip(",.;") for line in lines for word in line.split() if word.startswith("-")}
    assert flags >= {
        *("-a", "--algo", "--run", "-r", "--env", "-e", "--config", "-c", "--stop", "-s", "--framework", "--trace"),
        *("--experiment-name", "-n", "--local-dir", "--num-samples", "--ray-address", "--ray-num-cpus"),
        *("--ray-num-gpus", "--local-mode", "--print-config", "-v", "-vv", "--help", "--flagfile"),
        *("--checkpoint-freq", "--checkpoint-at-end", "--keep-checkpoints-num", "--checkpoint-score-attr"),
        *("--restore", "--resume", "--model"),
    }
    assert outcome.out.count("\n  polylib train ") == 6  # examples
    assert "One of: A2C, BC, CQL, CRR, DDPG, DQN, IQL, MARWIL, PG, PPO," in " ".join(outcome.out.split())
    assert max(map(len, lines)) <= 120


def test_the_help_fits_a_narrow_terminal(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    options = call("train", "--help").out.partition("What to train\n")[2].partition("What --framework")[0]
    assert max(map(len, options.splitlines())) <= 72
