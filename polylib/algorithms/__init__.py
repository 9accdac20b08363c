"""Algorithms, one folder each, and what they share: config, algorithm, Tune adapter, registry."""

from polylib.algorithms.tune_hook import install as _install

# Whoever touches an algorithm or its config can go on with `tune.Tuner("PPO")`.
_install()
