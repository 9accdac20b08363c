"""The examples of docs/offline.md that need no algorithm run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polylib import registry

PAGE = Path(__file__).resolve().parents[2] / "docs" / "offline.md"


def examples(*sections: str) -> list[str]:
    """The Python of some sections, in order."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return [code for name in sections for code in re.findall(r"```python\n(.*?)```", found[name], re.S)]


def test_the_examples_of_writing_and_reading_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_inputs", registry._Shelf())
    codes = examples("Writing", "Reading")
    assert len(codes) == 4
    names: dict[str, object] = {}
    for code in codes:
        exec(compile(code, str(PAGE), "exec"), names)
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 4 and out[0].startswith("0 ") and out[2].endswith(" float32") and "SampleBatch(" in out[3]
    assert len(names["first"]) == len(names["second"]) == 32
    assert len(names["everything"]) == sum(int(line.split()[1]) for line in out[:3])


@pytest.mark.parametrize("section", ["Writing", "Reading"])
def test_the_keys_that_it_names_exist(section):
    from polylib.algorithms.ppo import PPOConfig

    text = PAGE.read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    keys = {key for key in re.findall(r"`((?:in|out)put_\w+)", text)}
    assert keys and keys <= PPOConfig().to_dict().keys()
