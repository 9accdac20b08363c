"""Traces on other machines: an HTTP server on this one, and drivers that aren't there."""

from __future__ import annotations

import functools
import gzip
import http.server
import importlib.util
import socket
import threading
import zipfile

import pytest
from offline.batches import cartpole

from polylib.offline import JsonReader, TraceFileError, sources
from polylib.offline.json_format import encode_record
from polylib.offline.sources import RemoteFile, find_files

needs_http = pytest.mark.skipif(importlib.util.find_spec("aiohttp") is None, reason="needs aiohttp")


def record(eps_id: int) -> bytes:
    return encode_record(cartpole(eps_id=eps_id))


def episodes(reader) -> list[int]:
    return [int(batch["eps_id"][0]) for batch in reader]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path):
    """The address of a server that shows a folder, which it returns too."""
    folder = tmp_path / "served"
    folder.mkdir()
    for i in (1, 2, 10):
        (folder / f"a_{i}.json").write_bytes(record(i) + record(100 + i))
    (folder / "b.json.gz").write_bytes(gzip.compress(record(20)))
    with zipfile.ZipFile(folder / "c.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("other.json", record(30))
    (folder / "notes.txt").write_text("no trace")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}", folder
        found.shutdown()
        thread.join()


@needs_http
def test_files_patterns_and_folders_of_a_server(server):
    url, _ = server
    assert episodes(JsonReader(f"{url}/a_2.json")) == [2, 102]
    assert episodes(JsonReader(f"{url}/b.json.gz")) == [20]
    assert episodes(JsonReader(f"{url}/c.zip")) == [30]
    assert episodes(JsonReader(f"{url}/a_*.json")) == [1, 101, 2, 102, 10, 110]
    assert episodes(JsonReader(f"{url}/")) == [1, 101, 2, 102, 10, 110, 20, 30]
    assert episodes(JsonReader([f"{url}/b.json.gz", f"{url}/a_1.json"])) == [20, 1, 101]


@needs_http
def test_a_zip_of_a_server_is_fetched_once_for_all_members(server, monkeypatch):
    url, folder = server
    with zipfile.ZipFile(folder / "many.zip", "w") as file:
        for i in range(20):
            file.writestr(f"{i}.json", record(i))
    fetched = []
    real = Quiet.do_GET
    monkeypatch.setattr(Quiet, "do_GET", lambda self: (fetched.append(self.path), real(self)))
    assert episodes(JsonReader(f"{url}/many.zip")) == list(range(20))
    assert len(fetched) <= 2  # for the names of the members, and for the members


@needs_http
def test_reading_goes_on_in_the_middle_of_a_remote_file(server):
    url, _ = server
    reader = JsonReader(f"{url}/a_*.json")
    assert episodes(reader.next() for _ in range(3)) == [1, 101, 2]
    other = JsonReader(f"{url}/a_*.json")
    assert other.set_state(reader.get_state())
    assert episodes([other.next()]) == [102]


@needs_http
def test_what_a_server_lacks_is_one_clear_error(server):
    url, folder = server
    with pytest.raises(TraceFileError, match=f"'{url}/nowhere.json' can't be read: there is no such file"):
        JsonReader(f"{url}/nowhere.json").next()
    with pytest.raises(TraceFileError, match=f"no file matches '{url}/z_.*.json'"):
        JsonReader(f"{url}/z_*.json")
    (folder / "bad.zip").write_text("no zip")
    with pytest.raises(TraceFileError, match=f"'{url}/bad.zip' can't be read: .*not a zip"):
        JsonReader(f"{url}/bad.zip")


@needs_http
def test_a_server_that_is_not_there_is_one_clear_error():
    with pytest.raises(TraceFileError, match="'http://127.0.0.1:9/x.json' can't be read: ") as e:
        JsonReader("http://127.0.0.1:9/x.json").next()
    assert "\n" not in str(e.value)


@needs_http
def test_lines_of_a_server_are_no_longer_than_those_of_packed_files(server, monkeypatch):
    url, folder = server
    (folder / "long.json").write_bytes(b"x" * 300_000 + b"\n" + record(7))
    monkeypatch.setattr(sources, "MAX_PACKED_LINE", 1 << 16)
    reader = JsonReader(f"{url}/long.json")
    with pytest.raises(ValueError, match=f"{url}/long.json, line 1: longer than 65536 bytes"):
        reader.next()
    assert episodes([reader.next()]) == [7]


@needs_http
def test_a_large_zip_of_a_server_is_refused(server, monkeypatch):
    url, _ = server
    monkeypatch.setattr(sources, "MAX_REMOTE_ZIP", 100)
    with pytest.raises(TraceFileError, match="c.zip' has more than .*: download it first"):
        JsonReader(f"{url}/c.zip")


@pytest.mark.parametrize(
    "url, package", [("s3://bucket/x.json", "s3fs"), ("gs://bucket/*.json", "gcsfs"), ("abfs://c/x", "adlfs")]
)
def test_a_missing_driver_is_one_line_that_names_the_package(url, package, block_import):
    block_import(package)
    with pytest.raises(TraceFileError, match=f"reading {url[:2]}.* needs the package '{package}'.*: pip install") as e:
        JsonReader(url)
    assert "\n" not in str(e.value) and url in str(e.value)


def test_without_aiohttp_an_http_address_names_it(block_import, monkeypatch):
    from fsspec.registry import _registry

    monkeypatch.delitem(_registry, "http", raising=False)  # the driver, if a test has loaded it
    block_import("aiohttp", "fsspec.implementations.http")
    with pytest.raises(TraceFileError, match="reading http:// needs the package 'aiohttp'.*: pip install aiohttp"):
        JsonReader("http://localhost/x.json").next()


def test_an_unknown_scheme_is_one_clear_error():
    with pytest.raises(TraceFileError, match="'nope://x/y.json' can't be read: .*nope"):
        JsonReader("nope://x/y.json").next()


def test_any_file_system_of_fsspecs_can_be_read():
    import fsspec

    system = fsspec.filesystem("memory")
    for i in range(3):
        system.pipe(f"/polylib-test/deep/{i}.json", record(i))
    try:
        assert episodes(JsonReader("memory://polylib-test/**/*.json")) == [0, 1, 2]
        assert episodes(JsonReader("memory://polylib-test/deep")) == [0, 1, 2]
        assert find_files("memory://polylib-test/deep/1.json") == [RemoteFile("memory://polylib-test/deep/1.json")]
    finally:
        system.rm("/polylib-test", recursive=True)


def test_a_password_or_a_signature_in_an_address_is_not_told():
    assert str(RemoteFile("https://me:secret@host/x.json?Signature=abc")) == "https://host/x.json"
    assert str(RemoteFile("s3://bucket/what?.json")) == "s3://bucket/what?.json"


@needs_http
def test_signed_addresses_are_files(server):
    url, _ = server
    for name, ids in (("a_2.json", [2, 102]), ("b.json.gz", [20]), ("c.zip", [30])):
        assert episodes(JsonReader(f"{url}/{name}?Signature=abc&x=1")) == ids
    with pytest.raises(TraceFileError, match=f"'{url}/nowhere' can't be read: there is no such file$"):
        JsonReader(f"{url}/nowhere?Signature=abc").next()


@needs_http
def test_a_server_that_is_not_there_is_not_taken_for_a_missing_file():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{free.getsockname()[1]}/a.json"
        with pytest.raises(TraceFileError, match="can't be read: .*onnect"):
            JsonReader(url).read_all()
