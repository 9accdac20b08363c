"""Writing: file names, roll-over, and that nothing written is ever lost."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from offline.batches import assert_same, cartpole

from polylib.errors import ConfigError, PolylibError
from polylib.offline import IOContext, JsonReader, JsonWriter, TraceFileError, TraceFormatError
from polylib.policy.sample_batch import MultiAgentBatch, SampleBatch

ROOT = Path(__file__).resolve().parents[2]


def lines(folder: Path) -> list[str]:
    return [line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_the_import_path_is_rllibs():
    from polylib.offline.json_writer import JsonWriter as from_module

    assert from_module is JsonWriter


def test_file_names(tmp_path):
    with JsonWriter(tmp_path, worker_index=3) as writer:
        writer.write(cartpole())
    (file,) = tmp_path.iterdir()
    assert re.fullmatch(r"output-\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_worker-3_0\.json", file.name)
    assert writer.files == [file]


def test_the_workers_index_comes_from_the_context(tmp_path):
    with JsonWriter(str(tmp_path), IOContext(worker_index=2)) as writer:
        writer.write(cartpole())
    assert "_worker-2_0.json" in writer.files[0].name


def test_the_folder_is_made_and_a_home_directory_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with JsonWriter("~/a/b") as writer:
        writer.write(cartpole())
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1


def test_no_file_is_made_before_there_is_something_to_write(tmp_path):
    JsonWriter(tmp_path / "x").close()
    assert list((tmp_path / "x").iterdir()) == []


def test_every_line_is_in_the_file_when_write_returns(tmp_path):
    writer = JsonWriter(tmp_path)
    for i in range(3):
        writer.write(cartpole(eps_id=i))
        assert len(writer.files[0].read_bytes().splitlines()) == i + 1
        assert writer.files[0].read_bytes().endswith(b"}\n")
    writer.close()


def test_single_and_multi_agent_batches_read_back(tmp_path):
    batches = [cartpole(3), MultiAgentBatch({"a": cartpole(2), "b": cartpole(4)}, 5), SampleBatch(x=np.zeros((0, 2)))]
    with JsonWriter(tmp_path) as writer:
        for batch in batches:
            writer.write(batch)
    for written, read in zip(batches, JsonReader(tmp_path), strict=True):
        assert_same(written, read)


def test_rolls_over_by_bytes_and_keeps_the_order(tmp_path):
    with JsonWriter(tmp_path, max_file_size=8000, compress_columns=[]) as writer:
        for i in range(40):
            writer.write(cartpole(eps_id=i))
    sizes = [file.stat().st_size for file in writer.files]
    assert len(sizes) > 10 and max(sizes) <= 8000 and min(sizes[:-1]) > 4000
    assert [file.name.rpartition("_")[2] for file in writer.files] == [f"{i}.json" for i in range(len(sizes))]
    # Ten comes after nine, also where the names are sorted.
    assert [batch["eps_id"][0] for batch in JsonReader(tmp_path)] == list(range(40))


def test_a_line_larger_than_a_file_has_one_to_itself(tmp_path):
    with JsonWriter(tmp_path, max_file_size=10) as writer:
        for i in range(3):
            writer.write(cartpole(eps_id=i))
    assert len(writer.files) == 3 and len(lines(tmp_path)) == 3


def test_a_second_writer_never_touches_the_first_ones_files(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda *a: "2026-01-01_00-00-00")
    for i in range(3):
        with JsonWriter(tmp_path) as writer:
            writer.write(cartpole(eps_id=i))
    assert len(list(tmp_path.iterdir())) == 3
    assert [batch["eps_id"][0] for batch in JsonReader(tmp_path)] == [0, 1, 2]


def test_writing_goes_on_in_a_new_file_after_close(tmp_path):
    writer = JsonWriter(tmp_path)
    writer.write(cartpole())
    writer.close()
    writer.close()
    writer.write(cartpole())
    writer.close()
    assert len(writer.files) == 2 and len(lines(tmp_path)) == 2


def test_a_file_in_the_way_is_one_clear_error(tmp_path):
    (tmp_path / "x").write_text("")
    for path in (tmp_path / "x", tmp_path / "x" / "y"):
        with pytest.raises(
            TraceFileError, match="can't be written to the folder '.*x.*there is a file in the way"
        ) as e:
            JsonWriter(path)
        assert isinstance(e.value, PolylibError) and isinstance(e.value, OSError) and "\n" not in str(e.value)


def test_an_unwritable_folder_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *a: False)  # root may write anywhere
    with pytest.raises(TraceFileError, match="can't be written to the folder '.*': Permission denied; give a folder"):
        JsonWriter(tmp_path)


def test_a_folder_that_went_away_is_one_clear_error(tmp_path):
    writer = JsonWriter(tmp_path / "x")
    (tmp_path / "x").rmdir()
    with pytest.raises(TraceFileError, match="can't be written to the folder '.*x': No such file"):
        writer.write(cartpole())


def test_an_address_is_refused():
    with pytest.raises(TraceFileError, match="'s3://bucket/x': traces are written to local folders"):
        JsonWriter("s3://bucket/x")


def test_bad_arguments_name_themselves(tmp_path):
    with pytest.raises(ConfigError, match="format='polylb'.*Did you mean 'polylib'"):
        JsonWriter(tmp_path, format="polylb")
    with pytest.raises(ConfigError, match="compress_columns='obs'"):
        JsonWriter(tmp_path, compress_columns="obs")
    with pytest.raises(ConfigError, match="on_error='ignore': expected 'raise' or 'warn'"):
        JsonWriter(tmp_path, on_error="ignore")
    with pytest.raises(TypeError, match="expected a SampleBatch or MultiAgentBatch to write, got dict"):
        JsonWriter(tmp_path).write({"obs": [1]})


def test_a_batch_that_cannot_be_recorded_leaves_no_trace(tmp_path):
    writer = JsonWriter(tmp_path)
    writer.write(cartpole())
    with pytest.raises(TraceFormatError, match="column 'infos'"):
        writer.write(SampleBatch(infos=np.array([object()])))
    writer.write(cartpole())
    assert len(list(JsonReader(tmp_path))) == 2


class FullDisk:
    """A file that takes some bytes and then has no room."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self.file.write(bytes(data[: min(self.room, 100)]))
        self.room -= taken
        return taken

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_is_one_clear_error_and_nothing_whole_is_lost(tmp_path):
    writer = JsonWriter(tmp_path)
    writer.write(cartpole(eps_id=0))
    real = writer._file
    writer._file = FullDisk(real, 350)
    for _ in range(2):
        with pytest.raises(TraceFileError, match="the disk is full: a record of .* the records before it are whole"):
            writer.write(cartpole(eps_id=1))
        assert len(lines(tmp_path)) == 1 and lines(tmp_path)[0].endswith("}")
    writer._file = real  # somebody made room
    writer.write(cartpole(eps_id=2))
    writer.close()
    assert [batch["eps_id"][0] for batch in JsonReader(tmp_path)] == [0, 2]


def test_on_a_full_disk_writing_goes_on_if_it_is_to(tmp_path, caplog):
    writer = JsonWriter(tmp_path, on_error="warn")
    writer.write(cartpole(eps_id=0))
    real = writer._file
    writer._file = FullDisk(real, 350)
    for _ in range(5):
        writer.write(cartpole(eps_id=1))
    assert writer.lost == 5
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == [f"record lost ({n} so far)" for n in (1, 2, 4)]
    assert all("the disk is full" in text for text in told)
    writer._file = real
    writer.write(cartpole(eps_id=2))
    with pytest.raises(TraceFormatError, match="column 'infos'"):  # no fault of the disk's
        writer.write(SampleBatch(infos=np.array([object()])))
    writer.close()
    assert [batch["eps_id"][0] for batch in JsonReader(tmp_path)] == [0, 2]


def test_without_a_file_writing_goes_on_too(tmp_path, caplog):
    writer = JsonWriter(tmp_path / "x", on_error="warn")
    (tmp_path / "x").rmdir()
    writer.write(cartpole())
    assert writer.lost == 1 and "No such file" in caplog.text
    (tmp_path / "x").mkdir()
    writer.write(cartpole(eps_id=4))
    assert [batch["eps_id"][0] for batch in JsonReader(tmp_path / "x")] == [4]


def run(code: str, *arguments: str, **options) -> subprocess.Popen:
    start = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
    command = [sys.executable, "-c", start + code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_a_limit_of_the_system_is_reported_alike(tmp_path):
    code = """
import resource, signal
from offline.batches import cartpole
from polylib.offline import JsonWriter, TraceFileError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
writer = JsonWriter(sys.argv[1])
try:
    for i in range(99):
        writer.write(cartpole(eps_id=i))
except TraceFileError as e:
    print(i, e)
"""
    process = run(code, str(tmp_path))
    out, error = process.communicate(timeout=60)
    assert "the disk is full" in out, error
    written = int(out.split()[0])
    assert written > 0 and len(lines(tmp_path)) == written
    assert len(list(JsonReader(tmp_path))) == written


def test_killed_while_writing_at_most_the_last_line_is_lost(tmp_path, caplog):
    code = """
from offline.batches import cartpole
from polylib.offline import JsonWriter
writer = JsonWriter(sys.argv[1], max_file_size=int(2e6), compress_columns=[])
batches = [cartpole(rows, eps_id=rows) for rows in (1, 200, 3000)]
print("ready", flush=True)
while True:
    for batch in batches:
        writer.write(batch)
"""
    rng = np.random.default_rng(0)
    for i in range(4):
        folder = tmp_path / str(i)
        process = run(code, str(folder))
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.02 + 0.2 * rng.random())
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        files = sorted(folder.iterdir(), key=lambda file: int(file.stem.rpartition("_")[2]))
        for file in files:
            found = file.read_bytes().split(b"\n")
            assert all(json.loads(line) for line in found[:-1])
            assert found[-1] == b"" or file == files[-1]
        caplog.clear()
        reader = JsonReader(folder)
        rows = [len(batch) for batch in reader]
        assert rows == ([1, 200, 3000] * len(rows))[: len(rows)] and rows
        assert len(caplog.records) == len(reader.skipped) <= 1
