from __future__ import annotations

import math

import pytest

from polylib.cli.flags import UsageError
from polylib.cli.values import read_mapping, stop_criteria


def test_json():
    assert read_mapping(' {"a": {"b": [1, null, true]}} ', "--config") == {"a": {"b": [1, None, True]}}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"lr": 0.1, "num_workers" 2}', ("malformed JSON at line 1, column 27", '"num_workers" <HERE>2}')),
        ('{"lr": 0.1,\n "gamma": }', ("malformed JSON at line 2, column 11", '"gamma": <HERE>}')),
        ('{"lr": 0.1', ("malformed JSON at line 1, column 11", '{"lr": 0.1<HERE>')),
        ("{'lr': 0.1}", ("malformed JSON at line 1, column 2", "JSON wants double quotes")),
        ("lr=0.1", ("malformed JSON at line 1, column 1", "<HERE>lr=0.1")),
        ("", ("malformed JSON at line 1, column 1",)),
        ("[1, 2]", ("got [1, 2], expected a JSON object",)),
        ('{"lr": 1, "lr": 2}', ("key 'lr' stands there twice",)),
        ("settings.json", ("there is no file 'settings.json'",)),
        ("@nowhere", ("there is no file 'nowhere'",)),
    ],
)
def test_bad_json_says_where(text, parts):
    with pytest.raises(UsageError) as error:
        read_mapping(text, "--config")
    assert str(error.value).startswith("--config: ") and "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


def test_files(tmp_path):
    (tmp_path / "a.json").write_text('{"lr": 0.1}')
    (tmp_path / "b.yaml").write_text("lr: 1e-4\ngamma: 5E-1\nhiddens: [64, 1_000]\nname: 1e\n")
    (tmp_path / "c").write_text('{"lr": 0.2}')
    assert read_mapping(str(tmp_path / "a.json"), "--config") == {"lr": 0.1}
    assert read_mapping(f"@{tmp_path / 'c'}", "--config") == {"lr": 0.2}
    # YAML 1.1 takes 1e-4 for text
    assert read_mapping(str(tmp_path / "b.yaml"), "--config") == {
        "lr": 1e-4,
        "gamma": 0.5,
        "hiddens": [64, 1000],
        "name": "1e",
    }


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("bad.json", '{"lr": }', "malformed JSON at line 1, column 8"),
        ("bad.yaml", "a: 1\nb: [1, 2\n", "malformed YAML at line 3, column 1"),
        ("evil.yaml", "a: !!python/object/apply:os.getcwd []", "malformed YAML at line 1, column 4"),
        ("list.yaml", "- 1\n", "got [1], expected a mapping"),
        ("empty.yaml", "", "got null, expected a mapping"),
    ],
)
def test_bad_files_say_where(tmp_path, name, text, part):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        read_mapping(str(tmp_path / name), "--config")
    assert name in str(error.value) and part in str(error.value)


def test_stop_criteria_are_flat_numbers():
    nested = {"training_iteration": 3, "info": {"learner": {"kl": 0.5}}, "timers/x": 1}
    assert stop_criteria(nested, "--stop") == {"training_iteration": 3, "info/learner/kl": 0.5, "timers/x": 1}
    for bad in ("150", True, None, [1], math.nan):
        with pytest.raises(UsageError, match="--stop: key 'reward': got .*, expected the number"):
            stop_criteria({"reward": bad}, "--stop")
