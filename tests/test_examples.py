"""Every example runs; a new one has to be listed here."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from modes import has

KERAS = {"custom_keras_model", "custom_keras_batchnorm", "custom_keras_q_network", "pretrained_keras_trunk"}
CUSTOM = {"custom_loss_tf", "custom_loss_torch", "custom_action_dist"}
EXAMPLES = Path(__file__).parents[1] / "examples"
PLAIN = {"getting_started", "callbacks_and_traces", "custom_env", "tune_sweep", "custom_torch_model", "offline"}
NAMES = {*PLAIN, *CUSTOM, *KERAS}


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_all_examples_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == NAMES


@pytest.mark.skipif(not (has("tf") and has("torch")), reason="needs both frameworks")
def test_getting_started(capsys):
    args = ["--framework", "tf", "--other", "torch", "--iterations", "1", "--batch", "400"]
    assert load("getting_started").main(args) >= 8
    out = capsys.readouterr().out
    assert "   400 steps" in out and "   800 steps" in out and "iteration=2" in out


def test_callbacks_and_traces(tmp_path, capsys):
    metrics = load("callbacks_and_traces").main(["--output", str(tmp_path), "--iterations", "1", "--batch", "200"])
    assert 0 < metrics["angle_min"] <= metrics["angle_mean"] <= metrics["angle_max"] < 0.3
    assert "SampleBatch(200:" in capsys.readouterr().out
    assert len(list(tmp_path.glob("output-*_worker-0_0.json"))) == 1


@pytest.mark.skipif(not has("torch") and not has("tf"), reason="needs a framework")
def test_offline(tmp_path, capsys):
    """Recorded in one framework, learnt in the other."""
    frameworks = ("torch" if has("torch") else "tf", "tf" if has("tf") else "torch")
    args = ["--traces", str(tmp_path), "--record", frameworks[0], "--learn", frameworks[1]]
    found = load("offline").main([*args, "--iterations", "1", "--batch", "1000"])
    assert set(found) == {"PPO", "BC", "DQN"} and min(found.values()) > 8
    out = capsys.readouterr().out
    assert "BC    10000 rows read" in out and "DQN    1000 rows read" in out


def test_custom_env_is_solved():
    """Five steps right: 4 times -0.1, then 1."""
    assert load("custom_env").main([]) == pytest.approx(0.6)


@pytest.mark.skipif(not has("torch") and not has("tf"), reason="needs a framework")
def test_tune_sweep(ray_session, tmp_path):
    lr = load("tune_sweep").main(["--iterations", "1", "--batch", "200", "--storage", str(tmp_path)])
    assert lr in (1e-3, 1e-4)


@pytest.fixture
def own_registry(monkeypatch):
    from polylib.algorithms import registry

    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.skipif(not has("tf"), reason="needs TensorFlow")
@pytest.mark.parametrize("mode", [["--framework", "tf"], ["--framework", "tf2"], ["--eager"]], ids="-".join)
def test_custom_loss_tf(mode, own_registry, capsys):
    """Only eagerly the loss prints, once per update."""
    args = ["--iterations", "2", "--batch", "200"]
    assert load("custom_loss_tf").main([*mode, *args]) > 8
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("loss ") for line in lines) == (2 if mode == ["--eager"] else 0)
    assert "   400 steps" in lines[-1] and "entropy" in lines[-1]


@pytest.mark.skipif(not has("torch"), reason="needs torch")
def test_custom_loss_torch(own_registry, capsys):
    assert load("custom_loss_torch").main(["--iterations", "2", "--batch", "200"]) > 8
    assert "   400 steps" in capsys.readouterr().out


@pytest.mark.parametrize("framework", ["tf2", "torch"])
@pytest.mark.parametrize("kind", ["ops", "library"])
def test_custom_action_dist(kind, framework, capsys):
    if not has("torch" if framework == "torch" else "tf"):
        pytest.skip(f"needs {framework}")
    if kind == "library" and framework == "tf2":
        pytest.importorskip("tensorflow_probability")
    main = load("custom_action_dist").main
    assert -12 < main(["--kind", kind, "--framework", framework, "--iterations", "1"]) < -1
    assert "it acts" in capsys.readouterr().out


@pytest.mark.skipif(not has("tf"), reason="tensorflow isn't installed")
@pytest.mark.parametrize("framework", ["tf", "tf2"])
def test_keras_models(framework, capsys):
    args = ["--framework", framework, "--iterations", "1", "--batch", "256"]
    assert load("custom_keras_model").main(args) > 5
    assert load("custom_keras_batchnorm").main(args).any()  # the statistics have moved
    assert load("pretrained_keras_trunk").main(args)
    assert "unchanged: policy/000/kernel" in capsys.readouterr().out
    values = load("custom_keras_q_network").main(["--framework", framework, "--iterations", "1", "--steps", "300"])
    assert values.shape == (2,) and values.min() > 0  # every step is worth 1
    assert "Total params: 4,610" in capsys.readouterr().out


@pytest.mark.skipif(not has("torch"), reason="torch isn't installed")
def test_torch_module(tmp_path, capsys):
    args = ["--iterations", "1", "--batch", "256", "--export", str(tmp_path)]
    assert load("custom_torch_model").main(args) > 5
    out = capsys.readouterr().out
    assert "BatchNorm1d(32" in out and "model.pt acts without polylib: [" in out
