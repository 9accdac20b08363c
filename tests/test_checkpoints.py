"""Checkpoint folders: round trips, crashes at every point, full disks, damaged and foreign folders, and no pickle."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from policies import make_spec

from polylib import checkpoints
from polylib.checkpoints import (
    HEADER,
    CheckpointError,
    checkpoint_folder,
    find,
    is_code,
    read_arrays,
    read_document,
    read_header,
    write_checkpoint,
)
from polylib.errors import ConfigTypeError, PolylibError
from polylib.json_values import dumps, loads
from polylib.policy.backends import make_policy
from polylib.policy.checkpoint import load_policy, save_policy

ROOT = Path(__file__).parents[1]


def write(path, number=1):
    """A small checkpoint that says `number` in each of its files."""
    return write_checkpoint(
        path,
        {"type": "Test", "number": number},
        {"config": {"number": number}, "deep/er/state": [number, "text", None, True, 0.1]},
        {"weights": {"a/kernel": np.full((2, 3), number, np.float32)}, "deep/er/empty": {}},
    )


def number_in(path):
    """The number that all files of a whole checkpoint agree on."""
    folder, header = find(path), read_header(path, "Test")
    numbers = {
        header["number"],
        read_document(folder, "config")["number"],
        read_document(folder, "deep/er/state")[0],
        *read_arrays(folder, "weights")["a/kernel"].ravel().tolist(),
    }
    assert read_arrays(folder, "deep/er/empty") == {}
    (number,) = numbers
    return number


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def policy_checkpoint(tmp_path_factory):
    """A real checkpoint, of a policy on NumPy."""
    policy = make_policy(make_spec(gamma=0.5), "numpy")
    policy.set_coefficients(lr=0.25)
    return save_policy(policy, tmp_path_factory.mktemp("policy") / "checkpoint", "PPO")


# --- round trips


def test_what_is_written_is_read(tmp_path):
    folder = write(tmp_path / "new" / "parents" / "checkpoint")
    assert folder == tmp_path / "new" / "parents" / "checkpoint" and number_in(folder) == 1
    assert names(folder) == ["config.json", "deep", HEADER, "weights.safetensors"]
    assert names(folder.parent) == ["checkpoint"], "nothing else is left"
    assert write(str(folder), 2) == folder and number_in(folder) == 2
    assert names(folder.parent) == ["checkpoint"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int8", "uint8", "uint16", "bool"])
def test_arrays_keep_their_bits(tmp_path, dtype):
    rng = np.random.default_rng(0)
    whole = (100 * rng.standard_normal((3, 4, 5))).astype(dtype)
    group = {
        "plain": whole,
        "part": whole[:, ::2].T,
        "scalar": np.array(1, dtype),
        "empty": np.zeros((0, 3), dtype),
        "big-endian": whole.astype(np.dtype(dtype).newbyteorder(">")),
    }
    if np.dtype(dtype).kind == "f":
        group["special"] = np.array([np.nan, np.inf, -np.inf, -0.0], dtype)
    folder = write_checkpoint(tmp_path / "c", {}, {}, {"x": group})
    read = read_arrays(folder, "x")
    assert set(read) == set(group)
    for key, array in group.items():
        assert read[key].dtype == dtype and read[key].shape == array.shape, key
        np.testing.assert_array_equal(read[key], array, err_msg=key)
        read[key][...] = 0  # its own memory, which may be written to


VALUES = [
    None,
    True,
    -3,
    2**100,
    0.1,
    1e300,
    math.inf,
    -math.inf,
    "ä\n\ud800",
    [1, [2.5, "x"], {}],
    (1, (2,), [3]),
    {"a": {"b": (1, 2)}},
    {1: "int", (2, 3): "tuple", None: 0},
    {"__tuple__": [1]},
    {"__callable__": "not code"},
    {"__odd__": 1, "x": 2},
    {},
    (),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_json_keeps_values_and_types(value):
    text = dumps({"value": value})
    read = loads(text)["value"]
    assert read == value and repr(read) == repr(value)
    json.loads(text, parse_constant=pytest.fail)  # strict JSON: no Infinity


def test_json_of_numpy_spaces_and_paths():
    array = np.array([[1.5, np.inf], [-0.0, 3]], np.float32)
    space = gym.spaces.Dict({"a": gym.spaces.Box(-np.inf, 1, (2,)), "b": gym.spaces.Discrete(3, start=1)})
    values = {"f": np.float32(0.1), "i": np.int64(3), "b": np.bool_(True), "a": array, "s": space, "p": Path("/x/y")}
    read = loads(dumps(values))
    assert (read["f"], read["i"], read["b"], read["p"]) == (float(np.float32(0.1)), 3, True, "/x/y")
    assert read["b"] is True and type(read["i"]) is int
    assert read["a"].dtype == np.float32
    np.testing.assert_array_equal(read["a"], array)
    assert read["s"] == space
    assert math.isnan(loads(dumps(math.nan)))


class Thing:
    """Nothing that JSON knows."""

    def method(self):
        """Nor this."""


def test_code_leaves_its_name_only():
    values = {"class": Thing, "method": Thing.method, "object": {1}, "lambda": [lambda: 0], "space": gym.spaces.Text(3)}
    read = loads(dumps(values))
    assert read["class"] == {"__callable__": f"{__name__}:Thing"}
    assert read["method"] == {"__callable__": f"{__name__}:Thing.method"}
    assert read["object"] == {"__object__": "{1}"}
    assert all(map(is_code, [read["class"], read["object"], read["lambda"][0], read["space"]]))
    assert not any(map(is_code, [{}, [], "x", {"a": 1}]))


@pytest.mark.parametrize(
    "text",
    [
        '{"__tuple__": 3}',
        '{"__items__": [[[1], 2]]}',
        '{"__float__": "x"}',
        '{"__array__": ["O", [1], [1]]}',
        '{"__array__": ["float32", [3], [1]]}',
        '{"__space__": {"type": "Box"}}',
        '{"a": ',
        "[" * 100_000,
        "",
    ],
    ids=lambda text: text[:20],
)
def test_json_that_was_not_written_here(text):
    with pytest.raises(ValueError):
        loads(text)


def test_values_that_contain_themselves(tmp_path):
    loop = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="contains itself"):
        write_checkpoint(tmp_path / "c", {}, {"x": loop}, {})
    assert names(tmp_path) == []


# --- crashes


class Crash(BaseException):
    """The process dies here: nothing after it is done, no cleaning up either."""


class Steps:
    """Counts calls that change the disk, and ends them at number `fatal`, before or after it is carried out."""

    def __init__(self, monkeypatch, fatal=None, error=None, after=False):
        self.count, self.fatal, self.error, self.after = 0, fatal, error, after
        for owner, name in [
            (os, "mkdir"),
            (os, "fsync"),
            (os, "rename"),
            (os, "unlink"),
            (os, "rmdir"),
            (checkpoints, "_write"),
            (shutil, "rmtree"),
        ]:
            function = getattr(owner, name) if name != "fsync" else lambda file: None  # it takes time
            monkeypatch.setattr(owner, name, self._counted(function))

    def _counted(self, function):
        def call(*args, **kwargs):
            if self.error is None and self.fatal is not None and self.count >= self.fatal:
                raise Crash  # dead already
            self.count += 1
            if self.count == self.fatal and not self.after:
                raise self.error or Crash
            result = function(*args, **kwargs)
            if self.count == self.fatal:
                raise self.error or Crash
            return result

        return call


@pytest.fixture
def steps():
    """A function: `steps(fatal, ...)` counts until the test calls it again."""
    made = []

    def start(**kwargs):
        stop()
        monkeypatch = pytest.MonkeyPatch()
        made.append(monkeypatch)
        return Steps(monkeypatch, **kwargs)

    def stop():
        while made:
            made.pop().undo()

    start.stop = stop
    yield start
    stop()


def how_many_steps(steps, path):
    counter = steps()
    write(path, 2)
    steps.stop()
    assert counter.count > 10
    return counter.count


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("crash_before", [False, True], ids=["clean", "leftovers"])
def test_a_crash_at_any_step_leaves_the_last_one_whole(tmp_path, steps, after, crash_before):
    total = how_many_steps(steps, write(tmp_path / "count" / "c"))
    seen = set()
    for fatal in range(1, total + 1):
        folder = write(tmp_path / str(fatal) / "c", 1)
        if crash_before:  # what an earlier crash leaves between the two renames
            folder.rename(folder.with_name(".c.previous"))
            (folder.parent / ".c.unfinished-dead").mkdir()
            (folder.parent / ".c.unfinished-dead" / HEADER).write_text("{}")
        steps(fatal=fatal, after=after)
        try:
            write(folder, 2)
        except Crash:
            pass
        steps.stop()
        seen.add(number_in(folder))
        # and the next one can be written, and cleans up
        write(folder, 3)
        assert number_in(folder) == 3 and names(folder.parent) == ["c"]
    assert seen == {1, 2}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_an_error_at_any_step_is_one_line_and_leaves_the_last_one(tmp_path, steps, code):
    """A disk that is full, broken, or not ours."""
    total = how_many_steps(steps, write(tmp_path / "count" / "c"))
    failed = 0
    for fatal in range(1, total + 1):
        folder = write(tmp_path / str(fatal) / "c", 1)
        steps(fatal=fatal, error=OSError(code, os.strerror(code)))
        try:
            write(folder, 2)
            steps.stop()
            assert number_in(folder) == 2  # an error while tidying up changes nothing
        except CheckpointError as error:
            steps.stop()
            failed += 1
            assert str(error) == f"can't write checkpoint {folder}: {os.strerror(code)}"
            assert number_in(folder) == 1
        write(folder, 3)
        assert number_in(folder) == 3 and names(folder.parent) == ["c"]
    assert failed >= 10


def test_an_error_leaves_nothing_behind(tmp_path, monkeypatch):
    folder = write(tmp_path / "c")

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(folder, 2)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write(tmp_path / "new", 2)
    assert names(tmp_path) == ["c"] and number_in(folder) == 1


def test_ctrl_c_in_the_middle_of_the_swap(tmp_path, monkeypatch):
    folder, rename = write(tmp_path / "c"), os.rename

    def interrupted(source, target, **kwargs):
        if "unfinished" in str(source):
            raise KeyboardInterrupt
        rename(source, target, **kwargs)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(folder, 2)
    monkeypatch.undo()
    assert names(tmp_path) == ["c"] and number_in(folder) == 1


def test_what_remains_of_a_removed_checkpoint_is_none(tmp_path, monkeypatch):
    """A crash while the previous one is being removed; later somebody removes the checkpoint itself."""
    folder = write(tmp_path / "c")
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
    write(folder, 2)
    monkeypatch.undo()
    assert names(tmp_path) == [".c.previous", "c"]
    shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="no such folder"):
        find(folder)


def test_readers_fall_back_to_the_previous_one(tmp_path):
    folder = write(tmp_path / "c", 1)
    folder.rename(tmp_path / ".c.previous")
    assert find(folder) == tmp_path / ".c.previous" and number_in(folder) == 1
    folder.mkdir()  # Tune makes the folder before anything is written
    assert number_in(folder) == 1
    write(folder, 2)
    assert number_in(folder) == 2 and names(tmp_path) == ["c"]


def test_names_with_wildcards(tmp_path):
    (tmp_path / ".run[1]*.unfinished-dead").mkdir()
    (tmp_path / ".run1x.unfinished-somebody-elses").mkdir()
    write(tmp_path / "run[1]*")
    assert names(tmp_path) == [".run1x.unfinished-somebody-elses", "run[1]*"]


def test_a_link_to_a_folder_stays_one(tmp_path):
    (tmp_path / "big-disk" / "c").mkdir(parents=True)
    (tmp_path / "latest").symlink_to(tmp_path / "big-disk" / "c")
    for number in (1, 2, 3):
        write(tmp_path / "latest", number)
        assert number_in(tmp_path / "latest") == number_in(tmp_path / "big-disk" / "c") == number
    assert (tmp_path / "latest").is_symlink() and names(tmp_path / "big-disk") == ["c"]
    (tmp_path / "big-disk" / "c").rename(tmp_path / "big-disk" / ".c.previous")
    assert number_in(tmp_path / "latest") == 3


KILLED = """
import os, random, signal, sys, time
import numpy as np
from polylib.policy.backends import make_policy
from polylib.policy.checkpoint import load_policy, save_policy
from policies import make_spec

folder, rng = sys.argv[1], random.Random(0)
policy = make_policy(make_spec(), "numpy")

def save(number):
    policy.num_updates = number
    policy.set_weights({key: np.full_like(value, number) for key, value in policy.get_weights().items()})
    save_policy(policy, folder, "PPO")

save(1)
last, torn = 1, 0
for kill in range(50):
    pid = os.fork()
    if not pid:
        number = last
        while True:
            number += 1
            save(number)
    time.sleep(rng.uniform(0, 0.06))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    torn += len(os.listdir(os.path.dirname(folder))) > 1
    loaded = load_policy(folder)
    assert loaded.num_updates >= last, (loaded.num_updates, last)
    last = loaded.num_updates
    assert all((value == last).all() for value in loaded.get_weights().values()), (kill, last)
assert not {"tensorflow", "torch", "ray"} & set(sys.modules)
print(torn, last)
"""


def test_kill_9_at_50_random_moments(tmp_path):
    """Whole after each of them, with one number in all files that never falls."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "checkpoint"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    torn, last = map(int, done.stdout.split())
    assert torn >= 20, "most kills should come in the middle of saving"
    assert last >= 20 and time.monotonic() - start < 60


# --- folders that can't be written to


def test_a_target_that_holds_something_else(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    (tmp_path / "file").write_text("text")
    for name in ("photos", "file"):
        with pytest.raises(CheckpointError) as caught:
            write(tmp_path / name)
        expected = f"{tmp_path / name} exists and is no polylib checkpoint: choose another folder, or remove it"
        assert str(caught.value) == expected
    assert (tmp_path / "photos" / "cat.jpg").read_text() == "meow" and (tmp_path / "file").read_text() == "text"
    (tmp_path / "empty").mkdir()
    assert number_in(write(tmp_path / "empty")) == 1


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(CheckpointError) as caught:
        write(tmp_path / "file" / "c")
    assert str(caught.value) == f"can't write checkpoint {tmp_path / 'file' / 'c'}: File exists"
    with pytest.raises(CheckpointError, match="Not a directory|no such folder"):
        find(tmp_path / "file" / "c")


def test_a_folder_without_permission(tmp_path, monkeypatch):
    folder, mkdir = write(tmp_path / "c"), os.mkdir

    def refuse(path, *args, **kwargs):
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(CheckpointError) as caught:
        write(folder, 2)
    assert str(caught.value) == f"can't write checkpoint {folder}: Permission denied"
    assert names(tmp_path) == ["c"] and number_in(folder) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_real_folder_without_permission(tmp_path):
    folder = write(tmp_path / "c")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="Permission denied"):
            write(folder, 2)
        assert number_in(folder) == 1
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be_looked_into(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    folder = write(tmp_path / "c")
    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(CheckpointError) as caught:
        find(folder)
    assert str(caught.value) == f"can't read checkpoint {folder}: Permission denied"


# --- folders that can't be read


def test_missing_and_foreign_folders(tmp_path):
    def message(path):
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert message(tmp_path / "none") == f"there is no checkpoint {tmp_path / 'none'}: no such folder"
    (tmp_path / "empty").mkdir()
    assert message(tmp_path / "empty") == f"{tmp_path / 'empty'} is no polylib checkpoint: it has no {HEADER}"
    for name in ("checkpoint_000002", "checkpoint_000001"):
        write(tmp_path / "run" / name)
    assert message(tmp_path / "run").endswith("; it has checkpoints inside: checkpoint_000001, checkpoint_000002")
    rllib = tmp_path / "rllib"
    rllib.mkdir()
    (rllib / "rllib_checkpoint.json").write_text('{"type": "Algorithm", "checkpoint_version": "1.1"}')
    (rllib / "algorithm_state.pkl").write_bytes(bomb(tmp_path))
    assert message(rllib) == f"{rllib} is an RLlib checkpoint: its files are pickles, which polylib never opens"
    (tmp_path / "file").write_text("text")
    assert "is no polylib checkpoint" in message(tmp_path / "file")
    assert not (tmp_path / "boom").exists()


def test_versions_and_types(tmp_path):
    folder = write(tmp_path / "c")

    def change(**values):
        (folder / HEADER).write_text(json.dumps({**json.loads((folder / HEADER).read_text()), **values}))

    change(checkpoint_version="1.9")
    assert number_in(folder) == 1, "a newer version of the same format has more in it, no less"
    with pytest.raises(CheckpointError, match="is a checkpoint of type 'Test', expected 'Algorithm'"):
        read_header(folder, "Algorithm")
    for version, said in (("2.0", "2.0"), (None, "None"), (["1"], "\\['1'\\]"), ("", "")):
        change(checkpoint_version=version)
        with pytest.raises(CheckpointError, match=f"{HEADER}: checkpoint_version is {said}, this polylib reads 1.0"):
            read_header(folder)


GARBAGE = {
    "missing": None,
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "null": b"null",
    "list": b"[]",
    "object": b"{}",
    "number": b"1e999",
    "text": b'"text"',
    "deep": b"[" * 50_000,
    "tagged": b'{"__space__": 1}',
}


def damaged(file):
    """Every way of damaging a file, each time with the file's own content to be restored."""
    whole = file.read_bytes()
    for kind, data in GARBAGE.items():
        if data is None:
            file.unlink()
        else:
            file.write_bytes(data)
        yield kind
        file.write_bytes(whole)
    for part in (0.1, 0.5, 0.9):
        file.write_bytes(whole[: int(part * len(whole))])
        yield f"first {part}"
    file.write_bytes(whole[:-3])
    yield "all but three bytes"
    file.write_bytes(whole)


def test_every_file_damaged_in_turn(policy_checkpoint, tmp_path):
    folder = Path(shutil.copytree(policy_checkpoint, tmp_path / "c"))
    files = sorted(folder.iterdir())
    assert names(folder) == ["config.json", "optimizer.safetensors", "policy_state.json", HEADER, "weights.safetensors"]
    for file in files:
        for kind in damaged(file):
            with pytest.raises(CheckpointError) as caught:
                load_policy(folder)
            message = str(caught.value)
            assert "\n" not in message and str(folder) in message, (file.name, kind, message)
            if (file.name, kind) == ("config.json", "object"):  # nothing but defaults
                assert "has shape [3, 8], this policy's [3, 256]" in message
            else:
                assert file.stem in message or "header" in message, (file.name, kind, message)
    load_policy(folder)


def test_flipped_bits_in_arrays(policy_checkpoint, tmp_path):
    folder = Path(shutil.copytree(policy_checkpoint, tmp_path / "c"))
    file = folder / "weights.safetensors"
    whole = file.read_bytes()
    for position in (-1, len(whole) // 2, 3, 40):
        data = bytearray(whole)
        data[position] ^= 1
        file.write_bytes(data)
        with pytest.raises(CheckpointError, match="weights.safetensors is damaged"):
            load_policy(folder)
    shutil.copy(folder / "optimizer.safetensors", file)
    with pytest.raises(CheckpointError, match="weights.safetensors is damaged: its checksum"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("policy_state", "rng", {"bit_generator": "PCG64"}, "KeyError: 'state'"),
        ("policy_state", "rng", None, "TypeError"),
        ("policy_state", "num_updates", "many", "ValueError"),
        ("policy_state", "coefficients", [1], "no coefficient 1"),
        ("policy_state", "coefficients", 3, "TypeError: 'int'"),
        ("policy_state", "coefficients", {"lrr": 1}, "no coefficient 'lrr'"),
        ("policy_state", "coefficients", {"lr": "fast"}, "ValueError"),
        ("config", "lr", "fast", "'lr'"),
        ("config", "lrr", 1, "'lrr'"),
        ("config", "model", {"fcnet_hiddens": [9]}, "shape"),
        ("polylib_checkpoint", "action_space", {"type": "Discrete", "n": 7, "start": 0, "dtype": "int64"}, "shape"),
        ("polylib_checkpoint", "action_space", {"type": "Sphere"}, "unknown type 'Sphere'"),
        ("polylib_checkpoint", "action_space", {"type": "Discrete", "n": -1}, "not a space"),
        ("polylib_checkpoint", "observation_space", None, "not a space: None"),
        ("polylib_checkpoint", "algorithm", "PPOO", "'PPOO'.*'PPO'"),
        ("polylib_checkpoint", "algorithm", None, "'None'"),
        ("polylib_checkpoint", "type", "Other", "type 'Other'"),
        ("polylib_checkpoint", "type", "Algorithm", "policies"),
    ],
)
def test_values_that_do_not_fit(policy_checkpoint, tmp_path, name, key, value, said):
    folder = Path(shutil.copytree(policy_checkpoint, tmp_path / "c"))
    document = json.loads((folder / f"{name}.json").read_text())
    (folder / f"{name}.json").write_text(json.dumps({**document, key: value}))
    with pytest.raises(CheckpointError, match=said) as caught:
        load_policy(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_keys_that_are_missing(policy_checkpoint, tmp_path):
    folder = Path(shutil.copytree(policy_checkpoint, tmp_path / "c"))
    for name in ("policy_state", "polylib_checkpoint"):
        file = folder / f"{name}.json"
        whole = json.loads(file.read_text())
        for key in whole:
            # Not needed to load for NumPy, or of policies that have nothing to say there.
            if key in ("framework", "checksums", "filter", "exploration"):
                continue
            file.write_text(json.dumps({k: v for k, v in whole.items() if k != key}))
            with pytest.raises(CheckpointError, match=str(folder)):
                load_policy(folder)
        file.write_text(json.dumps(whole))
    load_policy(folder)


def test_a_policy_that_does_not_fit_stays_as_it_was(policy_checkpoint):
    policy = make_policy(make_spec(seed=3), "numpy")
    state = make_policy(make_spec(seed=4), "numpy").get_state()
    for wrong in ({"rng": {}}, {"coefficients": {"lrr": 1}}, {"num_updates": "x"}, {"weights": {}}, {"optimizer": {}}):
        before = policy.get_state()
        with pytest.raises((PolylibError, KeyError, ValueError, TypeError)):
            policy.set_state({**state, **wrong})
        after = policy.get_state()
        assert dumps(before) == dumps(after), wrong


# --- what a checkpoint may be given as


def test_checkpoint_folder(tmp_path):
    class Result:
        checkpoint = Path("/x/y")

    class TuneCheckpoint:
        path = "/x/z"

    class Nested:
        checkpoint = TuneCheckpoint

    assert [checkpoint_folder(x) for x in ("a", Path("b"), Result, TuneCheckpoint, Nested)] == [
        "a", "b", "/x/y", "/x/z", "/x/z",
    ]
    for wrong in (3, None, Thing()):
        with pytest.raises(ConfigTypeError, match="a checkpoint must be a folder or what save\\(\\) returned, got"):
            checkpoint_folder(wrong)


# --- pickles


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path / "boom"),)


def bomb(path):
    """A pickle that makes the folder `boom` when it is read."""
    return pickle.dumps(Bomb(path))


def test_a_bomb_goes_off(tmp_path):
    with pytest.raises(TypeError):
        pickle.loads(bomb(tmp_path))["x"]
    assert (tmp_path / "boom").exists()


def test_nothing_is_unpickled(policy_checkpoint, tmp_path, monkeypatch):
    folder = Path(shutil.copytree(policy_checkpoint, tmp_path / "c"))
    for name in ("_dict_checkpoint.pkl", "algorithm_state.pkl", "policy_state.pkl", "config.pkl", ".tune_metadata",
                 "weights.npy", "optimizer.npz", "dict_checkpoint.pkl", "params.pkl", "weights.pt"):
        (folder / name).write_bytes(bomb(tmp_path))

    def refuse(*args, **kwargs):
        raise AssertionError("unpickles")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    assert load_policy(folder).coefficients["lr"] == 0.25
    for file in ("weights.safetensors", "optimizer.safetensors", "config.json", "policy_state.json", HEADER):
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(bomb(tmp_path))
        with pytest.raises(CheckpointError, match=f"{Path(file).stem}.*damaged"):
            load_policy(folder)
        (folder / file).write_bytes(whole)
    monkeypatch.undo()
    assert not (tmp_path / "boom").exists()
