"""Where traces lie: packed files, folders, patterns, and lines that are too long, too many or cut short."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path

import pytest
from offline.batches import cartpole, peak

from polylib.offline import JsonReader, TraceFileError, TraceFormatError, sources
from polylib.offline.json_format import encode_record


def record(eps_id: int) -> bytes:
    return encode_record(cartpole(eps_id=eps_id))


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def episodes(reader) -> list[int]:
    return [int(batch["eps_id"][0]) for batch in reader]


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# --- packed -----------------------------------------------------------------------------------------------------------


def test_a7_a_zip_is_read_in_memory_whatever_its_members_are_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_zip(tmp_path / "traces.zip", {"other/name.json": record(1) + record(2), "other/b_10.json": record(3)})
    before = listing(tmp_path)
    reader = JsonReader("traces.zip")
    assert episodes(reader) == [3, 1, 2] and listing(tmp_path) == before
    assert str(reader.files[0]) == str(tmp_path / "traces.zip" / "other" / "b_10.json")


def test_a_member_of_any_suffix_is_read_where_none_looks_like_traces(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"log": record(1), "__MACOSX/log": b"x", "dir/": b"", ".hidden": b"y"})
    assert episodes(JsonReader(path)) == [1]
    path = write_zip(tmp_path / "b.zip", {"README.txt": b"Hello", "x.json.gz": gzip.compress(record(2))})
    assert episodes(JsonReader(path)) == [2]


def test_a_members_line_is_named(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"m.json": record(1) + b'{"type": "SampleBatch", "obs": 3}\n'})
    reader = JsonReader(path)
    reader.next()
    with pytest.raises(TraceFormatError, match=f"{path}/m.json, line 2, column 'obs'"):
        reader.next()


def test_gz_files_are_read_alone_and_in_folders(tmp_path):
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(record(2) + record(3)))
    (tmp_path / "a.json").write_bytes(record(1))
    write_zip(tmp_path / "c.zip", {"x": record(4)})
    (tmp_path / "d.jsonl").write_bytes(record(5))
    for name in ("params.json", "result.json", ".hidden.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    assert episodes(JsonReader(tmp_path / "b.json.gz")) == [2, 3]
    assert episodes(JsonReader(tmp_path)) == [1, 2, 3, 4, 5]


DAMAGED = {
    "no zip": ("a.zip", b"PK not really"),
    "an empty zip": ("a.zip", b"PK\x05\x06" + bytes(18)),
    "no gz": ("a.json.gz", b"not packed at all"),
    "nothing": ("a.zip", b""),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_packed_files_are_one_clear_error(case, tmp_path):
    name, data = DAMAGED[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(TraceFileError, match=f"{tmp_path / name}") as e:
        JsonReader(tmp_path / name).next()
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name, suffix", [("x.json", ".gz"), ("x.GZ", ".gz"), ("y.json", ".zip")])
def test_a_packed_file_that_isnt_called_so_says_how_to_call_it(name, suffix, tmp_path):
    line = encode_record(cartpole(eps_id=1))
    if suffix == ".gz":
        (tmp_path / name).write_bytes(gzip.compress(line))
    else:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a.json", line)
    with pytest.raises(TraceFileError, match=f"{name}' is packed, .* end with {suffix}"):
        JsonReader(tmp_path / name).next()


def test_a_gz_that_is_cut_short_gives_what_it_has_then_an_error_then_the_next_file(tmp_path):
    data = gzip.compress(b"".join(record(i) for i in range(50)))
    (tmp_path / "a.json.gz").write_bytes(data[: len(data) // 2])
    (tmp_path / "b.json").write_bytes(record(77))
    reader = JsonReader(tmp_path)
    found = []
    with pytest.raises(TraceFileError, match="a.json.gz' can't be read after line .*ended before the end-of-stream"):
        for _ in range(50):
            found.append(int(reader.next()["eps_id"][0]))
    assert 10 < len(found) < 50 and found == list(range(len(found)))
    assert episodes([reader.next()]) == [77]


def test_a_damaged_zip_member_is_one_clear_error(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"m.json": b"".join(record(i) for i in range(50))})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    with pytest.raises((TraceFileError, TraceFormatError), match="a.zip/m.json"):
        JsonReader(path).read_all()


def test_an_encrypted_member_is_one_clear_error(tmp_path):
    path = write_zip(tmp_path / "a.zip", {"m.json": record(0)})
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(TraceFileError, match="a.zip/m.json' can't be read: .*(encrypted|password)"):
        JsonReader(path).next()


def test_names_in_a_zip_lead_nowhere(tmp_path):
    path = write_zip(tmp_path / "sub.zip", {"../../escaped.json": record(1), "/etc/x.json": record(2)})
    before = listing(tmp_path.parent)
    assert sorted(episodes(JsonReader(path))) == [1, 2] and listing(tmp_path.parent) == before


# --- bombs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setattr(sources, "MAX_PACKED_LINE", 1 << 20)
    monkeypatch.setattr(sources, "MAX_LINE", 1 << 21)


@pytest.mark.parametrize("name", ["a.json.gz", "a.zip", "a.json"])
def test_a_line_without_end_is_an_error_and_reading_goes_on_after_it(name, tmp_path, small_limits):
    data = b"x" * (1 << 23) + b"\n" + record(5)
    if name.endswith(".zip"):
        write_zip(tmp_path / name, {"m.json": data})
    else:
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    reader = JsonReader(tmp_path / name)
    limit = 1 << (21 if name == "a.json" else 20)
    with pytest.raises(TraceFormatError, match=f"line 1: longer than {limit} bytes"):
        reader.next()
    assert episodes([reader.next()]) == [5]


@pytest.mark.parametrize("name", ["a.json.gz", "a.zip"])
def test_a_packed_bomb_takes_no_memory(name, tmp_path, monkeypatch):
    """A line of 256 MB in 256 KB, and millions of blank lines."""
    monkeypatch.setattr(sources, "MAX_PACKED_LINE", 1 << 24)

    def write(data: bytes, times: int) -> None:
        if name == "a.json.gz":
            (tmp_path / name).write_bytes(gzip.compress(data) * times)  # gz files may stand one after another
        else:
            write_zip(tmp_path / name, {"m": data * times})

    def read() -> None:
        with pytest.raises(TraceFormatError, match="line 1: longer than 16777216 bytes, too much for a packed"):
            JsonReader(tmp_path / name).next()

    write(bytes(1 << 24), 16)
    assert (tmp_path / name).stat().st_size < 300_000 and peak(read) < 50 << 20
    write(b"\n" * (1 << 22), 1)
    with pytest.raises(TraceFileError, match="100001 blank lines, to line 100001"):
        JsonReader(tmp_path / name).next()


def test_a_file_of_something_else_ends_early(tmp_path, caplog):
    (tmp_path / "a.json").write_bytes(b"some text\n" * 5000 + record(1))
    reader = JsonReader(tmp_path)
    with pytest.raises(TraceFormatError, match="a.json, line 1000: the last 1000 lines weren't whole JSON"):
        reader.next()
    assert len(caplog.records) == 101 and len(reader.skipped) == 1000


# --- which files ------------------------------------------------------------------------------------------------------


def test_file_addresses_are_local(tmp_path):
    (tmp_path / "a.json").write_bytes(record(1))
    assert episodes(JsonReader(f"file://{tmp_path}/a.json")) == [1]


def test_a_pattern_over_packed_files(tmp_path):
    (tmp_path / "x").mkdir()
    write_zip(tmp_path / "x" / "a.zip", {"1": record(1), "2": record(2)})
    (tmp_path / "x" / "b.json.gz").write_bytes(gzip.compress(record(3)))
    assert episodes(JsonReader(f"{tmp_path}/**/*")) == [1, 2, 3]


def test_a_file_that_may_not_be_read_is_left_out_after_its_error(tmp_path, monkeypatch):
    for i, name in enumerate("abc"):
        (tmp_path / f"{name}.json").write_bytes(record(i))
    real = Path.open

    def refuse(self, *args, **kwargs):
        if self.name == "b.json":
            raise PermissionError(13, os.strerror(13))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)  # root may read anything
    reader = JsonReader(tmp_path)
    assert episodes([reader.next()]) == [0]
    with pytest.raises(TraceFileError, match="b.json' can't be read: Permission denied"):
        reader.next()
    assert episodes([reader.next()]) == [2]


@pytest.mark.parametrize("value", ["", "\0", 3, [1], [b"x"], None], ids=repr)
def test_what_is_no_path(value):
    with pytest.raises(TraceFileError, match="no traces to read: got .*, expected the path of a file or folder"):
        sources.find_files(value)


def test_a_name_that_no_file_can_have():
    with pytest.raises(TraceFileError, match="there is no file or folder '.*xxx'"):
        sources.find_files("x" * 300)


def test_a_device_is_not_read():
    with pytest.raises(TraceFileError, match="'/dev/zero' is a device, no file"):
        sources.find_files("/dev/zero")
