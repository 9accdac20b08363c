"""Exported models, loaded in a process that can't import polylib, act as the policy does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from backends import needs_tf, needs_torch
from modes import MODE_IDS, MODES, has
from networks import spread
from policies import TORQUE, make

from polylib.algorithms.registry import get_config_class
from polylib.errors import ConfigError, ExportError, FrameworkError
from polylib.models.distributions import framework_distribution
from polylib.models.spaces import flatten, leaves, unflatten
from polylib.policy.export import FORMATS
from polylib.policy.testing import sample_space

S = gym.spaces
MODE = dict(zip(MODE_IDS, MODES, strict=True))
HAS_ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not (HAS_ONNX and has("torch")), reason="onnx, onnxscript or onnxruntime is missing")
ROWS = 100

MIXED = S.Dict(
    {
        "camera": S.Box(0, 255, (20, 20, 3), np.uint8),
        "arm": S.Tuple((S.Box(-1.0, 1.0, (2, 2), np.float64), S.Discrete(4, start=2))),
        "gear": S.MultiDiscrete([2, 3]),
        "on": S.MultiBinary(3),
        "action_mask": S.MultiBinary(5),
    }
)
TWO = S.MultiDiscrete([2, 3])
PARTS = S.Dict({"move": TORQUE, "turn": S.Discrete(3, start=-1), "keys": S.MultiBinary(2), "two": TWO})
MEMORY = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "lstm_cell_size": 6}
ATTENTION = {
    **{"use_attention": True, "attention_dim": 8, "attention_num_heads": 2, "attention_head_dim": 4},
    **{"attention_memory_inference": 3, "attention_memory_training": 3},
}


def keras_model(obs_space, action_space, outputs):
    import keras

    x = keras.Input(obs_space.shape, name="seen")
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(7, "tanh")(x))
    return keras.Model(x, keras.layers.Dense(outputs["logits"])(hidden))


def keras_memory(obs_space, action_space, outputs):
    import keras

    x, state = keras.Input(obs_space.shape, name="obs"), keras.Input((5,), name="state_0")
    step = keras.layers.Reshape((1, *obs_space.shape))(x)
    hidden, new = keras.layers.GRU(5, return_state=True)(step, initial_state=state)
    heads = {name: keras.layers.Dense(width)(hidden) for name, width in outputs.items()}
    return keras.Model({"obs": x, "state_0": state}, {**heads, "state_out_0": new})


def torch_model(obs_space, action_space, outputs):
    from torch import nn

    first, last = nn.Linear(obs_space.shape[0], 7), nn.Linear(7, outputs["logits"])
    return nn.Sequential(first, nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(), last)


def torch_memory(obs_space, action_space, outputs):
    import torch
    from torch import nn

    class Memory(nn.Module):
        state_shapes = [(5,)]

        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(obs_space.shape[0], 5)
            self.heads = nn.ModuleDict({name: nn.Linear(5, width) for name, width in outputs.items()})

        def forward(self, obs, state):
            new = self.cell(obs, state[0])
            return {name: head(torch.tanh(new)) for name, head in self.heads.items()}, [new]

    return Memory()


def torch_script(obs_space, action_space, outputs):
    import torch
    from torch import nn

    return torch.jit.script(nn.Sequential(nn.Linear(obs_space.shape[0], 7), nn.Tanh(), nn.Linear(7, outputs["logits"])))


CUSTOM = [
    *((keras_model, mode, form) for mode in ("tf", "tf2-traced") for form in ("keras", "saved_model")),
    *((keras_memory, "tf2", form) for form in ("keras", "saved_model")),
    *((torch_model, "torch", form) for form in ("torchscript", "torch_export", "onnx")),
    *((torch_memory, "torch", form) for form in ("torchscript", "torch_export")),
    (torch_script, "torch", "torchscript"),
]

#: What is exported: arguments of `make`.
KINDS = {
    "mlp": {},
    "lstm": {"model": {"use_lstm": True, **MEMORY}, "action_space": S.MultiDiscrete([2, 3], start=[5, 7])},
    "gru": {"model": {"use_gru": True, "lstm_cell_size": 6}, "share": True},
    "attention": {"model": ATTENTION},
    "mixed": {
        "obs_space": MIXED,
        "action_space": S.Discrete(5),
        "model": {"conv_filters": [[4, [4, 4], 2], [8, [10, 10], 1]]},
        "observation_filter": "MeanStdFilter",
    },
    "log_std": {"action_space": TORQUE, "model": {"free_log_std": True}, "observation_filter": "MeanStdFilter"},
    "parts": {"obs_space": S.Discrete(3, start=4), "action_space": PARTS},
    "beta": {"action_space": TORQUE, "model": {"custom_action_dist": "Beta"}},
}
#: Mode and formats of each kind: a network of every kind goes through both frameworks' exporters.
CELLS = [
    *(("mlp", mode, form) for mode in MODE_IDS for form in FORMATS if form != "onnx" or mode == "torch"),
    *(("lstm", "torch", form) for form in FORMATS),
    *(("mixed", "tf2-traced", form) for form in FORMATS),
    *(("log_std", "tf", form) for form in ("keras", "saved_model", "torchscript")),
    *(("gru", "torch", form) for form in ("keras", "torch_export")),
    *(("attention", "tf2-traced", form) for form in ("keras", "torch_export")),
    *(("parts", "torch", form) for form in ("keras", "saved_model", "torchscript")),
    *(("beta", "torch", form) for form in ("keras", "torch_export")),
]


def possible(cell):
    """Whether the frameworks of a cell are installed."""
    _, mode, form = cell
    return has(MODE[mode][0]) and has(FORMATS[form].framework) and (form != "onnx" or HAS_ONNX)


def build(kind, mode):
    """A policy far from its first weights, with a filter that has seen something."""
    policy = make(MODE[mode], **(KINDS[kind] if isinstance(kind, str) else {"model": {"custom_model": kind}}))
    weights = spread(policy.get_weights(), scale={"mixed": 0.05}.get(kind, 0.3 if isinstance(kind, str) else 1.0))
    if not isinstance(kind, str):
        # Variances of batch norm stay positive, and shifts small, or every observation gets the same action.
        small = ("bias", "mean", "beta")
        weights = {k: np.abs(w) if "var" in k else 0.1 * w if k.endswith(small) else w for k, w in weights.items()}
    policy.set_weights(weights)
    if not policy.filter.identity:
        seen = flatten(policy.observation_space, sample(policy.observation_space, 50, 9))
        policy.filter({name: 3 * x + 1 if x.dtype.kind == "f" else x for name, x in seen.items()})
    return policy


def sample(space, rows, seed):
    """Observations, nested; in action masks every second action is allowed."""
    flat = {}
    for i, (name, part) in enumerate(leaves(space).items()):
        x = sample_space(part, rows, seed + i)
        flat[name] = x.astype(np.float32) if x.dtype == np.float64 else x
        if name.endswith("action_mask"):
            flat[name] = (np.arange(rows)[:, None] + np.arange(part.shape[0])) % 2
            flat[name] = flat[name].astype(part.dtype)
    return unflatten(space, flat)


def inputs_of(policy, rows=ROWS, seed=3):
    """What the exported model takes, by column, and the policy's own outputs for it."""
    rng = np.random.default_rng(seed)
    obs = sample(policy.observation_space, rows, seed)
    given = dict(flatten(policy.observation_space, obs))
    states = [rng.standard_normal((rows, *s.shape)).astype(np.float32) for s in policy.get_initial_state()]
    given |= {f"state_{i}": state for i, state in enumerate(states)}
    previous = {}
    if "prev_actions" in policy.inputs.previous:
        previous["prev_actions"] = sample_space(policy.action_space, rows, seed)
    if "prev_rewards" in policy.inputs.previous:
        previous["prev_rewards"] = rng.standard_normal(rows).astype(np.float32)
    given |= previous
    out = policy.compute_actions(obs, states or None, explore=False, **previous)
    filtered = unflatten(policy.observation_space, policy.filter(flatten(policy.observation_space, obs), update=False))
    value = policy.compute_values(filtered, states or None, **previous)
    expected = {"logits": out.extras["action_dist_inputs"], "value": value}
    expected |= {name.replace("/", "_"): x for name, x in flatten(policy.action_space, out.actions, "actions").items()}
    expected |= {f"state_out_{i}": state for i, state in enumerate(out.state)}
    return given, expected


def reload_all(folder, items):
    """Outputs of exported models: `items` are `(format, path, inputs by name)`."""
    manifest = []
    for i, (form, path, given) in enumerate(items):
        np.savez(folder / f"inputs-{i}.npz", **given)
        manifest.append([form, str(path), str(folder / f"inputs-{i}.npz"), str(folder / f"outputs-{i}.npz")])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    script = Path(__file__).with_name("reload.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [dict(np.load(entry[3])) for entry in manifest]


def described_inputs(path):
    """The names of a model's inputs by column, from the file beside it."""
    description = json.loads(Path(f"{path}.json").read_text())
    return {item["column"]: item["name"] for item in description["inputs"]}


def check(got, expected):
    """The policy's numbers, and for one row alone the same as in a batch."""
    assert set(expected) | {f"one_{name}" for name in expected} == set(got)
    for name, want in expected.items():
        if name.startswith("actions") and want.dtype.kind != "f":
            assert (got[name] == want).all(), name
            assert len(np.unique(want)) > 1, "the test means little if all actions are the same"
        else:
            np.testing.assert_allclose(got[name], want, atol=1e-5, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(got[f"one_{name}"], got[name][:1], atol=1e-5, rtol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """`(got, expected)` of every cell that the installed frameworks allow; one process loads them all."""
    folder = tmp_path_factory.mktemp("export")
    cells = [cell for cell in (*CELLS, *CUSTOM) if possible(cell)]
    policies, items, expected = {}, [], {}
    for cell in cells:
        kind, mode, form = cell
        if (kind, mode) not in policies:
            policies[kind, mode] = build(kind, mode)
        policy = policies[kind, mode]
        path = policy.export_model(folder / f"{getattr(kind, '__name__', kind)}-{mode}", form)
        names = described_inputs(path)
        given, expected[cell] = inputs_of(policy)
        items.append((form, path, {names[column]: x for column, x in given.items()}))
    for policy in policies.values():
        policy.close()
    results = reload_all(folder, items)
    return {cell: (got, expected[cell]) for cell, got in zip(cells, results, strict=True)}


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_reloaded_without_polylib_it_acts_as_the_policy_does(reloaded, cell):
    if not possible(cell):
        pytest.skip("its framework isn't installed")
    check(*reloaded[cell])


def test_every_kind_goes_through_both_frameworks():
    done = {(kind, FORMATS[form].framework) for kind, _, form in CELLS}
    assert done == {(kind, framework) for kind in KINDS for framework in ("tf", "torch")}


@pytest.mark.parametrize("cell", CUSTOM, ids=lambda cell: f"{cell[0].__name__}-{cell[1]}-{cell[2]}")
def test_users_models(reloaded, cell):
    if not possible(cell):
        pytest.skip("its framework isn't installed")
    check(*reloaded[cell])


@needs_torch
def test_users_models_stay_in_their_framework(tmp_path):
    policy = make(("torch", False), model={"custom_model": torch_model})
    with pytest.raises(ExportError, match="custom_model runs in torch only: choose one of torchscript, torch_exp"):
        policy.export_model(tmp_path, "keras")
    policy = make(("torch", False), model={"custom_model": torch_script})
    with pytest.raises(ExportError, match="can't hold a TorchScript module; choose 'torchscript'"):
        policy.export_model(tmp_path, "torch_export")


def normal(inputs):
    import torch

    mean, std = inputs[:, :2], torch.nn.functional.softplus(inputs[:, 2:])
    return torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)


@needs_torch
def test_a_frameworks_own_distribution_stays_in_it(tmp_path):
    dist = framework_distribution(normal, inputs_size=4)
    policy = make(("torch", False), action_space=TORQUE, model={"custom_action_dist": dist})
    assert policy.export_model(tmp_path, "torch_export").exists()
    if has("tf"):
        with pytest.raises(ExportError, match="'saved_model' is written by tf, and this policy's custom_action_dist"):
            policy.export_model(tmp_path, "saved_model")


@needs_torch
def test_only_what_acting_needs_is_written(tmp_path):
    """SAC's critics and target networks stay behind."""
    import torch

    with get_config_class("SAC")().environment("Pendulum-v1").framework("torch").build() as algo:
        policy = algo.get_policy()
        path = algo.export_policy_model(str(tmp_path), format="torchscript")
        written = torch.jit.load(path)
        obs = sample(policy.observation_space, 20, 0)
        actions = written({"obs": torch.from_numpy(obs)})["actions"].numpy()
        np.testing.assert_allclose(actions, policy.compute_actions(obs, explore=False).actions, atol=1e-5)
    first = next(iter(policy.network_specs))
    assert {name.split(".")[1] for name, _ in written.named_parameters()} == {first}
    assert len(policy.network_specs) > 1


def branching(obs_space, action_space, outputs):
    """A model that a tracer can't follow: small batches take another way."""
    from torch import nn

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(obs_space.shape[0], outputs["logits"])

        def forward(self, obs):
            return self.layer(obs) if obs.shape[0] < 5 else 2 * self.layer(obs) + 1

    return Branching()


@needs_torch
@pytest.mark.parametrize("form", ["torchscript", "torch_export"])
def test_what_isnt_the_policy_is_refused(tmp_path, form):
    """The check after writing compares with the policy; nothing is left behind."""
    policy = make(("torch", False), model={"custom_model": branching})
    expected = "differs from the policy by .* in 'logits'" if form == "torchscript" else "failed with"
    with pytest.raises(ExportError, match=expected):
        policy.export_model(tmp_path / "out", form)
    assert list((tmp_path / "out").iterdir()) == []


# --- around it


@pytest.fixture(params=[pytest.param("torch", marks=needs_torch), pytest.param("tf", marks=needs_tf)])
def policy(request):
    made = make((request.param, False))
    yield made
    made.close()


def test_exporting_changes_nothing(policy, tmp_path):
    before = policy.get_state()
    space = policy.observation_space.np_random.bit_generator.state
    policy.export_model(tmp_path)
    after = policy.get_state()
    assert before["rng"] == after["rng"] and space == policy.observation_space.np_random.bit_generator.state
    for key, w in before["weights"].items():
        np.testing.assert_array_equal(w, after["weights"][key])


def test_default_format_and_description(policy, tmp_path):
    path = policy.export_model(tmp_path)
    name = {"torch": "model.pt2", "tf": "saved_model"}[policy.framework]
    assert path == tmp_path / name and path.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([name, f"{name}.json"])
    description = json.loads((tmp_path / f"{name}.json").read_text())
    assert description["inputs"] == [{"name": "obs", "column": "obs", "shape": [None, 3], "dtype": "float32"}]
    assert description["outputs"] == [
        {"name": "logits", "shape": [None, 3], "dtype": "float32"},
        {"name": "value", "shape": [None], "dtype": "float32"},
        {"name": "actions", "shape": [None], "dtype": "int64"},
    ]
    assert policy.export_model(tmp_path) == path, "a second export replaces the first"


def test_bad_arguments(policy, tmp_path):
    with pytest.raises(ConfigError, match="unknown format 'onx', expected one of keras, .*Did you mean 'onnx'"):
        policy.export_model(tmp_path, "onx")
    with pytest.raises(ConfigError, match="opset=17 is for format 'onnx', not 'keras'"):
        policy.export_model(tmp_path, "keras", opset=17)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="can't write to .*file"):
        policy.export_model(tmp_path / "file")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@needs_tf
def test_a_folder_of_something_else_is_kept(tmp_path):
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "precious").write_text("x")
    with pytest.raises(ExportError, match="is a folder of something else"):
        make(("tf2", False)).export_model(tmp_path, "saved_model")
    assert (tmp_path / "saved_model" / "precious").read_text() == "x"


@needs_torch
def test_a_numpy_policy_exports_too(tmp_path):
    policy = make(("numpy", False))
    with pytest.raises(ConfigError, match="which format\\? A numpy policy exports to keras, "):
        policy.export_model(tmp_path)
    assert policy.export_model(tmp_path, "torchscript").exists()


@needs_torch
def test_onnx_says_what_to_install(tmp_path, block_import):
    policy = make(("torch", False))
    block_import("onnxscript")
    with pytest.raises(FrameworkError, match=r"needs onnxscript, not installed here: pip install 'polylib\[onnx\]'"):
        policy.export_model(tmp_path, "onnx")


def test_a_missing_framework_is_named(tmp_path, block_import):
    policy = make(("numpy", False))
    block_import("torch")
    with pytest.raises(FrameworkError, match=r"'onnx' is written by torch: .*pip install 'polylib\[torch\]'"):
        policy.export_model(tmp_path, "onnx")


@needs_onnx
def test_opset(tmp_path):
    import onnx

    path = make(("torch", False)).export_model(tmp_path, "onnx", opset=20)
    assert {item.version for item in onnx.load(str(path)).opset_import if not item.domain} == {20}
