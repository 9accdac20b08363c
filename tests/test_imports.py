"""Who may import whom: the rules of ARCHITECTURE.md, checked on every import in the source.

The tables come first: a new package, layer or dependency means a new line there. Imports under `if TYPE_CHECKING`
run never, so only the rule about `ray.rllib` counts for them; imports inside functions count like any other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Layer -> its files. The first match wins; `*` matches slashes too.
LAYERS = {
    "root": ["polylib/__init__.py"],
    "base": [
        "polylib/errors.py",
        "polylib/threads.py",
        "polylib/profiling.py",
        "polylib/atari_ids.py",
        "polylib/registry.py",
        "polylib/schedules.py",
        "polylib/checkpoints.py",
        "polylib/json_values.py",
        "polylib/spaces_json.py",
        "polylib/utils/*",
        "polylib/policy/sample_batch.py",
        "polylib/policy/fragment.py",
        "polylib/policy/columns.py",
    ],
    "tf": ["polylib/policy/tf/*"],
    "torch": ["polylib/policy/torch/*"],
    "numpy": ["polylib/policy/numpy/*"],
    "policy": ["polylib/policy/*", "polylib/models/*", "polylib/callbacks.py"],
    "offline": ["polylib/offline/*"],
    "evaluation": ["polylib/evaluation/*", "polylib/env/*"],
    "execution": ["polylib/execution/*"],
    "algorithms": ["polylib/algorithms/*"],
    "cli": ["polylib/cli/*", "polylib/__main__.py"],
}

# Layer -> the layers it may import from. Nobody imports the backends: they are reached by name.
MAY_IMPORT = {
    "root": {"base"},
    "base": {"base"},
    "policy": {"base", "policy"},
    "tf": {"base", "policy", "tf"},
    "torch": {"base", "policy", "torch"},
    "numpy": {"base", "policy", "numpy"},
    "offline": {"base", "policy", "offline"},
    "evaluation": {"base", "policy", "offline", "evaluation"},
    "execution": {"base", "policy", "evaluation", "execution"},
    "algorithms": {"base", "policy", "evaluation", "execution", "algorithms"},
    "cli": {"root", "base", "policy", "offline", "evaluation", "execution", "algorithms", "cli"},
}

# Packages from elsewhere -> the files that may import them.
_ANYWHERE = ["polylib/*"]
_TF = ["polylib/policy/tf/*"]
PACKAGES = {
    "numpy": _ANYWHERE,
    "scipy": _ANYWHERE,
    "gymnasium": _ANYWHERE,
    "tree": _ANYWHERE,
    "absl": _ANYWHERE,
    "yaml": _ANYWHERE,
    "orjson": _ANYWHERE,
    "safetensors": _ANYWHERE,
    "ale_py": ["polylib/atari_ids.py"],
    "envpool": ["polylib/registry.py"],
    "h5py": ["polylib/offline/formats/*"],
    "minari": ["polylib/offline/formats/*"],
    "pyarrow": ["polylib/offline/formats/*"],
    "cv2": ["polylib/env/*", "polylib/models/preprocessors.py"],
    "lz4": ["polylib/offline/*"],
    "pybase64": ["polylib/offline/*"],
    "fsspec": ["polylib/offline/sources.py"],
    "moviepy": ["polylib/env/*", "polylib/evaluation/*", "polylib/cli/*"],
    "pyinstrument": ["polylib/profiling.py"],
    "pytest": ["polylib/policy/testing.py"],
    "tensorboardX": ["polylib/algorithms/trainable.py", "polylib/cli/*"],
    "tensorflow": _TF,
    "tensorflow_probability": _TF,
    "keras": [*_TF, "polylib/models/finished_keras.py"],
    "tf_keras": _TF,
    "torch": ["polylib/policy/torch/*", "polylib/models/finished_torch.py"],
    "onnx": ["polylib/policy/torch/export.py"],
    "onnxruntime": ["polylib/policy/torch/export.py"],
    "ray": [
        "polylib/algorithms/trainable.py",
        "polylib/evaluation/worker_set.py",
        "polylib/env/remote.py",
        "polylib/execution/actors.py",
        "polylib/cli/*",
    ],
}

# The backends by name, as text: who may write "polylib.policy.tf..." in a string (for importlib).
BACKENDS = ("tf", "torch", "numpy")
NAMES_BACKENDS = ["polylib/policy/backends.py", *(f"polylib/policy/{backend}/*" for backend in BACKENDS)]

# From the root package only the version: its other names load whatever they stand for.
ROOT_NAMES = {"__version__"}

# RLlib is a peer to be measured against, nothing to build on. Built up here, so that this file passes its own check.
RLLIB = "ray." + "rllib"
MAY_IMPORT_RLLIB = ["benchmarks/peers/*"]
SOURCE_FOLDERS = ["polylib", "bin", "examples", "tests", "benchmarks"]


@dataclass(frozen=True)
class Rules:
    """What may import what; see the tables above."""

    layers: dict[str, list[str]]
    may_import: dict[str, set[str]]
    packages: dict[str, list[str]]
    names_backends: list[str]


RULES = Rules(LAYERS, MAY_IMPORT, PACKAGES, NAMES_BACKENDS)


@dataclass(frozen=True)
class Import:
    """One imported module, as written: `from a import b` gives module "a", name "b"."""

    line: int
    module: str
    name: str | None = None
    only_types: bool = False


def matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def layer_of(path: str, rules: Rules) -> str | None:
    return next((layer for layer, patterns in rules.layers.items() if matches(path, patterns)), None)


def imports_in(tree: ast.Module, path: str) -> Iterator[Import]:
    """Every import statement and every `import_module("...")` with a constant name."""
    package = list(Path(path).parent.parts)
    for node, only_types in _walk(tree, False):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, None, only_types)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                module = ".".join([*package[: len(package) - node.level + 1], *filter(None, [module])])
            for alias in node.names:
                yield Import(node.lineno, module, alias.name, only_types)
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield Import(node.lineno, argument.value, None, only_types)


def _walk(node: ast.AST, only_types: bool) -> Iterator[tuple[ast.AST, bool]]:
    yield node, only_types
    for child in ast.iter_child_nodes(node):
        guarded = isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING" and child in node.body
        yield from _walk(child, only_types or guarded)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def backend_strings_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that are nothing but the dotted name of something in a backend."""
    pattern = re.compile(rf"polylib\.policy\.({'|'.join(BACKENDS)})([.:][\w.:]*)?")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.fullmatch(node.value):
            yield node.lineno, node.value


def violations(root: Path, files: Iterable[Path], rules: Rules) -> list[str]:
    """The imports in `files` that `rules` don't allow, one line of text each.

    Args:
        root: the folder that holds the package `polylib`.
        files: Python files of `polylib`, under `root`.
        rules: the tables.
    """
    paths = {file.relative_to(root).as_posix(): file for file in files}
    modules = {_module_of(path): path for path in paths}
    found = []
    for path, file in sorted(paths.items()):
        layer = layer_of(path, rules)
        if layer is None:
            found.append(f"{path}: belongs to no layer; add it to LAYERS")
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"), path)
        for item in imports_in(tree, path):
            problem = _problem(path, layer, item, modules, rules)
            if problem:
                found.append(f"{path}:{item.line}: {problem}")
        if not matches(path, rules.names_backends):
            found += [
                f"{path}:{line}: names the backend module {text!r}; only policy/backends.py does that"
                for line, text in backend_strings_in(tree)
            ]
    return found


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _problem(path: str, layer: str, item: Import, modules: dict[str, str], rules: Rules) -> str | None:
    if item.only_types:
        return None
    package = item.module.partition(".")[0]
    if package == "polylib":
        if item.module == "polylib" and item.name in ROOT_NAMES:
            return None
        longer = f"{item.module}.{item.name}"
        target = longer if longer in modules else item.module
        target_layer = _layer_of_module(target, modules, rules)
        if target_layer is None:
            return f"imports {target}, which belongs to no layer"
        if target_layer not in rules.may_import[layer]:
            allowed = ", ".join(sorted(rules.may_import[layer]))
            return f"layer {layer!r} imports {target} of layer {target_layer!r}; it may import: {allowed}"
        return None
    if package in sys.stdlib_module_names:
        return None
    if package not in rules.packages:
        return f"imports {package}, which isn't in PACKAGES: declare it there and in setup.cfg"
    if not matches(path, rules.packages[package]):
        return f"imports {package}; only these may: {', '.join(rules.packages[package])}"
    return None


def _layer_of_module(module: str, modules: dict[str, str], rules: Rules) -> str | None:
    if module in modules:
        return layer_of(modules[module], rules)
    # A module that isn't there (yet) is judged by where it would be: as a file or as a package, whichever says more.
    stem = module.replace(".", "/")
    layers = {layer_of(f"{stem}.py", rules), layer_of(f"{stem}/__init__.py", rules)}
    return next((layer for layer in rules.layers if layer in layers), None)


def rllib_imports(root: Path, files: Iterable[Path]) -> list[str]:
    """Imports of RLlib by statement, by importlib, or in code held in a string."""
    dotted = re.escape(RLLIB)
    text_pattern = re.compile(rf"\b(from|import)\s+{dotted}\b|import_module\(\s*[\"']{dotted}\b")
    found = []
    for file in files:
        path = file.relative_to(root).as_posix()
        if matches(path, MAY_IMPORT_RLLIB):
            continue
        text = file.read_text(encoding="utf-8")
        lines = {text.count("\n", 0, match.start()) + 1 for match in text_pattern.finditer(text)}
        for item in imports_in(ast.parse(text, path), path):
            full = f"{item.module}.{item.name}" if item.name else item.module
            if full == RLLIB or full.startswith(RLLIB + "."):
                lines.add(item.line)
        found += [f"{path}:{line}: imports {RLLIB}" for line in sorted(lines)]
    return found


def source_files(root: Path, folder: str) -> list[Path]:
    """Python files in a folder, scripts without a suffix too; virtual environments and caches left out."""
    files = []
    for file in sorted((root / folder).rglob("*")):
        parts = file.relative_to(root).parts
        if not file.is_file() or any(part.startswith(".") or part == "__pycache__" for part in parts):
            continue
        if file.suffix == ".py" or (not file.suffix and file.read_bytes()[:2] == b"#!" and b"python" in _head(file)):
            files.append(file)
    return files


def _head(file: Path) -> bytes:
    return file.read_bytes().split(b"\n", 1)[0]


# --- the repository ---------------------------------------------------------------------------------------------------


def test_imports_follow_the_layers():
    files = source_files(ROOT, "polylib")
    assert ROOT / "polylib" / "__init__.py" in files
    assert violations(ROOT, files, RULES) == []


def test_rllib_is_imported_nowhere():
    files = [file for folder in SOURCE_FOLDERS for file in source_files(ROOT, folder)]
    assert ROOT / "bin" / "train" in files
    assert rllib_imports(ROOT, files) == []


def run_python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


HEAVY = ["tensorflow", "keras", "tensorflow_probability", "torch", "ray"]
LOADED = f"import sys; print([name for name in {HEAVY} if name in sys.modules])"


def test_importing_polylib_loads_no_framework_and_no_ray():
    assert run_python(f"import polylib; dir(polylib); {LOADED}") == "[]"


@pytest.mark.skipif(not (ROOT / "polylib/algorithms/registry.py").exists(), reason="no algorithms yet")
def test_looking_up_an_algorithms_config_loads_no_framework_and_no_ray():
    code = "from polylib.algorithms.registry import get_config_class; get_config_class('PPO')()"
    assert run_python(f"{code}; {LOADED}") == "[]"


def test_no_file_names_a_machine_or_an_index():
    """Paths of the machine a file was written on, and hosts of package indexes, stay out of the repository."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    # In two parts, so that this file passes.
    forbidden = ["/wor" + "k/", "/roo" + "t/", "files.python" + "hosted", "pypi.org" + "/simple"]
    found = []
    for name in filter(None, listed.decode().split("\0")):
        file = ROOT / name
        if not file.is_file():  # deleted or a link to nowhere
            continue
        content = file.read_bytes()
        found += [f"{name}: contains {word}" for word in forbidden if word.encode() in content]
    assert found == []


# --- the checker: it finds what is planted ----------------------------------------------------------------------------

PLANTED = {
    "a layer above": (
        "polylib/policy/policy.py",
        "from polylib.evaluation.sampler import Sampler",
        "policy/policy.py:1: layer 'policy' imports polylib.evaluation.sampler of layer 'evaluation'",
    ),
    "a layer above, inside a function": (
        "polylib/policy/sample_batch.py",
        "def f():\n    import polylib.models.networks",
        "sample_batch.py:2: layer 'base' imports polylib.models.networks",
    ),
    "a layer above, relatively": (
        "polylib/models/networks.py",
        "from ..evaluation import sampler",
        "layer 'policy' imports polylib.evaluation.sampler",
    ),
    "a sibling backend": (
        "polylib/policy/torch/policy.py",
        "from polylib.policy.tf import core",
        "layer 'torch' imports polylib.policy.tf",
    ),
    "a backend from the policies": (
        "polylib/policy/backends.py",
        "import polylib.policy.tf.core",
        "layer 'policy' imports polylib.policy.tf.core",
    ),
    "a backend from the command line": (
        "polylib/cli/train.py",
        "from polylib.policy import torch",
        "layer 'cli' imports polylib.policy.torch",
    ),
    "a backend by import_module": (
        "polylib/algorithms/algorithm.py",
        "import importlib\nimportlib.import_module('polylib.policy.tf.core')",
        "layer 'algorithms' imports polylib.policy.tf.core",
    ),
    "a backend by name": (
        "polylib/algorithms/algorithm.py",
        "NAME = 'polylib.policy.tf.graph_policy:GraphPolicy'",
        "only policy/backends.py does that",
    ),
    "workers from a reader": (
        "polylib/offline/json_reader.py",
        "from polylib.evaluation import rollout_worker",
        "layer 'offline' imports polylib.evaluation",
    ),
    "the root package": (
        "polylib/models/networks.py",
        "from polylib import PPO",
        "layer 'policy' imports polylib of layer 'root'",
    ),
    "a framework in an algorithm": (
        "polylib/algorithms/ppo/loss.py",
        "import tensorflow as tf",
        "imports tensorflow; only these may: polylib/policy/tf/*",
    ),
    "the other framework in a backend": (
        "polylib/policy/tf/core.py",
        "import torch.nn",
        "imports torch; only these may",
    ),
    "Ray outside its files": (
        "polylib/evaluation/rollout_worker.py",
        "def f():\n    import ray",
        "rollout_worker.py:2: imports ray; only these may",
    ),
    "an undeclared package": ("polylib/schedules.py", "import pandas", "imports pandas, which isn't in PACKAGES"),
    "a module without a layer": ("polylib/helpers.py", "", "polylib/helpers.py: belongs to no layer"),
}

FINE = {
    "polylib/policy/backends.py": "NAMES = {'tf': 'polylib.policy.tf.graph_policy:GraphPolicy'}",
    "polylib/policy/policy.py": "from __future__ import annotations\nimport numpy as np\nfrom polylib import errors",
    "polylib/policy/tf/core.py": "import tensorflow as tf\nimport keras\nfrom ..objective import Objective\n",
    "polylib/policy/objective.py": "class Objective: 'in place of polylib.policy.tf, say'",
    "polylib/evaluation/worker_set.py": "import ray\nfrom polylib import __version__",
    "polylib/evaluation/sampler.py": (
        "import typing\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import ray\n    import torch\n"
        "if typing.TYPE_CHECKING:\n    from polylib.policy.tf.core import Core\nelse:\n    Core = None\n"
    ),
    "polylib/cli/train.py": "import ray\nfrom polylib import PPO\nfrom polylib.algorithms import algorithm",
}


def write(root: Path, files: dict[str, str]) -> list[Path]:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return [root / path for path in files]


def test_the_checker_accepts_what_is_allowed(tmp_path):
    assert violations(tmp_path, write(tmp_path, {**FINE, "polylib/errors.py": ""}), RULES) == []


@pytest.mark.parametrize("case", PLANTED)
def test_the_checker_finds_a_planted_violation(tmp_path, case):
    path, text, expected = PLANTED[case]
    others = {"polylib/evaluation/sampler.py": "", "polylib/policy/torch/__init__.py": ""}
    found = violations(tmp_path, write(tmp_path, {**others, path: text}), RULES)
    assert len(found) >= 1 and expected in found[0], found


def test_the_else_of_type_checking_counts(tmp_path):
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import torch\n"
    assert len(violations(tmp_path, write(tmp_path, {"polylib/schedules.py": text}), RULES)) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"import {RLLIB}",
        f"from {RLLIB}.algorithms import ppo",
        f"from {RLLIB.replace('.', ' import ')}",
        f"import importlib\nimportlib.import_module('{RLLIB}.utils')",
        f"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {RLLIB}",
        f"CODE = 'import {RLLIB}'",
    ],
)
def test_the_checker_finds_rllib(tmp_path, text):
    files = write(tmp_path, {"examples/a.py": text, "benchmarks/peers/b.py": text})
    found = rllib_imports(tmp_path, files)
    assert len(found) == 1 and found[0].startswith("examples/a.py"), found


def test_speaking_of_rllib_is_allowed(tmp_path):
    text = f"'''Reads what {RLLIB} writes.'''\nimport sys\nassert '{RLLIB}' not in sys.modules\n"
    assert rllib_imports(tmp_path, write(tmp_path, {"tests/a.py": text})) == []
