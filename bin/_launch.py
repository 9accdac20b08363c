"""Runs polylib's command line from this checkout, with whichever Python has its dependencies."""

import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")


def run(*command):
    """Runs `polylib *command ...` with the rest of the arguments; starts again in .venv if need be."""
    missing = [name for name in ("numpy", "gymnasium", "tree", "absl", "ray") if not importlib.util.find_spec(name)]
    python = os.path.join(VENV, "bin", "python")
    if missing and os.path.exists(python) and os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        os.execv(python, [python, *sys.argv])
    if missing:
        sys.exit(f"{sys.executable} lacks polylib's dependencies ({', '.join(missing)}): run `make venv` first")
    # Ray's worker processes read it too, and so import the same checkout.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    sys.path.insert(0, ROOT)
    from polylib.cli.main import main

    sys.exit(main([*command, *sys.argv[1:]]))
