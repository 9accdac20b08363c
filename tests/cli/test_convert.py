"""`polylib convert`: what it prints, and what it says when that can't be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polylib.cli.main import main
from polylib.offline import JsonReader
from polylib.offline.formats import open_dataset

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "data" / "rllib_json" / "cartpole_plain"


def test_there_and_back(tmp_path, capsys, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    parquet = str(tmp_path / "x.parquet")
    assert main(["convert", str(TRACES), parquet]) == 0
    assert capsys.readouterr().out == f"{TRACES} (json) -> {parquet} (parquet): 2 records, 416 rows\n"
    assert main(["convert", parquet, "minari:poles/mine-v0", "--env", "CartPole-v1"]) == 0
    assert "(minari): 1 records, 416 rows, 22 episodes" in capsys.readouterr().out
    assert main(["convert", "minari:poles/mine-v0", str(tmp_path / "json"), "--encoding", "packed"]) == 0
    assert JsonReader(tmp_path / "json").read_all()["rewards"].sum() == 416
    assert open_dataset("minari:poles/mine-v0").dataset.env_spec.id == "CartPole-v1"


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "from what to what? neither was given"),
        (["a"], 2, "from what to what? got 'a'"),
        (["nope", "x"], 1, "there is no file or folder"),
        ([str(TRACES), "x", "--to-format", "csv"], 2, "--to-format=csv: expected one of"),
        ([str(TRACES), "x", "--encoding", "zip"], 2, "--encoding=zip: expected one of"),
        ([str(TRACES), "minari:a/b1-v0", "--env", "Nope-v0"], 2, "--env Nope-v0: "),
        ([str(TRACES), str(ROOT)], 1, "exists already"),
        ([str(TRACES), "x", "--columns", "obs"], 2, "--columns: "),
        ([str(TRACES), "x", "--columns", '{"obs": 3}'], 2, "columns={'obs': 3}: expected names in the files to names"),
        ([str(TRACES), "x.h5"], 2, "'x.h5': HDF5 files are read, not written"),
    ],
)
def test_one_line_says_what_is_wrong(words, status, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", *words]) == status
    error = capsys.readouterr().err
    assert error.startswith("polylib convert: error: ") and message in error and error.count("\n") == 1


def test_columns_get_other_names(tmp_path, capsys):
    """Of JSON and of Parquet files."""
    theirs, parquet, back = tmp_path / "theirs.json", tmp_path / "x.parquet", tmp_path / "back"
    theirs.write_text('{"type": "SampleBatch", "state": [[1.0], [2.0]], "actions": [0, 1], "points": [3.0, 4.0]}\n')
    names = ["--columns", '{"state": "obs", "points": "rewards"}']
    assert main(["convert", str(theirs), str(parquet), *names]) == 0
    assert sorted(open_dataset(parquet).next()) == ["actions", "obs", "rewards"]
    assert main(["convert", str(parquet), str(back), "--columns", '{"rewards": "advantages"}']) == 0
    batch = JsonReader(back).next()
    assert batch["obs"].tolist() == [[1], [2]] and batch["advantages"].tolist() == [3, 4] and "rewards" not in batch
    capsys.readouterr()


def test_bin_convert_prints_help():
    done = subprocess.run([sys.executable, ROOT / "bin" / "convert", "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and all(x in done.stdout for x in ("minari:ID", "--encoding", "--columns"))
