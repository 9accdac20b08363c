"""`polylib export`: every format from a checkpoint of every framework, and what it says when that can't be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from backends import needs_tf, needs_torch
from fakes import small_ppo
from modes import has

import polylib
from polylib.policy.export import FORMATS

ROOT = Path(__file__).resolve().parents[2]


def tiny_torch(obs_space, action_space, outputs):
    from torch import nn

    return nn.Linear(obs_space.shape[0], outputs["logits"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """`saved(framework, **model)`: a checkpoint."""
    made = {}

    def save(framework, **model):
        key = (framework, *model)
        if key not in made:
            with small_ppo("CartPole-v1", (framework, False), seed=1, model=model).build() as algo:
                made[key] = tmp_path_factory.mktemp(framework) / "checkpoint_000001"
                algo.save(str(made[key]))
        return str(made[key])

    return save


@pytest.fixture
def checkpoint(saved):
    """Some checkpoint."""
    return saved("torch" if has("torch") else "tf2")


@pytest.mark.parametrize("source", ["tf", "torch"])
@pytest.mark.parametrize("form", [name for name in FORMATS if name != "onnx"])
def test_any_format_from_any_framework(call, saved, tmp_path, source, form):
    if not (has(source) and has(FORMATS[form].framework)):
        pytest.skip("its framework isn't installed")
    outcome = call("export", saved(source), "--format", form, "--out", str(tmp_path / "out"), "--algo", "PPO")
    assert outcome.status == 0 and outcome.err == ""
    path = tmp_path / "out" / FORMATS[form].file
    assert outcome.out == f"{path}\n" and path.exists()
    description = json.loads(Path(f"{path}.json").read_text())
    assert description["format"] == form and [item["name"] for item in description["inputs"]] == ["obs"]


@needs_torch
def test_what_it_writes_acts_as_the_checkpoint(call, saved, tmp_path):
    import torch

    path = saved("torch")
    assert call("export", path, "-f", "torchscript", "-o", str(tmp_path)).status == 0
    obs = np.random.default_rng(0).uniform(-1, 1, (100, 4)).astype(np.float32)
    expected = polylib.load_policy(path).compute_actions(obs, explore=False).actions
    out = torch.jit.load(str(tmp_path / "model.pt"))({"obs": torch.from_numpy(obs)})
    assert (out["actions"].numpy() == expected).all()


@needs_torch
def test_the_algorithm_exports_too(tmp_path):
    with small_ppo("CartPole-v1", ("torch", False)).build() as algo:
        assert algo.export_policy_model(str(tmp_path), format="torchscript") == str(tmp_path / "model.pt")
        assert algo.export_policy_model(str(tmp_path / "more")) == str(tmp_path / "more" / "model.pt2")


@needs_torch
def test_a_users_model_has_to_be_named(call, saved, tmp_path):
    path = saved("torch", custom_model=tiny_torch)
    name = f"{tiny_torch.__module__}:tiny_torch"
    outcome = call("export", path, "-f", "torchscript", "-o", str(tmp_path))
    assert outcome.status == 2 and outcome.error.endswith(f"which is run only if you say so: use --model {name}")
    outcome = call("export", path, "-f", "torchscript", "-o", str(tmp_path), "--model", name)
    assert outcome.status == 0 and (tmp_path / "model.pt").exists()
    outcome = call("export", path, "-f", "keras", "-o", str(tmp_path), "--model", name)
    if has("tf"):
        assert outcome.status == 1
        assert outcome.error.endswith(
            "custom_model runs in torch only: choose one of torchscript, torch_export, onnx"
        )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "which checkpoint? none was given, expected one folder: polylib export CHECKPOINT --format onnx"),
        (["a", "b", "-f", "keras"], "which checkpoint? got 'a b', expected one folder"),
        (["a"], "which format? Use --format NAME, one of keras, saved_model, torchscript, torch_export, onnx"),
        (["a", "--format", "onx"], "torch_export, onnx. Did you mean 'onnx'?"),
        (["a", "--format", "keras", "--opset", "17"], "--opset: it is for --format onnx, not keras"),
        (["a", "--format", "onnx", "--opset", "0"], "flag --opset=0: expected an integer >= 1"),
        (["a", "--fromat", "onnx"], "unknown flag '--fromat'. Did you mean '--format'? See --help"),
        (["nowhere", "--format", "keras"], "nowhere"),
    ],
)
def test_wrong_command_lines(call, argv, message):
    outcome = call("export", *argv)
    assert outcome.status == 2 and outcome.out == "" and message in outcome.error


def test_wrong_for_this_checkpoint(call, checkpoint, tmp_path):
    out = ["--out", str(tmp_path / "out"), "-f", "torchscript" if has("torch") else "keras"]
    outcome = call("export", checkpoint, "--algo", "DQN", *out)
    assert outcome.status == 2 and f"--algo DQN: {checkpoint} is a checkpoint of PPO" in outcome.error
    outcome = call("export", checkpoint, "--policy", "other", *out)
    assert outcome.status == 2 and "got policy_id='other'" in outcome.error
    (tmp_path / "out").write_text("in the way")
    outcome = call("export", checkpoint, *out)
    assert outcome.status == 1 and "can't write to" in outcome.error


@pytest.mark.parametrize(("form", "extra"), [("onnx", "torch"), ("keras", "tf")])
def test_a_missing_framework_is_named(call, checkpoint, tmp_path, block_import, form, extra):
    block_import("torch" if extra == "torch" else "tensorflow")
    outcome = call("export", checkpoint, "-f", form, "-o", str(tmp_path))
    assert outcome.status == 2 and f"pip install 'polylib[{extra}]'" in outcome.error


def test_help(call):
    outcome = call("export", "--help")
    assert outcome.status == 0 and outcome.err == ""
    assert all(name in outcome.out for name in (*FORMATS, "--opset", "--model", "Exit status"))
    assert "export" in call("--help").out


def test_mistakes_load_no_framework():
    code = (
        "import sys; from polylib.cli.main import main; status = main(['export', 'nowhere', '-f', 'onnx']); "
        "loaded = [n for n in ('tensorflow', 'keras', 'torch', 'ray') if n in sys.modules]; print(status, loaded)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "2 []\n", done.stderr


@needs_tf
def test_the_script_prints_a_path_and_nothing_else(saved, tmp_path):
    """Neither TensorFlow nor absl has anything to say."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bin" / "export"), saved("tf2"), "-f", "saved_model", "-o", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(tmp_path, done.stdout.strip()).resolve() == (tmp_path / "out" / "saved_model").resolve()


