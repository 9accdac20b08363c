"""Run by test_export.py in a process of its own: loads exported models without polylib, and computes their outputs.

    python reload.py FOLDER

FOLDER/manifest.json lists `[format, path, inputs.npz, outputs.npz]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


class NoPolylib:
    """An import finder that stands before all others."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "polylib":
            raise ModuleNotFoundError(f"{name} is blocked", name=name)


def load_torch(path, form):
    import torch

    model = torch.jit.load(path) if form == "torchscript" else torch.export.load(path).module()

    def call(inputs):
        with torch.no_grad():
            out = model({name: torch.from_numpy(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in out.items()}

    return call


def load_onnx(path, form):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def load_tf(path, form):
    import tensorflow as tf

    if form == "keras":
        import keras

        model = keras.models.load_model(path)
    else:
        loaded = tf.saved_model.load(path)  # the signature doesn't keep it alive
        model = lambda inputs: loaded.signatures["serving_default"](**inputs)  # noqa: E731

    def call(inputs):
        out = model({name: tf.constant(x) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in out.items()}

    return call


LOAD = {
    **dict.fromkeys(("keras", "saved_model"), load_tf),
    **dict.fromkeys(("torchscript", "torch_export"), load_torch),
    "onnx": load_onnx,
}


def main(folder):
    sys.meta_path.insert(0, NoPolylib())
    try:
        import polylib
    except ModuleNotFoundError:
        pass
    else:
        raise SystemExit(f"polylib could be imported: {polylib}")
    for form, path, given, results in json.loads((folder / "manifest.json").read_text()):
        with np.load(given) as arrays:
            inputs = dict(arrays)
        call = LOAD[form](path, form)
        out, one = call(inputs), call({name: x[:1] for name, x in inputs.items()})
        np.savez(results, **out, **{f"one_{name}": x for name, x in one.items()})
    assert "polylib" not in sys.modules


if __name__ == "__main__":
    main(Path(sys.argv[1]))
